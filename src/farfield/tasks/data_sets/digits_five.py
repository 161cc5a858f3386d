"""digits-five: the ten digits in five collections: handwritten, over photographs, scanned, on houses, from fonts.

The domains are those whose files are here, at least two of MNIST, MNIST-M, USPS, SVHN and SynthDigits; the task's
notes name the ones that are missing. Each domain is its training and test images together, 3×32×32: grey images
get three equal channels, and images of another size are resized bilinearly.
"""

from __future__ import annotations

import numpy as np
import torch

from farfield.models.spec import ModelSpec
from farfield.tasks.data_folder.store import MissingData, data_folders, ways_to_get
from farfield.tasks.data_sets.array_sets import SETS, Arrays, available, read
from farfield.tasks.data_sets.pictures import as_colour
from farfield.tasks.registry import register
from farfield.tasks.task import Domain, Task

COLLECTIONS = ("mnist", "mnist_m", "usps", "svhn", "synth_digits")
SIZE = 32


def here() -> tuple[str, ...]:
    """The collections whose files are here."""
    return tuple(name for name in COLLECTIONS if available(name))


def _domain(name: str, arrays: Arrays) -> Domain:
    x = as_colour(np.concatenate([arrays.x_train, arrays.x_test]), SIZE)
    return Domain(name, x, torch.from_numpy(np.concatenate([arrays.y_train, arrays.y_test]).astype(np.int64)))


@register(
    "digits-five",
    summary="digits of MNIST, MNIST-M, USPS, SVHN and SynthDigits, as far as they are here",
    domains=(),
    classes=10,
    kind="classification",
    available=lambda: len(here()) >= 2,
)
def load() -> Task:
    found = here()
    if len(found) < 2:
        files = ", ".join(SETS[name].places[0] for name in COLLECTIONS)
        places = " or ".join(map(str, data_folders()))
        raise MissingData(
            f"task 'digits-five' needs at least two of {files} in {places}, and there "
            f"{'is only ' + SETS[found[0]].places[0] if found else 'is none'}; {_ways(found)}"
        )
    collections = {name: read("digits-five", name) for name in found}
    return Task(
        name="digits-five",
        kind="classification",
        domains=tuple(_domain(name, arrays) for name, arrays in collections.items()),
        classes=tuple(str(digit) for digit in range(10)),
        model=ModelSpec(
            featurizer="convnet", input_shape=(3, SIZE, SIZE), outputs=10, hidden=(8, 16, 32, 64), norm="group"
        ),
        defaults={"rounds": 30, "local_steps": 10, "batch_size": 64, "lr": 0.1, "momentum": 0.9},
        description=f"The ten digits in {len(found)} collections: {', '.join(found)}.",
        source="MNIST, MNIST-M (Ganin et al., 2016), USPS (Hull, 1994), SVHN (Netzer et al., 2011), SynthDigits "
        "(Ganin and Lempitsky, 2015)",
        notes=(*_notes(found), *(note for arrays in collections.values() for note in arrays.notes)),
    )


def _ways(found: tuple[str, ...]) -> str:
    return ways_to_get(*(place for name in COLLECTIONS if name not in found for place in SETS[name].places))


def _notes(found: tuple[str, ...]) -> tuple[str, ...]:
    notes = []
    missing = [name for name in COLLECTIONS if name not in found]
    if missing:
        notes.append(f"of the five collections {', '.join(missing)} are not here, and left out")
    if {"mnist", "mnist_m"} <= set(found):
        notes.append(
            "mnist_m's digits are mnist's, recoloured: when one of the two is held out, the other is a source, so its "
            "digits were trained on and only their look is new"
        )
    return tuple(notes)
