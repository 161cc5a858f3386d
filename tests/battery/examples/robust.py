"""The robust rules, alone and as right halves: one coordinate, one pair of updates after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from statistics import mean, median
from typing import Any

import torch
from torch import Tensor

from farfield.algorithms.worked_examples import Toy, ToyClient, by_hand, worked_example
from tests.battery.examples.naive import Updates, local_sgd, minimum, proximal_sgd, uniform, weighted

Rule = Callable[[list[Tensor], Sequence[ToyClient]], Tensor]


def ruled(toy: Toy, updates: Updates, rule: Rule, fallback: Rule) -> Tensor:
    """Rounds whose direction a rule gives; in the second one there are two clients, who have no majority."""
    w = toy.start
    for cohort in toy.rounds:
        rows = updates(w, cohort)
        w = w + (rule if len(cohort) > 2 else fallback)(rows, cohort)
    return w


def equal(rows: list[Tensor], cohort: Sequence[ToyClient]) -> Tensor:
    return uniform(rows)


def by_coordinate(rule: Callable[[list[float]], float]) -> Rule:
    return lambda rows, cohort: torch.tensor([rule(entries) for entries in torch.stack(rows).T.tolist()])


def without_ends(share: float) -> Callable[[list[float]], float]:
    def rule(entries: list[float]) -> float:
        cut = -int(-(share * len(entries) - 1e-9) // 1)
        cut = min(cut, (len(entries) - 1) // 2)
        return mean(sorted(entries)[cut : len(entries) - cut])

    return rule


def trusted(rows: list[Tensor], wrong: int) -> list[Tensor]:
    """Blanchard et al.: updates by the sum of squared distances to their n − f − 2 nearest, then to all."""

    def key(row: Tensor) -> tuple[float, float]:
        others = sorted(float(((row - other) ** 2).sum()) for other in rows if other is not row)
        near = sum(others[: len(rows) - wrong - 2])
        return round(near, 15), sum(others)

    return sorted(rows, key=key)


def nearest_point(smoothing: float) -> Rule:
    """Pillutla et al.: Newton's method on the smoothed sum of distances, over points of the updates' affine hull."""

    def rule(rows: list[Tensor], cohort: Sequence[ToyClient]) -> Tensor:
        table = torch.stack(rows)
        centre = weighted(rows, cohort)
        # Of three rows, the distance within which one has half of the others is the smallest of all.
        nu = smoothing * min(float((one - other).norm()) for one, other in combinations(rows, 2))

        def point(t: Tensor) -> Tensor:
            return centre + t @ (table[1:] - table[0])

        def cost(distance: Tensor) -> Tensor:
            near = distance.square() / (2 * nu) + nu / 2
            return torch.where(distance > nu, distance, near)

        def objective(t: Tensor) -> Tensor:
            return sum(c.share * cost((point(t) - row).norm()) for c, row in zip(cohort, rows, strict=True))  # type: ignore[return-value]

        return point(minimum(objective, torch.zeros(len(rows) - 1)))

    return rule


@worked_example("median")
def middle_of_each_coordinate(toy: Toy, p: Any) -> Tensor:
    return ruled(toy, local_sgd(toy, p), by_coordinate(median), equal)


@worked_example("fedprox+median", mu=0.5)
def middle_of_proximal_updates(toy: Toy, p: Any) -> Tensor:
    return ruled(toy, proximal_sgd(toy, p), by_coordinate(median), equal)


@worked_example("trimmed-mean")
def mean_without_ends(toy: Toy, p: Any) -> Tensor:
    return ruled(toy, local_sgd(toy, p), by_coordinate(without_ends(p.trim)), equal)


@worked_example("fedprox+trimmed-mean", mu=0.5)
def proximal_without_ends(toy: Toy, p: Any) -> Tensor:
    return ruled(toy, proximal_sgd(toy, p), by_coordinate(without_ends(p.trim)), equal)


@worked_example("krum")
def nearest_to_its_nearest(toy: Toy, p: Any) -> Tensor:
    return ruled(toy, local_sgd(toy, p), lambda rows, cohort: trusted(rows, 0)[0], equal)


@worked_example("fedsgd+krum")
def gradient_nearest_to_its_nearest(toy: Toy, p: Any) -> Tensor:
    def gradients(w: Tensor, cohort: Sequence[ToyClient]) -> list[Tensor]:
        return [-p.lr * toy.gradient(w, c.x, c.y) for c in cohort]

    return ruled(toy, gradients, lambda rows, cohort: trusted(rows, 0)[0], equal)


@worked_example("multi-krum", keep=2)
def mean_of_two_trusted(toy: Toy, p: Any) -> Tensor:
    return ruled(toy, local_sgd(toy, p), lambda rows, cohort: uniform(trusted(rows, 0)[:2]), equal)


@worked_example("fedprox+multi-krum", mu=0.5, keep=2)
def mean_of_two_trusted_proximal(toy: Toy, p: Any) -> Tensor:
    return ruled(toy, proximal_sgd(toy, p), lambda rows, cohort: uniform(trusted(rows, 0)[:2]), equal)


@worked_example("geometric-median", smoothing=0.3)
def nearest_to_all(toy: Toy, p: Any) -> Tensor:
    return ruled(toy, local_sgd(toy, p), nearest_point(p.smoothing), weighted)


@worked_example("fedprox+geometric-median", mu=0.5, smoothing=0.3)
def nearest_to_all_proximal(toy: Toy, p: Any) -> Tensor:
    return ruled(toy, proximal_sgd(toy, p), nearest_point(p.smoothing), weighted)


def direction(algorithm: Any, rows: Sequence[Sequence[float]]) -> Tensor:
    updates = torch.tensor(rows)
    shares = torch.full((len(updates),), 1 / len(updates))
    found = algorithm.rule(updates, shares, algorithm.combine(updates, shares))
    return torch.as_tensor(getattr(found, "direction", found))


@by_hand("median")
def four_updates(algorithm: Any) -> tuple[Tensor, Tensor]:
    """1, 2, 4, 9 has its middle at 3, and −5, 0, 4, 10 at 2."""
    return direction(algorithm, [[1, 10], [2, -5], [9, 0], [4, 4.0]]), torch.tensor([3.0, 2.0])


@by_hand("trimmed-mean", trim=0.25)
def eight_updates(algorithm: Any) -> tuple[Tensor, Tensor]:
    """Two of eight go at either end: (2 + 3 + 8 + 11) / 4, and (0 + 0 + 1 + 1) / 4."""
    rows = [[0, 1], [1, 0], [2, -9], [3, 50], [8, 1], [11, 60], [12, 0], [100, -9.0]]
    return direction(algorithm, rows), torch.tensor([6.0, 0.5])


@by_hand("krum", f=1)
def five_points_on_a_line(algorithm: Any) -> tuple[Tensor, Tensor]:
    """Of 0, 1, 3, 7, 100 with two neighbours each the scores are 10, 5, 13, 52 and 18058: the second is taken."""
    return direction(algorithm, [[0], [1], [3], [7], [100.0]]), torch.tensor([1.0])


SEVEN = [[0], [2], [3], [4], [6], [30], [-30.0]]


@by_hand("krum", f=1)
def seven_points_on_a_line(algorithm: Any) -> tuple[Tensor, Tensor]:
    """Four neighbours each: 3 has 1 + 1 + 9 + 9 = 20, and 2 and 4 have 1 + 4 + 4 + 16 = 25."""
    return direction(algorithm, SEVEN), torch.tensor([3.0])


@by_hand("multi-krum", f=1, keep=3)
def three_of_five_points(algorithm: Any) -> tuple[Tensor, Tensor]:
    """The three lowest scores of the same five are those of 1, 0 and 3."""
    return direction(algorithm, [[0], [1], [3], [7], [100.0]]), torch.tensor([4.0 / 3])


@by_hand("multi-krum", f=1)
def six_of_seven_points(algorithm: Any) -> tuple[Tensor, Tensor]:
    """Without `keep`, n − f of them: all but −30, which is farther from its nearest than 30 is."""
    return direction(algorithm, SEVEN), torch.tensor([7.5])


@by_hand("geometric-median")
def a_quadrilateral(algorithm: Any) -> tuple[Tensor, Tensor]:
    """Of four corners of a convex quadrilateral the point is where its diagonals cross, however far a corner is."""
    return direction(algorithm, [[-1, 0], [3000, 0], [0, -2], [0, 1.0]]), torch.tensor([0.0, 0.0])
