"""Which round's model is the result: pure functions over records.

| rule | looks at | chooses |
|---|---|---|
| `last` | nothing | the last recorded round |
| `source-validation` | validation data of the training domains | best unweighted mean over domains (FedIIR) |
| `leave-one-domain-out` | inner runs that each held out one more source | best mean over those inner held-out domains |
| `oracle` | the held-out domain itself | best there: a ceiling, not a result |
| `oracle-loss` | the held-out domain itself | lowest loss there (FedILC's tables): a ceiling too |

"Best" is the highest accuracy for classification and the lowest loss for regression. Ties go to the earliest round.
Only finite values can win.

The rules that choose honestly take `SourceRow` and `InnerRow`, which have no place for results of the held-out domain.
`choose_oracle` is the only function here that takes any.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from statistics import fmean
from typing import TYPE_CHECKING, TypeVar

from farfield.protocol.metrics import HIGHER_IS_BETTER, headline
from farfield.tasks.clients.partition import MIXED

if TYPE_CHECKING:  # for the annotation alone: reading records needs no torch
    from farfield.tasks.task import TaskKind

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
        Rule("source-validation", "best mean over the training domains' validation data"),
        Rule(
            "leave-one-domain-out",
            "best mean over inner runs that each held out one more training domain",
            needs_inner=True,
        ),
        Rule("oracle", "best on the held-out domain itself; a ceiling, not a result", is_oracle=True),
        Rule("oracle-loss", "lowest loss on the held-out domain itself; a ceiling, not a result", is_oracle=True),
    )
}


def choose(
    rule: str,
    kind: TaskKind,
    source_rows: Sequence[SourceRow],
    inner: Mapping[str, Sequence[InnerRow]] | None = None,
) -> int:
    """The round that `rule` chooses for a task of this kind. `inner` is read by `leave-one-domain-out` alone."""
    known = rule_named(rule)
    if known.is_oracle:
        raise ValueError(f"rule '{rule}' looks at the held-out domain, so it is not chosen from source records")
    if rule == "last":
        return last(source_rows)
    if rule == "source-validation":
        return source_validation(kind, source_rows)
    return leave_one_domain_out(kind, source_rows, inner or {})


def choose_oracle(kind: TaskKind, target_rows: Sequence[TargetRow], rule: str = "oracle") -> int:
    """The round that is best on the held-out domain. It peeks: print it as oracle, never as a method's result."""
    metric = "loss" if rule == "oracle-loss" else headline(kind)
    rows = _by_round(target_rows, "held-out")
    return _best(metric, {r: _value(row.metrics, metric, f"round {r}") for r, row in rows.items()})


def last(source_rows: Sequence[SourceRow]) -> int:
    """The last recorded round, whatever its metrics."""
    return max(_by_round(source_rows, "source"))


def source_validation(kind: TaskKind, source_rows: Sequence[SourceRow]) -> int:
    """The earliest round with the best unweighted mean over source domains of the validation metric.

    Every domain counts the same, however many examples it has. A round that lacks a domain which other rounds have
    cannot win: a mean without the hard domain is not comparable.
    """
    metric = headline(kind)
    rows = _by_round(source_rows, "source")
    domains = _source_domains(rows.values())
    return _best(
        metric,
        {
            r: _mean(
                _value(row.domains[name], metric, f"round {r}, domain '{name}'") if name in row.domains else math.nan
                for name in domains
            )
            for r, row in rows.items()
        },
    )


def leave_one_domain_out(
    kind: TaskKind, source_rows: Sequence[SourceRow], inner: Mapping[str, Sequence[InnerRow]]
) -> int:
    """The earliest round with the best mean over inner runs, each measured on the source domain it held out.

    `inner` maps that domain to the rows of its inner run; it may cover some of the sources only. Candidates are the
    rounds that every inner run and `source_rows` have.
    """
    metric = headline(kind)
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
    return _best(
        metric,
        {
            r: _mean(_value(run[r].metrics, metric, f"round {r}, inner domain '{name}'") for name, run in runs.items())
            for r in rounds
        },
    )


def _best(metric: str, value_of: Mapping[int, float]) -> int:
    """The best round; rounds come in ascending order and only a strictly better one replaces the best so far."""
    sign = 1.0 if HIGHER_IS_BETTER[metric] else -1.0
    best: int | None = None
    for r, value in value_of.items():
        if math.isfinite(value) and (best is None or sign * value > sign * value_of[best]):
            best = r
    if best is None:
        raise ValueError(f"none of {len(value_of)} rounds has a finite mean {metric} over all domains to choose by")
    return best


def _mean(values: Iterable[float]) -> float:
    """The exactly rounded mean, so that domains in another order still tie; NaN when a value is not finite."""
    kept = list(values)
    return fmean(kept) if all(map(math.isfinite, kept)) else math.nan


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


def _value(metrics: Mapping[str, float], metric: str, where: str) -> float:
    if metric not in metrics:
        raise ValueError(f"{where} has no '{metric}', only {sorted(metrics)}")
    return metrics[metric]


def rule_named(name: str) -> Rule:
    if name in RULES:
        return RULES[name]
    close = get_close_matches(name, RULES, n=1)
    hint = f"did you mean '{close[0]}'?" if close else f"there are {', '.join(RULES)}"
    raise ValueError(f"unknown selection rule '{name}'; {hint}")
