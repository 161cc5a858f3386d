"""Label shift: how far each domain's class shares (or values to predict) are from those of the others.

Classes: the total variation distance between a domain's class shares and those of all other rows, the mean over
domains. Chance: tables of counts with the same margins, drawn at random. Numbers: the Kolmogorov–Smirnov distance in
place of it, with labels dealt out at random.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from farfield.diagnose.advice import MEANING, METHODS
from farfield.diagnose.finding import LEVEL, Finding, cannot_say, chance_of, small
from farfield.diagnose.shared_features import Floats, Ints, usable_rows
from farfield.tasks.task import Task

#: Beyond chance, so much of a domain must have other labels for an alarm.
LEAST = 0.05
#: A regression's labels beyond so many are drawn at random.
MOST_VALUES = 5000
_KIND: Final = "label shift"


def label_shift(task: Task, draw: np.random.Generator, permutations: int) -> Finding:
    """Compare the labels of all domains."""
    if len(task.domains) < 2:
        return cannot_say(_KIND, "distance of labels", "One domain has nothing to differ from.", MEANING[_KIND])
    return _classes(task, draw, permutations) if task.kind == "classification" else _numbers(task, draw, permutations)


def share_distances(counts: Floats) -> Floats:
    """Total variation distance between each row's shares and those of the other rows together; [..., domains]."""
    total = counts.sum(axis=-2, keepdims=True)
    rest = total - counts
    own = counts / counts.sum(axis=-1, keepdims=True)
    others = rest / rest.sum(axis=-1, keepdims=True)
    distances: Floats = np.abs(own - others).sum(axis=-1) / 2
    return distances


def ks_distances(y: Floats, owner: Ints, domains: int) -> Floats:
    """Kolmogorov–Smirnov distance between each domain's values and those of all others."""
    order = np.argsort(y, kind="stable")
    last = np.append(y[order][1:] != y[order][:-1], True)  # equal values count together
    member = owner[order][:, None] == np.arange(domains)
    sizes = member.sum(axis=0)
    own = member.cumsum(axis=0)[last]
    rest = (~member).cumsum(axis=0)[last]
    distances: Floats = np.abs(own / sizes - rest / (len(y) - sizes)).max(axis=0)
    return distances


def _classes(task: Task, draw: np.random.Generator, permutations: int) -> Finding:
    from scipy.stats import random_table

    counts = np.stack(
        [np.bincount(d.y.numpy()[usable_rows(d)].astype(np.int64), minlength=len(task.classes)) for d in task.domains]
    ).astype(np.float64)
    names = [domain.name for domain in task.domains]
    measure = "distance of class shares (total variation, 0 to 1)"
    has_rows = counts.sum(axis=1) > 0
    counts, names = counts[has_rows], [name for name, has in zip(names, has_rows, strict=True) if has]
    details = {"domains": names, "classes": list(task.classes), "counts": counts.astype(int).tolist()}
    if (counts.sum(axis=0) > 0).sum() < 2:
        return cannot_say(_KIND, measure, "All rows have the same class.", MEANING[_KIND], **details)
    distances = share_distances(counts)
    value = float(distances.mean())
    tables = random_table(counts.sum(axis=1).astype(int), counts.sum(axis=0).astype(int)).rvs(
        permutations, random_state=draw
    )
    null = [float(share_distances(table.astype(np.float64)).mean()) for table in tables]
    most = int(distances.argmax())
    sentence = (
        f"Of a domain's rows, {100 * value:.1f} % would need another class to have the shares of the other domains "
        f"(chance alone: {100 * np.mean(null):.1f} %); most in '{names[most]}' ({100 * distances[most]:.1f} %)."
    )
    return _finding(measure, value, null, sentence, {**details, "distances": distances.tolist()})


def _numbers(task: Task, draw: np.random.Generator, permutations: int) -> Finding:
    parts = [d.y.numpy()[usable_rows(d)].astype(np.float64) for d in task.domains]
    names = [domain.name for domain, part in zip(task.domains, parts, strict=True) if len(part)]
    parts = [part for part in parts if len(part)]
    y = np.concatenate(parts)
    owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts]).astype(np.int64)
    measure = "distance of label values (Kolmogorov–Smirnov, 0 to 1)"
    mean, deviation = y.mean(), y.std()
    differences = [float((part.mean() - mean) / (deviation or 1.0)) for part in parts]
    details = {
        "domains": names,
        "means": [float(part.mean()) for part in parts],
        "deviations": [float(part.std()) for part in parts],
        "standardised_differences": differences,
    }
    if deviation == 0:
        return cannot_say(_KIND, measure, "All rows have the same label.", MEANING[_KIND], **details)
    if len(y) > MOST_VALUES:
        # At least one row of each domain stays.
        first = np.unique(owner, return_index=True)[1]
        others = np.setdiff1d(np.arange(len(y)), first)
        kept = np.sort(np.concatenate([first, draw.choice(others, MOST_VALUES - len(first), replace=False)]))
        y, owner = y[kept], owner[kept]
    distances = ks_distances(y, owner, len(parts))
    value = float(distances.mean())
    null = [float(ks_distances(y, draw.permutation(owner), len(parts)).mean()) for _ in range(permutations)]
    furthest = max(differences, key=abs)
    most = int(distances.argmax())
    sentence = (
        f"The labels' distributions differ by {value:.2f} (Kolmogorov–Smirnov, chance alone: {np.mean(null):.2f}), "
        f"most in '{names[most]}' ({distances[most]:.2f}); the means lie up to {abs(furthest):.2f} standard deviations "
        "from the common one."
    )
    return _finding(measure, value, null, sentence, {**details, "distances": distances.tolist()})


def _finding(measure: str, value: float, null: list[float], sentence: str, details: dict[str, object]) -> Finding:
    p = chance_of(null, value)
    rings = p <= LEVEL and value - float(np.mean(null)) >= LEAST
    return Finding(
        kind=_KIND,
        verdict="alarm" if rings else "silent",
        measure=measure,
        value=value,
        chance=float(np.mean(null)),
        p=p,
        sentence=sentence + small(p, rings),
        meaning=MEANING[_KIND],
        methods=METHODS[_KIND] if rings else (),
        details=details,
    )
