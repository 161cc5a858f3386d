"""A diagnosis from what sites may share: moments of their features by class, and linear heads (see `site_moments`).

The same questions as with rows, answered for Gaussian features:

    label shift          the class counts, as with rows; of numbers the sites' means in common standard deviations
    feature shift        2(1 − 2Φ(−Δ/2)), the proxy A-distance of the best linear classifier between Gaussians at
                         Mahalanobis distance Δ, with the classes' shares made equal; chance by Hotelling's T²
    concept shift        (w_a − w_b)ᵀ Σ (w_a − w_b), the squared difference of two heads' logits on common features,
                         less what chance adds; chance by Cochran's Q for slopes. Intercepts are free
    gradient conflict    a linear head's class-balanced gradient at zero is a function of the class means; chance by
                         drawing these means anew around common ones

A change of spread alone, copies of rows and leaks cannot be seen from here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from farfield.diagnose.advice import MEANING, METHODS
from farfield.diagnose.finding import (
    LEVEL,
    Diagnosis,
    Finding,
    Kind,
    cannot_say,
    chance_of,
    small,
    with_fitting_methods,
)
from farfield.diagnose.gradient_conflict import cosines_to_others
from farfield.diagnose.label_shift import share_distances
from farfield.diagnose.moment_measures import (
    class_adjusted,
    class_gradient,
    gaussian_proxy_a_distance,
    head_differences,
    heterogeneity,
    pooled,
    regression_gradient,
    slopes,
)
from farfield.diagnose.shared_features import Floats
from farfield.diagnose.site_moments import SiteMoments
from farfield.reproducibility.randomness import derive_seed
from farfield.tasks.task import TaskKind

DRAWS = 199
#: For an alarm, beyond chance: of class shares; of the proxy A-distance; root mean square of a difference of log odds.
LEAST_LABEL, LEAST_FEATURE, LEAST_CONCEPT = 0.05, 0.2, 0.5
#: Of a regression: differences in standard deviations of the label.
LEAST_MEAN, LEAST_SLOPES = 0.2, 0.1


def diagnose_sites(
    sites: Mapping[str, SiteMoments], *, task: str, classes: Sequence[str], data: str, features: str, seed: int = 0
) -> Diagnosis:
    """Describe the shift between sites from their moments; they have the same classes and features."""
    draw = np.random.default_rng(derive_seed(seed, "diagnose", "moments"))
    names, told = list(sites), list(sites.values())
    if len(told) < 2:
        reason = "Fewer than two sites have told their moments."
        kinds: tuple[Kind, ...] = ("label shift", "feature shift", "concept shift", "gradient conflict")
        results = [cannot_say(kind, "", reason, MEANING[kind]) for kind in kinds]
    else:
        results = [
            _label_shift(names, told, classes, draw),
            _feature_shift(names, told),
            _concept_shift(names, told, bool(classes)),
            _gradient_conflict(names, told, bool(classes), draw),
        ]
    without: tuple[Kind, ...] = ("near-duplicates", "domain leak", "label leak")
    results += [cannot_say(kind, "", "This needs rows, which stay at the sites.", MEANING[kind]) for kind in without]
    kind: TaskKind = "classification" if classes else "regression"
    return Diagnosis(
        task=task,
        kind=kind,
        data=data,
        domains=tuple(names),
        rows=sum(site.rows for site in told),
        features=features,
        results=with_fitting_methods(results, kind, None, len(told)),
        notes=("from moments and linear heads that the sites told; a change of spread alone is not seen",),
        seed=seed,
    )


def _label_shift(
    names: list[str], told: list[SiteMoments], classes: Sequence[str], draw: np.random.Generator
) -> Finding:
    if not classes:
        return _label_means(names, told)
    from scipy.stats import random_table

    counts = np.array([site.counts for site in told], dtype=np.float64)
    measure = "distance of class shares (total variation, 0 to 1)"
    details: dict[str, object] = {"domains": names, "classes": list(classes), "counts": counts.astype(int).tolist()}
    if (counts.sum(axis=0) > 0).sum() < 2:
        return cannot_say("label shift", measure, "All rows have the same class.", MEANING["label shift"], **details)
    distances = share_distances(counts)
    value = float(distances.mean())
    margins = counts.sum(axis=1).astype(int), counts.sum(axis=0).astype(int)
    null = [
        float(share_distances(t.astype(float)).mean()) for t in random_table(*margins).rvs(DRAWS, random_state=draw)
    ]
    p, most = chance_of(null, value), int(distances.argmax())
    sentence = (
        f"Of a site's rows, {100 * value:.1f} % would need another class to have the shares of the other sites (chance "
        f"alone: {100 * np.mean(null):.1f} %); most at '{names[most]}' ({100 * distances[most]:.1f} %)."
    )
    rings = p <= LEVEL and value - float(np.mean(null)) >= LEAST_LABEL
    details["distances"] = distances.tolist()
    return _finding("label shift", rings, measure, value, float(np.mean(null)), p, sentence, details)


def _label_means(names: list[str], told: list[SiteMoments]) -> Finding:
    """One-way analysis of variance, from the sites' means and variances."""
    from scipy.stats import f

    n = np.array([site.rows for site in told], dtype=np.float64)
    means = np.array([site.label_mean for site in told], dtype=np.float64)
    variances = np.array([site.label_variance for site in told], dtype=np.float64)
    measure = "distance of a site's mean label (in standard deviations)"
    within = float((n * variances).sum() / (n.sum() - len(n)))
    if within <= 0:
        return cannot_say("label shift", measure, "The label is constant.", MEANING["label shift"])
    common = float((n * means).sum() / n.sum())
    between = float((n * (means - common) ** 2).sum() / (len(n) - 1))
    p = float(f.sf(between / within, len(n) - 1, n.sum() - len(n)))
    rest = (n.sum() * common - n * means) / (n.sum() - n)
    distances = np.abs(means - rest) / np.sqrt(within)
    value, most = float(distances.mean()), int(distances.argmax())
    sentence = f"A site's mean label lies {value:.2f} standard deviations from the others', most at '{names[most]}'."
    details = {"domains": names, "distances": distances.tolist(), "means": means.tolist()}
    details["deviations"] = np.sqrt(variances).tolist()
    return _finding("label shift", p <= LEVEL and value >= LEAST_MEAN, measure, value, None, p, sentence, details)


def _feature_shift(names: list[str], told: list[SiteMoments]) -> Finding:
    size = len(told)
    pools = [[other for n, other in enumerate(told) if n != number] for number in range(size)]
    found = [
        (class_adjusted(site, pool), class_adjusted(site, pool, False)) for site, pool in zip(told, pools, strict=True)
    ]
    squares = np.array([min(adjusted[0], plain[0]) for adjusted, plain in found])
    # Every site is asked about: Bonferroni over them. Both measurements must say so.
    p = max(min(1.0, size * min(pair[way][1] for pair in found)) for way in (0, 1))
    to_pool = np.array([gaussian_proxy_a_distance(squared) for squared in squares])
    pairs = np.zeros((size, size))
    for a in range(size):
        for b in range(a):
            pairs[a, b] = pairs[b, a] = gaussian_proxy_a_distance(class_adjusted(told[a], told[b])[0])
    value, most = float(to_pool.mean()), int(to_pool.argmax())
    sentence = (
        f"A linear classifier would tell a site's rows from the others' in {50 + 25 * value:.0f} of 100 cases if "
        f"features were Gaussian (proxy A-distance {value:.2f}), most easily those of '{names[most]}' "
        f"({to_pool[most]:.2f})."
    )
    details = {"domains": names, "to_pool": to_pool.tolist(), "pairs": pairs.tolist()}
    measure = "proxy A-distance of a site to the others, for Gaussian features (0 to 2)"
    return _finding("feature shift", p <= LEVEL and value >= LEAST_FEATURE, measure, value, 0.0, p, sentence, details)


def _concept_shift(names: list[str], told: list[SiteMoments], classes: bool) -> Finding:
    from scipy.stats import chi2

    unit = "log odds" if classes else "standard deviations of the label"
    measure = f"difference of two sites' heads (root mean square, in {unit})"
    known = [slopes(site) for site in told]
    q, freedom = heterogeneity([known_[0] for known_ in known], [known_[1] for known_ in known])
    p = float(chi2.sf(q, freedom))
    matrix = head_differences(told)
    value = float(matrix[np.tril_indices(len(told), -1)].mean())
    a, b = sorted(int(place) for place in np.unravel_index(matrix.argmax(), matrix.shape))
    sentence = (
        f"Linear heads of two sites differ by {value:.2f} {unit} beyond chance, most those of '{names[a]}' and "
        f"'{names[b]}' ({matrix[a, b]:.2f})."
    )
    rings = p <= LEVEL and value >= (LEAST_CONCEPT if classes else LEAST_SLOPES)
    details = {"domains": names, "pairs": matrix.tolist()}
    return _finding("concept shift", rings, measure, value, 0.0, p, sentence, details)


def _gradient_conflict(names: list[str], told: list[SiteMoments], classes: bool, draw: np.random.Generator) -> Finding:
    measure = "lowest cosine of a site's gradient to the others' (−1 to 1)"
    if not classes:
        vectors = np.stack([regression_gradient(site) for site in told])
        noise = [slopes(site)[1] for site in told]
        common = np.mean([slopes(site)[0] for site in told], axis=0)
        null = []
        for _ in range(DRAWS):
            drawn = [
                np.asarray(site.scatter) @ draw.multivariate_normal(common, covariance)
                for site, covariance in zip(told, noise, strict=True)
            ]
            null.append(_lowest(np.stack(drawn)))
    else:
        _, means, scatter = pooled(told)
        present = np.all([np.asarray(site.counts) > 0 for site in told], axis=0)
        if present.sum() < 2:
            reason = "Fewer than two classes are at every site."
            return cannot_say("gradient conflict", measure, reason, MEANING["gradient conflict"])
        vectors = np.stack([class_gradient(np.asarray(site.means)[present]) for site in told])
        root = np.linalg.cholesky(scatter + 1e-9 * np.eye(len(scatter)))
        null = []
        for _ in range(DRAWS):
            drawn = []
            for site in told:
                n = np.asarray(site.counts)[present][:, None]
                drawn.append(
                    class_gradient(means[present] + draw.standard_normal((len(n), len(root))) @ root.T / np.sqrt(n))
                )
            null.append(_lowest(np.stack(drawn)))
    gram = vectors @ vectors.T
    cosines = cosines_to_others(gram)
    value, lowest = float(cosines.min()), int(cosines.argmin())
    length = np.sqrt(np.diag(gram).clip(1e-300))
    pairs = (gram / np.outer(length, length)).clip(-1, 1)
    spectrum = np.linalg.eigvalsh(pairs)[::-1].clip(0)
    p, chance = chance_of(null, value, low=True), float(np.mean(null))
    sentence = (
        f"'{names[lowest]}' agrees least with the others: cosine {value:.2f} (chance alone: {chance:.2f}), for a "
        "linear model at its start."
    )
    details = {
        "domains": names,
        "to_others": cosines.tolist(),
        "pairs": pairs.tolist(),
        "spectrum": (spectrum / spectrum.sum()).tolist(),
    }
    return _finding("gradient conflict", p <= LEVEL and value < 0, measure, value, chance, p, sentence, details)


def _lowest(vectors: Floats) -> float:
    return float(cosines_to_others(vectors @ vectors.T).min())


def _finding(
    kind: Kind,
    rings: bool,
    measure: str,
    value: float,
    chance: float | None,
    p: float,
    sentence: str,
    details: Mapping[str, object],
) -> Finding:
    return Finding(
        kind=kind,
        verdict="alarm" if rings else "silent",
        measure=measure,
        value=value,
        chance=chance,
        p=p,
        sentence=sentence + ("" if kind == "gradient conflict" else small(p, rings)),
        meaning=MEANING[kind],
        methods=METHODS[kind] if rings else (),
        details=dict(details),
    )
