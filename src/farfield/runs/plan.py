"""What a bench is to do, resolved and checked before any work: the plan is what a run folder is identified by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from farfield.algorithms import AlgorithmError, FedAvg, build, parts
from farfield.models import ModelSpec
from farfield.protocol.folds import Folds, held_out_folds, inner_units
from farfield.protocol.leading_metric import leading_metric
from farfield.protocol.leave_one_out import ProtocolError, source_domains
from farfield.protocol.selection import RULES, keeping_rule, rule_named
from farfield.runs.baseline import baseline_label, baseline_notes
from farfield.runs.data_checks import class_rows
from farfield.runs.fit import Fit
from farfield.runs.job import Job, folder_name
from farfield.runs.learnable_folds import with_learnable_folds
from farfield.runs.plan_checks import (
    check_against_rows,
    check_models,
    check_outline,
    validation_notes,
)
from farfield.runs.privacy_checks import check_privacy, privacy_plan_notes
from farfield.runs.references import Wanted, with_references
from farfield.runs.settings import (
    PlanError,
    SortedSettings,
    augmentation,
    check_settings,
    group_list,
    local_epochs_in_all,
    model_spec,
    name_list,
    positive,
    resolve,
    seed_numbers,
    share,
    sort_settings,
    synchronise,
    validation_share,
)
from farfield.runs.source_schema import SourceSchema
from farfield.runs.task_defaults import dropped_notes
from farfield.runs.tuning.notes import untuned_notes
from farfield.runs.tuning.outcome import Tuned
from farfield.runs.tuning.request import Tuning, with_parameters
from farfield.runs.variants import AnyVariant, Variant, check_distinct, read_variants
from farfield.tasks.augment import NONE
from farfield.tasks.clients.partition import Partition, make_clients
from farfield.tasks.outline import TaskOutline
from farfield.tasks.task import Task

__all__ = [
    "DEFAULT_ALGORITHMS",
    "DEFAULT_ROUNDS",
    "DEFAULT_RULES",
    "DEFAULT_SEEDS",
    "Job",
    "Plan",
    "check_counts",
    "check_one_variant",
    "check_variants",
    "folder_name",
    "make_plan",
]

DEFAULT_ALGORITHMS = ("fedavg", "fediir", "fedilc-inter-geo", "fedcir", "fedloe-irm", "fedomg")
DEFAULT_RULES = ("source-validation", "last", "oracle")
DEFAULT_ROUNDS = 30
DEFAULT_SEEDS = 3
#: Evaluations that a run makes when nobody says how often.
EVALUATIONS = 15


class Plan(BaseModel):
    """Everything that decides a bench's numbers. How many processes compute them is not part of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str
    #: The hash of the task's data: a bench does not go on with other data than it began with.
    data: str
    kind: str
    variants: tuple[Variant, ...]
    held_out: tuple[str, ...]
    #: The domains of each fold by its name; empty where each domain is held out alone.
    folds: dict[str, tuple[str, ...]] = {}
    seeds: tuple[int, ...]
    rounds: int
    #: Rounds by label: more for a method that makes a single step per round, so that local steps are equal.
    rounds_of: dict[str, int]
    partition: str
    clients: int | None
    cohort: int | None
    #: A share of the rows, or "official" for the data set's own split.
    validation: float | Literal["official"]
    evaluate_every: int
    rules: tuple[str, ...]
    #: The metric that leads selection, tables and report, and why it does.
    metric: str = "accuracy"
    metric_reason: str = ""
    #: The label of the variant that differences are to.
    baseline: str
    quorum: float
    deadline: float | None
    #: What is done to the images of training batches.
    augment: str = NONE
    model: ModelSpec
    #: All parameters by label, resolved.
    settings: dict[str, dict[str, Any]]
    #: Variants that were asked for and do not fit, by label, each with the reason.
    left_out: dict[str, str] = {}
    #: What a user should know before the runs: how the data was read, settings without effect.
    notes: tuple[str, ...] = ()
    #: How settings are tuned before the runs; None for no tuning.
    tuning: Tuning | None = None
    #: What the tuning chose, by label; filled in when all trials are made.
    tuned: dict[str, Tuned] = {}

    @property
    def algorithms(self) -> tuple[str, ...]:
        """The variants' labels."""
        return tuple(variant.label for variant in self.variants)

    @property
    def fold_names(self) -> tuple[str, ...]:
        """What the runs hold out, one at a time: domains, or groups of them by name."""
        return tuple(self.folds) or self.held_out

    def domains_of(self, fold: str | None) -> tuple[str, ...]:
        """Return the domains that a job's `held_out` or `inner` names; none for None."""
        return () if fold is None else self.folds.get(fold, (fold,))

    @property
    def keeping_rule(self) -> str:
        """The rule by which a training keeps the model of one round."""
        return keeping_rule(self.rules)

    def variant(self, label: str) -> Variant:
        return next(variant for variant in self.variants if variant.label == label)

    def jobs(self, task: Task | TaskOutline) -> Iterator[Job]:
        """All runs, so ordered that a part of them is already a fair comparison."""
        nested = any(RULES[r].needs_inner for r in self.rules)
        for seed in self.seeds:
            for held_out in self.fold_names:
                for algorithm in self.algorithms:
                    yield Job(algorithm, held_out, seed)
                    if nested:
                        for inner in inner_units(task, self.folds, held_out):
                            yield Job(algorithm, held_out, seed, inner)

    def every(self, label: str) -> int:
        """Rounds between evaluations of a variant: as many evaluations for all."""
        return max(1, self.evaluate_every * self.rounds_of[label] // self.rounds)

    def algorithm(self, label: str) -> FedAvg:
        """Build the method of a variant with its settings."""
        return build(self.variant(label).method, self.settings[label], self.rounds_of[label])

    def algorithm_of(self, job: Job) -> FedAvg:
        """Build the method of a run: with the settings that were tuned for its held-out domain, where there are any."""
        return build(self.variant(job.algorithm).method, self.settings_of(job), self.rounds_of[job.algorithm])

    def settings_of(self, job: Job) -> dict[str, Any]:
        """All parameters of a run."""
        found = self.tuned.get(job.algorithm)
        return {**self.settings[job.algorithm], **({} if found is None else found.settings_for(job.held_out))}

    def spec_for(self, algorithm: FedAvg, schema: SourceSchema | None = None) -> ModelSpec:
        """The model with what this method needs of it, in the sizes of a run; without one, of all domains together."""
        model = self.model if schema is None else schema.spec(self.model, len(schema.numbers))
        return algorithm.model_for(model)

    def job_config(self, job: Job, schema: SourceSchema | None = None) -> dict[str, Any]:
        """What one run's folder says of it."""
        config = self.model_dump(
            mode="json",
            exclude={
                *("variants", "settings", "seeds", "held_out", "folds"),
                *("rules", "baseline", "rounds_of", "left_out", "notes", "metric_reason", "tuning", "tuned"),
                # In a bench the metric chooses among rounds that are all there; in a training it decides which is kept.
                *(["metric"] if job.held_out is not None else []),
            },
        )
        if job.held_out is None and self.keeping_rule != "source-validation":
            config["rule"] = self.keeping_rule
        return {
            **config,
            "rounds": self.rounds_of[job.algorithm],
            "evaluate_every": self.every(job.algorithm),
            "algorithm": job.algorithm,
            "method": self.variant(job.algorithm).method,
            "held_out": job.held_out,
            "inner": job.inner,
            **self._groups(job),
            "seed": job.seed,
            "settings": self.settings_of(job),
            "model": self.spec_for(self.algorithm_of(job), schema).model_dump(mode="json"),
            **({} if job.trial is None else {"trial": job.trial}),
        }

    def _groups(self, job: Job) -> dict[str, Any]:
        """Return the domains that a run holds out together, if it does."""
        groups = {"group": self.domains_of(job.held_out), "inner_group": self.domains_of(job.inner)}
        return {name: list(group) for name, group in groups.items() if len(group) > 1}

    def facts(self, job: Job) -> dict[str, Any]:
        """What a run's result says besides what happened: the task, the normalisation, the method and its settings."""
        return {
            "task": self.task,
            "norm": self.model.norm,
            "precision": self.model.precision,
            "method": self.variant(job.algorithm).method,
            "settings": self.settings_of(job),
            **({"tuned": self.tuned[job.algorithm].settings_for(job.held_out)} if job.algorithm in self.tuned else {}),
        }


def check_variants(
    algorithms: AnyVariant | Iterable[AnyVariant] | None, settings: Mapping[str, Any] | None
) -> tuple[Variant, ...]:
    """Return the variants, the default ones for None; refuse them or their settings before any data is read."""
    variants = read_variants(DEFAULT_ALGORITHMS if algorithms is None else algorithms)
    check_settings(settings or {}, variants)
    return variants


def check_one_variant(algorithm: AnyVariant | Iterable[AnyVariant], settings: Mapping[str, Any] | None) -> Variant:
    """Return the one variant of a training; refuse several, or settings that cannot be, before any data is read."""
    variants = read_variants(algorithm)
    if len(variants) != 1:
        raise PlanError(f"a training is of one method, and {len(variants)} are given; compare several with a bench")
    return check_variants(variants, settings)[0]


def make_plan(
    task: Task | TaskOutline,
    *,
    algorithms: AnyVariant | Iterable[AnyVariant] | None = None,
    references: Wanted = False,
    held_out: str | Sequence[str | Sequence[str]] | None = None,
    folds: int | None = None,
    seeds: int | Sequence[int] = DEFAULT_SEEDS,
    rounds: int | None = None,
    communications: int | Sequence[int] | None = None,
    partition: str | None = None,
    clients: int | None = None,
    cohort: int | None = None,
    validation: float | str = 0.1,
    evaluate_every: int | None = None,
    rules: str | Sequence[str] | None = None,
    metric: str | None = None,
    baseline: str | None = None,
    quorum: float = 0.5,
    deadline: float | None = None,
    equal_steps: bool = True,
    all_train: bool = False,
    settings: Mapping[str, Any] | None = None,
    tuning: Tuning | None = None,
) -> Plan:
    """Resolve defaults, apply settings, and refuse what cannot work. Raises PlanError, one sentence.

    An outline in place of a task gives the same plan without the checks that need rows; `equal_steps` needs them too.
    `references` adds those of `prior`, `erm`, `local-only` and `fedavg` that are not among the algorithms.
    `baseline` is the label or the method of the variant that differences are to.
    `held_out` has domains, and groups that are held out together as "a+b" or lists; `folds` deals them out to so many.
    `all_train` holds nothing out: for a model that is put to use. `equal_steps` gives a method that makes one step per
    round (FedSGD, FedILC) as many rounds as the others make steps.
    `communications` keeps the number of local epochs and says how often, or after which epochs, clients synchronise.
    """
    rows = task if isinstance(task, Task) else None
    task = task.outline() if isinstance(task, Task) else task
    try:
        asked = read_variants(DEFAULT_ALGORITHMS if algorithms is None else algorithms)
        variants = with_references(asked, references)
        settings = dict(settings or {})
        rules = name_list("rules", rules)
        domains: tuple[str, ...] = ()
        groups: Folds = {}
        if not all_train:
            domains, groups = held_out_folds(task, group_list("held_out", held_out) or task.held_out, folds)
        augment = augmentation(task, settings.pop("augment", None))
        found = sort_settings(settings, variants)
        given, defaults = found.given, task.defaults
        if communications is not None and not isinstance(communications, int) and rounds is not None:
            raise PlanError("epochs given as communications say how many rounds there are; omit rounds")
        rounds = positive("rounds", rounds if rounds is not None else task.defaults.get("rounds", DEFAULT_ROUNDS))
        by_epochs = communications is not None
        fit = Fit(asked)
        resolved = fit.resolved(variants, lambda v: resolve(v.method, defaults, given[v.label], by_epochs))
        variants = tuple(v for v in variants if v.label in resolved)
        budget = local_epochs_in_all(communications, rounds)
        if communications is not None:
            rounds, resolved = synchronise(communications, rounds, variants, resolved, given)
        check_distinct(variants, resolved)
        if partition is None and clients is None:
            # Together or not at all: a hundred clients suit this task's own partition only.
            partition, clients = task.defaults.get("partition"), task.defaults.get("clients")
            cohort = cohort if cohort is not None else task.defaults.get("cohort")
        every = evaluate_every if evaluate_every is not None else max(1, rounds // EVALUATIONS)
        leading = leading_metric(task.kind, metric, class_rows(rows, domains if len(groups or domains) == 1 else ()))
        plan = Plan(
            task=task.name,
            data=task.data,
            kind=task.kind,
            variants=tuple(_with_own(v, found.own[v.label], resolved[v.label]) for v in variants),
            held_out=domains,
            folds=groups,
            seeds=seed_numbers(seeds),
            rounds=rounds,
            rounds_of={v.label: rounds if parts(v.method)[0].trains else 1 for v in variants},
            partition=partition or ("split" if clients is not None else "domain"),
            clients=clients,
            cohort=cohort,
            validation=validation_share(validation),
            evaluate_every=positive("evaluate_every", every),
            rules=tuple(rule_named(r).name for r in rules or DEFAULT_RULES),
            metric=leading.name,
            metric_reason=leading.reason,
            baseline=baseline_label(baseline, variants),
            quorum=share("quorum", quorum),
            deadline=deadline if deadline is None else positive("deadline", deadline),
            augment=augment,
            model=model_spec(task, found.model),
            settings=resolved,
            notes=task.notes,
            tuning=tuning,
        )
        check_models(plan)
        counted = check_outline(plan, task) if rows is None else check_against_rows(plan, rows)
        if rows is not None:
            plan = with_learnable_folds(plan, rows, named=held_out is not None)
        plan = fit.without_misfits(plan, counted.clients, found.model)
        plan = plan.model_copy(update={"baseline": baseline_label(baseline, plan.variants)})
        check_privacy(plan)
        if tuning is not None:
            parameters = with_parameters(tuning, plan.variants, plan.settings, given, plan.metric)
            plan = plan.model_copy(update={"tuning": parameters})
        told = (*validation_notes(plan, counted.validation_rows), *baseline_notes(plan))
        told += (*dropped_notes(plan.variants, defaults, given), *_beaten_notes(found))
        told += tuple(privacy_plan_notes(plan, task.rows))
        told += (*_idle_notes(plan, asked, given), *untuned_notes(plan, given))
        plan = plan.model_copy(update={"notes": (*plan.notes, *told)})
        if equal_steps:
            plan = _with_equal_steps(plan, rows, budget)
    except (AlgorithmError, ProtocolError, ValueError) as error:
        raise error if isinstance(error, PlanError) else PlanError(_sentence(error)) from error
    return plan


def _with_own(variant: Variant, own: Iterable[str], resolved: Mapping[str, Any]) -> Variant:
    """Return the variant with all that was set for it alone as its settings, whichever way it was set."""
    return Variant(label=variant.label, method=variant.method, settings={key: resolved[key] for key in own})


def _with_equal_steps(plan: Plan, task: Task | None, budget: Callable[[Any], int]) -> Plan:
    if task is None:
        raise PlanError("equal local steps are counted in rows, which are elsewhere; set equal_steps=False")
    made = make_clients(
        source_domains(task, plan.domains_of(next(iter(plan.fold_names), None))),
        partition=Partition.parse(plan.partition),
        clients=plan.clients,
        validation=plan.validation,
        seed=0,
        kind=task.kind,
    )
    rows = int(made.train_sizes.double().mean().ceil())
    rounds_of = {}
    for name in plan.algorithms:
        algorithm = plan.algorithm(name)
        p = algorithm.params
        batches = -(-rows // p.batch_size) if p.batch_size else 1
        steps = plan.rounds * p.local_steps if p.local_steps else batches * budget(p)
        rounds_of[name] = steps if algorithm.single_step else plan.rounds_of[name]
    return plan.model_copy(update={"rounds_of": rounds_of})


def _beaten_notes(found: SortedSettings) -> tuple[str, ...]:
    return tuple(f"{key} has no effect: {why}" for key, why in found.beaten.items())


def _idle_notes(plan: Plan, asked: Sequence[Variant], given: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Return a note per setting that was given and changes nothing with the others as they are.

    Of references that nobody asked for, nobody expects that a setting of the others has an effect on them.
    """
    labels = [variant.label for variant in asked if variant.label in plan.algorithms]
    idle = {label: plan.algorithm(label).params.idle() for label in labels}
    return tuple(
        f"{label}: {key} has no effect: {idle[label][key]}"
        for label in labels
        for key in given[label]
        if key in idle[label]
    )


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split())


def check_counts(workers: int | None, parallel: int | None, checkpoint_every: int) -> None:
    """Refuse numbers of processes that cannot work, before a folder is made."""
    for name, value in (("workers", workers), ("parallel", parallel), ("checkpoint_every", checkpoint_every)):
        if value is not None and value < 1:
            raise PlanError(f"{name} must be at least 1, not {value}")
