"""Which round's model is the result: pure functions over records.

| rule | looks at | chooses |
|---|---|---|
| `last` | nothing | the last recorded round |
| `source-validation` | validation data of the training domains | best mean of the leading metric over domains |
| `source-loss` | validation data of the training domains | lowest mean loss over domains |
| `source-accuracy` | validation data of the training domains | highest mean accuracy, the earliest of equals |
| `leave-one-domain-out` | inner runs that each held out one more source | best mean over those inner held-out domains |
| `oracle` | the held-out domain itself | best there: a ceiling, not a result |
| `oracle-loss` | the held-out domain itself | lowest loss there (FedILC's tables): a ceiling too |

One metric leads a bench and chooses its rounds. Of rounds with equal values the one with the lower loss wins, then the
later one. Where clients do not measure the metric, the nearest figure that they measure takes its place (`validated`).
`source-accuracy` is the rule of the papers' published code and keeps their tie, the earliest round; regressions have no
accuracy, so there it is the lowest loss. Only finite values can win. `studies/selection.py` has the figures behind the
default.

The rules that choose honestly take `SourceRow` and `InnerRow`, which have no place for results of the held-out domain.
`choose_oracle` is the only function here that takes any.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from statistics import fmean
from typing import TypeVar

from farfield.protocol.metrics import HIGHER_IS_BETTER, METRICS, rmse_from_loss
from farfield.tasks.clients.partition import MIXED

#: Metrics of regressions alone.
REGRESSION = frozenset(METRICS["regression"]) - frozenset(METRICS["classification"])

Row = TypeVar("Row", "SourceRow", "InnerRow", "TargetRow")


@dataclass(frozen=True)
class SourceRow:
    """One evaluated round: each source domain's validation metrics (`accuracy`, `loss`, `n`, …)."""

    round: int
    domains: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class InnerRow:
    """One evaluated round of an inner run: metrics on the source domain that this inner run held out."""

    round: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class TargetRow:
    """One evaluated round: metrics on the held-out domain. For `choose_oracle` and the report, nobody else."""

    round: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Rule:
    """A selection rule by the name that tables print."""

    name: str
    description: str
    needs_inner: bool = False
    is_oracle: bool = False


RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule("last", "the last round; nothing is looked at"),
        Rule("source-validation", "best mean of the leading metric over the training domains' validation data"),
        Rule("source-loss", "lowest mean loss over the training domains' validation data"),
        Rule("source-accuracy", "highest mean accuracy over the training domains' validation data, as in the papers"),
        Rule(
            "leave-one-domain-out",
            "best mean over inner runs that each held out one more training domain",
            needs_inner=True,
        ),
        Rule("oracle", "best on the held-out domain itself; a ceiling, not a result", is_oracle=True),
        Rule("oracle-loss", "lowest loss on the held-out domain itself; a ceiling, not a result", is_oracle=True),
    )
}

#: The rules that look at the validation data of the training domains alone.
LOOKS_AT_VALIDATION = ("source-validation", "source-loss", "source-accuracy")

#: How good a round is: compared from left to right, higher is better; None where the round cannot win.
Standing = tuple[float, ...]


#: What clients measure on their validation rows.
VALIDATED = ("accuracy", "balanced_accuracy", "auroc", "loss", "balanced_loss")
#: The nearest of these figures to a metric that clients do not measure; the loss where there is none.
_NEAREST = {"macro_f1": "balanced_accuracy", "average_precision": "auroc"}


def validated(metric: str) -> str:
    """Return the figure that clients measure for this metric: itself, or the nearest to it."""
    return metric if metric in VALIDATED else _NEAREST.get(metric, "loss")


def criterion(metric: str) -> str:
    """Return the loss that breaks ties where this metric leads."""
    return "balanced_loss" if metric == "balanced_loss" else "loss"


def standing(
    rule: str, metric: str, domains: Mapping[str, Mapping[str, float]], required: Collection[str] = ()
) -> Standing | None:
    """Return how a round stands under a rule that looks at the validation figures of the training domains.

    Every domain counts the same, however many rows it has. Of two rounds that stand equal the later one wins
    (`source-accuracy`: the earlier one). A figure that a domain does not have, such as AUROC where it has one class, is
    averaged over the domains that have it; a loss must be there in all of them. `required` names the domains that must
    define the metric itself: those where another round does (`comparable`). A round that diverged in one of them has no
    AUROC there and a finite loss; its mean over the other domains does not compare, so it cannot win.
    """
    loss = -_mean_of(domains, criterion(metric), everywhere=True)
    if rule == "source-loss":
        found: Standing = (loss,)
    elif rule == "source-validation":
        if any(_value(domains.get(name, {}), metric) is None for name in required):
            return None
        by = metric if any(metric in figures for figures in domains.values()) else validated(metric)
        # A figure that no domain defines, such as AUROC where each has one class, leaves it to the loss.
        value = _mean_of(domains, by, everywhere=False)
        found = (loss, loss) if math.isnan(value) and not required else (_signed(by, value), loss)
    elif rule == "source-accuracy":
        by = "accuracy" if metric not in REGRESSION else "loss"
        found = (_signed(by, _mean_of(domains, by, everywhere=True)),)
    else:
        raise ValueError(f"rule '{rule}' does not look at validation figures")
    return _finite(found)


def comparable(metric: str, rounds: Sequence[Mapping[str, Mapping[str, float]]]) -> tuple[str, frozenset[str]]:
    """Return the figure that `source-validation` compares over all these rounds, and the domains that must define it.

    The figure is the metric where any round has it, else the nearest that clients measure. A domain must define it in
    every round if it does so in one.
    """
    by = metric if any(metric in figures for domains in rounds for figures in domains.values()) else validated(metric)
    having = frozenset(name for domains in rounds for name, figures in domains.items() if by in figures)
    return by, having


def choose(
    rule: str,
    metric: str,
    source_rows: Sequence[SourceRow],
    inner: Mapping[str, Sequence[InnerRow]] | None = None,
) -> int:
    """The round that `rule` chooses where `metric` leads. `inner` is read by `leave-one-domain-out` alone."""
    known = rule_named(rule)
    if known.is_oracle:
        raise ValueError(f"rule '{rule}' looks at the held-out domain, so it is not chosen from source records")
    if rule == "last":
        return last(source_rows)
    if known.needs_inner:
        return leave_one_domain_out(metric, source_rows, inner or {})
    return source_validation(metric, source_rows, rule)


def choose_oracle(metric: str, target_rows: Sequence[TargetRow], rule: str = "oracle") -> int:
    """The round that is best on the held-out domain. It peeks: print it as oracle, never as a method's result.

    Where the domain does not define the metric in any round (AUROC with one class), its loss chooses.
    """
    rows = _by_round(target_rows, "held-out")
    by = "loss" if rule == "oracle-loss" or not any(metric in row.metrics for row in rows.values()) else metric
    return _best(
        by,
        {
            r: _finite((_signed(by, row.metrics.get(by, math.nan)), -row.metrics.get("loss", 0.0)))
            for r, row in rows.items()
        },
    )


def last(source_rows: Sequence[SourceRow]) -> int:
    """The last recorded round, whatever its metrics."""
    return max(_by_round(source_rows, "source"))


def source_validation(metric: str, source_rows: Sequence[SourceRow], rule: str = "source-validation") -> int:
    """The round that stands highest by the validation data of the training domains.

    A round that lacks a domain which other rounds have cannot win: a mean without the hard domain is not comparable.
    """
    rows = _by_round(source_rows, "source")
    domains = _source_domains(rows.values())
    required: Collection[str] = ()
    if rule == "source-validation":
        metric, required = comparable(metric, [row.domains for row in rows.values()])
    return _best(
        criterion(metric) if rule == "source-loss" else metric,
        {
            r: standing(rule, metric, row.domains, required) if all(name in row.domains for name in domains) else None
            for r, row in rows.items()
        },
        rule,
    )


def leave_one_domain_out(metric: str, source_rows: Sequence[SourceRow], inner: Mapping[str, Sequence[InnerRow]]) -> int:
    """The round with the best mean of the metric over inner runs, each measured on the source domain it held out.

    `inner` maps that domain to the rows of its inner run; it may cover some of the sources only. Candidates are the
    rounds that every inner run and `source_rows` have.
    """
    rows = _by_round(source_rows, "source")
    domains = _source_domains(rows.values())
    if not inner:
        raise ValueError("rule 'leave-one-domain-out' needs inner runs, and there are none")
    for name in inner:
        # An inner run on anything but a source would let the held-out domain choose. Clients that mix domains (pooled
        # or IID rows) report no domain of their own to compare with.
        if domains != [MIXED] and name not in domains:
            raise ValueError(f"inner run '{name}' did not hold out a source domain; the sources are {sorted(domains)}")
    runs = {name: _by_round(rows_of_run, f"inner '{name}'") for name, rows_of_run in inner.items()}
    rounds = [r for r in rows if all(r in run for run in runs.values())]
    if not rounds:
        raise ValueError(f"no round was evaluated both in this run and in all inner runs {sorted(runs)}")
    figures = {r: {name: run[r].metrics for name, run in runs.items()} for r in rounds}
    metric, required = comparable(metric, list(figures.values()))
    return _best(metric, {r: standing("source-validation", metric, of, required) for r, of in figures.items()})


def replaces(rule: str, found: Standing | None, best: Standing | None) -> bool:
    """Whether a round replaces the best one before it.

    Of equals the later one wins, with `source-accuracy` the earlier one. `found` is how the round stands, and `best`
    how the best round so far stands; None where there is none.
    """
    if found is None or best is None:
        return found is not None
    return found > best or (found == best and rule != "source-accuracy")


def keeping_rule(rules: Iterable[str]) -> str:
    """Return the rule that can keep a model while it is trained: the first that does not peek.

    A training has no inner runs, so `source-validation` stands in for a rule that needs them.
    """
    honest = next((rule for rule in rules if not rule_named(rule).is_oracle), "source-validation")
    return "source-validation" if RULES[honest].needs_inner else honest


def _best(by: str, standing_of: Mapping[int, Standing | None], rule: str = "source-validation") -> int:
    """The round that stands highest, of rounds in ascending order."""
    best: int | None = None
    highest: Standing | None = None
    for r, found in standing_of.items():
        if replaces(rule, found, highest):
            best, highest = r, found
    if best is None:
        raise ValueError(f"none of {len(standing_of)} rounds has a finite mean {by} over all domains to choose by")
    return best


def _signed(metric: str, value: float) -> float:
    return value if HIGHER_IS_BETTER[metric] else -value


def _finite(found: Standing) -> Standing | None:
    return found if all(map(math.isfinite, found)) else None


def _mean_of(domains: Mapping[str, Mapping[str, float]], metric: str, *, everywhere: bool) -> float:
    """The exactly rounded mean over domains, so that domains in another order still tie; NaN where there is none."""
    values = [_value(figures, metric) for figures in domains.values()]
    kept = [value for value in values if value is not None]
    if not kept or (everywhere and len(kept) < len(values)) or not all(map(math.isfinite, kept)):
        return math.nan
    return fmean(kept)


def _value(figures: Mapping[str, float], metric: str) -> float | None:
    """A figure by name. Records of older versions have no class-balanced loss: the loss takes its place."""
    if metric == "rmse" and "rmse" not in figures and "loss" in figures:
        return rmse_from_loss(figures["loss"])
    if metric == "balanced_loss" and "balanced_loss" not in figures:
        return figures.get("loss")
    return figures.get(metric)


def _by_round(rows: Sequence[Row], whose: str) -> dict[int, Row]:
    """Rows in ascending order of their round."""
    if not rows:
        raise ValueError(f"there are no {whose} rows to choose a round from")
    ordered = {row.round: row for row in sorted(rows, key=lambda row: row.round)}
    if len(ordered) < len(rows):
        raise ValueError(f"the {whose} rows have a round twice among {sorted(row.round for row in rows)}")
    return ordered


def _source_domains(rows: Iterable[SourceRow]) -> list[str]:
    domains = list(dict.fromkeys(name for row in rows for name in row.domains))
    if not domains:
        raise ValueError("the source rows hold no domain's validation metrics")
    return domains


def rule_named(name: str) -> Rule:
    if name in RULES:
        return RULES[name]
    close = get_close_matches(name, RULES, n=1)
    hint = f"did you mean '{close[0]}'?" if close else f"there are {', '.join(RULES)}"
    raise ValueError(f"unknown selection rule '{name}'; {hint}")
