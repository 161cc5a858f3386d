"""A training or a deployment as its folder shows it: one run, and in a deployment the sites and their replies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from farfield.deployment.activity_log import FILE as ACTIVITY
from farfield.deployment.server.output_folder import AGREEMENT, FLOWER, RUN
from farfield.records.checked_files import read_checked_json
from farfield.records.follow import RowFollower
from farfield.records.participation import loss_sentences
from farfield.records.run_files import CONFIG
from farfield.watch.liveness import TimeLeft, is_fresh, is_locked
from farfield.watch.plan_file import metric_of, read_toml
from farfield.watch.run_view import RunView, number_or_none

MOST_ROUNDS, MOST_EVENTS, MOST_KEPT = 50, 100, 2000
#: Activity that says what the sites that only evaluate have measured: shown when the run has ended.
MEASURED = "measured"
#: What the log of a deployment repeats from the records.
REPEATED = ("round", "progress")
NO_RESULTS = (
    "What sites that only evaluate measure is not shown while the run goes on: whoever watches it is tempted to stop "
    "or to change a setting when it looks best. What is shown here is what the training sites see."
)


class SingleView:
    """Follows the one run of a training or a deployment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._run: RunView | None = None
        self._config: dict[str, Any] = {}
        self._problem: str | None = None
        self._activity = RowFollower(folder / FLOWER / ACTIVITY)
        self._said: list[dict[str, Any]] = []
        self._starts = 0
        self._left = TimeLeft()

    @property
    def deployed(self) -> bool:
        return (self.folder / FLOWER).is_dir()

    def snapshot(self) -> dict[str, Any]:
        """Read what is new and return all that the page shows."""
        self._read_config()
        run = self._run
        if run is not None:
            run.poll()
        self._hear()
        rounds = _count(self._config.get("rounds"))
        made = 0 if run is None else rounds if run.done else min(run.round, rounds)
        changed = max(0.0 if run is None else run.changed, self._last_said())
        done = run is not None and run.done
        locked = is_locked(self.folder / RUN) or is_locked(self.folder / FLOWER)
        failure = self._failure()
        running = not done and (locked or (is_fresh(changed) and failure is None))
        left = self._left.seconds({"": made}, {"": rounds}, {}, running)
        status = "finished" if done else "running" if running else "failed" if failure else "stopped"
        algorithm = str(self._config.get("algorithm", ""))
        return {
            "kind": "deployment" if self.deployed else "training",
            "status": status,
            "title": " · ".join(part for part in (str(self._config.get("task", "")), algorithm) if part),
            "headline": self._headline(status, made, rounds, failure),
            "note": NO_RESULTS if self.deployed and not done else "",
            "metric": metric_of(self._config)[0] if run is None else run.metric,
            "changed": changed or None,
            "left": None if left is None else max(1, round(left)),
            "rounds": {"done": made, "total": rounds},
            "curves": {
                "loss": [{"label": algorithm, "points": [] if run is None else run.losses}],
                "validation": [{"label": algorithm, "points": [] if run is None else run.validations}],
            },
            "replies": [] if run is None else self._replies(run),
            "sites": self._sites(),
            "events": self._events(done),
            "problems": self._problems(),
            "report": False,
        }

    def _read_config(self) -> None:
        path = self.folder / RUN / CONFIG
        if self._run is None and path.exists():
            self._config, self._problem = read_toml(path)
            if not self._problem:
                self._run = RunView(self.folder / RUN, *metric_of(self._config), keep_rows=True)

    def _hear(self) -> None:
        """Read what is new in the log of a deployment."""
        new = self._activity.new_rows()
        before = self._said if self._activity.starts == self._starts else []
        self._starts = self._activity.starts
        self._said = [*before, *new][-MOST_KEPT:]

    def _last_said(self) -> float:
        return number_or_none(self._said[-1].get("time")) or 0.0 if self._said else 0.0

    def _failure(self) -> str | None:
        """Return why the last start of the server has failed."""
        last = self._said[-1] if self._said else {}
        return str(last.get("text")) if last.get("kind") == "failed" else None

    def _headline(self, status: str, made: int, rounds: int, failure: str | None) -> str:
        what = "deployment" if self.deployed else "training"
        if status == "finished":
            return f"The {what} has ended after {made} rounds."
        if status == "failed":
            return f"The {what} has failed: {failure}"
        if status == "stopped":
            return f"This {what} is not running: {made} of {rounds} rounds. To go on, give --resume."
        if self._run is None:
            return "The server is waiting for its sites."
        return f"The {what} is running: {made} of {rounds} rounds.{self._phase()}"

    def _phase(self) -> str:
        """Return the phase under way, if the last row of the log is about one."""
        last = self._said[-1] if self._said else {}
        return f" Now {last.get('text')}." if last.get("kind") == "progress" else ""

    def _sites(self) -> list[dict[str, str]]:
        try:
            sites = read_checked_json(self.folder / FLOWER / AGREEMENT)["sites"]
            return [{"name": str(name), "role": str(role)} for name, role in sites.items()]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return []

    def _replies(self, run: RunView) -> list[dict[str, Any]]:
        """Return for each of the last rounds how many clients were asked, and whose replies are missing and why."""
        names = [site["name"] for site in self._sites() if site["role"] != "evaluate"]
        dropped: dict[int, dict[str, str]] = {}
        for event in run.events:
            client, number = event.get("client"), event.get("round")
            if event.get("kind") == "reply-dropped" and isinstance(client, int) and isinstance(number, int):
                name = names[client] if 0 <= client < len(names) else f"client {client}"
                dropped.setdefault(number, {})[name] = str(event.get("message", ""))
        rows = []
        for row in reversed(run.rows[-MOST_ROUNDS:]):
            missing = dropped.get(row["round"], {})
            asked = _count(row.get("clients"))
            rows.append(
                {
                    "round": row["round"],
                    "asked": asked,
                    "replied": max(0, asked - len(missing)),
                    "names": _replied(names, missing, asked),
                    "missing": [{"name": name, "why": why} for name, why in missing.items()],
                    "loss": number_or_none(row.get("loss")),
                    "validation": dict(run.validations).get(row["round"]),
                }
            )
        return rows

    def _events(self, done: bool) -> list[dict[str, Any]]:
        """Return what happened, the latest first: the log of a deployment, or the events of a training."""
        if self._said:
            shown = [r for r in self._said if r.get("kind") not in REPEATED and (done or r.get("kind") != MEASURED)]
            entries: Iterable[dict[str, Any]] = (
                {"kind": str(r.get("kind")), "text": str(r.get("text")), "time": number_or_none(r.get("time"))}
                for r in shown
            )
        else:
            events = [] if self._run is None else self._run.events
            entries = (
                {"kind": str(e.get("kind")), "text": str(e.get("message")), "round": e.get("round")} for e in events
            )
        return list(reversed(list(entries)[-MOST_EVENTS:]))

    def _problems(self) -> list[str]:
        broken = self._activity.broken + (0 if self._run is None else self._run.broken)
        cut = [f"{broken} lines of the records cannot be read and are left out; a kill cuts a line."] if broken else []
        result = {} if self._run is None or self._run.result is None else self._run.result
        lost = loss_sentences(result.get("lost"), result.get("skipped_rounds"))
        return ([self._problem] if self._problem else []) + lost + cut


def _replied(names: list[str], missing: Mapping[str, str], asked: int) -> list[str]:
    """Return the sites that have replied; none are named where only a part of them was asked, and not said which."""
    return [name for name in names if name not in missing] if asked == len(names) else []


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
