"""From a bench to a model: the settings that the bench chose, and what it measured, for the model's card.

choice = bench_choice("runs/visits", method=None)     # the method that the report recommends
choice.variant, choice.options                        # what `train` is called with
choice.card                                           # held-out figures, the new-site estimate, the diagnosis
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low, mode
from typing import Any

from farfield.algorithms import build
from farfield.diagnose.finding import Diagnosis
from farfield.errors import UserError
from farfield.protocol.selection import keeping_rule
from farfield.records.diagnosis_file import read_diagnosis
from farfield.report.collect import Sweep, collect
from farfield.report.findings import answer, main_rule
from farfield.report.formats import metric_label, printable
from farfield.report.new_site import new_site_sentences
from farfield.report.result_table import ResultLine, ResultTable
from farfield.report.tables import result_table
from farfield.runs.variants import Variant, read_values
from farfield.tasks.task import Task

#: Options of a plan that a training takes as they are.
_OPTIONS = ("partition", "clients", "cohort", "validation", "metric", "rules")
#: Settings of the model that the data decides anew.
_OF_THE_DATA = ("input_shape", "outputs", "representation")


class FromBenchError(UserError):
    """A bench that no model can be trained from, in one sentence."""


@dataclass(frozen=True)
class BenchChoice:
    """What a bench says about the model to train."""

    folder: Path
    task: str
    data: str
    variant: Variant
    #: Further arguments of `farfield.train`, by name.
    options: Mapping[str, Any]
    #: Sections of the model card, as Markdown.
    card: str
    #: One sentence: which method is trained, and who chose it.
    sentence: str

    def check_data(self, task: Task) -> None:
        """Refuse other data than the bench was made with: its held-out figures would be of another question."""
        if task.outline().data != self.data:
            raise FromBenchError(
                f"task '{task.name}' has other data than the bench in '{self.folder}'; give the bench's own data (and "
                "the same --label, --domain, --drop …), or run the bench again"
            )


def bench_choice(folder: str | Path, method: str | None = None) -> BenchChoice:
    """Read a bench and choose what to train: the variant of that label, or what the report recommends."""
    folder = Path(folder)
    sweep = collect(folder, "train")
    table = result_table(sweep, main_rule(sweep.plan))
    found = answer(sweep, table)
    label = found.recommended if method is None else _known_label(method, table)
    if label is None:
        raise FromBenchError(f"the bench in '{folder}' has no finished comparison to choose from; give --method")
    line = next(line for line in table.lines if line.algorithm == label)
    if line.reference:
        raise FromBenchError(f"'{label}' is a reference and no federated method; choose another with --method")
    plan = sweep.plan
    tuned = (plan.get("tuned") or {}).get(label, {})
    settings = {**plan["settings"][label], **typical_settings(tuned.get("best", {}))}
    who = "the bench recommends it" if method is None else "--method named it"
    return BenchChoice(
        folder=folder,
        task=plan["task"],
        data=plan["data"],
        variant=Variant(label=label, method=line.method, settings=_effective(line.method, settings)),
        options={
            **{name: plan[name] for name in _OPTIONS if plan.get(name) is not None},
            "rounds": plan["rounds_of"].get(label, plan["rounds"]),
            "settings": _model_settings(plan),
        },
        card=_card(folder, sweep, table, line, tuned),
        sentence=f"method: {label} ({who})",
    )


def typical_settings(best: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return one setting for all domains from those that were tuned for each held-out domain.

    A number is the median of what was chosen (the lower of two), anything else what was chosen most often.
    """
    chosen: dict[str, list[Any]] = {}
    for settings in best.values():
        for name, value in settings.items():
            chosen.setdefault(name, []).append(value)
    return {name: median_low(values) if _numbers(values) else mode(values) for name, values in chosen.items()}


def _effective(method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that have an effect: nobody set the others, and a training would remark on each."""
    idle = build(method, read_values(method, settings)).params.idle()
    return {name: value for name, value in settings.items() if name not in idle}


def _numbers(values: list[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _known_label(method: str, table: ResultTable) -> str:
    labels = [line.algorithm for line in table.lines]
    if method in labels:
        return method
    near = difflib.get_close_matches(method, labels, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"it has {', '.join(labels)}"
    raise FromBenchError(f"the bench has no '{method}'; {hint}")


def _model_settings(plan: Mapping[str, Any]) -> dict[str, Any]:
    model = {f"model.{name}": value for name, value in plan["model"].items() if name not in _OF_THE_DATA}
    if plan["kind"] == "classification" and plan["model"].get("outputs") == 1:
        model["model.outputs"] = 1
    return {**model, "augment": plan["augment"]} if plan.get("augment") else model


def _card(folder: Path, sweep: Sweep, table: ResultTable, line: ResultLine, tuned: Mapping[str, Any]) -> str:
    label = metric_label(table.metric, table.kind)
    rows = "\n".join(
        f"| {_cell(domain)} | {of.mean:.4f} | {'–' if of.std is None else f'{of.std:.4f}'} |"
        for domain, of in line.domains.items()
        if of is not None
    )
    sentences = " ".join(new_site_sentences(sweep, table, line))
    made = (
        f"Its settings are typical of those that {tuned['trials']} trials per method chose for the held-out domains "
        f"by {tuned['rule']}."
        if tuned
        else "Its settings are the bench's; none was tuned."
    )
    kept = keeping_rule(sweep.plan["rules"])
    keeps = (
        f"The model of this card is the one that {kept} keeps"
        if kept == table.rule
        else f"A training cannot choose by {table.rule}, so {kept} chose the round of this card's model"
    )
    doubts = "".join(f"\n- {_text(doubt)}" for doubt in answer(sweep, table).doubts)
    parts = [
        f"""## What a new site can expect

A bench held out one domain after the other and trained this method on the rest. {_text(sentences)}

| held-out domain | {label} | standard deviation over {len(table.seeds)} seeds |
|---|---|---|
{rows}

Rounds were chosen by {table.rule}; {label} leads because {sweep.plan["metric_reason"]}. {made} {keeps}. It was
trained on all of these domains, so no figure here was measured with it.
"""
    ]
    if doubts:
        parts.append(f"What makes these figures doubtful:\n{doubts}\n")
    diagnosis = _diagnosis(folder)
    if diagnosis is not None:
        lines = "\n".join(f"- {_text(sentence)}" for sentence in diagnosis.findings())
        parts.append(f"## How the domains differ\n\n{lines}\n")
    return "\n".join(parts)


def _diagnosis(folder: Path) -> Diagnosis | None:
    try:
        return read_diagnosis(folder)
    except ValueError:  # one of another version
        return None


def _text(text: str) -> str:
    return printable(" ".join(text.split()))


def _cell(text: str) -> str:
    return _text(text).replace("|", "\\|")
