"""Run the client that a message names, on its rows in shared files: the app of a simulation's nodes.

Ray's processes import this module. A node holds no state of a client: in a simulation it travels with the messages.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from farfield.algorithms import build, names, use
from farfield.federation.client import Client
from farfield.federation.engines.flower.node import MethodCache
from farfield.federation.engines.flower.respond import Responder
from farfield.federation.engines.flower.run_assignment import Assignment
from farfield.federation.engines.flower.watchdog import ALIVE, Watchdog
from farfield.federation.population import Population
from farfield.models import Model
from farfield.runs.simulation.shared_rows import take_population


class SimulatedSite:
    """All clients of a run. Every phase is allowed: the rows are those of whoever simulates."""

    def __init__(self) -> None:
        self._run = ""
        self._population: Population | None = None

    def allow(self, assignment: Assignment, phase: str, round: int) -> None:
        pass

    def client(self, assignment: Assignment, name: str, *, round: int, phase: str, state: dict[str, Tensor]) -> Client:
        if self._population is None or assignment.run != self._run:
            self._population, self._run = take_population(assignment.data), assignment.run
        if _watchdog is not None:
            _watchdog.limit(assignment.data["deadline"])
        return self._population.client(int(name), seed=assignment.seed, round=round, phase=phase, state=state)


class UserMethodCache(MethodCache):
    """Imports the methods from the user's files before it builds them."""

    def get(self, assignment: Assignment) -> tuple[Any, Model]:
        for name, where in assignment.data["methods"].items():
            if name not in names():
                import_method(where)
        return super().get(assignment)


def import_method(where: Mapping[str, str]) -> None:
    """Import a method by the name of its module if that works, else from its file."""
    try:
        importlib.import_module(where["module"])
    except ImportError:
        use(where["file"])


_responder = Responder(SimulatedSite(), UserMethodCache(build))
_watchdog = Watchdog(Path(os.environ[ALIVE])) if ALIVE in os.environ else None
app = ClientApp()


@app.query("farfield")
def answer_phase(message: Message, context: Context) -> Message:
    try:
        return _responder.respond(message)
    finally:
        if _watchdog is not None:
            _watchdog.limit(None)


@app.query("ready")
def say_ready(message: Message, context: Context) -> Message:
    """Answer once this process has imported all that it needs, which takes seconds."""
    return Message(RecordDict(), reply_to=message)
