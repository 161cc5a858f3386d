"""Worker processes for the local engine: one thread each, a resident model, data shared with the parent by fork."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch import Tensor

from farfield.federation.engines.shared_memory import Arena, receive, send
from farfield.federation.execution import Outcome, run_phase
from farfield.federation.population import Population
from farfield.models import Model, ModelState

#: Room in an arena besides a few parameter-sized vectors; untouched pages cost nothing.
ARENA_SLACK = 1 << 24
ARENA_VECTORS = 12
#: How often an idle worker looks whether its parent is still there.
PARENT_CHECK_SECONDS = 1.0
#: A client whose worker process ends is run again in a new one, so often in all before its reply counts as lost.
ATTEMPTS = 3
#: The problem of an outcome whose worker process has ended, within this module.
WORKER_ENDED = "its worker process ended"
PR_SET_PDEATHSIG = 1
#: Called with a client whose worker process has ended, and how, each time that it is run again.
OnRestart = Callable[[int, str], None]


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    inbox: Arena
    outbox: Arena
    loaded: int = -1
    client: int | None = None
    since: float = 0.0


class WorkerPool:
    """Runs phases on clients in forked processes. Any worker may run any client: the result does not depend on it.

    Nor does it depend on a worker that is killed: what it was to do is done again, from the same model and state.
    """

    def __init__(self, workers: int, algorithm: Any, model: Model, population: Population, seed: int) -> None:
        if "fork" not in multiprocessing.get_all_start_methods():
            raise ValueError("several workers need a system with fork (Linux, macOS); use --workers 1 here")
        self._context = multiprocessing.get_context("fork")
        self._job = (algorithm, model, population, seed)
        self._capacity = ARENA_VECTORS * (model.vector.nbytes + model.buffer_vector.nbytes) + ARENA_SLACK
        self._broadcasts = 0
        self._workers: list[_Worker] = []
        for _ in range(workers):
            self._workers.append(self._start())

    def _start(self) -> _Worker:
        parent_end, child_end = self._context.Pipe()
        inbox, outbox = Arena(self._capacity), Arena(self._capacity)
        process = self._context.Process(
            target=_serve, args=(child_end, inbox, outbox, os.getpid(), *self._job), daemon=True
        )
        process.start()
        child_end.close()
        return _Worker(process, parent_end, inbox, outbox)

    def run(
        self,
        phase: str,
        round: int,
        model: ModelState,
        shared: Mapping[str, Any],
        clients: Sequence[int],
        states: Mapping[int, dict[str, Tensor]],
        deadline: float | None,
        on_restart: OnRestart = lambda client, how: None,
    ) -> Iterator[Outcome]:
        """Outcomes as they come in; the caller puts them in client order."""
        self._broadcasts += 1
        waiting = list(reversed(clients))
        ended: dict[int, int] = {}
        task = {"phase": phase, "round": round, "broadcast": self._broadcasts}
        model_group = {"parameters": model.parameters, "buffers": model.buffers}
        while waiting or any(w.client is not None for w in self._workers):
            for worker in self._workers:
                if worker.client is None and waiting:
                    client = waiting.pop()
                    groups: dict[str, Mapping[str, Any]] = {"state": states.get(client, {})}
                    if worker.loaded != self._broadcasts:
                        groups |= {"model": model_group, "shared": shared}
                    worker.client, worker.since, worker.loaded = client, time.monotonic(), self._broadcasts
                    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # seen below as a lost worker
                        send(worker.connection, worker.inbox, {**task, "client": client}, groups)
            for outcome in self._collect(deadline):
                if outcome.problem != WORKER_ENDED:
                    yield outcome
                    continue
                client = outcome.client
                ended[client] = ended.get(client, 0) + 1
                if ended[client] < ATTEMPTS:
                    on_restart(client, f"its worker process ended ({outcome.detail}) and was replaced; it is run again")
                    waiting.append(client)
                else:
                    outcome.problem = f"its worker process ended {ATTEMPTS} times in a row ({outcome.detail})"
                    outcome.detail = ""
                    yield outcome

    def _collect(self, deadline: float | None) -> Iterator[Outcome]:
        busy = [w for w in self._workers if w.client is not None]
        timeout = None if deadline is None else max(0.0, min(w.since + deadline - time.monotonic() for w in busy))
        ready = wait([w.connection for w in busy] + [w.process.sentinel for w in busy], timeout)
        for worker in busy:
            assert worker.client is not None
            client = worker.client
            if worker.connection in ready:
                try:
                    header, groups = receive(worker.connection, worker.outbox)
                except (EOFError, OSError):
                    yield self._replace(worker, WORKER_ENDED, _exit(worker.process))
                    continue
                worker.client = None
                yield Outcome(values=groups["values"], state=groups["state"], **header)
            elif worker.process.sentinel in ready:
                yield self._replace(worker, WORKER_ENDED, _exit(worker.process))
            elif deadline is not None and time.monotonic() >= worker.since + deadline:
                yield self._replace(worker, f"no reply within the deadline of {deadline:g} s")
            assert client is not None

    def _replace(self, worker: _Worker, problem: str, detail: str = "") -> Outcome:
        client = worker.client
        assert client is not None
        self._stop(worker)
        self._workers[self._workers.index(worker)] = self._start()
        return Outcome(client=client, domain=self._job[2].domain_of(client), problem=problem, detail=detail)

    def _stop(self, worker: _Worker) -> None:
        worker.connection.close()
        if worker.process.is_alive():
            worker.process.kill()
        worker.process.join()

    def close(self) -> None:
        for worker in self._workers:
            self._stop(worker)
        self._workers.clear()


def die_with(parent: int) -> None:
    """Let the kernel end this process when its parent ends, in the middle of a phase as well (Linux).

    A worker that outlived its parent would hold the run's lock for as long as its client trains.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _exit(process: BaseProcess) -> str:
    process.join(timeout=1)
    return f"exit code {process.exitcode}"


def _serve(
    connection: Connection,
    inbox: Arena,
    outbox: Arena,
    parent: int,
    algorithm: Any,
    model: Model,
    population: Population,
    seed: int,
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    die_with(parent)
    torch.set_num_threads(1)
    broadcast: ModelState | None = None
    shared: dict[str, Any] = {}
    while True:
        while not connection.poll(PARENT_CHECK_SECONDS):
            if os.getppid() != parent:
                return
        try:
            task, groups = receive(connection, inbox)
        except EOFError:
            return
        if "model" in groups:
            broadcast = ModelState(**groups["model"])
            shared = groups["shared"]
        assert broadcast is not None
        client = population.client(
            task["client"], seed=seed, round=task["round"], phase=task["phase"], state=groups["state"]
        )
        outcome = run_phase(algorithm, task["phase"], model, broadcast, client, shared)
        header = {k: v for k, v in vars(outcome).items() if k not in ("values", "state")}
        send(connection, outbox, header, {"values": outcome.values, "state": outcome.state})
