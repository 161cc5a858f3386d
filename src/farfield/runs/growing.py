"""A bench that grows: methods, seeds, held-out domains and rounds are added to a folder, and nothing is taken away.

What is not asked for stays as it is there. What is asked for and differs otherwise (another setting of a method that
was run, other data) is refused, so that one table never mixes two experiments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import CodeType
from typing import Any

from farfield.algorithms import FedAvg, build, params_of
from farfield.protocol.folds import Folds, held_out_folds
from farfield.records import RecordsError, RunFolder, difference, read_config, write_config
from farfield.records.bench_folder import BENCH, FORMAT, format_of
from farfield.records.run_files import CONFIG, RESULT
from farfield.report.formats import listed, plural
from farfield.runs.baseline import WITHOUT_FEDAVG, baseline_label, baseline_notes
from farfield.runs.plan import DEFAULT_SEEDS, Plan, check_variants, make_plan
from farfield.runs.references import Wanted, wanted, with_references
from farfield.runs.settings import group_list, seed_numbers
from farfield.runs.tuning.outcome import Tuned
from farfield.runs.tuning.request import Tuning
from farfield.runs.variants import AnyVariant, Variant, check_distinct, read_values
from farfield.tasks.task import Task

#: Fields of a plan that can grow, or that only say how its results are read.
GROWING = ("variants", "settings", "rounds_of", "held_out", "folds", "seeds", "rounds", "baseline", "metric")
#: Words about the plan, and what follows from other parts of the folder: another version may put them otherwise.
APART = ("notes", "metric_reason", "tuned", "left_out")


@dataclass(frozen=True)
class Growth:
    """What a bench that is there has, and what is asked for explicitly."""

    there: Mapping[str, Any]
    asked: Mapping[str, Any]

    def options(self, task: Task) -> dict[str, Any]:
        """Return the options of the grown plan: what is there, and what is asked for besides."""
        options = dict(self.asked)
        for name in ("evaluate_every", "rules"):
            if options.get(name) is None:
                options[name] = self.there.get(name)
        if options.get("rounds") is None and options.get("communications") is None:
            options["rounds"] = self.there["rounds"]
        if self._keeps_metric:
            options["metric"] = self.there["metric"]
        if options.get("algorithms") is None:
            options["algorithms"] = variants_there(self.there)
        options["references"] = wanted(options.get("references"), new=False)
        if options.get("tuning") is None and "tuning" in self.there:
            options["tuning"] = Tuning(**{**self.there["tuning"], "parameters": {}})
        options["baseline"] = None  # it may name a variant that is there, so it is read when all are known
        options["held_out"], options["folds"] = self._groups(task), None
        seeds = [] if options.get("seeds") is None else seed_numbers(options["seeds"])
        options["seeds"] = list(dict.fromkeys([*self.there["seeds"], *seeds]))
        return options

    def plan(self, asked: Plan) -> Plan:
        """Return the plan that was made with these options, with the variants that are there beside those asked for."""
        before = {of["label"]: _variant(of) for of in self.there["variants"]}
        kept = before if self._nothing_set else {k: v for k, v in before.items() if k not in asked.algorithms}
        lost = next((label for label in asked.left_out if label in before), None)
        if lost is not None:
            raise RecordsError(f"'{lost}' is in the bench that is to grow and does not fit: {asked.left_out[lost]}")
        new = [variant for variant in asked.variants if variant.label not in before]
        again = {variant.label: variant for variant in asked.variants if variant.label in before}
        variants = (*(again[label] if label not in kept else kept[label] for label in before), *new)
        settings = {**asked.settings, **{label: _settings(v, self.there) for label, v in kept.items()}}
        rounds_of = {**asked.rounds_of, **{label: self._rounds_of(label, asked.rounds) for label in kept}}
        named = self.asked.get("baseline")
        check_distinct(variants, settings)
        grown = asked.model_copy(
            update={
                "variants": variants,
                "settings": {variant.label: settings[variant.label] for variant in variants},
                "rounds_of": {variant.label: rounds_of[variant.label] for variant in variants},
                "baseline": self.there["baseline"] if named is None else baseline_label(named, variants),
                "left_out": {**self.there.get("left_out", {}), **asked.left_out},
                "tuning": asked.tuning if asked.tuning is None else asked.tuning.beside(self.there.get("tuning", {})),
                # Until the trials of what is added are made, what was tuned before still holds.
                "tuned": {label: Tuned.model_validate(of) for label, of in self.there.get("tuned", {}).items()},
                **({"metric_reason": self.there["metric_reason"]} if self._keeps_metric else {}),
            }
        )
        # What stands in for FedAvg is another matter when methods are added.
        notes = [note for note in (*self.there.get("notes", ()), *asked.notes) if not note.startswith(WITHOUT_FEDAVG)]
        return grown.model_copy(update={"notes": tuple(dict.fromkeys([*notes, *baseline_notes(grown)]))})

    @property
    def _keeps_metric(self) -> bool:
        return self.asked.get("metric") in (None, "auto")

    @property
    def _nothing_set(self) -> bool:
        """Whether the methods that are there were left as they are, settings included."""
        return self.asked.get("algorithms") is None and not self.asked.get("settings")

    def _groups(self, task: Task) -> list[tuple[str, ...]]:
        there = [tuple(group) for group in _folds(self.there).values()]
        asked, count = group_list("held_out", self.asked.get("held_out")), self.asked.get("folds")
        if asked is None and count is None:
            return there
        domains, folds = held_out_folds(task.outline(), asked or task.held_out, count)
        groups = list(folds.values()) or [(name,) for name in domains]
        return [*there, *(group for group in groups if group not in there)]

    def _rounds_of(self, label: str, rounds: int) -> int:
        """Return how many rounds a method has that makes several in one of the others'."""
        before, of = self.there["rounds"], self.there["rounds_of"][label]
        if of < before:
            return int(of)  # there is nothing to train
        if of * rounds % before:
            raise RecordsError(
                f"'{label}' has {of} rounds where the others have {before}, which gives no whole number for {rounds}; "
                f"add a multiple of {before} rounds"
            )
        return int(of * rounds // before)


def planned(task: Task, there: Mapping[str, Any] | None, options: Mapping[str, Any]) -> Plan:
    """Make the plan of a bench: a new one, or the one that is `there` with what the options ask for besides."""
    if there is None:
        seeds, references = options.get("seeds"), wanted(options.get("references"), new=True)
        new = {"seeds": DEFAULT_SEEDS if seeds is None else seeds, "references": references}
        return make_plan(task, **{**options, **new})
    growth = Growth(there, options)
    return growth.plan(make_plan(task, **growth.options(task)))


def bench_there(out: Path) -> dict[str, Any]:
    """Return the plan of the bench in a folder that is to be resumed, as its file says it."""
    if not (out / BENCH).exists():
        raise RecordsError(f"there is no bench in '{out}' to resume; omit --resume to start a new one")
    content = read_config(out / BENCH)
    check_format(content, out)
    return content


def variants_there(there: Mapping[str, Any]) -> tuple[Variant, ...]:
    """Return the variants of a bench that is there, with their own settings."""
    return tuple(_variant(of) for of in there["variants"])


def variants_asked(
    there: Mapping[str, Any] | None,
    algorithms: AnyVariant | Iterable[AnyVariant] | None,
    settings: Mapping[str, Any] | None,
    baseline: str | None,
    references: Wanted | None = None,
) -> tuple[Variant, ...]:
    """Return the variants that are asked for, else those that are `there`; refuse what no data can make right."""
    before = () if there is None else variants_there(there)
    variants = check_variants(before if algorithms is None and before else algorithms, settings)
    labels = [variant.label for variant in variants]
    beside = with_references(variants, wanted(references, new=there is None))
    baseline_label(baseline, (*(variant for variant in before if variant.label not in labels), *beside))
    return variants


def check_format(content: Mapping[str, Any], out: Path) -> None:
    """Refuse to go on with a bench of an older format."""
    if format_of(content, out) != FORMAT:
        raise RecordsError(
            f"'{out}' holds a bench in format {format_of(content, out)}, which farfield {version('farfield')} reports "
            f"but cannot go on with (it writes format {FORMAT}); replace it with --fresh, or choose another --out"
        )


def conflict(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Say in what a plan contradicts or lacks what is there; None if it only adds to it. Both are as in the file."""
    for name, one, word in (("held_out", "held-out domain", "held out"), ("seeds", "seed", "asked for")):
        gone = [str(entry) for entry in before[name] if entry not in now[name]]
        if gone:
            many = f"{one}s {', '.join(gone)}" if len(gone) > 1 else f"{one} {gone[0]}"
            return f"its {many} {'are' if len(gone) > 1 else 'is'} not {word} here"
    labels = [of["label"] for of in now["variants"]]
    lost = [of["label"] for of in before["variants"] if of["label"] not in labels]
    if lost:
        there = ", ".join(of["label"] for of in before["variants"])
        return f"its variants are {there}, and here they are {', '.join(labels)}"
    for old in before["variants"]:
        new = now["variants"][labels.index(old["label"])]
        if old != new:
            texts = [Variant.model_validate(of).text for of in (old, new)]
            return f"its variant '{old['label']}' is {texts[0]}, and here it is {texts[1]}"
        other = difference(
            {"settings": {old["label"]: before["settings"][old["label"]]}},
            {"settings": {old["label"]: now["settings"][old["label"]]}},
        )
        if other:
            return other
    folds = _folds(now)
    for name, group in _folds(before).items():
        if list(folds.get(name, ())) != list(group):
            return f"it holds out {name} together, which is not so here"
    if now["rounds"] < before["rounds"]:
        return f"rounds is {before['rounds']} there and {now['rounds']} here"
    old, new = ({k: v for k, v in of.items() if k not in (*GROWING, *APART)} for of in (before, now))
    return difference(_tuning_of_all(old), _tuning_of_all(new))


def _tuning_of_all(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return a plan without the names of what is tuned for each method, which follow from the methods."""
    tuning = plan.get("tuning")
    return {**plan, "tuning": tuning and {key: of for key, of in tuning.items() if key != "parameters"}}


def additions(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what a plan adds to the one that is there, as phrases."""
    there = {of["label"] for of in before["variants"]}
    new = {
        "method": [of["label"] for of in now["variants"] if of["label"] not in there],
        "held-out domain": [name for name in now["held_out"] if name not in before["held_out"]],
        "seed": [str(seed) for seed in now["seeds"] if seed not in before["seeds"]],
    }
    phrases = [f"{plural(len(of), what).partition(' ')[2]} {_some(of)}" for what, of in new.items() if of]
    if now["rounds"] > before["rounds"]:
        phrases.append(f"rounds {before['rounds'] + 1} to {now['rounds']}")
    if now["baseline"] != before["baseline"]:
        phrases.append(f"differences to {now['baseline']} in place of {before['baseline']}")
    if now["metric"] != before["metric"]:
        phrases.append(f"{now['metric']} leads selection and tables in place of {before['metric']}")
    return phrases


def check_longer(before: Mapping[str, Any], plan: Plan) -> None:
    """Refuse more rounds for runs that would have been other runs from the start."""
    if plan.rounds == before["rounds"]:
        return
    if plan.tuning is not None:
        raise RecordsError(
            f"the settings were tuned in trials of {before['rounds']} rounds, so the runs cannot have {plan.rounds}; "
            "choose another --out"
        )
    for of in before["variants"]:
        label, rounds = of["label"], before["rounds_of"][of["label"]]
        if depends_on_rounds(plan.algorithm(label)):
            raise RecordsError(
                f"'{label}' does not do the same in all rounds but plans by their number, so its runs of {rounds} "
                f"rounds cannot become runs of {plan.rounds_of[label]}; choose another --out for a bench of "
                f"{plan.rounds} rounds"
            )
        if plan.every(label) != max(1, before["evaluate_every"] * rounds // before["rounds"]):
            raise RecordsError(
                f"'{label}' would be evaluated at other rounds than before; add a multiple of {before['rounds']} rounds"
            )


def depends_on_rounds(algorithm: FedAvg) -> bool:
    """Whether a method reads how many rounds there are in all, as FedLOE does for its stages.

    Its code is looked at instead of a declaration: a third-party method that forgot to declare it would
    end with another model than a run that had all rounds from the start, and nobody would notice.
    """
    parts = [algorithm, *([algorithm.server] if algorithm.server is not None else [])]
    own = {cls for part in parts for cls in type(part).__mro__ if issubclass(cls, FedAvg) and cls is not FedAvg}
    codes = [code for cls in own for member in vars(cls).values() for code in _functions(member)]
    return any(_names(code.__code__, "rounds") for code in codes if hasattr(code, "__code__"))


def _functions(member: Any) -> list[Any]:
    """Return the functions of a member of a class: a method's own, and those behind a property."""
    behind = [getattr(member, name, None) for name in ("__func__", "fget", "fset", "func")]
    return [member, *(function for function in behind if function is not None)]


def lengthen(records: RunFolder, config: Mapping[str, Any]) -> None:
    """Open a finished run for more rounds. From its last checkpoint it ends in the bits of a run that was never short.

    The last round is always evaluated. Where a longer run would not evaluate it, the run goes on from the checkpoint
    before, so that evaluations and traffic are those of a longer run too.
    """
    if not records.exists:
        return
    there = records.config
    before, now = there.get("rounds"), config.get("rounds")
    if not isinstance(before, int) or not isinstance(now, int) or before >= now:
        return
    if difference({"method": there.get("algorithm"), **there, "rounds": now}, config):
        return  # another run altogether, which is refused where it is opened
    (records.path / RESULT).unlink(missing_ok=True)
    if before % config["evaluate_every"]:
        records.drop_checkpoint(before)
    write_config(records.path / CONFIG, config)


def _names(code: CodeType, name: str) -> bool:
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return name in code.co_names or any(_names(of, name) for of in inner)


def _some(names: Sequence[str]) -> str:
    return listed(list(names)) if len(names) <= 6 else f"{', '.join(names[:5])} and {len(names) - 5} more"


def _folds(plan: Mapping[str, Any]) -> Folds:
    return {name: tuple(group) for name, group in plan.get("folds", {}).items()} or {
        name: (name,) for name in plan["held_out"]
    }


def _variant(of: Mapping[str, Any]) -> Variant:
    return Variant(label=of["label"], method=of["method"], settings=read_values(of["method"], of["settings"]))


def _settings(variant: Variant, there: Mapping[str, Any]) -> dict[str, Any]:
    """Return all parameters of a variant that is there; TOML leaves out those that are None."""
    of = there["settings"][variant.label]
    return build(variant.method, {k: of.get(k) for k in params_of(variant.method).model_fields}).params.model_dump(
        mode="json"
    )
