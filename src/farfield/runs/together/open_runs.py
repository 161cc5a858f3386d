"""Runs that are open at the same time take turns, and what they ask of their clients is served together.

Each run is a thread, because a method's round is ordinary code that waits for its replies. Only one of them moves at
any time: it goes on until it asks for something or ends, then the next one does. When all wait, their requests are
served as one. So nothing here is parallel, and no run can see how many others there are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from farfield.federation.engines.batched.engine import Serve
from farfield.federation.engines.batched.planned_client import RowPool
from farfield.federation.engines.batched.requests import Request, serve
from farfield.federation.execution import Outcome

#: Runs that are open at the same time, at most: each holds its records, its model and its clients' states.
MOST_OPEN = 128
#: A run is given the way to have its requests served, and runs to its end.
Work = Callable[[Serve], None]


class Abandoned(BaseException):
    """The run is not to go on: somebody has interrupted all of them."""


@dataclass
class _Run:
    work: Work
    #: Given back by a run when it asks for something or has ended.
    back: threading.Semaphore
    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    request: Request | None = None
    outcomes: Sequence[Outcome] | BaseException = ()
    error: BaseException | None = None
    ended: bool = False
    abandoned: bool = False

    def start(self) -> None:
        threading.Thread(target=self._live, daemon=True).start()
        self.move()

    def move(self) -> None:
        """Let it go on until it asks for something or ends."""
        self.go.release()
        self.back.acquire()
        if self.error is not None and not isinstance(self.error, Exception | Abandoned):
            raise self.error  # somebody wants to end the program

    def _live(self) -> None:
        self.go.acquire()
        try:
            self.work(self._ask)
        except BaseException as error:  # told to whoever started the runs
            self.error = error
        self.ended = True
        self.back.release()

    def _ask(self, request: Request) -> Sequence[Outcome]:
        self.request = request
        self.back.release()
        self.go.acquire()
        if self.abandoned:
            raise Abandoned
        self.request = None
        if isinstance(self.outcomes, BaseException):
            raise self.outcomes
        return self.outcomes


def run_together(works: Sequence[Work], most: int = MOST_OPEN) -> list[BaseException | None]:
    """Run everything to its end and return the error of each, None where it has none."""
    back, pool = threading.Semaphore(0), RowPool()
    runs = [_Run(work, back) for work in works]
    waiting, live = list(reversed(runs)), list[_Run]()
    try:
        while waiting or live:
            while waiting and len(live) < most:
                run = waiting.pop()
                live.append(run)
                run.start()
            live = [run for run in live if not run.ended]
            _serve(live, pool)
            for run in live:
                run.move()
            live = [run for run in live if not run.ended]
    finally:
        for run in live:
            if not run.ended:
                run.abandoned = True
                run.move()
    return [run.error for run in runs]


def _serve(runs: Sequence[_Run], pool: RowPool) -> None:
    """Answer what the runs ask; if that fails for all together, each by itself, so that an error is its own."""
    requests = [run.request for run in runs if run.request is not None]
    try:
        answers: Sequence[Sequence[Outcome] | BaseException] = serve(requests, pool)
    except Exception:
        answers = [_alone(request, pool) for request in requests]
    for run, outcomes in zip(runs, answers, strict=True):
        run.outcomes = outcomes


def _alone(request: Request, pool: RowPool) -> Sequence[Outcome] | BaseException:
    try:
        return serve([request], pool)[0]
    except Exception as error:
        return error
