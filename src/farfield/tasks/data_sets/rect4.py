"""rect-4: two classes in the plane, where every domain tempts its client away from the boundary they share.

FedOMG (appendix C) describes a toy of this name in words only; the numbers here are our own. Each domain has two
rectangles, one a class, in opposite quadrants around the point (boundary, 0), so both coordinates tell the classes
apart. x1 does so without a mistake, but at another place in each domain, and the sides alternate. x2 does so at 0 in
all of them, except for a tenth of the points, which lie on the wrong side. A client alone does best with a vertical
line; only the horizontal one holds for a client that was never there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from farfield.models.spec import ModelSpec
from farfield.tasks.registry import register
from farfield.tasks.task import Domain, Task


@dataclass(frozen=True)
class Rectangles:
    """One domain: "above" reaches from the boundary `width` towards `side` and `height` up; "below" mirrors it."""

    name: str
    #: x1 of the vertical line that separates this domain's classes.
    boundary: float
    #: Where "above" lies: +1 right of the boundary, -1 left of it.
    side: int
    width: float
    height: float


# Sides alternate and side·width sums to 0, so that over all domains x1 says nothing about the class.
DOMAINS = (
    Rectangles("x=-6", boundary=-6.0, side=+1, width=2.0, height=1.0),
    Rectangles("x=-2", boundary=-2.0, side=-1, width=1.2, height=2.0),
    Rectangles("x=2", boundary=2.0, side=+1, width=1.0, height=3.0),
    Rectangles("x=6", boundary=6.0, side=-1, width=1.8, height=1.5),
)
ROWS_PER_CLASS = 100
#: Points of each class and domain whose x2 has the wrong sign.
NOISY_PER_CLASS = 10
#: No point lies nearer to its domain's own boundary than this, which makes that boundary easy to learn.
GAP = 0.2
CLASSES = ("below", "above")
#: Fixed, so that the domains are the same data for everyone: a run's seed must not change the question.
SEED = 0


def _points(number: int, shape: Rectangles) -> Domain:
    draw = np.random.Generator(np.random.PCG64([SEED, number]))
    x, y = [], []
    for label, sign in enumerate((-1, +1)):
        x1 = shape.boundary + sign * shape.side * draw.uniform(GAP, shape.width, ROWS_PER_CLASS)
        x2 = sign * draw.uniform(0.0, shape.height, ROWS_PER_CLASS)
        x2[:NOISY_PER_CLASS] *= -1
        x.append(np.stack([x1, x2], axis=1))
        y.append(np.full(ROWS_PER_CLASS, label))
    return Domain(
        shape.name,
        torch.from_numpy(np.concatenate(x).astype(np.float32)),
        torch.from_numpy(np.concatenate(y).astype(np.int64)),
    )


@register(
    "rect-4",
    summary="two classes in the plane; a tempting vertical boundary a domain, one horizontal boundary for all",
    domains=tuple(shape.name for shape in DOMAINS),
    classes=2,
    kind="classification",
)
def load() -> Task:
    return Task(
        name="rect-4",
        kind="classification",
        domains=tuple(_points(number, shape) for number, shape in enumerate(DOMAINS)),
        classes=CLASSES,
        model=ModelSpec(featurizer="identity", input_shape=(2,), outputs=1, hidden=(), head="linear", head_bias=True),
        defaults={"rounds": 100, "local_epochs": 5, "batch_size": 0, "lr": 0.05, "momentum": 0.0},
        description="A linear classifier in the plane whose local optima are orthogonal to the shared one.",
        source="after the description in FedOMG, appendix C; made up, no data",
    )
