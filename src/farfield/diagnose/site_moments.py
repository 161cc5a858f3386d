"""What a site of a deployment tells for a diagnosis: moments of its features by class, and one linear head.

    told = site_moments(z, y, classes)        # at the site, from its training rows
    diagnosis = diagnose_sites({...})         # at the server, see `from_moments`

No row is in it. A class with fewer than `LEAST_OF_CLASS` rows is left out, because its mean would tell of single rows.
Features are the prepared columns, or a random projection that is the same at every site where there are many.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor
from torch.nn import functional as F

from farfield.diagnose.shared_features import FURTHEST, SIDE, Floats
from farfield.errors import UserError
from farfield.federation.phase import SCALAR, Free, Sends
from farfield.federation.reply_checks import LARGEST
from farfield.reproducibility.randomness import derive_seed

#: The mean of fewer rows tells too much of each of them.
LEAST_OF_CLASS = 5
#: Fewer rows than this tell nothing worth their disclosure.
LEAST_ROWS = 20
#: More numbers are projected to so many; a head has at most `MOST_COEFFICIENTS`.
MOST_FEATURES = 40
MOST_COEFFICIENTS = 400
#: More classes would make a head of more coefficients than that.
MOST_CLASSES = 100
#: Weight of the squared coefficients in a head's fit, which keeps a head of separable classes finite.
RIDGE = 0.1

_D, _C = Free("features"), Free("classes")
#: What leaves a site, as its operator reads it in the manifest.
SENDS: dict[str, Sends] = {
    "counts": Sends(_C, f"training rows of each class; 0 for a class with fewer than {LEAST_OF_CLASS}"),
    "means": Sends((_C, _D), "mean of each feature, by class"),
    "scatter": Sends((_D, _D), "covariance of the features inside the classes"),
    "head": Sends((Free("classes − 1"), Free("features + 1")), "a linear model fitted to this site's training rows"),
    "information": Sends(
        (Free("coefficients"), Free("coefficients")), "how surely the rows determine that linear model (Fisher)"
    ),
    "label_mean": Sends(SCALAR, "of a label of numbers, its scaled mean", optional=True),
    "label_variance": Sends(SCALAR, "of a label of numbers, its scaled variance", optional=True),
}


class SiteMoments(BaseModel):
    """One site's moments, read back and checked; JSON both ways."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    counts: tuple[int, ...]
    means: tuple[tuple[float, ...], ...]
    scatter: tuple[tuple[float, ...], ...]
    head: tuple[tuple[float, ...], ...]
    information: tuple[tuple[float, ...], ...]
    label_mean: float | None = None
    label_variance: float | None = None

    @property
    def rows(self) -> int:
        return sum(self.counts)

    @property
    def features(self) -> int:
        return len(self.scatter)

    def check(self, classes: int, features: int, rows: int | None = None) -> None:
        """Raise UserError for what no rows of this federation could have told. `rows` are the site's, if known."""
        outputs = max(classes - 1, 1)
        size = outputs * (features + 1)
        shapes = {
            "counts": (np.shape(self.counts), (max(classes, 1),)),
            "means": (np.shape(self.means), (max(classes, 1), features)),
            "scatter": (np.shape(self.scatter), (features, features)),
            "head": (np.shape(self.head), (outputs, features + 1)),
            "information": (np.shape(self.information), (size, size)),
        }
        for name, (found, wanted) in shapes.items():
            if found != wanted:
                raise UserError(f"'{name}' has the shape {found}, and not {wanted}")
        if min(self.counts) < 0 or self.rows < LEAST_ROWS:
            raise UserError(f"'counts' are {list(self.counts)}, and at least {LEAST_ROWS} rows are needed")
        if rows is not None and self.rows > rows:
            raise UserError(f"'counts' add up to more than the {rows} rows with which the site joined")
        for name in ("means", "scatter", "head", "information"):
            if float(np.abs(np.asarray(getattr(self, name), dtype=np.float64)).max(initial=0.0)) > LARGEST:
                raise UserError(f"'{name}' has an entry larger than {LARGEST:.0e}, the largest that can be")
        if (
            max(abs(self.label_mean or 0.0), abs(self.label_variance or 0.0)) > LARGEST
            or (self.label_variance or 0) < 0
        ):
            raise UserError("the moments of the label are none that there can be")
        if (classes == 0) != (self.label_mean is not None and self.label_variance is not None):
            raise UserError("moments of the label belong to a regression, and to nothing else")
        for name, matrix in (("scatter", self.scatter), ("information", self.information)):
            values = np.asarray(matrix)
            if not np.allclose(values, values.T) or np.linalg.eigvalsh(values)[0] < -1e-6 * (1 + np.abs(values).max()):
                raise UserError(f"'{name}' is no covariance")


def feature_width(inputs: int, classes: int, rows: int) -> int:
    """How many features the sites compare: fewer for many classes, and for sites with few rows."""
    by_head = MOST_COEFFICIENTS // max(classes - 1, 1) - 1
    return max(1, min(inputs, MOST_FEATURES, by_head, max(2, rows // 10)))


def reduced_size(shape: tuple[int, ...]) -> int:
    """The number of features before a projection."""
    if len(shape) == 3:
        return shape[0] * min(shape[1], SIDE) * min(shape[2], SIDE)
    return int(np.prod(shape))


def shared_projection(inputs: Tensor, width: int, seed: int) -> Floats:
    """Inputs as the features that all sites share: themselves, or projected by the same random matrix."""
    x = inputs.to(torch.float32) / 255 if inputs.dtype == torch.uint8 else inputs.to(torch.float32)
    if x.dim() == 4 and max(x.shape[2:]) > SIDE:
        x = F.adaptive_avg_pool2d(x, (min(x.shape[2], SIDE), min(x.shape[3], SIDE)))
    z: Floats = x.flatten(1).numpy().astype(np.float64).clip(-FURTHEST, FURTHEST)
    if z.shape[1] <= width:
        return z
    # The first columns of one matrix, so that moments of several widths tell no more than those of the widest.
    draw = np.random.default_rng(derive_seed(seed, "diagnose", "projection"))
    matrix = draw.standard_normal((MOST_FEATURES, z.shape[1]))[:width].T
    projected: Floats = z @ (matrix / np.sqrt(z.shape[1]))
    return projected


def site_moments(z: Floats, y: Floats, classes: int) -> dict[str, Any]:
    """Return the moments of one site's rows as plain JSON. `classes` is 0 for a regression."""
    if classes:
        label = y.astype(np.int64)
        counts = np.bincount(label, minlength=classes)
        kept = counts[label] >= LEAST_OF_CLASS
        z, label = z[kept], label[kept]
        counts = np.bincount(label, minlength=classes)
    else:
        label, counts = np.zeros(len(z), dtype=np.int64), np.array([len(z)])
    if len(z) < LEAST_ROWS:
        raise UserError(
            f"{len(z)} training rows (of classes with {LEAST_OF_CLASS} or more) are too few to be described; a "
            f"diagnosis needs {LEAST_ROWS}"
        )
    means = np.stack([z[label == c].mean(axis=0) if counts[c] else np.zeros(z.shape[1]) for c in range(len(counts))])
    centred = z - means[label]
    x = np.concatenate([z, np.ones((len(z), 1))], axis=1)
    head, information = multinomial_head(x, label, classes) if classes else least_squares_head(x, y)
    told: dict[str, Any] = {
        "counts": counts.tolist(),
        "means": means.tolist(),
        "scatter": (centred.T @ centred / len(z)).tolist(),
        "head": head.tolist(),
        "information": information.tolist(),
    }
    if not classes:
        told |= {"label_mean": float(y.mean()), "label_variance": float(y.var())}
    return told


def multinomial_head(x: Floats, label: Any, classes: int) -> tuple[Floats, Floats]:
    """Coefficients [classes − 1, d + 1] of a logistic regression against class 0, by Newton's method, and their Fisher
    information with the ridge; rows of `x` end with a 1."""
    outputs, d = classes - 1, x.shape[1]
    target = np.eye(classes)[label][:, 1:]
    head = np.zeros((outputs, d))

    def penalised(beta: Floats) -> float:
        logits = np.concatenate([np.zeros((len(x), 1)), x @ beta.T], axis=1)
        top = logits.max(axis=1)
        total = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
        return float((total - logits[np.arange(len(x)), label]).sum() + RIDGE / 2 * (beta**2).sum())

    loss = penalised(head)
    for _ in range(50):
        chances, information = _information(x, head)
        gradient = (chances - target).T @ x + RIDGE * head
        step = np.linalg.solve(information, gradient.reshape(-1)).reshape(head.shape)
        size = 1.0
        while penalised(head - size * step) > loss and size > 1e-6:
            size /= 2
        head = head - size * step
        before, loss = loss, penalised(head)
        if before - loss < 1e-10 * (1 + abs(loss)):
            break
    return head, _information(x, head)[1]


def _information(x: Floats, head: Floats) -> tuple[Floats, Floats]:
    """Probabilities of the classes but the first, and the information of all coefficients."""
    logits = np.concatenate([np.zeros((len(x), 1)), x @ head.T], axis=1)
    chances = np.exp(logits - logits.max(axis=1, keepdims=True))
    chances = (chances / chances.sum(axis=1, keepdims=True))[:, 1:]
    outputs, d = head.shape
    information = np.zeros((outputs, d, outputs, d))
    for a in range(outputs):
        for b in range(outputs):
            weights = chances[:, a] * ((a == b) - chances[:, b])
            information[a, :, b, :] = (x * weights[:, None]).T @ x
    return chances, information.reshape(outputs * d, outputs * d) + RIDGE * np.eye(outputs * d)


def least_squares_head(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Coefficients [1, d + 1] of a least-squares fit, and their information by the residual variance."""
    penalty = RIDGE * np.eye(x.shape[1])
    head: Floats = np.linalg.solve(x.T @ x + penalty, x.T @ y).astype(np.float64)
    residual = max(float(((y - x @ head) ** 2).sum()) / max(len(y) - x.shape[1], 1), 1e-9)
    return head[None], (x.T @ x + penalty) / residual
