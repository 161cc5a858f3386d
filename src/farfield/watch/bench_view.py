"""A bench as its folder shows it: progress, source validation and training loss by method, events."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farfield.records.bench_folder import BENCH, JOBS
from farfield.records.participation import loss_sentences
from farfield.records.run_files import CONFIG
from farfield.watch.liveness import TimeLeft, is_fresh, is_locked
from farfield.watch.plan_file import metric_of, read_toml
from farfield.watch.run_view import RunView
from farfield.watch.trials_view import TrialsView, trials_asked

#: The page that a finished bench has.
REPORT = "report.html"
MOST_POINTS, MOST_RUNS, MOST_EVENTS = 200, 60, 100
NO_RESULTS = (
    "Held-out results are not shown while a bench runs: whoever watches them is tempted to stop or to change a setting "
    "when they look best. What is shown here is what the training clients see."
)


@dataclass
class _Job:
    label: str
    name: str
    rounds: int
    run: RunView
    inner: bool


class BenchView:
    """Follows a bench from its plan to its end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._left = TimeLeft()
        self._trials = TrialsView(folder)
        self._jobs: list[_Job] = []
        self._known: Any = None
        self._problem: str | None = None
        self._plan: dict[str, Any] = {}

    def snapshot(self) -> dict[str, Any]:
        """Read what is new and return all that the page shows."""
        self._read_jobs()
        for job in self._jobs:
            job.run.poll()
        total = self._total_runs()
        ended = sum(job.run.done or job.run.error is not None for job in self._jobs)
        failed = [job for job in self._jobs if job.run.error is not None]
        changed = max((job.run.changed for job in self._jobs), default=0.0)
        locked = is_locked(self.folder)
        complete = total > 0 and ended >= total
        finished = complete and not locked
        running = not finished and (locked or is_fresh(changed))
        rounds, of = self._rounds(total)
        left = self._left.seconds(rounds, of, self._costs(), running)
        status = "finished" if finished else "running" if running else "stopped"
        return {
            "kind": "bench",
            "status": status,
            "title": str(self._plan.get("task", "")),
            "headline": self._headline(status, ended, total, len(failed)),
            "note": "" if finished else NO_RESULTS,
            "metric": self._metric_name(),
            "changed": changed or None,
            "left": None if left is None else max(1, round(left)),
            "rounds": {"done": sum(rounds.values()), "total": sum(of.values())},
            "runs": {"done": ended - len(failed), "failed": len(failed), "total": total},
            "methods": self._methods(rounds, of),
            "running": [_line(job) for job in self._under_way(running)],
            "failed": [{"name": job.name, "error": job.run.error} for job in failed[:MOST_RUNS]],
            "curves": {"loss": self._curves("losses"), "validation": self._curves("validations")},
            "events": self._events(),
            "problems": self._problems(),
            "report": finished and (self.folder / REPORT).is_file(),
        }

    def _read_jobs(self) -> None:
        """Read the plan and the list of runs, if they have changed."""
        seen = [_mark(self.folder / name) for name in (BENCH, JOBS)]
        if seen == self._known:
            if seen[1] is None:
                self._find_runs()
            return
        if self._known is not None and seen[0] != self._known[0]:
            # The bench was replaced, or has grown.
            self._jobs, self._left, self._trials = [], TimeLeft(), TrialsView(self.folder)
        self._known = seen
        self._plan, self._problem = read_toml(self.folder / BENCH)
        if seen[1] is None:
            self._find_runs()
            return
        try:
            listed = json.loads((self.folder / JOBS).read_bytes())
            known = {job.run.path: job for job in self._jobs}
            self._jobs = [self._job(entry, known) for entry in listed]
        except (OSError, ValueError, KeyError, TypeError):
            self._problem = f"'{JOBS}' cannot be read; runs are counted by their folders"
            self._find_runs()

    def _job(self, entry: Mapping[str, Any], known: Mapping[Path, _Job]) -> _Job:
        path = self.folder.joinpath(*(part for part in str(entry["folder"]).split("/") if part not in ("", ".", "..")))
        label, inner = str(entry["algorithm"]), entry.get("inner")
        domains = " and ".join(str(d) for d in (entry["held_out"], inner) if d is not None)
        name = f"{label} · {domains} held out · seed {entry['seed']}"
        run = known[path].run if path in known else RunView(path, *metric_of(self._plan))
        run.rounds = int(entry["rounds"])
        return _Job(label, name, run.rounds, run, inner is not None)

    def _find_runs(self) -> None:
        """Find runs by their folders: the bench is of an older version, or has only just begun."""
        known = {job.run.path for job in self._jobs}
        for path in sorted(self.folder.glob("runs/**/" + CONFIG)):
            if path.parent not in known:
                config, _ = read_toml(path)
                config |= {"folder": path.parent.relative_to(self.folder).as_posix()}
                if {"algorithm", "held_out", "seed", "rounds"} <= set(config):
                    self._jobs.append(self._job(config, {}))

    def _total_runs(self) -> int:
        if self._known and self._known[1] is not None and not self._problem:
            return len(self._jobs)
        labels, seeds = self._labels(), self._plan.get("seeds", ())
        units = self._plan.get("folds") or self._plan.get("held_out", ())
        planned = len(labels) * len(units) * len(seeds)
        return max(planned, len(self._jobs))

    def _labels(self) -> list[str]:
        variants = self._plan.get("variants") or [{"label": name} for name in self._plan.get("algorithms", ())]
        labels = [str(v.get("label")) for v in variants if isinstance(v, Mapping)]
        return list(dict.fromkeys([*labels, *(job.label for job in self._jobs)]))

    def _rounds(self, total: int) -> tuple[dict[str, int], dict[str, int]]:
        """Return the rounds that are made and the rounds that there are, by method. A run that failed has no more."""
        done: Counter[str] = Counter()
        of: Counter[str] = Counter()
        for job in self._jobs:
            made = job.rounds if job.run.done else min(job.run.round, job.rounds)
            done[job.label] += made
            of[job.label] += made if job.run.error is not None else job.rounds
        missing, labels = total - len(self._jobs), self._labels()
        if missing > 0 and labels:
            usual = self._plan.get("rounds")
            for label in labels:
                of[label] += missing * (usual if isinstance(usual, int) else 1) // len(labels)
        return dict(done), dict(of)

    def _costs(self) -> dict[str, float]:
        """Return the seconds of a round, by method, from the runs that are done."""
        seconds: dict[str, float] = {}
        rounds: Counter[str] = Counter()
        for job in self._jobs:
            result = job.run.result or {}
            spent, made = result.get("seconds"), result.get("rounds")
            if isinstance(spent, int | float) and spent > 0:
                seconds[job.label] = seconds.get(job.label, 0.0) + spent
                rounds[job.label] += made if isinstance(made, int) else job.rounds
        return {label: seconds[label] / rounds[label] for label in seconds if rounds[label]}

    def _metric_name(self) -> str:
        """Return the metric that validation is shown in: runs whose records lack the plan's use another."""
        return next((job.run.metric for job in self._jobs if job.run.validations), metric_of(self._plan)[0])

    def _headline(self, status: str, ended: int, total: int, failed: int) -> str:
        problems = "" if not failed else f", {failed} of them failed" if ended > 1 else ", and failed"
        if status == "finished":
            return f"The bench has ended: {ended} of {total} runs{problems}."
        if status == "running":
            return f"The bench is running: {ended} of {total} runs have ended{problems}.{self._tuning()}"
        return (
            f"This bench is not running: {ended} of {total} runs have ended{problems}. To go on, give its "
            "command again with --resume."
        )

    def _tuning(self) -> str:
        """Say how far the tuning is that comes before the runs."""
        asked = trials_asked(self._plan)
        made = self._trials.made() if asked else 0
        return (
            f" It is tuning first: {made} of {asked} trials are made."
            if made < asked and not any(job.run.round for job in self._jobs)
            else ""
        )

    def _methods(self, done: Mapping[str, int], of: Mapping[str, int]) -> list[dict[str, Any]]:
        rows = []
        for label in self._labels():
            jobs = [job for job in self._jobs if job.label == label]
            losses = [job.run.loss for job in jobs if job.run.loss is not None]
            figures = [job.run.validation for job in jobs if job.run.validation is not None and not job.inner]
            rows.append(
                {
                    "label": label,
                    "done": done.get(label, 0),
                    "total": of.get(label, 0),
                    "runs": sum(job.run.done for job in jobs),
                    "failed": sum(job.run.error is not None for job in jobs),
                    "of": len(jobs),
                    "loss": _mean(losses),
                    "validation": _mean(figures),
                }
            )
        return rows

    def _under_way(self, running: bool) -> list[_Job]:
        # A run with a result is done, or waits until rounds are added to it.
        begun = [job for job in self._jobs if job.run.result is None and job.run.error is None and job.run.round]
        begun.sort(key=lambda job: -job.run.changed)
        return begun[:MOST_RUNS] if running else []

    def _curves(self, what: str) -> list[dict[str, Any]]:
        """Return for each method the mean over the runs that have recorded the round."""
        curves = []
        for label in self._labels():
            by_round: dict[int, list[float]] = {}
            for job in self._jobs:
                if job.label == label and not job.inner:
                    for number, value in getattr(job.run, what):
                        by_round.setdefault(number, []).append(value)
            points = [(number, sum(values) / len(values)) for number, values in sorted(by_round.items())]
            curves.append({"label": label, "points": thinned(points)})
        return curves

    def _events(self) -> list[dict[str, Any]]:
        """Return the events, those of one kind and message as one, the latest last."""
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for job in self._jobs:
            for event in job.run.events:
                key = (str(event.get("kind", "")), str(event.get("message", "")))
                entry = found.setdefault(key, {"kind": key[0], "text": key[1], "count": 0, "where": job.name})
                entry["count"] += 1
                entry["round"] = event.get("round")
        return sorted(found.values(), key=lambda entry: -entry["count"])[:MOST_EVENTS]

    def _problems(self) -> list[str]:
        broken = sum(job.run.broken for job in self._jobs)
        cut = [f"{broken} lines of the records cannot be read and are left out; a kill cuts a line."] if broken else []
        losing = [job for job in self._jobs if _lost(job.run)]
        lost = [f"{len(losing)} runs lost replies of clients, such as {losing[0].name}."] if losing else []
        return ([self._problem] if self._problem else []) + lost + cut


def thinned(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return at most so many points that a picture has use for, the last among them."""
    step = -(-len(points) // MOST_POINTS)
    return [p for i, p in enumerate(points) if (len(points) - 1 - i) % step == 0] if points else []


def _lost(run: RunView) -> bool:
    """Whether a finished run lacks replies."""
    result = run.result or {}
    return bool(loss_sentences(result.get("lost"), result.get("skipped_rounds")))


def _line(job: _Job) -> dict[str, Any]:
    run = job.run
    return {"name": job.name, "round": run.round, "rounds": job.rounds, "loss": run.loss, "validation": run.validation}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _mark(path: Path) -> tuple[int, int, int] | None:
    """Return what changes when a file is written again; None if there is none."""
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns
