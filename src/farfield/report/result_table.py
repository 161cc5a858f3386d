"""The result table: one line per variant, with what a reader must know to read its numbers.

Every number keeps its unit: a mean over held-out domains has an interval over domains, a mean over one domain has an
interval over seeds, and the table says which.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rich.table import Table as RichTable

from farfield.protocol.against_prior import AgainstPrior
from farfield.protocol.metrics import HIGHER_IS_BETTER
from farfield.protocol.statistics import Difference, Summary
from farfield.report.formats import (
    MISSING,
    NOT_FINITE,
    interval,
    is_percent,
    metric_label,
    metric_value,
    p_value,
    plural,
    rule_label,
    settings_text,
)
from farfield.report.grid import Cell, Column, Grid, Tone
from farfield.report.many_domains import MANY_DOMAINS, quartiles
from farfield.report.result_notes import result_notes

_VERDICTS: dict[str, tuple[str, Tone]] = {
    "better": ("better", "better"),
    "worse": ("worse", "worse"),
    "no difference beyond chance": ("within chance", ""),
    "too few to say": ("too few to say", "missing"),
}


@dataclass(frozen=True)
class ResultLine:
    """One variant; `algorithm` is its label.

    `domains` holds a summary over seeds per held-out domain, None where no run finished.
    """

    algorithm: str
    domains: dict[str, Summary | None]
    #: Over the domains' means; over seeds where the bench has one held-out domain. None without any result.
    overall: Summary | None
    worst: float | None
    worst_domain: str | None
    #: Against the baseline over shared (held-out, seed) pairs; None for itself, and where nothing is shared.
    difference: Difference | None
    #: The same where only seeds vary and the domains are fixed; from five seeds on.
    on_these: Difference | None
    #: The difference on each shared domain, over its shared seeds.
    domain_differences: dict[str, float]
    #: Runs with a result under this rule, runs that failed, and runs that never started or that the rule cannot judge.
    runs: int
    failed: int
    missing: int
    #: The variant's method, and what was set for this variant alone.
    method: str
    settings: Mapping[str, Any]
    #: Where its settings come from: "tuned (12 trials)", "as given" or "defaults".
    chosen: str = "defaults"
    #: Not a federated method: what pooled data, or no federation at all, would give.
    reference: bool = False
    #: Against `prior`, which learns nothing; None for itself, and where nobody knows what it scores.
    over_prior: AgainstPrior | None = None
    #: Runs in which replies of clients did not reach the model.
    lost: int = 0
    #: The same rounds on the sources' validation rows: every source domain with the same weight, and every row.
    validation: Summary | None = None
    participating: Summary | None = None

    @property
    def finite(self) -> bool:
        return self.overall is not None and math.isfinite(self.overall.mean)

    @property
    def made_of(self) -> str:
        """Method and own settings, where the label does not say them."""
        if self.algorithm.startswith(f"{self.method}:") or (self.algorithm == self.method and not self.settings):
            return ""
        return f"{self.method}: {settings_text(self.settings)}" if self.settings else self.method

    @property
    def not_better_than_prior(self) -> bool:
        return self.over_prior is not None and self.over_prior.verdict == "not better than prior beyond chance"

    @property
    def complete(self) -> bool:
        """Whether every held-out domain has a finite result, so that the mean compares with other methods' means."""
        return self.finite and all(s is not None for s in self.domains.values())


@dataclass(frozen=True)
class ResultTable:
    """The headline metric of every variant on domains it never saw, under one selection rule."""

    rule: str
    kind: str
    metric: str
    domains: tuple[str, ...]
    seeds: tuple[int, ...]
    lines: tuple[ResultLine, ...]
    #: What the interval of the overall mean is over.
    unit: Literal["domains", "seeds"]
    #: The label of the variant that differences are to; None when the bench has no FedAvg.
    baseline: str | None
    #: What else must be said of the metric or the domains, one sentence per remark.
    remarks: tuple[str, ...] = ()
    #: The mean of `prior`, run or computed from the labels; None where neither is possible.
    prior: float | None = None
    #: Variants that were asked for and do not fit, by label, each with the reason.
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def higher_is_better(self) -> bool:
        return HIGHER_IS_BETTER[self.metric]

    @property
    def noun(self) -> str:
        """What a line is: a method, or a variant where one method stands there several times."""
        return "variant" if len({line.method for line in self.lines}) < len(self.lines) else "method"

    @property
    def baseline_name(self) -> str:
        """The baseline in running text."""
        return "FedAvg" if self.baseline in (None, "fedavg") else str(self.baseline)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One flat dict per variant, ready for `pandas.DataFrame`. Accuracies are shares of one, None is not known."""
        return [self._record(line) for line in self.lines]

    def render(self, width: int = 100) -> RichTable:
        """The table for a terminal."""
        return self.grid().render(width)

    def markdown(self) -> str:
        return self.grid().markdown()

    def grid(self) -> Grid:
        """The table as text: what matters first, then a column per held-out domain."""
        spread = any(line.overall and line.overall.low is not None and line.overall.n > 2 for line in self.lines)
        columns = [Column(self.noun, text=True), Column("mean", "± 95 %" if spread else "", term="interval")]
        if self.baseline is not None:
            points = "points" if is_percent(self.metric) else ""
            columns += [Column(f"vs {self.baseline}", points), Column("verdict", text=True, term="beyond-chance")]
            if self._has_seed_verdicts:
                columns.append(Column("on these domains", points, text=True, term="on-these"))
        columns += [Column(heading, term=heading.replace(" ", "-")) for heading in self.source_columns]
        if len(self.domains) > 1:
            columns.append(Column("worst domain", term="worst"))
            columns += [
                Column(domain, "± std" if len(self.seeds) > 1 else "", optional=True) for domain in self.domain_columns
            ]
            columns += [Column("lower quartile"), Column("median"), Column("upper quartile")] * self.many_domains
        unit = " in %" if is_percent(self.metric) else ""
        better = "higher" if self.higher_is_better else "lower"
        title = f"{metric_label(self.metric, self.kind)}{unit} on held-out domains ({better} is better)"
        return Grid(
            title=f"{title}; rounds chosen by {rule_label(self.rule)}",
            columns=tuple(columns),
            rows=(*map(self._row, self.lines), *(_left_out_row(label, len(columns)) for label in self.left_out)),
            notes=self.notes(),
        )

    def notes(self) -> tuple[str, ...]:
        """Return what a reader must know to read the numbers, one sentence per note."""
        return result_notes(self)

    def _row(self, line: ResultLine) -> tuple[Cell, ...]:
        expected = line.runs + line.failed + line.missing
        details = [line.made_of] * bool(line.made_of) + ["reference"] * line.reference
        details += ["not better than prior beyond chance"] * line.not_better_than_prior
        details += [line.chosen] * line.chosen.startswith("tuned")
        details += [f"{line.runs} of {expected} runs"] * (line.runs < expected)
        details += [f"replies lost in {plural(line.lost, 'run')}"] * bool(line.lost)
        cells = [Cell(line.algorithm, ", ".join(details)), self._overall_cell(line)]
        if self.baseline is not None:
            cells += self._difference_cells(line)
            cells += [self._seed_cell(line)] * self._has_seed_verdicts
        of_sources = {"source validation": line.validation, "participating": line.participating}
        cells += [self._mean_cell(of_sources[heading]) for heading in self.source_columns]
        if len(self.domains) > 1:
            where = f"on {line.worst_domain}" if line.worst_domain is not None else ""
            cells.append(Cell(metric_value(self.metric, line.worst), where, value=line.worst))
            cells += [self._summary_cell(line.domains[domain], "std") for domain in self.domain_columns]
            if self.many_domains:
                of = quartiles(line.domains.values()) or (None, None, None)
                cells += [Cell(metric_value(self.metric, quartile), value=quartile) for quartile in of]
        return tuple(cells)

    @property
    def _has_seed_verdicts(self) -> bool:
        return any(line.on_these is not None and line.on_these.p_value is not None for line in self.lines)

    def _seed_cell(self, line: ResultLine) -> Cell:
        """Whether the method is better on exactly these domains; the seeds are what varies."""
        of = line.on_these
        if of is None or not math.isfinite(of.mean):
            return Cell(MISSING, tone="missing")
        word, tone = _VERDICTS[of.verdict]
        return Cell(word, self._verdict_detail(of), tone, of.mean)

    @property
    def many_domains(self) -> bool:
        """Whether there are too many held-out domains for a column each; quartiles stand there instead."""
        return len(self.domains) > MANY_DOMAINS

    @property
    def domain_columns(self) -> tuple[str, ...]:
        """Held-out domains that have a column of their own."""
        return () if self.many_domains else self.domains

    @property
    def source_columns(self) -> list[str]:
        """Headings of the figures on the sources' own validation rows, where a line has them."""
        return ["source validation"] * any(line.validation is not None for line in self.lines) + [
            "participating"
        ] * any(line.participating is not None for line in self.lines)

    def _mean_cell(self, of: Summary | None) -> Cell:
        if of is None:
            return Cell(MISSING, tone="missing")
        return Cell(metric_value(self.metric, of.mean), value=of.mean)

    def _overall_cell(self, line: ResultLine) -> Cell:
        """The mean; one that lacks domains says over how many it is, and has no interval."""
        cell = self._summary_cell(line.overall, "interval")
        have = sum(of is not None for of in line.domains.values())
        if 0 < have < len(self.domains):
            return replace(cell, detail=f"over {have} of {len(self.domains)} domains", tone="missing")
        return cell

    def _summary_cell(self, of: Summary | None, spread: Literal["interval", "std"]) -> Cell:
        if of is None:
            return Cell(MISSING, tone="missing")
        if not math.isfinite(of.mean):
            return Cell(NOT_FINITE, tone="worse")
        half = of.std if spread == "std" else None if of.high is None or of.n < 3 else of.high - of.mean
        below = "" if half is None else f"±{metric_value(self.metric, half, like=(of.mean,))}"
        return Cell(metric_value(self.metric, of.mean), below, value=of.mean)

    def _difference_cells(self, line: ResultLine) -> list[Cell]:
        if line.algorithm == self.baseline:
            return [Cell(MISSING, tone="missing"), Cell("baseline", tone="missing")]
        of = line.difference
        if of is None:
            return [Cell(MISSING, tone="missing"), Cell("nothing to compare", tone="missing")]
        if not math.isfinite(of.mean):
            return [Cell(NOT_FINITE, tone="missing"), Cell(NOT_FINITE, tone="missing")]
        word, tone = _VERDICTS[of.verdict]
        return [
            Cell(
                metric_value(self.metric, of.mean, sign=True, like=(of.low, of.high)),
                interval(self.metric, of.low, of.high, of.mean),
                value=of.mean,
            ),
            Cell(word, self._verdict_detail(of), tone),
        ]

    def _verdict_detail(self, of: Difference) -> str:
        """The p-value, and beside "within chance" the smallest difference that could have been found."""
        p = p_value(of.p_holm if of.p_holm is not None else of.p_value)
        if of.verdict != "no difference beyond chance" or of.detectable is None:
            return p
        return f"{p}, could find {metric_value(self.metric, of.detectable)}"

    def _record(self, line: ResultLine) -> dict[str, Any]:
        overall, difference = line.overall, line.difference
        record: dict[str, Any] = {
            "algorithm": line.algorithm,
            "method": line.method,
            "own_settings": settings_text(line.settings),
            "chosen": line.chosen,
            "rule": rule_label(self.rule),
            "metric": self.metric,
            "mean": overall.mean if overall else None,
            "low": overall.low if overall else None,
            "high": overall.high if overall else None,
            "unit": self.unit,
            "n": overall.n if overall else 0,
            "worst": line.worst,
            "worst_domain": line.worst_domain,
            "prior": self.prior,
            "over_prior": line.over_prior.verdict if line.over_prior else None,
            "validation": line.validation.mean if line.validation else None,
            "participating": line.participating.mean if line.participating else None,
        }
        if self.baseline is not None:
            record |= {
                "difference": difference.mean if difference else None,
                "difference_low": difference.low if difference else None,
                "difference_high": difference.high if difference else None,
                "difference_alone_low": difference.alone[0] if difference and difference.alone else None,
                "difference_alone_high": difference.alone[1] if difference and difference.alone else None,
                "level": difference.level if difference else None,
                "detectable": difference.detectable if difference else None,
                "needed": difference.needed if difference else None,
                "difference_unit": difference.unit if difference else None,
                "difference_n": difference.n if difference else 0,
                "p_value": difference.p_value if difference else None,
                "p_holm": difference.p_holm if difference else None,
                "verdict": difference.verdict if difference else None,
                "on_these_domains": line.on_these.verdict if line.on_these else None,
                "on_these_domains_p": line.on_these.p_holm if line.on_these else None,
            }
        for domain, of in line.domains.items():
            record[f"{self.metric}[{domain}]"] = of.mean if of else None
            record[f"{self.metric}_std[{domain}]"] = of.std if of else None
        return {**record, "runs": line.runs, "failed": line.failed, "missing": line.missing, "lost": line.lost}


def _left_out_row(label: str, columns: int) -> tuple[Cell, ...]:
    """The line of a variant that does not fit; a note has the reason."""
    return (Cell(label, "left out"), *(Cell(MISSING, tone="missing") for _ in range(columns - 1)))
