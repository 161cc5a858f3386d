"""What a bench found, in plain words: computed from the result table, and no bolder than it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from farfield.protocol.selection import RULES
from farfield.report.collect import Sweep
from farfield.report.formats import is_percent, listed, metric_label, metric_value, plural, with_unit
from farfield.report.result_table import ResultLine, ResultTable

#: The rule that results are reported by, where the bench has it.
PREFERRED_RULE = "source-validation"


def main_rule(plan: dict[str, Any]) -> str:
    """The rule of the first table: source validation, else the first that does not peek, else what there is."""
    rules: list[str] = plan["rules"]
    honest = [rule for rule in rules if not RULES[rule].is_oracle]
    return PREFERRED_RULE if PREFERRED_RULE in rules else (honest or rules)[0]


def findings(sweep: Sweep, table: ResultTable) -> list[str]:
    """Return the sentences that head a report: the best mean, what differs from the baseline, what is lacking."""
    if not sweep.rows:
        return ["No run has finished, so there is nothing to report yet."]
    candidates = [line for line in table.lines if line.complete and not line.reference]
    candidates = candidates or [line for line in table.lines if line.complete]
    if not candidates:
        return [
            f"No {table.noun} has a finite result on every held-out domain, so no mean is reported.",
            *_caveats(sweep),
        ]
    best = (max if table.higher_is_better else min)(candidates, key=_mean)
    sentence = _reached(table, best)
    baseline = next((line for line in table.lines if line.algorithm == table.baseline), None)
    aside = [] if table.higher_is_better else ["lower is better"]
    if baseline is not None and baseline is not best and baseline.complete:
        aside.append(f"{table.baseline_name}: {with_unit(table.metric, _mean(baseline))}")
    if aside:
        sentence += f" ({'; '.join(aside)})"
    compared, more = _comparison(table, baseline)
    references = [line for line in table.lines if line.reference and line.complete and line is not best]
    if references:
        values = [f"{line.algorithm} {with_unit(table.metric, _mean(line))}" for line in references]
        more.append(f"For reference, not federated: {listed(values)}.")
    if RULES[table.rule].is_oracle:
        more.append("Its round was chosen by looking at the held-out domain: a ceiling, not a result.")
    return [f"{sentence}; {compared}.", *more, *_caveats(sweep)]


def _mean(line: ResultLine) -> float:
    assert line.overall is not None
    return line.overall.mean


def _reached(table: ResultTable, best: ResultLine) -> str:
    value = with_unit(table.metric, _mean(best))
    if len(table.domains) == 1:
        where = f"On {table.domains[0]}, which it never saw"
        over = f"on average over {len(table.seeds)} seeds" if len(table.seeds) > 1 else "in its one run"
    else:
        where, over = "On domains it never saw", "on average"
    label = metric_label(table.metric, table.kind)
    if table.higher_is_better:
        return f"{where}, {best.algorithm} reaches {value} {label} {over}"
    return f"{where}, {best.algorithm} has a {label} of {value} {over}"


def _comparison(table: ResultTable, baseline: ResultLine | None) -> tuple[str, list[str]]:
    """The clause that ends the first sentence, and further sentences."""
    if baseline is None:
        return "FedAvg was not run, so nothing is compared with it", []
    others = [line for line in table.lines if line is not baseline and not line.reference]
    if not others:
        return f"no other federated {table.noun} was run", []
    if not baseline.runs:
        return f"{table.baseline_name} has no result to compare with", []
    if not baseline.finite:
        return f"{table.baseline_name} diverged on a held-out domain, so nothing can be compared with it", []
    by_verdict: dict[str, list[ResultLine]] = {}
    for line in others:
        verdict = line.difference.verdict if line.difference is not None else "too few to say"
        by_verdict.setdefault("diverged" if line.runs and not line.finite else verdict, []).append(line)
    better, worse = by_verdict.get("better", []), by_verdict.get("worse", [])
    unclear = by_verdict.get("too few to say", [])
    same = by_verdict.get("no difference beyond chance", [])
    diverged = by_verdict.get("diverged", [])
    more = []
    if better or worse:
        groups = [("better", better), ("worse", worse)]
        first = " and ".join(_beyond_chance(table, word, lines) for word, lines in groups if lines)
        if same:
            more.append(f"{_named(same)} {_do(same)} not differ from {table.baseline_name} beyond chance.")
    elif len(same) > 1 and len(same) == len(others):
        first = f"no {table.noun} differs from {table.baseline_name} beyond chance"
    elif same:
        first = f"{_named(same)} {_do(same)} not differ from {table.baseline_name} beyond chance"
    else:
        first = f"there are too few results to say whether any {table.noun} differs from {table.baseline_name}"
        unclear = []
    if diverged:
        more.append(f"{_named(diverged)} diverged on a held-out domain and cannot be compared.")
    if unclear:
        more.append(f"For {_named(unclear)} there are too few results to say.")
    return first, more


def _beyond_chance(table: ResultTable, word: str, lines: Sequence[ResultLine]) -> str:
    points = " points" if is_percent(table.metric) else ""
    sizes = [metric_value(table.metric, abs(line.difference.mean)) for line in lines if line.difference is not None]
    verb = "is" if len(lines) == 1 else "are"
    return f"{_named(lines)} {verb} {word} than {table.baseline_name} beyond chance (by {listed(sizes)}{points})"


def _caveats(sweep: Sweep) -> list[str]:
    plan = sweep.plan
    expected = len(plan["algorithms"]) * len(plan["held_out"]) * len(plan["seeds"])
    lacking = expected - len(sweep.rows)
    caveats = []
    if lacking:
        verb = "has" if lacking == 1 else "have"
        caveats.append(f"{lacking} of {plural(expected, 'run')} {verb} no result: read this as provisional.")
    if len(plan["seeds"]) == 1:
        caveats.append("One seed: how much a rerun would vary is not known.")
    return caveats


def _named(lines: Sequence[ResultLine]) -> str:
    return listed([line.algorithm for line in lines])


def _do(lines: Sequence[ResultLine]) -> str:
    return "does" if len(lines) == 1 else "do"
