"""How well will the model do at a site it has never seen? An estimate from the held-out results of known sites.

Every held-out domain is a site that its model never saw, so the spread over held-out domains is the spread that a new
site is drawn from, if the new site is like these. The interval of the *mean* says where the average over many sites
lies. A single new site lies within it far less often than 95 % of the time. What a new site needs is a *prediction*
interval: t with D - 1 degrees of freedom and s·√(1 + 1/D), on a scale where a metric has no bounds (Higgins, Thompson
and Spiegelhalter, JRSS A 2009, use it for a new study in a meta-analysis). `studies/new_site_coverage.py` measures how
often both intervals cover a new site.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, stdtrit

from farfield.protocol.metrics import HIGHER_IS_BETTER
from farfield.protocol.significance import LEVEL
from farfield.protocol.statistics import summary

#: Fewer domains than this say too little about a new one.
MIN_DOMAINS = 4
#: Up to this many domains the sentence says that they are few.
FEW_DOMAINS = 9
#: What the coverage is called: the t-interval is made for 95 %, and on real data it covers a little less.
COVERAGE = "about 90 to 95 %"

_SHARES = frozenset({"accuracy", "balanced_accuracy", "macro_f1", "auroc", "average_precision"})
_PERCENT = frozenset({"accuracy", "balanced_accuracy", "macro_f1"})
_POSITIVE = frozenset({"loss", "balanced_loss", "rmse", "mae", "brier", "ece"})
_NAMES = {
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro-F1",
    "auroc": "AUROC",
    "average_precision": "average precision",
    "balanced_loss": "class-balanced loss",
    "rmse": "RMSE",
    "mae": "mean absolute error",
    "brier": "Brier score",
    "ece": "calibration error",
    "r2": "R²",
}

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class NewSiteEstimate:
    """What held-out domains say about a new site, in the metric's own unit.

    `mean` is over domains. `low` and `high` are the prediction interval for one new site; `mean_low` and `mean_high`
    are the 95 % interval of the mean, as in the result table, and are not about one site. `between_std` is the standard
    deviation over domains; it holds the chance of each site's few rows too.
    """

    metric: str
    mean: float
    low: float
    high: float
    mean_low: float
    mean_high: float
    between_std: float
    worst_domain: str
    worst: float
    domains: int
    #: The scale that the prediction interval was computed on: "logit", "log", or "log(1 − R²)".
    scale: str
    sentence: str
    coverage: str = COVERAGE

    def to_json(self) -> dict[str, Any]:
        """Return all fields as plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Refusal:
    """Why there is no estimate, and what would make one possible, in one sentence."""

    sentence: str

    def to_json(self) -> dict[str, Any]:
        """Return the reason as plain values."""
        return {"refused": self.sentence}


@dataclass(frozen=True)
class _Scale:
    """A scale without bounds: there and back. `falling` where a larger value lies lower on the scale."""

    name: str
    there: Callable[[Floats], Floats]
    back: Callable[[float], float]
    falling: bool = False


_LOGIT = _Scale("logit", logit, lambda at: float(expit(at)))
_LOG = _Scale("log", np.log, math.exp)
_LOG_REST = _Scale("log(1 − R²)", lambda value: np.log(1.0 - value), lambda at: 1.0 - math.exp(at), falling=True)


def new_site_estimate(
    values_by_domain: Mapping[str, float],
    rows_by_domain: Mapping[str, int] | None,
    metric: str,
    noun: str = "domain",
) -> NewSiteEstimate | Refusal:
    """Estimate how a new site will do from one held-out value per domain (its mean over seeds).

    Shares (accuracy, AUROC, …) are computed on the logit scale, after (x·n + ½) / (n + 1) where the rows `n` of every
    domain are known, so that a perfect site does not lie at infinity. Losses and errors are computed on the log scale,
    R² on log(1 − R²), the log of the error relative to the variance. `noun` names a domain in the sentence.

    Refused, with the reason: below four domains, a value that is not finite, a metric without a known scale, and a
    value at the edge of its scale (a share of 0 or 1 without rows, a loss of 0, an R² of 1).
    """
    count = len(values_by_domain)
    if count < MIN_DOMAINS:
        have = f"1 held-out {noun}" if count == 1 else f"{count} held-out {noun}s"
        return Refusal(
            f"{have} {'is' if count == 1 else 'are'} too few to say how a new one will do: {MIN_DOMAINS} are needed to "
            "see how much they differ; hold out more of them, or split the data by a finer one."
        )
    for name, value in values_by_domain.items():
        if not math.isfinite(value):
            return Refusal(f"no estimate for a new {noun}: the {_label(metric)} on '{name}' is not a finite number.")
    names, values = list(values_by_domain), np.array(list(values_by_domain.values()), dtype=np.float64)
    chosen = _scale(metric, names, values, rows_by_domain, noun)
    if isinstance(chosen, Refusal):
        return chosen
    scale, inner = chosen
    at = scale.there(inner)
    half = float(stdtrit(count - 1, 1.0 - LEVEL / 2.0)) * float(at.std(ddof=1)) * math.sqrt(1.0 + 1.0 / count)
    ends = sorted((scale.back(float(at.mean()) - half), scale.back(float(at.mean()) + half)))
    overall = summary(values)
    # The ends are of values that were moved off 0 and 1, the mean is not: of sites that are all perfect it lies beyond.
    ends = [min(ends[0], overall.mean), max(ends[1], overall.mean)]
    assert overall.std is not None
    assert overall.low is not None
    assert overall.high is not None
    least, most = (0.0, 1.0) if metric in _SHARES else (-math.inf, 1.0) if scale.falling else (0.0, math.inf)
    worst = int((values.argmin if HIGHER_IS_BETTER[metric] else values.argmax)())
    return NewSiteEstimate(
        metric=metric,
        mean=overall.mean,
        low=ends[0],
        high=ends[1],
        mean_low=max(least, overall.low),
        mean_high=min(most, overall.high),
        between_std=overall.std,
        worst_domain=names[worst],
        worst=float(values[worst]),
        domains=count,
        scale=scale.name,
        sentence=_sentence(metric, noun, count, overall.mean, ends[0], ends[1]),
    )


def _scale(
    metric: str, names: list[str], values: Floats, rows: Mapping[str, int] | None, noun: str
) -> tuple[_Scale, Floats] | Refusal:
    """Choose the metric's scale, and the values to compute with; or say why there is none."""
    if metric in _SHARES:
        for name, value in zip(names, values, strict=True):
            if not 0.0 <= value <= 1.0:
                return Refusal(f"no estimate for a new {noun}: {_label(metric)} {value:g} on '{name}' is not a share.")
        if rows is not None and all(rows.get(name, 0) > 0 for name in names):
            n = np.array([rows[name] for name in names], dtype=np.float64)
            return _LOGIT, (values * n + 0.5) / (n + 1.0)
        edge, least, most, scale = "0 or 1", 0.0, 1.0, _LOGIT
    elif metric in _POSITIVE:
        edge, least, most, scale = "0", 0.0, math.inf, _LOG
    elif metric == "r2":
        edge, least, most, scale = "1", -math.inf, 1.0, _LOG_REST
    else:
        known = ", ".join(sorted({*_SHARES, *_POSITIVE, "r2"}))
        return Refusal(f"no estimate for a new {noun}: the scale of '{metric}' is not known; choose one of {known}.")
    for name, value in zip(names, values, strict=True):
        if not least < value < most:
            way = "; give the rows of every domain" if scale is _LOGIT else ""
            return Refusal(
                f"no estimate for a new {noun}: the {_label(metric)} on '{name}' is {value:g}, and a value of {edge} "
                f"has no place on the {scale.name} scale{way}."
            )
    return scale, values


def _sentence(metric: str, noun: str, count: int, mean: float, low: float, high: float) -> str:
    few = f"; {count} are too few to promise more" if count <= FEW_DOMAINS else ""
    unit = " %" if metric in _PERCENT else ""
    average, ends = _number(metric, mean), f"{_number(metric, low)} and {_number(metric, high)}"
    return (
        f"{count} {noun}s: {average}{unit} {_label(metric)} on average; a new one is likely to lie between "
        f"{ends}{unit} (an interval that holds {COVERAGE} of the time){few}."
    )


def _label(metric: str) -> str:
    return _NAMES.get(metric, metric)


def _number(metric: str, value: float) -> str:
    """Write a value for the sentence: whole percent, two decimals around one, else three digits."""
    if metric in _PERCENT:
        return f"{100 * value:.0f}"
    text = f"{value:.2f}" if metric in _SHARES or metric == "r2" else f"{value:,.{_decimals(value)}f}"
    return text.replace("-", "\N{MINUS SIGN}")


def _decimals(value: float) -> int:
    return max(0, 2 - math.floor(math.log10(abs(value)))) if value else 2
