"""What moments of sites by class tell of the shift between them: pure functions, exact for Gaussian features."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from farfield.diagnose.shared_features import Floats
from farfield.diagnose.site_moments import SiteMoments
from farfield.math import proxy_a_distance

#: Of the mean variance, added to every covariance before it is inverted.
RIDGE = 1e-3


def gaussian_proxy_a_distance(squared: float) -> float:
    """The proxy A-distance of the best linear classifier between Gaussians at this squared Mahalanobis distance."""
    from scipy.stats import norm

    return proxy_a_distance(float(norm.cdf(-np.sqrt(max(squared, 0.0)) / 2)))


def class_adjusted(
    a: SiteMoments | Sequence[SiteMoments], b: SiteMoments | Sequence[SiteMoments], adjust: bool = True
) -> tuple[float, float]:
    """Squared Mahalanobis distance between two sets of sites, less what chance adds, and its p-value (Hotelling).

    With `adjust`, classes weigh the same on both sides (as far as both have them).
    """
    from scipy.stats import f

    left, right = pooled(a), pooled(b)
    if adjust:
        weights = left[0] * right[0] / np.maximum(left[0] + right[0], 1)
        shares = [weights / max(weights.sum(), 1e-12)] * 2
    else:
        shares = [side[0] / side[0].sum() for side in (left, right)]
    d = left[1].shape[1]
    if min(share.sum() for share in shares) < 1e-9:
        return 0.0, 1.0
    means = [share @ side[1] for share, side in zip(shares, (left, right), strict=True)]
    total = np.zeros((d, d))
    sizes = []
    for share, side, mean in zip(shares, (left, right), means, strict=True):
        spread = side[1] - mean
        total += (side[2] + (spread * share[:, None]).T @ spread) * side[0].sum()
        used = share > 0
        # The variance of a weighted mean, as if of so many rows.
        sizes.append(1.0 / float((share[used] ** 2 / side[0][used]).sum()))
    n, m = sizes
    total /= left[0].sum() + right[0].sum()
    within = np.linalg.inv(total + RIDGE * np.trace(total) / d * np.eye(d) + 1e-12 * np.eye(d))
    gap = means[0] - means[1]
    squared = float(gap @ within @ gap)
    freedom = n + m - d - 1
    if freedom <= 0:
        return 0.0, 1.0
    hotelling = squared * n * m / (n + m)
    p = float(f.sf(hotelling * freedom / (d * (n + m - 2)), d, freedom))
    return max(squared - d * (1 / n + 1 / m), 0.0), p


def pooled(sites: SiteMoments | Sequence[SiteMoments]) -> tuple[Floats, Floats, Floats]:
    """Counts, class means and scatter inside the classes of several sites together."""
    told = [sites] if isinstance(sites, SiteMoments) else list(sites)
    counts = np.array([site.counts for site in told], dtype=np.float64)
    means = np.array([site.means for site in told])
    together = counts.sum(axis=0)
    mean = (counts[..., None] * means).sum(axis=0) / np.maximum(together, 1)[:, None]
    scatter = sum(site.rows * np.asarray(site.scatter) for site in told)
    gaps = means - mean
    scatter = scatter + np.einsum("sc,scd,sce->de", counts, gaps, gaps)
    return together, mean, np.asarray(scatter) / together.sum()


def slopes(site: SiteMoments) -> tuple[Floats, Floats]:
    """A head's coefficients but the intercepts, flat, and their covariance."""
    head = np.asarray(site.head)
    outputs, d = head.shape
    covariance = np.linalg.inv(np.asarray(site.information)).reshape(outputs, d, outputs, d)
    size = outputs * (d - 1)
    return head[:, :-1].reshape(-1), covariance[:, :-1, :, :-1].reshape(size, size)


def heterogeneity(estimates: Sequence[Floats], covariances: Sequence[Floats]) -> tuple[float, int]:
    """Cochran's Q of several estimates of the same coefficients, and its degrees of freedom."""
    precisions = [np.linalg.inv(covariance) for covariance in covariances]
    weighted = sum(p @ e for p, e in zip(precisions, estimates, strict=True))
    common = np.linalg.solve(np.sum(precisions, axis=0), weighted)
    gaps = [estimate - common for estimate in estimates]
    q = sum(float(gap @ precision @ gap) for gap, precision in zip(gaps, precisions, strict=True))
    return q, (len(estimates) - 1) * len(common)


def head_differences(told: Sequence[SiteMoments]) -> Floats:
    """Root mean square difference of the logits of each pair of heads on common features, less what chance adds."""
    _, means, scatter = pooled(told)
    counts = np.sum([site.counts for site in told], axis=0)
    spread = means - counts @ means / counts.sum()
    total = scatter + (spread * (counts / counts.sum())[:, None]).T @ spread
    outputs = len(told[0].head)
    metric = np.kron(np.eye(outputs), total) / outputs
    known = [slopes(site) for site in told]
    matrix = np.zeros((len(told), len(told)))
    for a, (left, noise_left) in enumerate(known):
        for b, (right, noise_right) in enumerate(known[:a]):
            squared = (left - right) @ metric @ (left - right) - np.trace(metric @ (noise_left + noise_right))
            matrix[a, b] = matrix[b, a] = np.sqrt(max(float(squared), 0.0))
    return matrix


def class_gradient(means: Floats) -> Floats:
    """The class-balanced gradient of a linear softmax head at zero: (mean of the class means − mean of c)/C."""
    gradient: Floats = (means.mean(axis=0) - means) / len(means)
    return gradient.reshape(-1)


def regression_gradient(site: SiteMoments) -> Floats:
    """Minus the covariance of features and label, which is scatter times slopes."""
    gradient: Floats = -np.asarray(site.scatter) @ slopes(site)[0]
    return gradient
