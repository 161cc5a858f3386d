"""Near-duplicates: rows of one domain that occur, exactly or nearly, in another.

Exact copies are found by a hash over all rows. Near copies are found among the sampled rows: pairs that lie nearer than
a tenth of the median distance to the nearest row of the own domain. Coarse columns make equal rows by coincidence, in
a domain as often as across domains; an alarm needs more pairs across domains than that.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from farfield.diagnose.advice import MEANING
from farfield.diagnose.finding import LEVEL, Finding, cannot_say
from farfield.diagnose.shared_features import Floats, Ints, Sample, usable_rows
from farfield.tasks.task import Task
from farfield.tasks.user_data.repeated_rows import MOST_BYTES, row_keys

#: For an alarm: at least so many rows, and so large a share of them.
LEAST_ROWS = 3
LEAST_SHARE = 0.005
NEAR = 0.1
_KIND: Final = "near-duplicates"
_MEASURE = "share of rows with a copy in another domain"


def near_duplicates(task: Task, sample: Sample) -> Finding:
    """Count rows with a copy in another domain."""
    if len(task.domains) < 2:
        return cannot_say(_KIND, _MEASURE, "One domain has no other to share rows with.", MEANING[_KIND])
    near_cross, near_within, near_rows, near_matrix = _near(sample)
    exact = _exact(task)
    compared, rows = len(sample.owner), near_rows
    cross, within, names, matrix = near_cross, near_within, sample.domain_names, near_matrix
    kind = "nearly the same as one"
    if exact is not None and exact[2] / max(exact[3], 1) >= near_rows / max(compared, 1):
        cross, within, rows, compared, matrix = exact
        names, kind = list(task.domain_names), "the same as one"
    if not compared:
        return cannot_say(_KIND, _MEASURE, "No domain has enough rows to compare.", MEANING[_KIND])
    value = rows / compared
    p = _chance(cross, within, _sizes(names, task, sample, kind))
    enough = rows >= LEAST_ROWS and value >= LEAST_SHARE
    details = {"domains": names, "pairs": matrix.tolist(), "rows": rows, "compared": compared}
    sentence = f"{rows:,} of {compared:,} rows ({100 * value:.1f} %) are {kind} of another domain."
    if not rows:
        sentence = f"None of {compared:,} rows is the same, or nearly the same, as one of another domain."
    if exact is None:
        sentence += " Exact copies were not searched for: the data is too large for a quick look."
    verdict = "alarm" if enough and p <= LEVEL else "silent"
    if enough and verdict == "silent":
        return cannot_say(
            _KIND,
            _MEASURE,
            f"{sentence} Rows repeat as often inside a domain, so they may be coincidences of coarse columns.",
            MEANING[_KIND],
            **details,
        ).model_copy(update={"value": value, "p": p})
    return Finding(
        kind=_KIND,
        verdict="alarm" if verdict == "alarm" else "silent",
        measure=_MEASURE,
        value=value,
        p=p if rows else None,
        sentence=sentence,
        meaning=MEANING[_KIND],
        details=details,
    )


def _sizes(names: list[str], task: Task, sample: Sample, kind: str) -> Floats:
    if kind == "the same as one":
        return np.array([len(usable_rows(task.domain(name))) for name in names], dtype=np.float64)
    return np.bincount(sample.owner, minlength=len(names)).astype(np.float64)


def _chance(cross: int, within: int, sizes: Floats) -> float:
    """Return how often chance alone puts so many of the equal pairs across domains."""
    from scipy.stats import binom

    inside = float((sizes * (sizes - 1) / 2).sum())
    pairs = float(sizes.sum() * (sizes.sum() - 1) / 2)
    return float(binom.sf(cross - 1, cross + within, 1 - inside / pairs)) if cross else 1.0


def _pairs_of(group: Ints, owner: Ints, domains: int) -> tuple[int, int, int, Floats]:
    """Pairs of equal rows across and inside domains, rows with a copy elsewhere, and these rows by pair of domains."""
    counts = np.zeros((int(group.max()) + 1, domains))
    np.add.at(counts, (group, owner), 1)
    counts = counts[counts.sum(axis=1) > 1]
    together = counts.sum(axis=1)
    within = float((counts * (counts - 1) / 2).sum())
    every = float((together * (together - 1) / 2).sum())
    shared = counts[(counts > 0).sum(axis=1) > 1]
    matrix = (shared.T @ (shared > 0)) if len(shared) else np.zeros((domains, domains))
    np.fill_diagonal(matrix, 0)
    return round(every - within), round(within), int(shared.sum()), matrix


def _exact(task: Task) -> tuple[int, int, int, int, Floats] | None:
    if sum(domain.x.nbytes for domain in task.domains) > MOST_BYTES:
        return None
    keys, owners = [], []
    for number, domain in enumerate(task.domains):
        rows = torch.from_numpy(usable_rows(domain))
        if len(rows):
            # Labels are left aside: a copy with another label is a copy.
            x = domain.x[rows].numpy()
            keys.append(row_keys(x, np.zeros(len(x))))
            owners.append(np.full(len(x), number))
    _, group = np.unique(np.concatenate(keys), return_inverse=True)
    owner = np.concatenate(owners).astype(np.int64)
    cross, within, rows_shared, matrix = _pairs_of(group.astype(np.int64), owner, len(task.domains))
    return cross, within, rows_shared, len(owner), matrix


def _near(sample: Sample) -> tuple[int, int, int, Floats]:
    domains = len(sample.domains)
    empty = np.zeros((domains, domains))
    if domains < 2 or not sample.z.shape[1]:
        return 0, 0, 0, empty
    z = torch.from_numpy(sample.z).float()
    distance = torch.cdist(z, z, compute_mode="donot_use_mm_for_euclid_dist")
    distance.fill_diagonal_(torch.inf)
    owner = torch.from_numpy(sample.owner)
    same = owner[:, None] == owner[None, :]
    nearest = torch.where(same, distance, torch.inf).amin(dim=1)
    limit = NEAR * float(nearest.median())
    close = distance <= limit
    a, b = np.nonzero(np.triu(close.numpy(), 1))
    crossing = sample.owner[a] != sample.owner[b]
    matrix = empty.copy()
    involved: set[tuple[int, int]] = set()
    for i, j in zip(a[crossing].tolist(), b[crossing].tolist(), strict=True):
        involved |= {(i, int(sample.owner[j])), (j, int(sample.owner[i]))}
    for row, other in involved:
        matrix[int(sample.owner[row]), other] += 1
    return int(crossing.sum()), int((~crossing).sum()), len({row for row, _ in involved}), matrix
