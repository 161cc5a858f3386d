"""The rounds of a run, on whatever engine: resumed from a checkpoint, evaluated, recorded, and its result.

Nothing here knows where the clients' rows are: a bench has them all, a server in a deployment has none.
"""

from __future__ import annotations

import math
import platform
import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import Any

from farfield.algorithms import FedAvg, State
from farfield.federation.engine import Engine
from farfield.federation.federation import Event, FederationError, NobodyReplied, QuorumMissed, Traffic
from farfield.models import hash_states
from farfield.protocol.cohort import cohort, validation_clients
from farfield.protocol.selection import Standing, comparable, replaces, standing, validated
from farfield.records import Checkpoint, RecordsError, RunFolder, difference
from farfield.records.checksums import DamagedFile
from farfield.records.participation import Participation, participation
from farfield.records.run_files import RESULT
from farfield.records.sealed import SITE
from farfield.reproducibility.threads import one_thread
from farfield.runs.checkpoint import from_tensors, to_tensors
from farfield.runs.plan import Job
from farfield.runs.privacy_ledger import open_ledger
from farfield.runs.sound_rounds import STEPPED_BACK, SoundRounds
from farfield.runs.validation_by_domain import pooled_validation, validation_by_domain
from farfield.runs.validation_panel import ValidationPanel

#: At most this many clients are asked for validation, so that ten thousand clients do not mean ten thousand passes.
VALIDATION_CLIENTS = 100
#: A federation that misses its quorum this often in a row is not coming back by itself.
MISSED_ROUNDS = 3
#: The phase that measures validation rows and trains nothing.
EVALUATE = "evaluate"
#: A round's row names its cohort up to this many clients, where only a part of all was asked.
NAMED_COHORT = 200
#: Seconds between signs of life within a round.
TELL_EVERY = 0.5


@dataclass(frozen=True)
class Progress:
    """Where a run is, for whoever watches."""

    job: Job
    round: int
    rounds: int
    loss: float | None = None
    validation: float | None = None
    #: Inside a round: what the clients are asked, how many have answered, and how many were asked.
    phase: str | None = None
    answered: int = 0
    asked: int = 0


Watch = Callable[[Progress], None]
OnBetter = Callable[[State, float], None]
#: How a state does on the held-out domain, by metric; perhaps with the figures of the site under "site".
Measure = Callable[[State], Mapping[str, Any]]


@dataclass(frozen=True)
class Schedule:
    """How long a run is, and how often something is done in it."""

    rounds: int
    #: Rounds between evaluations; the last round is always evaluated.
    evaluate_every: int
    #: Rounds between checkpoints; 1 loses nothing that was finished.
    checkpoint_every: int
    #: Clients drawn for a round; None for all.
    cohort: int | None
    #: What is predicted, "classification" or "regression".
    kind: str
    #: The metric that leads, and the rule by which the best model so far is kept.
    metric: str = "accuracy"
    rule: str = "source-validation"


def open_run(records: RunFolder, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Make the folder a run's, or see that it is this one's. The result, if the run is finished already."""
    if not records.exists:
        records.create(config)
        return None
    changed = run_difference(records.config, config)
    if changed:
        raise RecordsError(f"'{records.path}' holds another run: {changed}")
    try:
        return records.result
    except DamagedFile:  # the run ends once more from its last checkpoint
        records.damaged.append(RESULT)
        return None


def run_difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str | None:
    """Return the first setting in which two runs differ. A run from before variants has its method as its label."""
    return difference({"method": there.get("algorithm"), **there}, here)


class Rounds:
    """A run from its last checkpoint to its end: `begin`, `step` until it is `done`, `finish`; or all `to_the_end`.

    Whoever drives several runs in lockstep calls the steps of each in turn, with `one_thread` around them.
    `validating` are the clients that have validation rows, with their domains. `measure` looks at the held-out domain,
    or at each of several by name; what it gives is sealed, unless the job holds out an inner domain, on which choices
    may be made. `engine` names the engine, for the record: a run may be resumed on another one, and its result names
    both. `device` is where the clients compute, with the same rule; None where they are at sites.
    """

    def __init__(
        self,
        job: Job,
        schedule: Schedule,
        records: RunFolder,
        algorithm: FedAvg,
        fed: Engine,
        validating: Mapping[int, str],
        *,
        engine: str,
        device: str | None = None,
        measure: Measure | Mapping[str, Measure] | None = None,
        facts: Mapping[str, Any] | None = None,
        watch: Watch = lambda _: None,
        on_better: OnBetter = lambda state, validation: None,
    ) -> None:
        self.job, self.schedule, self.records = job, schedule, records
        self.algorithm, self.fed, self.measure = algorithm, fed, measure
        self.watch, self.on_better = watch, on_better
        #: What the result says besides what happened: the task, the normalisation.
        self.facts = dict(facts or {})
        self.engines = [engine]
        self.devices = [] if device is None else [device]
        asked = validation_clients(job.seed, validating, VALIDATION_CLIENTS)
        self.panel = ValidationPanel(asked, validating, pooled=bool(algorithm.params.secure_sums))
        self.sound = SoundRounds(algorithm, fed, fed.quorum, lambda client: validating.get(client, f"client {client}"))
        self.seconds = self.server_seconds = 0.0
        self.missed = 0
        self.validation: float | None = None
        self.best: Standing | None = None
        self.validated: list[Mapping[str, Mapping[str, float]]] = []
        self.compared: tuple[str, frozenset[str]] = (schedule.metric, frozenset())
        self.loss: float | None = None
        self.begun, self.told = 0, -math.inf
        fed.heard = self._heard
        self.privacy = open_ledger(records.path, algorithm, fed.secure_noise)
        if self.privacy is not None:
            fed.before_asking = self.privacy.asked

    def _heard(self, phase: str, answered: int, asked: int) -> None:
        """Pass a client's answer on to whoever watches, but not more often than anybody can read."""
        now = time.monotonic()
        if now - self.told >= TELL_EVERY:
            self.told = now
            rounds = self.schedule.rounds
            self.watch(Progress(self.job, self.begun, rounds, self.loss, self.validation, phase, answered, asked))

    def to_the_end(self, state: State) -> dict[str, Any]:
        """Run what is left of it, write everything down, and return the result."""
        self.begin(state)
        with one_thread():
            while not self.done:
                self.step()
        return self.finish()

    def begin(self, fresh: State) -> None:
        """Start with a fresh state, or where the last checkpoint of this run ends."""
        self.state = self._resumed(fresh)

    @property
    def done(self) -> bool:
        """Whether all rounds are made."""
        return self.state.round >= self.schedule.rounds

    def step(self) -> None:
        """Make one round and write it down, with a checkpoint where one is due."""
        started = time.perf_counter()
        self.state = self._round(self.state)
        self.seconds += time.perf_counter() - started
        if self.state.round % self.schedule.checkpoint_every == 0 or self.done:
            self._save(self.state)

    def finish(self) -> dict[str, Any]:
        """Write the result down and return it."""
        if self.best is None:  # no round had the validation of all domains, and some model must be kept
            self.on_better(self.state, math.nan if self.validation is None else self.validation)
        result = self._result(self.state)
        self.records.finish(result)
        return result

    def _resumed(self, fresh: State) -> State:
        checkpoint, newest = self.records.resumable(), self.records.newest_round()
        round = checkpoint.round if checkpoint else 0
        self.records.rewind(round)
        for name in self.records.damaged:
            self.fed.events.append(
                Event("damaged", round, f"'{name}' was damaged; the run goes on after round {round}")
            )
        if newest is not None and round < newest and not self.records.damaged:
            to = "its start" if checkpoint is None else f"round {round}"
            message = f"the checkpoint of round {newest} cannot be used; the run steps back to {to}"
            self.fed.events.append(Event(STEPPED_BACK, round, message))
        self._record_events()
        if checkpoint is None:
            return fresh
        state, self.fed.states = from_tensors(fresh, checkpoint.tensors, checkpoint.round)
        self.fed.traffic = Traffic(**checkpoint.meta["traffic"])
        self.seconds, self.server_seconds = checkpoint.meta["seconds"], checkpoint.meta["server_seconds"]
        self.missed = checkpoint.meta["missed"]
        self.fed.skipped = set(checkpoint.meta.get("skipped", ()))  # clients that keep their state forget these
        self.sound.left_out = set(checkpoint.meta.get("left_out", ()))
        self.fed.accepted = {int(client): mark for client, mark in checkpoint.meta.get("accepted", {}).items()}
        self.engines = list(dict.fromkeys([*checkpoint.meta.get("engines", ()), *self.engines]))
        # A checkpoint from before there was a choice is of the CPU.
        self.devices = self.devices and list(dict.fromkeys([*checkpoint.meta.get("devices", ("cpu",)), *self.devices]))
        self._leave_out()
        for row in self.records.rounds():
            try:
                if row.get("validation"):
                    self._is_better(row["validation"])
            except (TypeError, ValueError, AttributeError, KeyError) as error:
                path = self.records.path
                raise RecordsError(
                    f"round {row.get('round')} in '{path}' has a validation figure that is not a number; remove the "
                    "folder to make this run again"
                ) from error
        return state

    def _save(self, state: State) -> None:
        meta = {
            "traffic": asdict(self.fed.traffic),
            "seconds": self.seconds,
            "server_seconds": self.server_seconds,
            "missed": self.missed,
            "engines": self.engines,
            "devices": self.devices,
            "skipped": sorted(self.fed.skipped),
            "accepted": {str(client): mark for client, mark in self.fed.accepted.items()},
            "left_out": sorted(self.sound.left_out),
        }
        self.records.save_checkpoint(Checkpoint(state.round, to_tensors(state, self.fed.states), meta))

    def _round(self, state: State) -> State:
        number = state.round + 1
        clients = cohort(self.job.seed, number, self.fed.clients, self.schedule.cohort, self.fed.removed)
        self.begun = state.round
        started, waited = time.perf_counter(), self.fed.traffic.waiting_seconds
        try:
            after = self.sound.make(state, number, clients)
            self.missed = 0
        except QuorumMissed as problem:
            self.missed += 1
            self.fed.discard()
            earlier = self.sound.step_back(number)
            if earlier is None and self.missed >= MISSED_ROUNDS:
                raise FederationError(f"{problem}, {self.missed} rounds in a row") from problem
            self.fed.events.append(Event("round-skipped", number, str(problem)))
            after = replace(earlier or state, round=number, diagnostics={}, notes=())
        finally:
            self._record_events()
        self.server_seconds += time.perf_counter() - started - (self.fed.traffic.waiting_seconds - waited)
        for note in after.notes:
            self.fed.events.append(Event("note", number, note))
        self._record_events()
        diagnostics = _finite(after.diagnostics)
        loss = diagnostics.pop("loss", None)
        if self.privacy is not None:
            self.privacy.learned(self.fed.told_rows)
        asked = sum(client not in self.sound.left_out for client in clients)
        row: dict[str, Any] = {"round": number, "clients": asked, "loss": loss, "diagnostics": diagnostics}
        if len(clients) < self.fed.clients and len(clients) <= NAMED_COHORT:
            row["cohort"] = sorted(clients)
        if number % self.schedule.evaluate_every == 0 or number == self.schedule.rounds:
            row["sent"] = self._sent()
            after, found = self._evaluate_or_step_back(after, number)
            row |= found
        self.records.add_round(row)
        self.loss, self.told = row.get("loss"), time.monotonic()
        self.watch(Progress(self.job, number, self.schedule.rounds, self.loss, self.validation))
        return after

    def _leave_out(self) -> None:
        """Validate without clients that were removed or left out; rounds validated with them do not compare."""
        if self.panel.leave_out(self.sound.left_out | self.fed.removed):
            left = self.panel.domains
            self.validated = [{name: of for name, of in row.items() if name in left} for row in self.validated]
            self.best = None

    def _sent(self) -> dict[str, int]:
        """Bytes and local steps of the run so far, for training alone: what it costs to reach this round."""
        traffic = self.fed.traffic
        up, down = (
            sum(of for phase, of in by_phase.items() if phase != EVALUATE)
            for by_phase in (traffic.bytes_up, traffic.bytes_down)
        )
        return {"up": up, "down": down, "local_steps": traffic.local_steps}

    def _evaluate_or_step_back(self, state: State, number: int) -> tuple[State, dict[str, Any]]:
        """Evaluate a state; one that no client can use is replaced by the one before, if a reply stood out."""
        try:
            return state, self._evaluate(state, number)
        except NobodyReplied as problem:
            earlier = self.sound.step_back(number)
            if earlier is None and number == self.schedule.rounds:
                raise
            self.fed.events.append(Event("not-evaluated", number, str(problem)))
            self._record_events()
            if earlier is None:
                return state, {}
        self.fed.discard()
        state = replace(earlier, round=number, diagnostics={}, notes=())
        return state, self._evaluate(state, number)

    def _evaluate(self, state: State, number: int) -> dict[str, Any]:
        self._leave_out()
        if self.privacy is not None:  # no validation figure leaves a client
            return {"validation": {}, **self._measured(state, number)}
        replies = self.fed.map_over(self.panel.clients, self.algorithm.evaluate, state.model)
        if self.algorithm.params.secure_sums:
            by_domain = pooled_validation(replies, self.schedule.kind, len(self.panel.clients))
        else:
            by_domain = validation_by_domain(replies, self.schedule.kind)
        self._record_events()
        if self._is_better(by_domain):
            assert self.validation is not None
            self.on_better(state, self.validation)
        return {"validation": by_domain, **self._measured(state, number)}

    def _measured(self, state: State, number: int) -> dict[str, Any]:
        """Measure on the held-out domain: seal the figures, or return those of an inner one."""
        if self.measure is None:
            return {}
        measures = self.measure if isinstance(self.measure, Mapping) else {None: self.measure}
        measured = {domain: _finite(measure(state)) for domain, measure in measures.items()}
        self._record_events()
        if self.job.inner is not None:
            measured = {domain: {k: v for k, v in of.items() if k != SITE} for domain, of in measured.items()}
            return {"inner": measured[None]} if None in measured else {"inner_domains": measured}
        for domain, metrics in measured.items():
            self.records.add_target(number, metrics, domain)
        return {}

    def _is_better(self, by_domain: Mapping[str, Mapping[str, float]]) -> bool:
        """Note the mean validation over domains; whether the round stands highest so far, by the rule of the schedule.

        A round in which a domain did not reply cannot win, except under `last`, which keeps every round until the next.
        """
        metric = self.schedule.metric
        shown = validated(metric)
        shown = shown if any(shown in figures for figures in by_domain.values()) else "loss"
        values = [figures[shown] for figures in by_domain.values() if shown in figures]
        self.validation = sum(values) / len(values)
        rule = self.schedule.rule
        required: frozenset[str] = frozenset()
        if rule == "source-validation":
            self.validated.append({name: of for name, of in by_domain.items() if name in self.panel.domains})
            metric, required = comparable(metric, self.validated)
            if (metric, required) != self.compared:  # no round before has this figure in all these domains
                self.compared, self.best = (metric, required), None
        if rule != "last" and set(by_domain) != self.panel.domains:
            return False
        found = () if rule == "last" else standing(rule, metric, by_domain, required)
        if not replaces(rule, found, self.best):
            return False
        self.best = found
        return True

    def _record_events(self) -> None:
        for event in self.fed.events:
            self.records.add_event({k: v for k, v in asdict(event).items() if v is not None})
        self.fed.events.clear()

    def participation(self, everyone: bool = False) -> Participation:
        """Count who took part so far: those that lost a reply, or all clients."""
        clients = range(self.fed.clients) if everyone else ()
        return participation(self.records.rounds(), self.records.events(), self.fed.name_of, clients)

    def _result(self, state: State) -> dict[str, Any]:
        traffic = self.fed.traffic
        took_part = self.participation()
        return {
            "algorithm": self.job.algorithm,
            "held_out": self.job.held_out,
            "inner": self.job.inner,
            "seed": self.job.seed,
            **self.facts,
            "engine": ", ".join(self.engines),
            **({"device": ", ".join(self.devices)} if self.devices else {}),
            "rounds": state.round,
            "clients": self.fed.clients,
            "local_steps": traffic.local_steps,
            "samples": traffic.examples,
            "bytes_up": sum(traffic.bytes_up.values()),
            "bytes_down": sum(traffic.bytes_down.values()),
            "bytes_up_by_phase": traffic.bytes_up,
            "bytes_down_by_phase": traffic.bytes_down,
            "seconds": round(self.seconds, 4),
            "server_seconds": round(self.server_seconds, 4),
            "peak_memory_mb": peak_memory_mb(),
            "events": len(self.records.events()),
            "lost": took_part.to_rows(),
            "skipped_rounds": took_part.skipped,
            "versions": {name: version(name) for name in ("farfield", "torch", "numpy")}
            | {"python": platform.python_version()},
            "model_sha256": hash_states(self.algorithm.models(state)),
            **({} if self.privacy is None else {"privacy": self.privacy.summary()}),
        }


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no NaN: a number that is not finite is recorded as null. The figures of a site are JSON already."""
    return {
        name: value if name == SITE else float(value) if math.isfinite(value) else None
        for name, value in values.items()
    }


def peak_memory_mb() -> float:
    """The most memory that this process or one of its workers has held."""
    unit = 1 if sys.platform == "darwin" else 1024
    usage = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return round(usage * unit / 2**20, 1)
