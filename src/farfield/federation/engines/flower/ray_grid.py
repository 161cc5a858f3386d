"""Flower's own simulation as a context: Ray's processes are the nodes, and this process is the server.

Flower's simulation wants to be the main program. Here it runs beside ours in a thread and only lends its Grid, so that
progress, Ctrl-C and errors stay ours.
"""

from __future__ import annotations

import contextlib
import queue
import re
import threading
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp

from farfield.errors import UserError
from farfield.federation.engines.flower.watchdog import ALIVE
from farfield.federation.engines.ray_instance import end_ray, first_line, import_ray, quiet, ray_folder, start_ray
from farfield.federation.federation import FederationError

#: Seconds that a simulation may take to start; to end when it is idle, and when it is not.
START_SECONDS, IDLE_SECONDS, END_SECONDS = 180.0, 4.0, 60.0
#: A core and no accelerator for each process; one that ends is started again.
NODE_PROCESS: dict[str, Any] = {"num_cpus": 1, "num_gpus": 0.0, "max_restarts": -1}
#: How Ray calls it when a process has ended.
PROCESS_ENDED = re.compile(r"ray\.exceptions\.Actor\w*Error")


class SimulationError(UserError):
    """A simulation that does not start."""


class Simulation:
    """A Grid with nodes, whose app must answer "query.ready". It is gone at the end, and so are its processes."""

    def __init__(self, app: ClientApp, nodes: int, workers: int) -> None:
        self._app, self._count, self.workers = app, nodes, workers
        self._grids: queue.Queue[Any] = queue.Queue()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flower-simulation", daemon=True)
        self._problem: BaseException | None = None
        self._grid: Any = None
        self.nodes: list[int] = []
        #: Whether a process has ended that should not have; Ray starts another, which takes a while.
        self.damaged = False

    def __enter__(self) -> Self:
        self._folder = ray_folder()
        self._alive = self._folder / "alive"
        try:
            self._alive.touch()
            self._start_ray()
            self._thread.start()
            self._await_nodes()
        except BaseException as error:
            self.__exit__(None, None, None)
            if isinstance(error, UserError) or not isinstance(error, Exception):
                raise
            raise SimulationError(f"Flower's simulation did not start: {first_line(error)}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._join(IDLE_SECONDS)
        self._alive.unlink(missing_ok=True)  # ends clients that are still at work, for which Flower would wait
        self._join(END_SECONDS)
        end_ray(self._folder)

    def _join(self, seconds: float) -> None:
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _start_ray(self) -> None:
        if import_ray().is_initialized():
            raise SimulationError("Ray is at work in this program already; end it first (ray.shutdown())")
        start_ray(self._folder, self.workers, {ALIVE: str(self._alive)})

    def _run(self) -> None:
        """The thread of the simulation: a server app that does nothing but lend its grid until the end."""
        try:
            from flwr.serverapp import ServerApp
            from flwr.simulation import run_simulation

            server = ServerApp()

            @server.main()
            def main(grid: Any, context: Any) -> None:
                self._grids.put(grid)
                self._stop.wait()

            with quiet():
                run_simulation(
                    server_app=server,
                    client_app=self._app,
                    num_supernodes=self._count,
                    backend_config={"client_resources": NODE_PROCESS},
                )
        except BaseException as problem:
            self._problem = problem

    def _await_nodes(self) -> None:
        """Until the nodes are registered, and the processes behind them have their imports done."""
        limit = time.monotonic() + START_SECONDS
        while len(self.nodes) < self._count:
            self._check(limit)
            with contextlib.suppress(queue.Empty):
                self._grid = self._grid or self._grids.get_nowait()
                self.nodes = sorted(self._grid.get_node_ids())
            time.sleep(0.05)
        while not self._all_answer(limit):
            pass

    def mend(self) -> None:
        """After a process has ended, wait for the one in its place: until then, messages to it come back at once."""
        limit = time.monotonic() + START_SECONDS
        while self.damaged:
            self.damaged = not self._all_answer(limit)

    def _all_answer(self, limit: float) -> bool:
        """Ask as many nodes as there are processes whether they are ready; False if one replies with an error."""
        calls = [Message(RecordDict(), node, "query.ready") for node in self.nodes[: self.workers]]
        waiting = set(self._grid.push_messages(calls))
        good = True
        while waiting:
            self._check(limit)
            for reply in self._grid.pull_messages(waiting):
                waiting.discard(reply.metadata.reply_to_message_id)
                good = good and not reply.has_error()
                if reply.has_error() and not PROCESS_ENDED.search(reply.error.reason or ""):
                    raise FederationError(f"a node of Flower's simulation does not start: {reply.error.reason}")
            time.sleep(0.05)
        return good

    def _check(self, limit: float | None = None) -> None:
        if not self._thread.is_alive():
            why = f": {first_line(self._problem)}" if self._problem is not None else ""
            raise FederationError(f"Flower's simulation has ended{why}")
        if limit is not None and time.monotonic() > limit:
            raise FederationError(f"its processes were not there within {START_SECONDS:g} s")

    # What a federation needs of a Grid.

    def push_messages(self, messages: Iterable[Any]) -> Iterable[str]:
        self._check()
        return self._grid.push_messages(messages)  # type: ignore[no-any-return]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Any]:
        self._check()
        return self._grid.pull_messages(message_ids)  # type: ignore[no-any-return]
