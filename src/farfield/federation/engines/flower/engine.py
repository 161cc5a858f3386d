"""A federation over Flower's Grid: a phase is one message to each node of the cohort, and the replies to them.

Flower's own strategies know one exchange per round, so this engine drives the Grid itself. A reply counts if it answers
the message that was sent: same run, round, attempt, phase and client. Any other reply is dropped and recorded.
"""

from __future__ import annotations

import math
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from flwr.app import Error, Message, RecordDict
from torch import Tensor

from farfield.federation.engine import NO_REPLY, Engine
from farfield.federation.engines.flower.masked_sums import SUM, MaskedSum, Stage
from farfield.federation.engines.flower.packing import BadMessage, PackedGroups, pack, pack_groups, unpack
from farfield.federation.engines.flower.run_assignment import Assignment
from farfield.federation.execution import Outcome
from farfield.federation.federation import Event, QuorumMissed
from farfield.federation.phase import Named
from farfield.federation.refusal import readable
from farfield.federation.reply_checks import fault, state_fault
from farfield.federation.secure_sums.server_session import SumFailed
from farfield.models import Layout, ModelState

#: All phases go by one message type; the header says which one it is.
MESSAGE = "query.farfield"
#: Seconds between looks for replies: at least, at most, and as a share of the time since the last reply.
SHORTEST_LOOK, LONGEST_LOOK, LOOK_SHARE = 0.01, 0.5, 0.1
#: A node's description of a problem is cut to this many characters.
LONGEST_TEXT = 500
UNEXPECTED_REPLY = "a reply came in that answers none of the messages waited for"


class Exchange(Protocol):
    """The part of Flower's Grid that the engine uses: send messages, and take the replies that have come in."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]: ...
    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]: ...


@dataclass(frozen=True)
class Node:
    """A node of the network, and the client and domain that it stands for."""

    id: int
    client: str
    domain: str
    #: The rows that it declared when it joined; None where nodes are no parties of their own.
    rows: int | None = None


class FlowerFederation(Engine):
    """The clients of a Flower network. Client n is `nodes[n]`.

    With `travelling`, the engine holds the clients' states: each goes out with every message and comes back with every
    reply, as in a simulation on one machine. Without it, the state stays at the site and the server never sees it.
    `at_once` is the number of nodes that compute at the same time, if it is not all of them: the others wait for their
    turn, and the deadline of a phase grows with the number of turns. `grace` adds seconds for nodes that are starting.
    """

    def __init__(
        self,
        grid: Exchange,
        nodes: Sequence[Node],
        layout: Layout,
        assignment: Assignment,
        *,
        quorum: float = 0.5,
        deadline: float | None = None,
        travelling: bool = False,
        at_once: int | None = None,
        grace: float = 0.0,
    ) -> None:
        super().__init__(seed=assignment.seed, quorum=quorum, deadline=deadline)
        self._grid, self._nodes, self._layout, self._assignment = grid, tuple(nodes), layout, assignment
        self._travelling, self._at_once, self._grace = travelling, at_once, grace
        #: Used only if the states travel.
        self._attempt = ""
        #: The secure sum under way, between the clients' masked integers and the sum.
        self._masked_sum: MaskedSum | None = None
        #: By client the mark of its last message, until the reply is accepted.
        self._sent: dict[int, str] = {}

    @property
    def clients(self) -> int:
        return len(self._nodes)

    @property
    def layout(self) -> Layout:
        return self._layout

    def name_of(self, client: int) -> str:
        return self._nodes[client].client

    def rows_of(self, client: int) -> int | None:
        return self._nodes[client].rows

    def begin(self, round: int, cohort: Sequence[int]) -> None:
        self._attempt = uuid.uuid4().hex
        super().begin(round, cohort)

    def close(self) -> None:
        """Do nothing: the network outlives the federation."""

    def _keep(self, outcome: Outcome) -> None:
        self.accepted[outcome.client] = self._sent.pop(outcome.client, "")
        if self._travelling:
            super()._keep(outcome)

    def _outcomes(
        self, phase: str, model: ModelState, shared: dict[str, Any], clients: Sequence[int]
    ) -> Iterator[Outcome]:
        broadcast = pack_groups({"model": {"parameters": model.parameters, "buffers": model.buffers}, "shared": shared})
        # Where the states travel, all clients are on one machine, and their integers need no masks.
        if self._summing is not None and not self._travelling:
            self._masked_sum = MaskedSum(self._ask, self._summing, self._sends, self._layout, phase)
            yield from self._masked_sum.outcomes(broadcast, {n: self._nodes[n].client for n in clients})
            return
        yield from self._ask(phase, broadcast, clients)

    def _totals(self, accepted: Sequence[Outcome]) -> dict[str, Tensor]:
        if self._masked_sum is None:
            return super()._totals(accepted)
        masked_sum, self._masked_sum = self._masked_sum, None
        try:
            return masked_sum.totals(accepted)
        except SumFailed as problem:
            raise QuorumMissed(f"the secure sum of phase '{masked_sum.phase}' failed: {problem}") from problem
        finally:
            self.traffic.add(masked_sum.traffic)

    def _ask(
        self, phase: str, broadcast: PackedGroups, clients: Sequence[int], stage: Stage | None = None
    ) -> Iterator[Outcome]:
        """Send a message to each of these clients: an outcome for each, in any order."""
        messages = [self._message(phase, broadcast, number, stage) for number in clients]
        sent = set(self._grid.push_messages(messages))
        waiting: dict[str, int] = {}
        for message, number in zip(messages, clients, strict=True):
            if message.metadata.message_id in sent:
                waiting[message.metadata.message_id] = number
            else:
                yield self._lost(number, "the message could not be sent to its node")
        del messages, broadcast
        until = self._until(len(waiting))
        last_reply = time.monotonic()
        while waiting:
            replies = list(self._grid.pull_messages(list(waiting)))
            for reply in replies:
                if reply.metadata.reply_to_message_id in waiting:
                    yield self._outcome(reply, waiting.pop(reply.metadata.reply_to_message_id), phase, stage)
                else:
                    self.events.append(Event("reply-dropped", self._round, UNEXPECTED_REPLY, phase=phase))
            if until is not None and time.monotonic() >= until:
                break
            if waiting:
                if replies:
                    last_reply = time.monotonic()
                time.sleep(until_next_look(last_reply))
        for number in waiting.values():
            yield self._lost(number, NO_REPLY.format(self._deadline))

    def _until(self, nodes: int) -> float | None:
        """Return when a phase on this many nodes is given up; None without a deadline."""
        if self._deadline is None:
            return None
        turns = -(-nodes // self._at_once) if self._at_once is not None else 1
        return time.monotonic() + self._deadline * turns + self._grace

    def _message(self, phase: str, broadcast: PackedGroups, number: int, stage: Stage | None) -> Message:
        own: dict[str, Named] = {"state": self._states.of(number).current} if self._travelling else {}
        own |= {SUM: stage.own.get(number, {})} if stage is not None else {}
        header = {
            **self._expected(phase, number),
            "skipped": sorted(self.skipped),
            "travelling": self._travelling,
            "mark": uuid.uuid4().hex,
            "accepted": self.accepted.get(number, ""),
            "assignment": self._assignment.model_dump_json(),
            **({} if stage is None else {SUM: stage.header}),
        }
        if stage is None or stage.runs_phase:
            self._sent[number] = str(header["mark"])
        return Message(pack(header, broadcast, own), self._nodes[number].id, MESSAGE, group_id=str(self._round))

    def _expected(self, phase: str, number: int) -> dict[str, Any]:
        """Return the header fields that a message and its reply must agree on."""
        return {
            "run": self._assignment.run,
            "round": self._round,
            "attempt": self._attempt,
            "phase": phase,
            "client": self._nodes[number].client,
        }

    def _outcome(self, reply: Message, number: int, phase: str, stage: Stage | None) -> Outcome:
        if reply.has_error():
            return self._lost(number, failure(reply.error), reply.error.reason or "")
        try:
            header, groups = unpack(_content(reply))
            expected = self._expected(phase, number)
            differing = [name for name, value in expected.items() if header.get(name) != value]
            if differing:
                raise BadMessage(f"it answers another message: {differing[0]} is {header.get(differing[0])!r}")
            problem = readable(str(header["problem"])[:LONGEST_TEXT]) or None
            values = groups.get("values", {})
            # The node has checked this too, but a server does not rely on it.
            found = stage.fault(values) if stage is not None else fault(values, self._sends, self._layout)
            problem = problem or found or state_fault(groups.get("state", {}))
            return Outcome(
                client=number,
                domain=self._nodes[number].domain,
                samples=_count(header, "samples"),
                values={} if problem else values,
                state=groups.get("state", {}),
                problem=problem,
                detail=str(header["detail"])[: 20 * LONGEST_TEXT],
                steps=_count(header, "steps"),
                examples=_count(header, "examples"),
                seconds=_seconds(header),
            )
        except (BadMessage, KeyError, TypeError, ValueError) as problem:
            return self._lost(number, f"its reply cannot be used: {problem}")

    def _lost(self, number: int, problem: str, detail: str = "") -> Outcome:
        return Outcome(client=number, domain=self._nodes[number].domain, problem=problem, detail=detail)


def _count(header: Mapping[str, Any], name: str) -> int:
    value = header[name]
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**53:
        raise BadMessage(f"its number of {name} is {value!r}")
    return value


def _seconds(header: Mapping[str, Any]) -> float:
    value = float(header["seconds"])
    if not math.isfinite(value) or value < 0:
        raise BadMessage(f"it took {value} seconds")
    return value


def until_next_look(last_reply: float) -> float:
    """Return the seconds to sleep before the next look for replies, which grow with the time since the last reply.

    A fixed interval is too long for a small model and a burden on the SuperLink for a large one.
    """
    return min(max(LOOK_SHARE * (time.monotonic() - last_reply), SHORTEST_LOOK), LONGEST_LOOK)


def _content(message: Message) -> RecordDict:
    return message.content


#: Flower's code for a node that has stopped to send signs of life.
NODE_UNAVAILABLE = 5


def failure(error: Error) -> str:
    """Return in words what Flower says of a node that did not reply."""
    if error.code == NODE_UNAVAILABLE:
        return "it was no longer connected"
    return f"its node failed: {_reason(error)}"


def _reason(error: Error) -> str:
    """Return the first line of an error, without the class names that Flower wraps around it."""
    text = re.sub(r"<class '[^']*'>:<'|'>$|Exception \w+ occurred\. Message:", "", (error.reason or "").strip())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else f"code {error.code}"
