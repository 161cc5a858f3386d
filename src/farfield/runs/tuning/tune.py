"""`farfield.tune`, which `farfield tune` calls as well: the best settings of methods, and every trial."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from farfield.errors import UserError
from farfield.records import RecordsError, difference, read_config, sole_writer, write_config
from farfield.records.setting_text import readable, value_text
from farfield.records.tuning_trials import TUNING, read_trials
from farfield.runs.engine_choice import AUTO, choose_engine
from farfield.runs.engines import engine_here
from farfield.runs.places import check_place, open_place
from farfield.runs.plan import Plan, check_counts, check_variants, make_plan
from farfield.runs.processes import Observer
from farfield.runs.settings import check_weights
from farfield.runs.tuning.candidates import check_optuna
from farfield.runs.tuning.outcome import ALL_TRAIN
from farfield.runs.tuning.request import read_request
from farfield.runs.tuning.study import run_studies, trials_missing
from farfield.runs.tuning.trial import best_trial, failed_sentence
from farfield.runs.variants import AnyVariant
from farfield.tasks import Task
from farfield.tasks.open_task import open_task

#: In the folder of a tuning: its plan, and what it chose.
PLAN, BEST = "tune.toml", "best.toml"


class TuningResult:
    """What a tuning found: `best` (settings by label and held-out domain), `trials` (one dict per trial)."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan, self.folder = plan, folder

    @property
    def best(self) -> dict[str, dict[str, dict[str, Any]]]:
        """The chosen settings by label and held-out domain; "" is a tuning in which every domain trains."""
        return {label: of.best for label, of in self.plan.tuned.items()}

    @property
    def trials(self) -> list[dict[str, Any]]:
        return read_trials(self.folder)

    def lines(self) -> list[str]:
        """Return one line per method and held-out domain: the criterion, before and after, and what to type.

        A line says so where no trial can be used.
        """
        lines = []
        trials = self.trials
        for label, by_domain in self.best.items():
            for held_out, settings in by_domain.items():
                rows = [t for t in trials if t["algorithm"] == label and (t["held_out"] or ALL_TRAIN) == held_out]
                chosen = best_trial(rows) or rows[0]
                before = "–" if rows[0]["criterion"] is None else f"{rows[0]['criterion']:.4f}"
                where = f", {held_out} held out" if held_out else ""
                typed = self._typed(label, settings)
                lines.append(
                    f"{label}{where}: {chosen['metric']} {chosen['criterion']:.4f} by {chosen['rule']} (trial "
                    f"{chosen['number']} of {len(rows)}; untuned {before}): {typed}"
                )
        for label, held in dict.fromkeys((t["algorithm"], t["held_out"]) for t in trials):
            failed = failed_sentence(
                label, held, [t for t in trials if (t["algorithm"], t["held_out"]) == (label, held)]
            )
            lines += [] if failed is None else [failed]
        return lines

    def _typed(self, label: str, settings: Mapping[str, Any]) -> str:
        """Return what gives these settings on the command line; those of a variant stand in its text."""
        variant = self.plan.variant(label)
        if variant.plain:
            return " ".join(f"--set {label}.{name}={value_text(value)}" for name, value in settings.items())
        return f"-a '{variant.model_copy(update={'settings': {**variant.settings, **settings}}).text}'"

    def __str__(self) -> str:
        return "\n".join(self.lines())


def tune(
    task: str | Task,
    algorithms: AnyVariant | Iterable[AnyVariant] | None = None,
    *,
    trials: int = 10,
    by: str | None = None,
    only: str | Sequence[str] | None = None,
    held_out: str | Sequence[str | Sequence[str]] | None = None,
    seed: int = 0,
    rounds: int | None = None,
    metric: str | None = None,
    communications: int | Sequence[int] | None = None,
    partition: str | None = None,
    clients: int | None = None,
    cohort: int | None = None,
    validation: float | str = 0.1,
    evaluate_every: int | None = None,
    equal_steps: bool = True,
    features: str | None = None,
    image_size: int | None = None,
    settings: Mapping[str, Any] | None = None,
    workers: int = 1,
    parallel: int | None = None,
    on: str | None = None,
    checkpoint_every: int = 10,
    out: str | Path | None = None,
    resume: bool = False,
    fresh: bool = False,
    ready: Callable[[Plan], None] = lambda _: None,
    tell: Callable[[str], None] = lambda _: None,
    observer: Observer | None = None,
) -> TuningResult:
    """Find settings of one or more methods with the same number of trials and local steps for each.

    Without `held_out` every domain trains, which gives settings for a model that is put to use; a bench with them would
    have chosen by its held-out domains, so let `farfield.bench(…, tune=N)` tune there. With `held_out` each of these
    domains is left out of a tuning of its own. `by` compares trials: "source-validation" or "leave-one-domain-out".
    `only` names the parameters. The other options are those of `farfield.bench`.
    """
    if resume and fresh:
        raise UserError("resume goes on with a tuning and fresh replaces it; give one of the two")
    check_place(on, "local", workers)
    check_counts(workers, parallel, checkpoint_every)
    request = read_request(trials, by, only, seed)
    check_optuna(trials)
    variants = check_variants(["fedavg"] if algorithms is None else algorithms, settings)
    if not isinstance(task, Task) or image_size is not None:
        check_weights(settings)
    task = open_task(task, features=features, image_size=image_size)
    plan = make_plan(
        task,
        algorithms=variants,
        held_out=held_out,
        all_train=held_out is None,
        seeds=[seed],
        rounds=rounds,
        metric=metric,
        communications=communications,
        partition=partition,
        clients=clients,
        cohort=cohort,
        validation=validation,
        evaluate_every=evaluate_every,
        equal_steps=equal_steps,
        settings=settings,
        tuning=request,
    )
    if by == "leave-one-domain-out" and len(task.domains) < 2:
        raise UserError(f"task '{task.name}' has one domain only, and leaving one out needs at least two")
    folder = Path(out) if out is not None else Path(tempfile.mkdtemp(prefix="farfield-"))
    with _opened(plan, folder, resume=resume, fresh=fresh):
        ready(plan)
        jobs = [job for job in plan.jobs(task) for _ in range(trials)]
        chosen = choose_engine(AUTO, plan, task, jobs, workers=workers, parallel=parallel, on=on)
        with open_place(on if trials_missing(plan, task, folder) else None, tell) as place:
            plan = run_studies(
                plan,
                task,
                folder,
                parallel=parallel,
                engine=engine_here(chosen.engine, chosen.workers),
                place=place,
                checkpoint_every=checkpoint_every,
                observer=observer,
            )
        best = {label: of.best.get(ALL_TRAIN, of.best) for label, of in plan.tuned.items()}
        write_config(folder / BEST, best)
    return TuningResult(plan, folder)


@contextmanager
def _opened(plan: Plan, out: Path, *, resume: bool, fresh: bool) -> Iterator[None]:
    """Make the folder of a tuning ready and be the only one to write to it.

    Where a tuning is there, the lock comes first: another process may still be at work on it.
    """
    with ExitStack() as held:
        there = (out / PLAN).exists()
        if there:
            held.enter_context(sole_writer(out, patience=0.0))
        _prepare(plan, out, resume=resume, fresh=fresh)
        if not there:
            held.enter_context(sole_writer(out, patience=0.0))
        yield


def _prepare(plan: Plan, out: Path, *, resume: bool, fresh: bool) -> None:
    """Make the folder of a tuning ready, or say in one sentence why that cannot be."""
    content = plan.model_dump(mode="json", exclude={"notes", "tuned"})
    content["variants"] = [{**v, "settings": readable(v["settings"])} for v in content["variants"]]
    if (out / PLAN).exists() and fresh:
        shutil.rmtree(out / TUNING, ignore_errors=True)
        (out / BEST).unlink(missing_ok=True)
    elif (out / PLAN).exists():
        changed = difference(read_config(out / PLAN), content)
        if changed:
            raise RecordsError(
                f"'{out}' holds another tuning: {changed}; replace it with --fresh, or choose another --out"
            )
        if not resume:
            raise RecordsError(f"'{out}' holds this tuning already; add --resume to go on or --fresh to replace it")
        return
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RecordsError(f"'{out}' is not empty and holds no tuning; choose another folder for --out")
    elif resume:
        raise RecordsError(f"there is no tuning in '{out}' to resume; omit --resume to start a new one")
    out.mkdir(parents=True, exist_ok=True)
    write_config(out / PLAN, content)
