"""What a bench found, in plain words: the same sentences for console, page and JSON, and no bolder than the table.

Two questions are answered: which method should I use, and how well will it do at a new site? No maximum is crowned
that lies within chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from farfield.protocol.selection import RULES
from farfield.report.collect import Sweep
from farfield.report.doubts import doubts, gaps, tuned_text
from farfield.report.formats import is_percent, listed, metric_label, metric_value, plural, with_unit
from farfield.report.new_site import new_site_sentences
from farfield.report.prior import PRIOR
from farfield.report.privacy_notes import privacy_answer
from farfield.report.result_table import ResultLine, ResultTable

QUESTIONS = ("Which method should I use?", "How well will it do at a new site?")


@dataclass(frozen=True)
class Answer:
    """Both answers and what makes them doubtful, in sentences. `recommended` is the label that they speak of."""

    method: tuple[str, ...]
    new_site: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    recommended: str | None = None

    def sentences(self) -> list[str]:
        return [*self.method, *self.new_site, *self.doubts]

    def to_json(self) -> dict[str, Any]:
        return {
            "recommended": self.recommended,
            QUESTIONS[0]: list(self.method),
            QUESTIONS[1]: list(self.new_site),
            "doubts": list(self.doubts),
        }


def main_rule(plan: dict[str, Any]) -> str:
    """The rule of the first table: the first that does not peek, else what there is."""
    rules: list[str] = plan["rules"]
    return next((rule for rule in rules if not RULES[rule].is_oracle), rules[0])


def findings(sweep: Sweep, table: ResultTable) -> list[str]:
    """Return the sentences that head a report."""
    return answer(sweep, table).sentences()


def answer(sweep: Sweep, table: ResultTable) -> Answer:
    """Answer both questions from the result table of one rule and one metric."""
    if not sweep.rows:
        return Answer(("No run has finished, so there is nothing to report yet.",), doubts=tuple(gaps(sweep)))
    complete = [line for line in table.lines if line.complete]
    candidates = [line for line in complete if not line.reference]
    if not complete:
        nothing = f"No {table.noun} has a finite result on every held-out domain, so no mean is reported."
        return Answer((nothing,), doubts=tuple(gaps(sweep)))
    baseline = next((line for line in table.lines if line.algorithm == table.baseline), None)
    chosen, sentences = _choice(table, candidates or complete, baseline)
    over_prior = _over_prior(table, chosen, candidates)
    # That a method learned nothing that helps is the first thing to know of it.
    sentences = [*over_prior, *sentences] if chosen.not_better_than_prior else [*sentences, *over_prior]
    references = [line for line in complete if line.reference and line.method != PRIOR and line is not chosen]
    if references:
        values = [f"{line.algorithm} {with_unit(table.metric, _mean(line))}" for line in references]
        sentences.append(f"For reference, not federated: {listed(values)}.")
    sentences += privacy_answer(sweep)
    compared = [line.algorithm for line in table.lines if not line.reference]
    if len(compared) > 1:
        sentences.append(tuned_text(sweep.plan, compared))
    return Answer(
        tuple(sentences), tuple(new_site_sentences(sweep, table, chosen)), tuple(doubts(sweep, table)), chosen.algorithm
    )


def _mean(line: ResultLine) -> float:
    assert line.overall is not None
    return line.overall.mean


def _choice(
    table: ResultTable, candidates: Sequence[ResultLine], baseline: ResultLine | None
) -> tuple[ResultLine, list[str]]:
    """The method to use, and why."""
    best = (max if table.higher_is_better else min)(candidates, key=_mean)
    if baseline is None:
        of = f"{_named([best])} has the best mean, {_reached(table, best)}, but"
        return best, [f"{of} FedAvg was not run, so nothing says whether it is better than the simplest method."]
    others = [line for line in table.lines if line is not baseline and not line.reference]
    if not baseline.complete:
        if not baseline.runs:
            why = f"{table.baseline_name} has no result to compare with"
        elif not baseline.finite:
            why = f"{table.baseline_name} diverged on a held-out domain, so nothing can be compared with it"
        else:
            why = f"{table.baseline_name} has no result on some held-out domains, so nothing is compared with it"
        return best, [f"{_named([best])} has the best mean, {_reached(table, best)}; {why}."]
    if not others:
        alone = f"{table.baseline_name} is the only federated {table.noun} that was run"
        return baseline, [f"{alone}: {_reached(table, baseline)} on average {_where(table)}."]
    groups = _by_verdict(others)
    better = [line for line in groups.get("better", []) if line.complete]
    if better:
        chosen = (max if table.higher_is_better else min)(better, key=_mean)
        first = (
            f"Use {chosen.algorithm}: it reaches {_reached(table, chosen)} on average {_where(table)}, "
            f"{_size(table, chosen)} better than {table.baseline_name} "
            f"({with_unit(table.metric, _mean(baseline))}) beyond chance."
        )
        rest = [line for line in better if line is not chosen]
        too = (
            f"{_named(rest)} {_are(rest)} better than {table.baseline_name} beyond chance too; which of them is best "
            "was not tested."
        )
        return chosen, [first, *[too] * bool(rest), *_others(table, groups)]
    unclear = groups.get("too few to say", []) + groups.get("diverged", [])
    simple = f"{table.baseline_name} is the simplest choice"
    if len(unclear) == len(others):
        first = f"There are too few results to say whether any {table.noun} is better than {table.baseline_name}"
        groups = {key: of for key, of in groups.items() if key != "too few to say"}
        sentences = [f"{first}; until there are more, {simple}, with {_reached(table, baseline)}{_average(table)}."]
    else:
        first = f"No {table.noun} is better than {table.baseline_name} beyond chance"
        sentences = [f"{first}; {simple}, with {_reached(table, baseline)}{_average(table)}."]
    if best is not baseline:
        size = f"{_size(table, best)} better" if best.difference is not None else "better"
        sentences.append(f"{best.algorithm} has the best mean ({with_unit(table.metric, _mean(best))}), {size}, and ")
        sentences[-1] += "chance alone can make such a difference." + _power(best, table)
    return baseline, [*sentences, *_others(table, groups)]


def _others(table: ResultTable, groups: dict[str, list[ResultLine]]) -> list[str]:
    """What must be said of the other methods."""
    more = []
    worse, diverged = groups.get("worse", []), groups.get("diverged", [])
    if worse:
        sizes = listed([_size(table, line) for line in worse])
        more.append(f"{_named(worse)} {_are(worse)} worse than {table.baseline_name} beyond chance (by {sizes}).")
    if diverged:
        more.append(f"{_named(diverged)} diverged on a held-out domain and cannot be compared.")
    if groups.get("too few to say"):
        more.append(f"For {_named(groups['too few to say'])} there are too few results to say.")
    return more


def _over_prior(table: ResultTable, chosen: ResultLine, candidates: Sequence[ResultLine]) -> list[str]:
    """Say whether the method beats what learns nothing; the first thing to know where it does not."""
    of = chosen.over_prior
    if of is None or table.prior is None:
        return []
    what = "always answering the training domains' commonest class"
    if table.kind == "regression":
        what = "always answering the training domains' mean"
    elif not is_percent(table.metric):
        what = "a model that learns nothing"
    prior = f"{what} (prior: {with_unit(table.metric, table.prior)})"
    if of.better and of.unit == "seeds":
        return [
            f"{chosen.algorithm} beats {prior} on these domains, beyond what a rerun could change; of a new one this "
            "says little."
        ]
    if of.better:
        return [f"{chosen.algorithm} beats {prior} beyond chance."]
    if of.verdict == "too few to say":
        return [f"There are too few results to say whether {chosen.algorithm} beats {prior}."]
    text = [f"{chosen.algorithm} is not better than {prior} beyond chance{_by_how_much(table, chosen)}."]
    beating = [line for line in candidates if line.over_prior is not None and line.over_prior.better]
    if beating:
        text.append(f"{_named(beating)} {_are(beating)} better than prior beyond chance.")
    return text


def _by_how_much(table: ResultTable, chosen: ResultLine) -> str:
    """Tell a model that learned nothing from one that the bench is too small to judge."""
    of = chosen.over_prior
    assert of is not None
    gain = of.mean if table.higher_is_better else -of.mean
    if gain <= 0 or of.bound is None:
        return ": do not rely on it"
    points = " points" if is_percent(table.metric) else ""
    return (
        f": on average it is {metric_value(table.metric, gain)}{points} better, but {plural(of.n, of.unit[:-1])} that "
        "differ so much cannot show it; do not rely on it yet"
    )


def _by_verdict(lines: Sequence[ResultLine]) -> dict[str, list[ResultLine]]:
    groups: dict[str, list[ResultLine]] = {}
    for line in lines:
        verdict = line.difference.verdict if line.difference is not None else "too few to say"
        groups.setdefault("diverged" if line.runs and not line.finite else verdict, []).append(line)
    return groups


def _reached(table: ResultTable, line: ResultLine) -> str:
    value, label = with_unit(table.metric, _mean(line)), metric_label(table.metric, table.kind)
    return f"{value} {label}" if table.higher_is_better else f"a {label} of {value}"


def _where(table: ResultTable) -> str:
    return f"on {table.domains[0]}, which it never saw" if len(table.domains) == 1 else "on domains it never saw"


def _average(table: ResultTable) -> str:
    if len(table.domains) > 1:
        return " on average on domains it never saw"
    over = f"over {len(table.seeds)} seeds" if len(table.seeds) > 1 else "in its one run"
    return f" {over} on {table.domains[0]}, which it never saw"


def _size(table: ResultTable, line: ResultLine) -> str:
    assert line.difference is not None
    points = " points" if is_percent(table.metric) else ""
    return f"{metric_value(table.metric, abs(line.difference.mean))}{points}"


def _power(line: ResultLine, table: ResultTable) -> str:
    """The smallest difference that this bench could have found, where it is known, and what more would take."""
    of = line.difference
    if of is None or of.detectable is None:
        return ""
    points = " points" if is_percent(table.metric) else ""
    found = f" This bench finds a true difference of {metric_value(table.metric, of.detectable)}{points} 4 times in 5."
    return f"{found} {of.needed}".rstrip()


def _named(lines: Sequence[ResultLine]) -> str:
    return listed([line.algorithm for line in lines])


def _are(lines: Sequence[ResultLine]) -> str:
    return "is" if len(lines) == 1 else "are"
