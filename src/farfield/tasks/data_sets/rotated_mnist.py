"""rotated-mnist: all 70,000 digits of MNIST, dealt to six domains and turned by 0 to 75 degrees (FedIIR).

Training and test images together, shuffled; domain i gets every sixth image from the i-th on and turns it by 15·i
degrees, bilinearly, with black outside. Each image is in exactly one domain.
"""

from __future__ import annotations

import numpy as np
import torch

from farfield.models.spec import ModelSpec
from farfield.tasks.data_sets.array_sets import available, read
from farfield.tasks.data_sets.pictures import as_channels, turn_bytes
from farfield.tasks.data_sets.rotated_digits import ANGLES, image_numbers
from farfield.tasks.registry import register
from farfield.tasks.task import Domain, Task


@register(
    "rotated-mnist",
    summary="MNIST, turned by 0 to 75 degrees (FedIIR)",
    domains=tuple(str(angle) for angle in ANGLES),
    classes=10,
    kind="classification",
    available=lambda: available("mnist"),
)
def load() -> Task:
    digits = read("rotated-mnist", "mnist")
    images = np.concatenate([digits.x_train, digits.x_test])
    labels = np.concatenate([digits.y_train, digits.y_test])
    domains = []
    for angle, numbers in zip(ANGLES, image_numbers(len(images)), strict=True):
        chosen = images[numbers]
        x = as_channels(turn_bytes(chosen, angle) if angle else chosen)
        domains.append(Domain(str(angle), x, torch.from_numpy(labels[numbers].astype(np.int64))))
    return Task(
        name="rotated-mnist",
        kind="classification",
        domains=tuple(domains),
        classes=tuple(str(digit) for digit in range(10)),
        # The paper's own is fifty times the work: preset fediir/rotated-mnist.
        model=ModelSpec(
            featurizer="convnet", input_shape=(1, 28, 28), outputs=10, hidden=(8, 16, 32, 64), norm="group"
        ),
        defaults={"rounds": 30, "local_steps": 10, "batch_size": 64, "lr": 0.1, "momentum": 0.9},
        description="Handwritten digits in six domains; domain d holds images turned counter-clockwise by d degrees.",
        source="MNIST (LeCun, Cortes, Burges); construction of Guo et al., FedIIR, ICML 2023",
        notes=digits.notes,
    )
