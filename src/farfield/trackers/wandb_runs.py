"""Weights & Biases: one run per run of the bench in one group, and one more with the held-out results."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farfield.records.bench_folder import TRACKERS
from farfield.runs.callbacks import Callback
from farfield.runs.job import Job
from farfield.runs.plan import Plan
from farfield.trackers.figures import (
    bench_identity,
    cost_figures,
    held_out_figures,
    round_figures,
    run_name,
    run_settings,
    short_hash,
)
from farfield.trackers.packages import need

if TYPE_CHECKING:
    from farfield.runs.result import BenchResult

#: The name of the run that holds the held-out results.
RESULTS = "held-out results"


class WandB(Callback):
    """Sends rounds to a project: the one given, or `WANDB_PROJECT`, or `farfield`.

    W&B's own variables say how: `WANDB_MODE=offline` writes to the bench's folder (or `WANDB_DIR`) and sends nothing,
    until `wandb sync` does. A run has the same id when the bench is resumed. Inner runs of leave-one-domain-out are
    left out.
    """

    def __init__(self, project: str | None = None) -> None:
        need("wandb")
        self._project = project or os.environ.get("WANDB_PROJECT") or "farfield"
        self._runs: dict[Job, Any] = {}

    def on_bench_start(self, plan: Plan, folder: Path) -> None:
        self._plan, self._identity = plan, bench_identity(folder)
        self._folder = os.environ.get("WANDB_DIR") or str(folder / TRACKERS)

    def on_round(self, job: Job, row: Mapping[str, Any]) -> None:
        if job.inner is None:
            run, step = self._run(job), int(row["round"])
            if step >= run.starting_step:  # of a resumed run: the first step that the server does not have
                run.log(round_figures(row), step=step)

    def on_run_end(self, job: Job, result: Mapping[str, Any]) -> None:
        if job.inner is None:
            run = self._run(job)
            run.summary.update(cost_figures(result))
            run.finish(exit_code=1 if "error" in result else 0)
            del self._runs[job]

    def on_bench_end(self, result: BenchResult) -> None:
        import wandb

        rows = [
            [row["algorithm"], row["held_out"], row["seed"], rule, round, figures]
            for row in result.rows
            for rule, round, figures in held_out_figures(row)
        ]
        metrics = sorted({name for *_, figures in rows for name in figures})
        table = wandb.Table(
            columns=["algorithm", "held_out", "seed", "rule", "round", *metrics],
            data=[[*head, *(figures.get(name) for name in metrics)] for *head, figures in rows],
        )
        run = self._open(RESULTS, {"task": self._plan.task})
        run.log({"held_out": table})
        run.finish()

    def close(self) -> None:
        for run in self._runs.values():  # an interrupted bench; its runs go on under the same ids
            run.finish(exit_code=1)
        self._runs.clear()

    def _run(self, job: Job) -> Any:
        if job not in self._runs:
            self._runs[job] = self._open(run_name(job), run_settings(self._plan, job))
        return self._runs[job]

    def _open(self, name: str, settings: Mapping[str, Any]) -> Any:
        import wandb

        return wandb.init(
            project=self._project,
            group=f"{self._plan.task} {self._identity}",
            name=name,
            id=f"{self._identity}-{short_hash(name)}",
            config=dict(settings),
            dir=self._folder,
            resume="allow",
            reinit="create_new",  # runs of a bench are made side by side
            settings=wandb.Settings(console="off", silent=True, x_disable_stats=True),
        )
