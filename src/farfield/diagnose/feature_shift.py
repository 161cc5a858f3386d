"""Feature shift: proxy A-distances between domains (FedCiR, figure 12), with label shift taken out.

A linear classifier on the shared features and their squares is trained to tell two sets of rows apart. Its error ε on
rows that it was not trained on, both sides with the same weight, gives the proxy A-distance 2(1 − 2ε): 0 where nothing
tells them apart, 2 where everything does. Squares let it see a change of spread, which no linear function of the
features does.

Where classes differ in frequency their features differ as well. So the distance is measured twice: as in the paper, and
with rows weighted so that both sides have the same class shares. An alarm needs both. Chance: the domains' names dealt
out at random, for the second measurement among rows of one class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from farfield.diagnose.advice import MEANING, METHODS
from farfield.diagnose.finding import LEVEL, Finding, cannot_say, chance_of, small
from farfield.diagnose.shared_features import Floats, Ints, Sample
from farfield.math import proxy_a_distance

#: Beyond chance, for an alarm: 0.2 is a classifier that is right in 55 of 100 cases.
LEAST = 0.2
FOLDS = 5
RIDGE = 1e-2
_KIND: Final = "feature shift"
_MEASURE = "proxy A-distance of a domain to the others (0 to 2)"


@dataclass(frozen=True)
class Folds:
    """Rows with their squares, the fold that tests each row, and for each fold the inverse of its training scatter."""

    phi: Floats
    fold: Ints
    inverses: tuple[Floats, ...]

    @classmethod
    def of(cls, z: Floats, draw: np.random.Generator) -> Folds:
        squares = z**2
        phi = np.concatenate([z, (squares - squares.mean(axis=0)) / (squares.std(axis=0) + 1e-9)], axis=1)
        fold = draw.permutation(np.arange(len(z)) % FOLDS).astype(np.int64)
        inverses = []
        for number in range(FOLDS):
            x = phi[fold != number]
            x = x - x.mean(axis=0)
            inverses.append(np.linalg.inv(x.T @ x / len(x) + RIDGE * np.eye(x.shape[1])))
        return cls(phi, fold, tuple(inverses))

    def errors(self, left: Floats, right: Floats) -> Floats:
        """Errors [k] of the classifiers that tell k pairs of weighted sets apart, on rows of the other folds.

        `left` and `right` are weights [k, rows], 0 where a row is not in the set. Each classifier is Fisher's: the
        difference of the means, by the inverse scatter, with the threshold half way.
        """
        wrong = np.zeros((2, len(left)))
        total = np.zeros((2, len(left)))
        for number, inverse in enumerate(self.inverses):
            train, test = self.fold != number, self.fold == number
            means = []
            for weights in (left, right):
                sums = weights[:, train].sum(axis=1, keepdims=True)
                means.append(weights[:, train] @ self.phi[train] / np.maximum(sums, 1e-12))
            direction = (means[0] - means[1]) @ inverse
            threshold = ((means[0] + means[1]) * direction).sum(axis=1) / 2
            says_left = direction @ self.phi[test].T > threshold[:, None]
            for side, weights in enumerate((left, right)):
                part = weights[:, test]
                wrong[side] += (part * (says_left if side else ~says_left)).sum(axis=1)
                total[side] += part.sum(axis=1)
        errors: Floats = (wrong / np.maximum(total, 1e-12)).mean(axis=0)
        return errors


def feature_shift(sample: Sample, permutations: int) -> Finding:
    """Measure the distances of all pairs and of each domain to the others."""
    domains = len(sample.domains)
    if domains < 2:
        reason = "Fewer than two domains have enough rows to compare."
        return cannot_say(_KIND, _MEASURE, reason, MEANING[_KIND])
    if not sample.z.shape[1]:
        return cannot_say(_KIND, _MEASURE, "No column varies, so there is nothing to compare.", MEANING[_KIND])
    draw = sample.draw("feature shift")
    folds = Folds.of(sample.z, draw)
    label = sample.y.astype(np.int64) if sample.task.kind == "classification" else np.zeros(len(sample.y), np.int64)
    plain = np.zeros_like(label)
    paper = _to_pool(folds, sample.owner[None], plain, domains)[0]
    paper_null = _null(folds, sample.owner, plain, domains, permutations, draw)
    adjusted = _to_pool(folds, sample.owner[None], label, domains)[0]
    adjusted_null = _null(folds, sample.owner, label, domains, permutations, draw) if label.any() else paper_null
    value = min(float(adjusted.mean()), float(paper.mean()))
    null = adjusted_null if adjusted.mean() <= paper.mean() else paper_null
    p = max(chance_of(paper_null, float(paper.mean())), chance_of(adjusted_null, float(adjusted.mean())))
    beyond = min(adjusted.mean() - np.mean(adjusted_null), paper.mean() - np.mean(paper_null))
    rings = p <= LEVEL and beyond >= LEAST
    names = sample.domain_names
    most = int(adjusted.argmax())
    right = 50 + 25 * value
    sentence = (
        f"A linear classifier tells a domain's rows from the others' in {right:.0f} of 100 cases (proxy A-distance "
        f"{value:.2f}, chance alone: {round(float(np.mean(null)), 2) + 0.0:.2f}), most easily those of '{names[most]}' "
        f"({adjusted[most]:.2f})."
    )
    return Finding(
        kind=_KIND,
        verdict="alarm" if rings else "silent",
        measure=_MEASURE,
        value=value,
        chance=float(np.mean(null)),
        p=p,
        sentence=sentence + small(p, rings),
        meaning=MEANING[_KIND],
        methods=METHODS[_KIND] if rings else (),
        details={
            "domains": names,
            "to_pool": adjusted.tolist(),
            "to_pool_as_in_the_paper": paper.tolist(),
            "pairs": _pairs(folds, sample.owner, label, domains).tolist(),
            "pairs_as_in_the_paper": _pairs(folds, sample.owner, plain, domains).tolist(),
        },
    )


def overlap_weights(left: NDArray[np.bool_], right: NDArray[np.bool_], label: Ints) -> tuple[Floats, Floats]:
    """Weights under which both sets have the same class shares, [..., rows]; a class that one side lacks gets none.

    A row's weight is the other side's share of its class, which keeps most rows in use.
    """
    weights = np.zeros((2, *left.shape))
    for code in np.unique(label):
        rows = label == code
        a, b = (side[..., rows].sum(axis=-1, keepdims=True) for side in (left, right))
        both = np.maximum(a + b, 1)
        weights[0][..., rows] = left[..., rows] * (b / both)
        weights[1][..., rows] = right[..., rows] * (a / both)
    return weights[0], weights[1]


def _distances(errors: Floats) -> Floats:
    return np.array([proxy_a_distance(float(error)) for error in errors.reshape(-1)]).reshape(errors.shape)


def _to_pool(folds: Folds, owners: Ints, label: Ints, domains: int) -> Floats:
    """The distance of each domain to all others together, [k, domains] for k ways to deal out the names."""
    found = []
    for number in range(domains):
        member = owners == number
        found.append(_distances(folds.errors(*overlap_weights(member, ~member, label))))
    return np.stack(found, axis=-1)


def _pairs(folds: Folds, owner: Ints, label: Ints, domains: int) -> Floats:
    matrix = np.zeros((domains, domains))
    for a in range(domains):
        for b in range(a):
            sides = overlap_weights((owner == a)[None], (owner == b)[None], label)
            matrix[a, b] = matrix[b, a] = _distances(folds.errors(*sides))[0]
    return matrix


def _null(
    folds: Folds, owner: Ints, label: Ints, domains: int, permutations: int, draw: np.random.Generator
) -> list[float]:
    """The mean distance with names dealt out at random among rows of the same label."""
    owners = np.tile(owner, (permutations, 1))
    for code in np.unique(label):
        rows = np.flatnonzero(label == code)
        owners[:, rows] = draw.permuted(owners[:, rows], axis=1)
    found: list[float] = []
    step = max(1, 4_000_000 // max(owners.shape[1], 1))  # so many weights at a time
    for start in range(0, permutations, step):
        found += _to_pool(folds, owners[start : start + step], label, domains).mean(axis=1).tolist()
    return found
