"""What the server's operator hears of a run: problems as they happen, who took part, progress, time left, a summary."""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from farfield.deployment.server.engine import NOT_CONNECTED, SITE_REMOVED
from farfield.deployment.server.problem_folding import ProblemFolding
from farfield.federation.engine import Engine
from farfield.federation.federation import Event
from farfield.federation.observation import REPLY_DROPPED, Asking
from farfield.records.participation import EVALUATE, Participation
from farfield.runs.rounds import Progress

#: Seconds between looks at the phase under way.
LOOK = 1.0
#: Seconds between two rows about the phase under way: if nothing has changed, and if something has.
SAME, CHANGING = 30.0, 5.0
#: Rounds whose median duration gives the time left.
RECENT = 10
#: Sites that a line names; the others are counted.
NAMED = 10
#: Events that the engine of a deployment reports itself.
_REPORTED = ("site-left", "site-returned", "site-refused", SITE_REMOVED)


class Add(Protocol):
    """How a row is added to the log that `farfield server` follows."""

    def __call__(self, kind: str, text: str, **facts: Any) -> None: ...


class RunReport:
    """Follows the rounds of a federation. Use it as a context manager around them."""

    def __init__(self, add: Add, fed: Engine, rounds: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._add, self._fed, self._rounds, self._clock = add, fed, rounds, clock
        self._problems = ProblemFolding(clock)
        self._guard = threading.Lock()
        self._lost: dict[int, set[int]] = {}
        self._skipped: set[int] = set()
        self._durations: deque[float] = deque(maxlen=RECENT)
        self._round_began = clock()
        self._over = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="progress", daemon=True)
        self._seen: Asking | None = None
        self._told: tuple[Asking | None, float] = (None, -SAME)

    def __enter__(self) -> Self:
        self._fed.events.on_event = self.on_event
        self._ticker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._ticker.join()
        self._fed.events.on_event = lambda event: None
        with self._guard:
            self._tell(self._problems.due(last=True))

    # What happens.

    def on_event(self, event: Event) -> None:
        """Tell a problem at once, unless the same was told a moment ago."""
        if event.kind in _REPORTED:
            return
        if event.kind == REPLY_DROPPED and event.client is not None and event.phase != EVALUATE:
            self._lost.setdefault(event.round, set()).add(event.client)
        if event.kind == "round-skipped":
            self._skipped.add(event.round)
        if event.message == NOT_CONNECTED:
            return
        site = f"site '{self._fed.name_of(event.client)}': " if event.client is not None else ""
        phase = f", {event.phase}" if event.phase else ""
        text = f"round {event.round}{phase}: {site}{event.message}"
        with self._guard:
            self._tell(self._problems.hear((event.kind, event.client, event.phase, event.message), text))

    def _tell(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._add("problem", line)

    def on_progress(self, progress: Progress, connected: str = "") -> None:
        """Tell a finished round: who took part, and how long the rest will take."""
        if progress.phase is not None:
            return  # the look at the phase under way tells more
        now = self._clock()
        self._durations.append(now - self._round_began)
        self._round_began = now
        left = (progress.rounds - progress.round) * statistics.median(self._durations)
        self._add(
            "round",
            f"round {progress.round} of {progress.rounds}{connected}",
            round=progress.round,
            rounds=progress.rounds,
            loss=progress.loss,
            validation=progress.validation,
            sites=self.took_part(progress.round),
            left=round(left, 1),
        )
        self._lost.pop(progress.round, None)

    def took_part(self, round: int) -> str:
        """Say in a few words whose replies made a round."""
        cohort = self._fed.cohort
        if round in self._skipped:
            return "did not count"
        lost = self._lost.get(round, set())
        if not lost:
            return f"all {len(cohort)} sites" if len(cohort) == self._fed.clients else self._names(cohort)
        here = [client for client in cohort if client not in lost]
        return f"{self._names(here)}; without {self._names([client for client in cohort if client in lost])}"

    def _names(self, clients: Sequence[int]) -> str:
        names = [self._fed.name_of(client) for client in clients]
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        return ", ".join(names[:NAMED]) + more if names else "no site"

    # Within a round.

    def _tick(self) -> None:
        while not self._over.wait(LOOK):
            with self._guard:
                self._tell(self._problems.due())
            self.look()

    def look(self) -> None:
        """Tell which phase is under way, if it takes long, so that the log of a fast run does not grow by it."""
        asking, now = self._fed.asking, self._clock()
        settled, self._seen = asking is self._seen, asking
        told, at = self._told
        if asking is None or now - at < (SAME if asking is told else CHANGING):
            return
        if not settled and now - asking.since < LOOK:
            return
        self._told = (asking, now)
        answered, waiting = len(asking.answered), self._names(asking.awaited)
        self._add(
            "progress",
            f"round {asking.round} of {self._rounds}, {asking.phase}: {answered} of {len(asking.asked)} sites have "
            f"answered after {now - asking.since:.0f} s; waiting for {waiting}",
            round=asking.round,
            rounds=self._rounds,
            phase=asking.phase,
            answered=answered,
            asked=len(asking.asked),
            waiting=waiting,
            seconds=round(now - asking.since, 1),
        )


def summary_lines(counted: Participation) -> list[str]:
    """Return who took part in how many rounds, and how many replies were dropped and why."""
    groups: dict[tuple[int, int], list[str]] = {}
    for share in sorted(counted.shares.values(), key=lambda share: -share.took_part):
        groups.setdefault((share.took_part, share.asked), []).append(share.name)
    parts = [f"{_some(names)} in {_of(*counts)}" for counts, names in groups.items()]
    lines = [f"took part: {'; '.join(parts)}"] if parts else []
    for share in counted.lost:
        why = [f"{count} × {reason}" for reason, count in share.dropped.items()]
        if share.validations_lost:
            why.append(f"{share.validations_lost} × no figure for the validation")
        lines.append(f"dropped replies of {share.name}: {', '.join(why)}")
    if len(lines) > NAMED + 1:
        rest = counted.lost[NAMED:]
        count = sum(share.replies_lost + share.validations_lost for share in rest)
        lines = [*lines[: NAMED + 1], f"dropped replies of {len(rest)} more sites: {count} in all"]
    if counted.strays:
        lines.append(f"dropped replies of nobody in particular: {counted.strays}")
    if counted.skipped:
        lines.append(f"rounds that did not count, because too few sites replied: {counted.skipped} of {counted.rounds}")
    return lines if counted.lost or counted.skipped or counted.strays else [*lines, "no reply was dropped"]


def _of(took_part: int, asked: int) -> str:
    return f"all {asked} rounds" if took_part == asked else f"{took_part} of {asked} rounds"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
