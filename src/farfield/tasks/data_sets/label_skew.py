"""mnist, emnist, cifar10, cifar100: one data set over a hundred clients with few classes each (FedOMG, section 6).

There is no natural domain here. The rows that clients train on are the domain `train`, the official test rows the
domain `test`, which is held out: the question is plain federated learning under label skew. The hundred clients come
from the partition `dirichlet:0.1`, which these tasks have as their default; give --clients and --partition for others.
"""

from __future__ import annotations

import numpy as np
import torch

from farfield.models.spec import ModelSpec
from farfield.tasks.data_sets.array_sets import SETS, available, read
from farfield.tasks.data_sets.pictures import as_channels
from farfield.tasks.registry import register
from farfield.tasks.task import Domain, Task

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_DIGITS = tuple(str(digit) for digit in range(10))
#: Alpha of the paper's harder setting, and its number of clients.
PARTITION, CLIENTS = "dirichlet:0.1", 100
DOMAINS = ("train", "test")


def _task(name: str, classes: tuple[str, ...], description: str, source: str) -> Task:
    arrays = read(name, name)
    domains = tuple(
        Domain(split, as_channels(x), torch.from_numpy(y.astype(np.int64)))
        for split, x, y in (("train", arrays.x_train, arrays.y_train), ("test", arrays.x_test, arrays.y_test))
    )
    return Task(
        name=name,
        kind="classification",
        domains=domains,
        classes=classes,
        model=ModelSpec(
            featurizer="fedavg-cnn",
            input_shape=tuple(domains[0].x.shape[1:]),
            outputs=SETS[name].classes,
            hidden=(32, 64, 512),
        ),
        defaults={
            "partition": PARTITION,
            "clients": CLIENTS,
            "cohort": 10,
            "rounds": 30,
            "local_steps": 5,
            "batch_size": 16,
            "lr": 0.05,
        },
        description=description,
        source=source,
        held_out=("test",),
        notes=arrays.notes,
    )


@register(
    "mnist",
    summary="MNIST over 100 clients with label skew; the test images are held out (FedOMG)",
    domains=DOMAINS,
    classes=10,
    kind="classification",
    available=lambda: available("mnist"),
)
def load_mnist() -> Task:
    return _task("mnist", _DIGITS, "Handwritten digits.", "MNIST (LeCun, Cortes, Burges)")


@register(
    "emnist",
    summary="EMNIST's ten digits over 100 clients with label skew; the test images are held out (FedOMG)",
    domains=DOMAINS,
    classes=10,
    kind="classification",
    available=lambda: available("emnist"),
)
def load_emnist() -> Task:
    return _task("emnist", _DIGITS, "Handwritten digits.", "EMNIST, split 'mnist' (Cohen et al., 2017)")


@register(
    "cifar10",
    summary="CIFAR-10 over 100 clients with label skew; the test images are held out (FedOMG)",
    domains=DOMAINS,
    classes=10,
    kind="classification",
    available=lambda: available("cifar10"),
)
def load_cifar10() -> Task:
    return _task("cifar10", CIFAR10_CLASSES, "Photographs of ten kinds of things.", "CIFAR-10 (Krizhevsky, 2009)")


@register(
    "cifar100",
    summary="CIFAR-100 over 100 clients with label skew; the test images are held out (FedOMG)",
    domains=DOMAINS,
    classes=100,
    kind="classification",
    available=lambda: available("cifar100"),
)
def load_cifar100() -> Task:
    classes = tuple(f"class {number}" for number in range(100))
    return _task("cifar100", classes, "Photographs of a hundred kinds of things.", "CIFAR-100 (Krizhevsky, 2009)")
