"""What a node of a simulation does: the client that a message names, with its rows from shared files.

Ray's processes import this module. A node keeps no state: in a simulation it travels with the messages.
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
from farfield.federation.flower.assignment import Assignment
from farfield.federation.flower.node import Keeping, Resident
from farfield.federation.flower.respond import respond
from farfield.federation.flower.watchdog import ALIVE, Watchdog
from farfield.federation.population import Population
from farfield.models import Model
from farfield.runs.simulation.shared_rows import take_population


class SimulatedSite:
    """All clients of a run; nothing is asked of whoever simulates on their own rows."""

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


class WithOwnMethods(Resident):
    """Methods from the user's files are imported here too, before they are built."""

    def of(self, assignment: Assignment) -> tuple[Any, Model]:
        for name, where in assignment.data["methods"].items():
            if name not in names():
                import_method(where)
        return super().of(assignment)


def import_method(where: Mapping[str, str]) -> None:
    """By the module's name where that can be imported, else from its file."""
    try:
        importlib.import_module(where["module"])
    except ImportError:
        use(where["file"])


_site, _resident = SimulatedSite(), WithOwnMethods(build)
_watchdog = Watchdog(Path(os.environ[ALIVE])) if ALIVE in os.environ else None
app = ClientApp()


@app.query("farfield")
def answer_phase(message: Message, context: Context) -> Message:
    try:
        return respond(message, _site, _resident, Keeping())
    finally:
        if _watchdog is not None:
            _watchdog.limit(None)


@app.query("ready")
def say_ready(message: Message, context: Context) -> Message:
    """Answered once this process has imported all it needs, which takes seconds."""
    return Message(RecordDict(), reply_to=message)
