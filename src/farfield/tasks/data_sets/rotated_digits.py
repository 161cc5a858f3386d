"""rotated-digits: handwritten digits, each turned by the angle of its domain.

RotatedMNIST as FedIIR builds it (deal the shuffled images to six domains, turn domain i by 15·i degrees), made of the
1,797 8×8 digits that come with scikit-learn, so that it needs no download and trains in seconds.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from farfield.models.spec import ModelSpec
from farfield.tasks.registry import register
from farfield.tasks.task import Domain, Task

ANGLES = (0, 15, 30, 45, 60, 75)
#: Fixed, so that the domains are the same data for everyone: a run's seed must not change the question.
SHUFFLE_SEED = 0


def image_numbers(images: int) -> tuple[NDArray[np.int64], ...]:
    """Which images go to which domain, by their number in scikit-learn's order. Each goes to exactly one."""
    order = np.random.Generator(np.random.PCG64(SHUFFLE_SEED)).permutation(images)
    return tuple(order[i :: len(ANGLES)] for i in range(len(ANGLES)))


def turn(images: NDArray[np.float64], degrees: float) -> NDArray[np.float64]:
    """Images [n, height, width] turned counter-clockwise as seen on a page, bilinearly, with 0 outside."""
    if degrees == 0:
        return images
    from scipy.ndimage import rotate  # here, because it takes a second that a command without this task need not pay

    turned: NDArray[np.float64] = rotate(images, degrees, axes=(2, 1), reshape=False, order=1, cval=0.0)
    return turned


@register(
    "rotated-digits",
    summary="8x8 handwritten digits, turned by 0 to 75 degrees",
    domains=tuple(str(angle) for angle in ANGLES),
    classes=10,
    kind="classification",
)
def load() -> Task:
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = digits.images / 16.0
    domains = []
    for angle, numbers in zip(ANGLES, image_numbers(len(pixels)), strict=True):
        x = torch.from_numpy(turn(pixels[numbers], angle).astype(np.float32)).unsqueeze(1)
        domains.append(Domain(str(angle), x, torch.from_numpy(digits.target[numbers].astype(np.int64))))
    return Task(
        name="rotated-digits",
        kind="classification",
        domains=tuple(domains),
        classes=tuple(str(digit) for digit in range(10)),
        model=ModelSpec(featurizer="mlp", input_shape=(1, 8, 8), outputs=10, hidden=(64, 64), head="linear"),
        defaults={"rounds": 30, "local_epochs": 2, "batch_size": 32, "lr": 0.3, "momentum": 0.0},
        description="Handwritten digits in six domains; domain d holds images turned counter-clockwise by d degrees.",
        source="scikit-learn's load_digits, from the UCI data set Optical Recognition of Handwritten Digits "
        "(Alpaydin and Kaynak, 1998)",
    )
