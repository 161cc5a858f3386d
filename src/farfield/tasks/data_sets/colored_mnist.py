"""colored-mnist: is the digit below 5? The colour says so too, and lies more often from client to client.

Built as in FedILC's published code: of MNIST's 60,000 training images the first 50,000 are shuffled and dealt to five
clients, the last 10,000 are the held-out domain. The label is 1 for a digit below 5. A client's colour is the label,
flipped with its own probability; in the held-out domain labels are flipped first (15 %), and the colour is the wrong
one nine times out of ten. Every second pixel in both directions, two channels of which one is empty: 2×14×14.

`colored-mnist-irm` is the original of Arjovsky et al. (2019): two training environments whose colours are flipped by
20 % and 10 %, a test environment with 90 %, and a quarter of all labels flipped.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from farfield.models.spec import ModelSpec
from farfield.reproducibility.randomness import derive_seed
from farfield.tasks.data_sets.array_sets import Bytes, available, read
from farfield.tasks.registry import register
from farfield.tasks.task import Domain, Task

#: Fixed, so that the domains are the same data for everyone: a run's seed must not change the question.
SEED = 0
CLASSES = ("5 to 9", "0 to 4")


@dataclass(frozen=True)
class Shade:
    """One domain: how often its labels, and then its colours, are flipped."""

    name: str
    colour_flips: float
    label_flips: float


FEDILC = (
    *(Shade(f"flip-{percent}", percent / 100, 0.0) for percent in (15, 30, 45, 60, 75)),
    Shade("ood", 0.90, 0.15),
)
IRM = (Shade("flip-20", 0.20, 0.25), Shade("flip-10", 0.10, 0.25), Shade("flip-90", 0.90, 0.25))


def colour(images: Bytes, digits: Bytes, label_flip: Bytes, colour_flip: Bytes) -> tuple[Bytes, Bytes]:
    """Images [n, 2, 14, 14] and labels; the flips are 0 or 1 for each image."""
    labels = (digits < 5).astype(np.uint8) ^ label_flip
    channel = labels ^ colour_flip
    small = images[:, ::2, ::2]
    coloured = np.zeros((len(small), 2, *small.shape[1:]), np.uint8)
    coloured[np.arange(len(small)), channel] = small
    return coloured, labels


def deal(images: int, sources: int) -> list[np.ndarray]:
    """Row numbers of each domain: the first 5/6 shuffled and dealt to the sources in turn, the rest held out."""
    first = images * 5 // 6
    order = np.random.Generator(np.random.PCG64(derive_seed(SEED, "colored-mnist", "order"))).permutation(first)
    return [*(order[i::sources] for i in range(sources)), np.arange(first, images)]


def build(name: str, images: Bytes, digits: Bytes, shades: tuple[Shade, ...]) -> tuple[Domain, ...]:
    domains = []
    for shade, rows in zip(shades, deal(len(images), len(shades) - 1), strict=True):
        draw = np.random.Generator(np.random.PCG64(derive_seed(SEED, name, shade.name)))
        label_flip = (draw.random(len(rows)) < shade.label_flips).astype(np.uint8)
        colour_flip = (draw.random(len(rows)) < shade.colour_flips).astype(np.uint8)
        x, y = colour(images[rows], digits[rows], label_flip, colour_flip)
        domains.append(Domain(shade.name, torch.from_numpy(x), torch.from_numpy(y.astype(np.int64))))
    return tuple(domains)


def _task(name: str, shades: tuple[Shade, ...], description: str, source: str) -> Task:
    digits = read(name, "mnist")
    return Task(
        name=name,
        kind="classification",
        domains=build(name, digits.x_train, digits.y_train, shades),
        classes=CLASSES,
        model=ModelSpec(featurizer="mlp", input_shape=(2, 14, 14), outputs=1, hidden=(390, 390), init="xavier"),
        defaults={"rounds": 20, "local_steps": 5, "batch_size": 256, "lr": 0.1},
        description=description,
        source=source,
        held_out=(shades[-1].name,),
        notes=digits.notes,
    )


@register(
    "colored-mnist",
    summary="digits below 5 or not, with a colour that misleads; FedILC's five clients",
    domains=tuple(shade.name for shade in FEDILC),
    classes=2,
    kind="classification",
    available=lambda: available("mnist"),
)
def load() -> Task:
    return _task(
        "colored-mnist",
        FEDILC,
        "Digits below 5 or not; domain flip-p colours p percent of its images against their label, and in ood the "
        "colour is wrong for 90 percent and the label for 15.",
        "MNIST (LeCun, Cortes, Burges); construction of Zhu et al., FedILC, 2022",
    )


@register(
    "colored-mnist-irm",
    summary="digits below 5 or not, with a colour that misleads; the original two environments",
    domains=tuple(shade.name for shade in IRM),
    classes=2,
    kind="classification",
    available=lambda: available("mnist"),
)
def load_irm() -> Task:
    return _task(
        "colored-mnist-irm",
        IRM,
        "Digits below 5 or not, a quarter of the labels wrong; domain flip-p colours p percent of its images against "
        "their label.",
        "MNIST (LeCun, Cortes, Burges); construction of Arjovsky et al., Invariant Risk Minimization, 2019",
    )
