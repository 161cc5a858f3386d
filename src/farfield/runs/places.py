"""Where the runs of a sweep are made: in processes of this machine, or on the nodes of a cluster."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Protocol

import torch

from farfield.reproducibility.devices import CPU
from farfield.runs.engines import STACKING, RunEngine
from farfield.runs.plan import Job
from farfield.runs.processes import Observer
from farfield.runs.settings import PlanError
from farfield.runs.together.engine import run_on
from farfield.runs.work_order import WorkOrder

#: A local cluster, or the one that RAY_ADDRESS names.
RAY = "ray"
_ADDRESS = re.compile(r"ray://([^\s/:]+|\[[0-9a-fA-F:.]+\]):([0-9]{1,5})")


class Place(Protocol):
    """Somewhere to make runs."""

    def run(
        self, order: WorkOrder, jobs: Sequence[Job], engine: RunEngine, observer: Observer, parallel: int | None
    ) -> dict[Job, str]:
        """Make runs and return the failures by job. `parallel` is how many are made at the same time, None for all."""


class ThisMachine:
    """Runs in this process, or in so many of their own."""

    def run(
        self, order: WorkOrder, jobs: Sequence[Job], engine: RunEngine, observer: Observer, parallel: int | None
    ) -> dict[Job, str]:
        return run_on(engine, jobs, order.make, observer, parallel or 1)


def check_place(on: str | None, engine: str, workers: int | None, devices: tuple[torch.device, ...] = (CPU,)) -> None:
    """Refuse a place that is not known, or that cannot be used so, before any data is read."""
    if on is None:
        return
    address = _ADDRESS.fullmatch(on)
    if on != RAY and (address is None or not 0 < int(address[2]) < 65536):
        raise PlanError(
            f"there is no place '{on}' to make runs on; give ray for a local cluster or the one that RAY_ADDRESS "
            "names, or ray://HOST:PORT, the address that a cluster has for clients (port 10001 unless it was changed)"
        )
    if find_spec("ray") is None:
        raise PlanError(f"'{on}' needs Ray, which is not installed: pip install 'farfield[sim]'")
    if engine not in ("auto", "local", *STACKING):
        raise PlanError(
            f"a run on the engine '{engine}' starts processes of its own and cannot be sent to a cluster; give "
            "--engine local or batched, or omit --on"
        )
    if devices != (CPU,):
        raise PlanError("on a cluster runs compute on processors; omit --device, or omit --on to use the GPUs here")
    if workers is not None and workers > 1:
        raise PlanError(f"on a cluster every run has one process and one core; omit --workers {workers}")


@contextmanager
def open_place(on: str | None, tell: Callable[[str], None] = lambda _: None) -> Iterator[Place]:
    """Open the place that `on` names; None is this machine. `tell` is told what a user should know of it."""
    if on is None:
        yield ThisMachine()
        return
    from farfield.runs.cluster.connect import open_cluster  # imports Ray

    with open_cluster(on, tell) as cluster:
        yield cluster


@contextmanager
def one_place(on: str | None, tell: Callable[[str], None] | None = None) -> Iterator[None]:
    """Stay connected to a cluster while several sweeps open it as their place, one after the other."""
    if on is None:
        yield
        return
    from farfield.runs.cluster.connect import connected

    with connected(on, tell or (lambda _: None)):
        yield
