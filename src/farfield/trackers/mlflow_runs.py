"""MLflow: one run per run of the bench, under one parent run for the bench."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farfield.errors import UserError
from farfield.records.bench_folder import TRACKERS
from farfield.runs.callbacks import Callback
from farfield.runs.job import Job
from farfield.runs.plan import Plan
from farfield.trackers.figures import (
    bench_identity,
    cost_figures,
    held_out_figures,
    held_out_prefix,
    round_figures,
    run_name,
    run_of,
    run_settings,
    short_hash,
)
from farfield.trackers.packages import need

if TYPE_CHECKING:
    from farfield.runs.result import BenchResult

#: Tags by which a resumed bench finds its runs again.
BENCH_TAG, RUN_TAG = "farfield.bench", "farfield.run"
#: The name of the parent run among the runs of a bench.
PARENT = ""
#: MLflow's own limits: characters of a name, characters of a parameter, metrics and parameters in one request.
LONGEST_NAME, LONGEST_PARAMETER, MOST_METRICS, MOST_PARAMETERS = 250, 500, 1000, 100


class MLflow(Callback):
    """Sends rounds to a tracking store.

    `uri` is a server or a database (`http://…`, `sqlite:///runs.db`). Without it `MLFLOW_TRACKING_URI` says where, and
    without that a database in the bench's folder is used. The experiment is `MLFLOW_EXPERIMENT_NAME`, or else the
    task's name. Inner runs of leave-one-domain-out are left out.
    """

    def __init__(self, uri: str | None = None) -> None:
        uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or None
        if uri is not None and (uri.startswith("file:") or ":" not in uri):
            raise UserError(
                f"MLflow no longer keeps runs in a folder, as '{uri}' asks; give a server or a database, for example "
                "mlflow:sqlite:///runs.db"
            )
        need("mlflow")
        self._uri = uri
        self._ids: dict[str, str] = {}
        self._runs: dict[Job, _Run] = {}
        self._open: set[str] = set()

    def on_bench_start(self, plan: Plan, folder: Path) -> None:
        from mlflow import MlflowClient
        from mlflow.tracking.context import registry

        self._plan, self._identity = plan, bench_identity(folder)
        self._runs = {}  # a sweep tells of one bench after the other
        place = (folder / TRACKERS).resolve()
        self.uri = self._uri or f"sqlite:///{place / 'mlflow.db'}"
        self._client = MlflowClient(self.uri)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or plan.task
        found = self._client.get_experiment_by_name(name)
        if found is None:
            files = (place / "mlflow-artifacts").as_uri() if self._uri is None else None
            self._experiment = self._client.create_experiment(name, artifact_location=files)
        else:
            self._experiment = found.experiment_id
        self._user_tags = registry.resolve_tags()
        self._ids = self._known_runs()
        self._create(PARENT, f"{plan.task} {self._identity}", {})

    def on_round(self, job: Job, row: Mapping[str, Any]) -> None:
        if job.inner is None:
            self._run(job).write_round(int(row["round"]), round_figures(row))

    def on_run_end(self, job: Job, result: Mapping[str, Any]) -> None:
        if job.inner is not None:
            return
        run = self._run(job)
        run.write_once(int(result.get("rounds", 0)), cost_figures(result))
        self._end(run.id, "FAILED" if "error" in result else "FINISHED")

    def on_bench_end(self, result: BenchResult) -> None:
        for row in result.rows:
            run = self._run(run_of(row))
            for rule, round, figures in held_out_figures(row):
                run.write_once(round, {held_out_prefix(row, rule) + name: value for name, value in figures.items()})
        complete = not result.failures and not result.sweep.missing
        self._end(self._ids[PARENT], "FINISHED" if complete else "FAILED")

    def close(self) -> None:
        for id in sorted(self._open):  # an interrupted bench, whose runs go on when it is resumed
            self._end(id, "KILLED")

    def _known_runs(self) -> dict[str, str]:
        """Return the runs that an earlier start of this bench has made, by name."""
        known: dict[str, str] = {}
        token = None
        while True:
            page = self._client.search_runs(
                [self._experiment], f"tags.`{BENCH_TAG}` = '{self._identity}'", page_token=token
            )
            known |= {run.data.tags.get(RUN_TAG, PARENT): run.info.run_id for run in page}
            token = page.token
            if not token:
                return known

    def _create(self, key: str, name: str, settings: Mapping[str, Any]) -> str:
        from mlflow.entities import Param

        if key in self._ids:
            if key == PARENT:
                self._begin(self._ids[key])
            return self._ids[key]
        tags = {**self._user_tags, BENCH_TAG: self._identity, RUN_TAG: key}
        if key != PARENT:
            tags["mlflow.parentRunId"] = self._ids[PARENT]
        id = str(self._client.create_run(self._experiment, tags=tags, run_name=name).info.run_id)
        self._ids[key] = id
        self._open.add(id)
        parameters = [Param(k, str(v)[:LONGEST_PARAMETER]) for k, v in settings.items()]
        for start in range(0, len(parameters), MOST_PARAMETERS):
            self._client.log_batch(id, params=parameters[start : start + MOST_PARAMETERS])
        return id

    def _run(self, job: Job) -> _Run:
        if job not in self._runs:
            name = run_name(job)
            known = name in self._ids
            id = self._create(name, name, run_settings(self._plan, job))
            self._runs[job] = _Run(self._client, id, known, self._begin)
        return self._runs[job]

    def _begin(self, id: str) -> None:
        """Mark a run that an earlier start has made as running again."""
        if id not in self._open:
            self._open.add(id)
            self._client.update_run(id, status="RUNNING")

    def _end(self, id: str, status: str) -> None:
        if id in self._open:
            self._open.discard(id)
            self._client.set_terminated(id, status)


class _Run:
    """One run in the store. Steps that are there already are not sent again."""

    def __init__(self, client: Any, id: str, known: bool, begin: Any) -> None:
        self._client, self.id, self._known, self._begin = client, id, known, begin
        #: The last rounds that an earlier start sent. Every round has `clients`, and is written all at once.
        self._rounds = {m.step for m in client.get_metric_history(id, "clients")} if known else set()

    def write_round(self, round: int, figures: Mapping[str, float]) -> None:
        if round not in self._rounds:
            self._begin(self.id)
            self._send(round, figures)

    def write_once(self, step: int, figures: Mapping[str, float]) -> None:
        """Send figures that a run has once; none that the store has for this step already."""
        names = {name: metric_name(name) for name in figures}
        if self._known:
            figures = {
                name: value
                for name, value in figures.items()
                if step not in {m.step for m in self._client.get_metric_history(self.id, names[name])}
            }
        self._send(step, figures)

    def _send(self, step: int, figures: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(metric_name(name), value, now, step) for name, value in sorted(figures.items())]
        for start in range(0, len(metrics), MOST_METRICS):
            self._client.log_batch(self.id, metrics=metrics[start : start + MOST_METRICS])


def metric_name(name: str) -> str:
    """Return a name that MLflow takes. One that had to be changed ends in a hash, so that two never become one."""
    plain = re.sub(r"[^\w\-. :/]", "_", name)
    parts = [part if part.strip(".") else "_" for part in plain.split("/")]
    plain = "/".join(parts)
    if plain == name and len(name) <= LONGEST_NAME:
        return name
    return f"{plain[: LONGEST_NAME - 9]}-{short_hash(name)}"
