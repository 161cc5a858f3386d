"""Means of updates that a few wrong rows cannot move far: median, trimmed mean, Krum, geometric median.

    Yin, Chen, Ramchandran, Bartlett. Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates.
    ICML 2018. Definitions 1 and 2.
    Blanchard, El Mhamdi, Guerraoui, Stainer. Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent.
    NeurIPS 2017. Section 4, and section 5 for Multi-Krum.
    Pillutla, Kakade, Harchaoui. Robust Aggregation for Federated Learning. IEEE Transactions on Signal Processing 70,
    2022. Algorithm 2 (smoothed Weiszfeld).

All take the rows of a (clients, d) matrix and return a vector in its dtype. Sums are in float64 and in an order that
does not depend on the number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from farfield.math.averaging import normalised_weights, ordered_sum


def coordinate_median(rows: Tensor) -> Tensor:
    """Return the median of each coordinate; of an even number of rows the mean of the two in the middle.

    Definition 1 of Yin et al. Breaks down where half of the rows are wrong.
    """
    ordered = rows.sort(dim=0).values
    low, high = ordered[(len(rows) - 1) // 2], ordered[len(rows) // 2]
    return ((low.double() + high.double()) / 2).to(rows.dtype)


def trimmed_mean(rows: Tensor, cut: int) -> Tensor:
    """Return the mean of each coordinate without its `cut` smallest and `cut` largest entries.

    Definition 2 of Yin et al. with cut = βn. Breaks down where more than `cut` rows are wrong.
    """
    if not 0 <= 2 * cut < len(rows):
        raise ValueError(f"of {len(rows)} rows {cut} cannot be cut off at either end")
    kept = rows.sort(dim=0).values[cut : len(rows) - cut]
    return (ordered_sum(kept, torch.ones(len(kept))) / len(kept)).to(rows.dtype)


def squared_distances(rows: Tensor) -> Tensor:
    """Return the (clients, clients) matrix of squared Euclidean distances in float64, exactly symmetric."""
    count = len(rows)
    table = torch.zeros(count, count, dtype=torch.float64, device=rows.device)
    for one in range(count - 1):
        gaps = torch.linalg.vector_norm(rows[one + 1 :] - rows[one], dim=1, dtype=torch.float64)
        table[one, one + 1 :] = table[one + 1 :, one] = gaps * gaps
    return table


def krum_order(rows: Tensor, wrong: int) -> list[int]:
    """Return the rows from the most to the least trusted: by their distances to the n − f − 2 nearest others.

    The score s(i) = Σ ‖V_i − V_j‖² over these neighbours is that of Blanchard et al., who need n ≥ 2f + 3 rows for `f`
    wrong ones. Equal scores, which two rows nearest to each other have where there is one neighbour, go to the row
    that is nearer to all others, and then to the first.
    """
    count = len(rows)
    if wrong < 0 or count < 2 * wrong + 3:
        raise ValueError(f"Krum needs at least 2f + 3 = {2 * wrong + 3} rows for f = {wrong} wrong ones, not {count}")
    distances = squared_distances(rows)
    # The first column is each row's distance to itself.
    ordered = distances.sort(dim=1).values[:, 1:]
    scores = ordered[:, : count - wrong - 2].sum(dim=1).tolist()
    totals = ordered.sum(dim=1).tolist()
    return sorted(range(count), key=lambda row: (scores[row], totals[row], row))


def mean_of(rows: Tensor, chosen: list[int]) -> Tensor:
    """Return the plain mean of the chosen rows, added in the order of the rows."""
    factors = torch.zeros(len(rows), dtype=torch.float64)
    factors[chosen] = 1.0 / len(chosen)
    return ordered_sum(rows, factors).to(rows.dtype)


@dataclass(frozen=True)
class GeometricMedian:
    """A geometric median: the point, the weight of each row in it, and how near it is to the optimum."""

    point: Tensor
    weights: Tensor
    #: Length of the objective's gradient, 0 at the optimum; weights add up to one, so 1 is as long as it can be.
    gradient: float
    iterations: int


def geometric_median(
    rows: Tensor,
    weights: Tensor | None = None,
    smoothing: float = 1e-6,
    tolerance: float = 1e-10,
    most_iterations: int = 10_000,
) -> GeometricMedian:
    """Return the point with the smallest weighted sum of distances to the rows, by smoothed Weiszfeld iterations.

    Minimises Σ α_i h(‖v − u_i‖), where h is the distance and, within ν of a row, the parabola that continues it
    (Pillutla et al., section 3.2): v ← Σ β_i u_i / Σ β_i with β_i = α_i / max(ν, ‖v − u_i‖). ν is `smoothing` times
    the distance within which some row has half of the others, so that the result scales with the rows and no far row
    can raise it. It ends where the gradient is at most `tolerance` long. Breaks down where rows of half of the weight
    are wrong.

    The point is a mean of the rows, so the iterations are over their weights and distances are from the Gram matrix of
    the rows around their median: each takes n² steps, whatever the dimension.
    """
    shares = normalised_weights(torch.ones(len(rows)) if weights is None else weights, len(rows))
    # Around a mean, which a far row moves, the distances between the others would drown in rounding.
    centred = rows.double() - coordinate_median(rows.double())
    gram = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for number, one in enumerate(centred):  # not as a matrix product, whose bits depend on the number of threads
        for other in range(number, len(rows)):
            gram[number, other] = gram[other, number] = (one * centred[other]).sum()
    floor = smoothing * _typical_distance(gram)
    corners = torch.eye(len(rows), dtype=torch.float64)
    mixture, gradient, done = shares.clone(), 0.0, 0
    if floor > 0:
        while done < most_iterations:
            done += 1
            gaps = mixture - corners
            distances = (gaps @ gram * gaps).sum(dim=1).clamp(min=0.0).sqrt()
            pull = shares / distances.clamp(min=floor)
            total = pull.sum()
            # The gradient Σ β_i (v − u_i) is total · (v − next v), in terms of the mixtures.
            step = pull / total - mixture
            gradient = float(total * (step @ gram @ step).clamp(min=0.0).sqrt())
            mixture = pull / total
            if gradient <= tolerance:
                break
    point = ordered_sum(rows, mixture).to(rows.dtype)
    return GeometricMedian(point, mixture, gradient, done)


def _typical_distance(gram: Tensor) -> float:
    """Return the smallest distance within which a row has half of the others; where that is 0, the smallest over 0."""
    squares = gram.diagonal()
    distances = (squares.unsqueeze(0) + squares.unsqueeze(1) - 2 * gram).clamp(min=0.0).sqrt()
    others = distances.sort(dim=1).values[:, 1:]
    if not others.numel():
        return 0.0
    typical = float(others[:, (others.shape[1] - 1) // 2].min())
    apart = distances[distances > 0]
    return typical if typical > 0 or not len(apart) else float(apart.min())
