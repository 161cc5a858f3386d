"""Leaks: single columns that tell a domain from all others, or that tell the label.

Each column's order is compared with each domain and each class (AUROC, ties count half; 0.5 says nothing). A column of
ids, of another unit, or with a gap at one site shows here as well as one that was recorded after the label.
"""

from __future__ import annotations

import numpy as np

from farfield.diagnose.advice import MEANING
from farfield.diagnose.finding import LEVEL, Finding, Kind, cannot_say
from farfield.diagnose.shared_features import Floats, Sample
from farfield.tasks.user_data.data_warnings import LEAST_OF_CLASS, TELLS, TELLS_NUMBER

#: Columns that a sentence names.
NAMED = 3
_MEASURES: dict[Kind, str] = {
    "domain leak": "how well the best column alone tells a domain (AUROC)",
    "label leak": "how well the best column alone tells the label (AUROC)",
}


def leaks(sample: Sample) -> tuple[Finding, Finding]:
    """Search the columns for the domain and for the label."""
    if sample.columns is None:
        reason = "Images have no columns to search."
        return (
            cannot_say("domain leak", _MEASURES["domain leak"], reason, MEANING["domain leak"]),
            cannot_say("label leak", _MEASURES["label leak"], reason, MEANING["label leak"]),
        )
    ranks = _ranks(sample.columns) if len(sample.columns) else sample.columns
    return _domain_leak(sample, ranks), _label_leak(sample, ranks)


def _ranks(columns: Floats) -> Floats:
    from scipy.stats import rankdata

    ranks: Floats = rankdata(columns, axis=0)
    return ranks


def aurocs(ranks: Floats, member: Floats) -> Floats:
    """How well each column's order tells the members (0 or 1) of each set apart, [sets, columns], 0.5 to 1."""
    n = member.sum(axis=1, keepdims=True)
    area = (member @ ranks - n * (n + 1) / 2) / (n * (ranks.shape[0] - n))
    best: Floats = np.maximum(area, 1 - area)
    return best


def _domain_leak(sample: Sample, ranks: Floats) -> Finding:
    if len(sample.domains) < 2:
        reason = "Fewer than two domains have enough rows to compare."
        return cannot_say("domain leak", _MEASURES["domain leak"], reason, MEANING["domain leak"])
    member = (sample.owner == np.arange(len(sample.domains))[:, None]).astype(np.float64)
    return _finding("domain leak", sample, aurocs(ranks, member), member, sample.domain_names, "domain")


def _label_leak(sample: Sample, ranks: Floats) -> Finding:
    if sample.task.kind == "regression":
        return _number_leak(sample, ranks)
    codes = np.arange(sample.classes)[:, None]
    member = (sample.y.astype(np.int64) == codes).astype(np.float64)
    enough = np.minimum(member.sum(axis=1), (1 - member).sum(axis=1)) >= LEAST_OF_CLASS
    if not enough.any():
        reason = f"No class has {LEAST_OF_CLASS} rows, and as many of the others beside it."
        return cannot_say("label leak", _MEASURES["label leak"], reason, MEANING["label leak"])
    member = member[enough]
    names = [name for name, use in zip(sample.task.classes, enough, strict=True) if use]
    return _finding("label leak", sample, aurocs(ranks, member), member, names, "class")


def _finding(kind: Kind, sample: Sample, areas: Floats, member: Floats, sets: list[str], noun: str) -> Finding:
    from scipy.stats import norm

    n = member.sum(axis=1, keepdims=True)
    m = member.shape[1] - n
    # Mann and Whitney's normal approximation, for all columns and sets at once.
    p = np.minimum(1.0, 2 * norm.sf((areas - 0.5) / np.sqrt((n + m + 1) / (12 * n * m))) * areas.size)
    order = np.argsort(-areas.max(axis=0), kind="stable")
    best = [(int(column), int(areas[:, column].argmax())) for column in order[:10]]
    found = [(c, s) for c, s in best if areas[s, c] >= TELLS and p[s, c] <= LEVEL]
    column, told = best[0]
    shown = "; ".join(
        f"'{sample.names[c]}' tells the {noun} '{sets[s]}' (AUROC {areas[s, c]:.3f})" for c, s in found[:NAMED]
    )
    all_found = int(((areas >= TELLS) & (p <= LEVEL)).any(axis=0).sum())
    more = f"; and so do {all_found - NAMED} more columns" if all_found > NAMED else ""
    quiet = f"The most telling column, '{sample.names[column]}', tells the {noun} '{sets[told]}' with AUROC "
    return Finding(
        kind=kind,
        verdict="alarm" if found else "silent",
        measure=_MEASURES[kind],
        value=float(areas[told, column]),
        chance=0.5,
        p=float(p[told, column]),
        sentence=f"Column {shown}{more}." if found else f"{quiet}{areas[told, column]:.3f} (a leak is from {TELLS}).",
        meaning=MEANING[kind],
        details={
            "columns": [sample.names[c] for c, _ in best],
            "tells": [sets[s] for _, s in best],
            "auroc": [float(areas[s, c]) for c, s in best],
            "from": TELLS,
        },
    )


def _number_leak(sample: Sample, ranks: Floats) -> Finding:
    y = _ranks(sample.y.astype(np.float64)[:, None])[:, 0]
    measure = "rank correlation of the best column with the label"
    if np.ptp(y) == 0 or not (np.ptp(ranks, axis=0) > 0).any():
        return cannot_say("label leak", measure, "The label, or every column, is constant.", MEANING["label leak"])
    varies = np.ptp(ranks, axis=0) > 0
    correlation = np.zeros(ranks.shape[1])
    centred = ranks[:, varies] - ranks[:, varies].mean(axis=0)
    lengths = np.sqrt((centred**2).sum(axis=0) * ((y - y.mean()) ** 2).sum())
    correlation[varies] = np.abs((y - y.mean()) @ centred) / lengths
    order = np.argsort(-correlation, kind="stable")[:10]
    best = int(order[0])
    rings = correlation[best] >= TELLS_NUMBER and len(y) >= 4 * LEAST_OF_CLASS
    name, value = sample.names[best], float(correlation[best])
    return Finding(
        kind="label leak",
        verdict="alarm" if rings else "silent",
        measure=measure,
        value=value,
        chance=0.0,
        sentence=f"Column '{name}' goes with the label most: rank correlation {value:.4f} (a leak: {TELLS_NUMBER}).",
        meaning=MEANING["label leak"],
        details={
            "columns": [sample.names[int(c)] for c in order],
            "tells": ["the label"] * len(order),
            "auroc": [float(correlation[c]) for c in order],
            "from": TELLS_NUMBER,
        },
    )
