"""Robust server rules: the direction of most clients, whatever a few of them send.

The mean of updates goes wherever one client wants it to go. These rules replace it; each stands alone (with FedAvg's
clients) and after a '+': `fediir+median`.

| name | rule | holds with |
|---|---|---|
| `median` | the median of each coordinate | fewer than n/2 wrong clients |
| `trimmed-mean` | the mean of each coordinate without its `trim`·n smallest and largest | up to `trim`·n |
| `krum` | the update nearest to its n − f − 2 nearest others | f, and n ≥ 2f + 3 |
| `multi-krum` | the mean of the `keep` best by that score | f, and n ≥ 2f + 3 |
| `geometric-median` | the point with the smallest weighted sum of distances | less than half of the weight |

    Yin, Chen, Ramchandran, Bartlett. Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates. ICML
    2018. Definitions 1 and 2.
    Blanchard, El Mhamdi, Guerraoui, Stainer. Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent.
    NeurIPS 2017. Sections 4 and 5.
    Pillutla, Kakade, Harchaoui. Robust Aggregation for Federated Learning. IEEE Trans. Signal Processing 70, 2022.
    Algorithm 2.

All of them assume that honest clients are alike. Where domains differ, an honest client of a rare domain looks like a
wrong one, and the rule silences it: `docs/methods/robust-rules.md` has the figures.

Differs from the papers in: see `differences`. Buffers and what a method sends besides updates are averaged as before.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any, ClassVar, Literal

from torch import Tensor

from farfield.algorithms.fedavg import Direction, FedAvg
from farfield.algorithms.parameters import choices, fixed, linear_range, parameter
from farfield.algorithms.registry import register
from farfield.algorithms.supports import AtLeast, Supports
from farfield.math import coordinate_median, geometric_median, krum_order, mean_of, trimmed_mean, weighted_mean

YIN = "Yin et al., Byzantine-Robust Distributed Learning, ICML 2018"
BLANCHARD = "Blanchard et al., Machine Learning with Adversaries, NeurIPS 2017"
PILLUTLA = "Pillutla et al., Robust Aggregation for Federated Learning, IEEE TSP 2022"
#: With fewer updates nobody can say which of them is wrong.
FEWEST = 3
FALLBACK = f"fewer than {FEWEST} updates: nothing tells a wrong one, and their mean was taken"
THREE = AtLeast(FEWEST, "takes the side of most clients, and two have no majority")


class RobustRule(FedAvg):
    """What the rules have in common: a server half, and the same weight for all clients."""

    family: ClassVar[str] = "robust"
    server_half: ClassVar[frozenset[str]] = frozenset({"rule"})
    supports: ClassVar[Supports] = Supports(clients=THREE)
    fedavg_with_one_client: ClassVar[bool] = True

    class Params(FedAvg.Params):
        weighting: Literal["samples", "uniform"] = parameter("uniform", "without effect: all clients count the same")

        def idle(self) -> dict[str, str]:
            return {**super().idle(), "weighting": "the rule gives all clients the same weight"}

    params: Params

    def rule(self, updates: Tensor, weights: Tensor, reference: Tensor) -> Tensor | Direction:
        if len(updates) < FEWEST:
            # A cohort that others have left must not stop the run; an event says what was done.
            return Direction(self.mean(updates, weights), notes=(FALLBACK,) if len(updates) > 1 else ())
        return self.of_most(updates, weights)

    def mean(self, updates: Tensor, weights: Tensor) -> Tensor:
        """Return the mean with the weights that the rule gives."""
        return mean_of(updates, list(range(len(updates))))

    def of_most(self, updates: Tensor, weights: Tensor) -> Tensor | Direction:
        """Return the direction of most clients, of at least three."""
        raise NotImplementedError


@register
class Median(RobustRule):
    """The median of each coordinate of the updates."""

    name: ClassVar[str] = "median"
    paper: ClassVar[str] = YIN
    differences: ClassVar[tuple[str, ...]] = ("of local training's updates; the paper's are single gradients",)

    def of_most(self, updates: Tensor, weights: Tensor) -> Tensor | Direction:
        return coordinate_median(updates)


@register
class TrimmedMean(RobustRule):
    """The mean of each coordinate without its smallest and largest entries."""

    name: ClassVar[str] = "trimmed-mean"
    paper: ClassVar[str] = YIN
    differences: ClassVar[tuple[str, ...]] = (
        "of local training's updates; the paper's are single gradients",
        "the number cut off is rounded up, so that some protection is left in a cohort of three or four",
    )
    fedavg_when: ClassVar[Mapping[str, Any] | None] = {"trim": 0.0}

    class Params(RobustRule.Params):
        trim: float = parameter(
            0.2,
            "β, share of the clients cut off at either end, rounded up; 0 is the mean",
            linear_range(0.0, 0.45),
            ge=0,
            lt=0.5,
        )

    params: Params

    def of_most(self, updates: Tensor, weights: Tensor) -> Tensor | Direction:
        count = len(updates)
        # A product of two decimals can lie a hair above the whole number that it stands for.
        cut = min(ceil(self.params.trim * count - 1e-9), (count - 1) // 2)
        return trimmed_mean(updates, cut)


class KrumRule(RobustRule):
    """What Krum and Multi-Krum have in common: the score."""

    class Params(RobustRule.Params):
        f: int | None = parameter(
            None, "wrong clients to hold out against; as many as the cohort allows by default", fixed(), ge=0
        )

    params: Params

    def wrong(self, count: int) -> tuple[int, tuple[str, ...]]:
        """Return f for so many updates, and a note if it is fewer than asked for."""
        most, asked = (count - 3) // 2, self.params.f
        if asked is None or asked <= most:
            return most if asked is None else asked, ()
        return most, (f"{count} updates allow for f = {most} wrong ones, not {asked}: Krum needs n ≥ 2f + 3",)


@register
class Krum(KrumRule):
    """The one update that is nearest to most others; all others are thrown away."""

    name: ClassVar[str] = "krum"
    paper: ClassVar[str] = BLANCHARD
    differences: ClassVar[tuple[str, ...]] = (
        "of local training's updates; the paper's are single gradients",
        "equal scores go to the update that is nearer to all others; the paper takes the smallest index",
    )

    def of_most(self, updates: Tensor, weights: Tensor) -> Tensor | Direction:
        wrong, notes = self.wrong(len(updates))
        chosen = krum_order(updates, wrong)[0]
        return Direction(updates[chosen].clone(), {"chosen_client": float(chosen)}, notes)


@register
class MultiKrum(KrumRule):
    """The mean of the updates that are nearest to most others."""

    name: ClassVar[str] = "multi-krum"
    paper: ClassVar[str] = BLANCHARD
    differences: ClassVar[tuple[str, ...]] = (
        "of local training's updates; the paper's are single gradients",
        "equal scores go to the update that is nearer to all others; the paper takes the smallest index",
        "m = n − f by default; the paper leaves m open between 1 (Krum) and n (the mean)",
    )

    class Params(KrumRule.Params):
        keep: int | None = parameter(None, "m, updates that are averaged; n − f by default", choices(1, 2, 3, 5), ge=1)

    params: Params

    def of_most(self, updates: Tensor, weights: Tensor) -> Tensor | Direction:
        count = len(updates)
        wrong, notes = self.wrong(count)
        keep = count - wrong if self.params.keep is None else min(self.params.keep, count)
        return Direction(mean_of(updates, krum_order(updates, wrong)[:keep]), {"kept_updates": float(keep)}, notes)


@register
class GeometricMedian(RobustRule):
    """The point with the smallest weighted sum of distances to the updates."""

    name: ClassVar[str] = "geometric-median"
    paper: ClassVar[str] = PILLUTLA
    differences: ClassVar[tuple[str, ...]] = (
        "iterated until the gradient is at most 1e-10 long; the paper stops after a few communication rounds",
        "the smoothing is relative to the distance within which an update has half of the others; the paper's 1e-6 is "
        "absolute",
        "the server sees single updates; the paper's iterations are over secure sums",
    )
    #: Where the iterations end, and the most of them.
    TOLERANCE: ClassVar[float] = 1e-10

    class Params(RobustRule.Params):
        weighting: Literal["samples", "uniform"] = parameter("samples", "α_u, weight of a client's distance")
        smoothing: float = parameter(
            1e-6,
            "ν, distance below which a client pulls no harder, in typical distances of updates",
            fixed(),
            gt=0,
            lt=1,
        )

        def idle(self) -> dict[str, str]:
            return {name: why for name, why in super().idle().items() if name != "weighting"}

    params: Params

    def mean(self, updates: Tensor, weights: Tensor) -> Tensor:
        return weighted_mean(updates, weights)

    def of_most(self, updates: Tensor, weights: Tensor) -> Tensor | Direction:
        found = geometric_median(updates, weights, self.params.smoothing, self.TOLERANCE)
        diagnostics = {"largest_weight": float(found.weights.max()), "iterations": float(found.iterations)}
        notes = (
            ()
            if found.gradient <= self.TOLERANCE
            else (
                f"the geometric median was left at a gradient of {found.gradient:.1e} after {found.iterations} steps",
            )
        )
        return Direction(found.point, diagnostics, notes)
