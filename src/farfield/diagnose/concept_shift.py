"""Concept shift: how far the linear heads of different domains disagree on the same rows (FedIIR, definition 1).

A linear head is fitted to each domain on the shared features, each class with the same weight, and two heads are
compared on the rows of both domains: the share of rows to which they give different labels; of a regression the root
mean square of their difference, in standard deviations of the label.

Heads of small or different samples disagree without any concept shift. Chance is therefore a model of *one* concept,
fitted to all rows: a logistic regression with the same slopes everywhere and an intercept per domain, so that neither
label shift nor feature shift is mistaken for concept shift. New labels are drawn from it for the same inputs, heads
are fitted to them, and their disagreement is what the number is compared with.

All of this is about linear functions of these features. A curved concept that all domains share looks like concept
shift where the domains cover different parts of it.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import torch

from farfield.diagnose.advice import MEANING, METHODS
from farfield.diagnose.finding import LEVEL, Finding, Verdict, cannot_say, chance_of, small
from farfield.diagnose.shared_features import Floats, Ints, Sample
from farfield.math import prediction_disagreement

#: Beyond chance, for an alarm: a share of rows, or of the label's standard deviation.
LEAST = 0.05
#: Where heads of one concept disagree on so many rows, the domains hardly overlap, and silence says nothing.
TOO_FAR_APART = 0.4
#: Ridge of a head, per row.
RIDGE = 1e-2
#: A head needs two classes with so many rows each.
LEAST_OF_CLASS = 3
#: Inverse penalties of the model of one concept, chosen by cross-validation: an overfitted one would be too sure.
PENALTIES = (0.003, 0.03, 0.3, 3.0)
_KIND: Final = "concept shift"


@dataclass(frozen=True)
class _Rows:
    """The rows of the domains that a head can be fitted to; features with a constant 1 as the last column."""

    x: Floats
    y: Floats
    owner: Ints
    domains: int
    classes: int

    @cached_property
    def parts(self) -> tuple[slice, ...]:
        """The rows of each domain, which lie side by side."""
        ends = np.bincount(self.owner).cumsum().tolist()
        return tuple(slice(start, end) for start, end in zip([0, *ends], ends, strict=False))


def concept_shift(sample: Sample, draws: int) -> Finding:
    """Measure the disagreement of all pairs of heads."""
    regression = sample.task.kind == "regression"
    measure = "difference of heads (in deviations of the label)" if regression else "rows on which two heads disagree"
    able = [n for n in range(len(sample.domains)) if regression or _has_two_classes(sample, n)]
    left_out = [name for n, name in enumerate(sample.domain_names) if n not in able]
    aside = f" Without {', '.join(repr(n) for n in left_out[:3])}, where one class has nearly all rows." * bool(
        left_out
    )
    if len(able) < 2:
        reason = "Fewer than two domains have the rows, and two classes each, that a head needs."
        return cannot_say(_KIND, measure, reason, MEANING[_KIND])
    if not sample.z.shape[1]:
        return cannot_say(_KIND, measure, "No column varies, so no head can be fitted.", MEANING[_KIND])
    if regression and not np.ptp(sample.y.astype(np.float64)):
        return cannot_say(_KIND, measure, "All rows have the same label.", MEANING[_KIND])
    rows = _rows(sample, able)
    matrix = disagreements(given_labels(rows.y, rows), rows)
    draw = sample.draw("concept shift")
    null_matrices = [
        disagreements_at_once(given_labels(y, rows), rows) for y in _draws_of_one_concept(rows, draws, draw)
    ]
    null = [_mean(found) for found in null_matrices]
    value, chance = _mean(matrix), float(np.mean(null))
    p = chance_of(null, value)
    rings = p <= LEVEL and value - chance >= LEAST
    beyond = matrix - np.mean(null_matrices, axis=0)
    names = [sample.domain_names[n] for n in able]
    a, b = (int(place) for place in np.unravel_index(beyond.argmax(), beyond.shape))
    pair = f"most beyond chance between '{names[min(a, b)]}' and '{names[max(a, b)]}'"
    if regression:
        said = f"Linear heads of two domains differ by {value:.2f} standard deviations of the label on the same rows "
        sentence = f"{said}(chance alone: {chance:.2f}), {pair} ({matrix[a, b]:.2f}).{aside}"
    else:
        said = f"Linear heads of two domains give different labels to {100 * value:.1f} % of the same rows "
        sentence = f"{said}(chance alone: {100 * chance:.1f} %), {pair} ({100 * matrix[a, b]:.1f} %).{aside}"
    verdict: Verdict = "alarm" if rings else "silent"
    if not rings and chance >= TOO_FAR_APART:
        verdict = "cannot say"
        sentence += " The domains overlap so little that heads of one and the same concept would disagree that often."
    else:
        sentence += small(p, rings)
    return Finding(
        kind=_KIND,
        verdict=verdict,
        measure=measure,
        value=value,
        chance=chance,
        p=p,
        sentence=sentence,
        meaning=MEANING[_KIND],
        methods=METHODS[_KIND] if rings else (),
        details={"domains": names, "pairs": matrix.tolist(), "chance": np.mean(null_matrices, axis=0).tolist()},
    )


def given_labels(y: Floats, rows: _Rows) -> Floats:
    """Fit a head to each domain, and return what each gives to all rows, [domains, rows]: labels, or numbers."""
    heads = np.stack([fit_head(rows.x[part], y[part], rows.classes) for part in rows.parts])
    scores = rows.x @ heads  # [domain, row, output]
    given: Floats = scores.argmax(axis=-1).astype(np.float64) if rows.classes else scores[..., 0]
    return given


def disagreements(given: Floats, rows: _Rows) -> Floats:
    """Compare every pair of heads on the rows of both domains; [domains, domains]."""
    matrix = np.zeros((rows.domains, rows.domains))
    for a, own in enumerate(rows.parts):
        for b, other in enumerate(rows.parts[:a]):
            left, right = (torch.from_numpy(np.concatenate([given[n, own], given[n, other]])) for n in (a, b))
            if rows.classes:
                matrix[a, b] = prediction_disagreement(left, right)
            else:
                matrix[a, b] = float((left - right).square().mean().sqrt())
            matrix[b, a] = matrix[a, b]
    return matrix


def disagreements_at_once(given: Floats, rows: _Rows) -> Floats:
    """The same as `disagreements`, by sums over domains in place of pairs: for the many draws of chance."""
    starts = [part.start for part in rows.parts]
    sizes = np.array([part.stop - part.start for part in rows.parts])
    matrix = np.zeros((rows.domains, rows.domains))
    for a in range(rows.domains):
        gap = (given != given[a]) * 1.0 if rows.classes else (given - given[a]) ** 2
        sums = np.add.reduceat(gap, starts, axis=1)  # [head, domain whose rows]
        matrix[a] = (sums[:, a] + np.diag(sums)) / (sizes + sizes[a])
    np.fill_diagonal(matrix, 0.0)
    return matrix if rows.classes else np.sqrt(matrix)


def fit_head(x: Floats, y: Floats, classes: int) -> Floats:
    """Ridge regression on class indicators (classes of equal weight) or on the label; weights [features, outputs]."""
    if classes:
        counts = np.bincount(y.astype(np.int64), minlength=classes)
        weights = 1.0 / (counts[y.astype(np.int64)] * (counts > 0).sum())
        targets = np.eye(classes)[y.astype(np.int64)]
    else:
        weights, targets = np.full(len(y), 1.0 / len(y)), y[:, None]
    penalty = RIDGE * np.eye(x.shape[1])
    penalty[-1, -1] = 1e-9  # the intercept is free
    weighted = x * weights[:, None]
    head: Floats = np.linalg.solve(weighted.T @ x + penalty, weighted.T @ targets)
    return head


def _mean(matrix: Floats) -> float:
    return float(matrix[np.tril_indices(len(matrix), -1)].mean())


def _has_two_classes(sample: Sample, number: int) -> bool:
    counts = np.bincount(sample.y[sample.owner == number].astype(np.int64))
    return int((counts >= LEAST_OF_CLASS).sum()) >= 2


def _rows(sample: Sample, able: list[int]) -> _Rows:
    kept = np.isin(sample.owner, able)
    owner = np.searchsorted(able, sample.owner[kept]).astype(np.int64)
    x = np.concatenate([sample.z[kept], np.ones((int(kept.sum()), 1))], axis=1)
    return _Rows(x, sample.y[kept].astype(np.float64), owner, len(able), sample.classes)


def _draws_of_one_concept(rows: _Rows, draws: int, draw: np.random.Generator) -> list[Floats]:
    """Labels as they would be if all domains had the same slopes."""
    site = np.eye(rows.domains)[rows.owner]
    if not rows.classes:
        return _drawn_numbers(rows, site, draws, draw)
    chances = _one_concept(rows, site)
    # What a domain never shows, it is not given.
    present = np.zeros((rows.domains, rows.classes), dtype=bool)
    present[rows.owner, rows.y.astype(np.int64)] = True
    chances = chances * present[rows.owner]
    cumulative = (chances / chances.sum(axis=1, keepdims=True)).cumsum(axis=1)
    last = present.shape[1] - 1 - present[:, ::-1].argmax(axis=1)
    found = []
    for _ in range(draws):
        given = (draw.random((len(rows.y), 1)) > cumulative).sum(axis=1)
        found.append(np.minimum(given, last[rows.owner]).astype(np.float64))
    return found


def _one_concept(rows: _Rows, site: Floats) -> Floats:
    """Class probabilities of one logistic regression for all: common slopes, an intercept per domain."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold

    y = rows.y.astype(np.int64)
    x = np.concatenate([rows.x[:, :-1], 5.0 * site], axis=1)  # large entries: the intercepts are hardly penalised
    classes, codes = np.unique(y, return_inverse=True)
    folds = min(3, int(np.bincount(codes).min()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        best, lowest = PENALTIES[1], np.inf
        for penalty in PENALTIES if folds >= 2 else ():
            loss = 0.0
            for train, test in StratifiedKFold(folds, shuffle=True, random_state=0).split(x, codes):
                model = LogisticRegression(C=penalty, max_iter=100).fit(x[train], codes[train])
                loss -= float(model.predict_log_proba(x[test])[np.arange(len(test)), codes[test]].sum())
            if loss < lowest:
                best, lowest = penalty, loss
        model = LogisticRegression(C=best, max_iter=200).fit(x, codes)
    chances = np.zeros((len(y), rows.classes))
    chances[:, classes] = model.predict_proba(x)
    return chances


def _drawn_numbers(rows: _Rows, site: Floats, draws: int, draw: np.random.Generator) -> list[Floats]:
    """Least squares with common slopes, plus the residuals of each domain drawn anew."""
    x = np.concatenate([rows.x[:, :-1], site], axis=1)
    penalty = np.diag([RIDGE * len(x)] * (rows.x.shape[1] - 1) + [1e-9] * rows.domains)
    fitted = x @ np.linalg.solve(x.T @ x + penalty, x.T @ rows.y)
    residuals = rows.y - fitted
    found = []
    for _ in range(draws):
        drawn = np.empty_like(residuals)
        for number in range(rows.domains):
            part = rows.parts[number]
            drawn[part] = draw.choice(residuals[part], len(residuals[part]))
        found.append(fitted + drawn)
    return found
