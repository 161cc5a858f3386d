"""rotated-cifar10: nine angles at three clients, and a held-out domain with any angle (FedILC, table 1).

Of CIFAR-10's training images the first four fifths are shuffled and dealt to nine sub-environments, each turned by its
own angle; three of them make a client (partition `sub-environments`). The last fifth is the held-out domain, each image
turned by an angle drawn once between -90 and 90 degrees. Pixels are looked up (nearest), as in the published code.

`rotated-cifar10` keeps the 32×32 pixels that the paper speaks of. `rotated-cifar10-16` takes every second pixel before
it turns the images, as the published code does.
"""

from __future__ import annotations

import numpy as np
import torch

from farfield.models.spec import ModelSpec
from farfield.reproducibility.randomness import derive_seed
from farfield.tasks.data_sets.array_sets import Bytes, available, read
from farfield.tasks.data_sets.label_skew import CIFAR10_CLASSES
from farfield.tasks.data_sets.pictures import as_channels, turn_bytes
from farfield.tasks.registry import register
from farfield.tasks.task import Domain, Task

#: The angles of each client's sub-environments, counter-clockwise: table 1 of the paper.
CLIENTS = ((10, 25, 40), (60, 75, 90), (-10, -40, -90))
ANGLES = tuple(angle for client in CLIENTS for angle in client)
#: Fixed, so that the domains are the same data for everyone: a run's seed must not change the question.
SEED = 0


def domain_name(angle: int) -> str:
    # Without the sign, which a command line would take for an option.
    return str(angle) if angle >= 0 else f"minus-{-angle}"


NAMES = (*(domain_name(angle) for angle in ANGLES), "ood")


def deal(images: int) -> list[np.ndarray]:
    """Row numbers of the nine sub-environments and of the held-out domain."""
    first = images * 4 // 5
    order = np.random.Generator(np.random.PCG64(derive_seed(SEED, "rotated-cifar10", "order"))).permutation(first)
    return [*(order[j :: len(ANGLES)] for j in range(len(ANGLES))), np.arange(first, images)]


def any_angles(images: int) -> np.ndarray:
    """The held-out images' angles."""
    return np.random.Generator(np.random.PCG64(derive_seed(SEED, "rotated-cifar10", "ood"))).uniform(-90, 90, images)


def build(images: Bytes, labels: Bytes) -> tuple[Domain, ...]:
    *parts, rest = deal(len(images))
    angles: list[float | np.ndarray] = [*ANGLES, any_angles(len(rest))]
    return tuple(
        Domain(
            name,
            as_channels(turn_bytes(images[rows], angle, "nearest")),
            torch.from_numpy(labels[rows].astype(np.int64)),
        )
        for name, rows, angle in zip(NAMES, [*parts, rest], angles, strict=True)
    )


def _task(name: str, size: int) -> Task:
    pictures = read(name, "cifar10")
    step = 32 // size
    return Task(
        name=name,
        kind="classification",
        domains=build(pictures.x_train[:, ::step, ::step], pictures.y_train),
        classes=CIFAR10_CLASSES,
        model=ModelSpec(
            featurizer="fedilc-cnn", input_shape=(3, size, size), outputs=10, hidden=(64, 128, 128, 128), norm="group"
        ),
        defaults={
            "partition": "sub-environments",
            "clients": len(CLIENTS),
            "rounds": 20,
            "local_steps": 10,
            "batch_size": 64,
            "lr": 0.05,
            "momentum": 0.9,
        },
        description="Photographs of ten kinds of things, turned; three clients of three angles each, and any angle "
        "from -90 to 90 degrees in ood.",
        source="CIFAR-10 (Krizhevsky, 2009); construction of Zhu et al., FedILC, 2022",
        held_out=("ood",),
        notes=pictures.notes,
    )


@register(
    "rotated-cifar10",
    summary="CIFAR-10, turned; three clients of three angles each (FedILC), 32x32",
    domains=NAMES,
    classes=10,
    kind="classification",
    available=lambda: available("cifar10"),
)
def load() -> Task:
    return _task("rotated-cifar10", 32)


@register(
    "rotated-cifar10-16",
    summary="the same at 16x16, as in FedILC's published code",
    domains=NAMES,
    classes=10,
    kind="classification",
    available=lambda: available("cifar10"),
)
def load_16() -> Task:
    return _task("rotated-cifar10-16", 16)
