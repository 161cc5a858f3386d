"""Answer a server's messages: unpack one, run the phase that it asks for, pack the reply."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from flwr.app import Message

from farfield.federation.client_state import SiteState
from farfield.federation.engines.flower.node import Guard, MethodCache, OpenSums, Site, run_requested_phase
from farfield.federation.engines.flower.packing import pack, packed_bytes, unpack
from farfield.federation.execution import Outcome


class Responder:
    """Answers the messages of an engine for one site. A node that does more overrides the hooks.

    The hooks as they are here suit a simulation: the clients' states travel with the messages, so the node holds none,
    and the server may know everything about a failure.
    """

    #: What is checked before an answer is made, and before it leaves.
    guard: Guard = Guard()

    def __init__(self, site: Site, methods: MethodCache) -> None:
        self._site, self._methods = site, methods

    #: How this node takes part in secure sums; None where it sends its integers without masks, as in a simulation.
    open_sums: OpenSums | None = None

    def respond(self, message: Message) -> Message:
        """Return the reply to a message. Raises BadMessage for an unreadable one, which Flower makes an error reply."""
        header, groups = unpack(message.content)
        with self.held_state(str(header.get("run", ""))) as held:
            outcome = run_requested_phase(header, groups, self._site, self._methods, held, self.open_sums, self.guard)
        sent = self.disclosed(outcome)
        content = pack(_reply_header(header, sent), {"values": sent.values, "state": sent.state})
        self.record(header, outcome, packed_bytes(content))
        return Message(content, reply_to=message)

    @contextlib.contextmanager
    def held_state(self, run: str) -> Iterator[SiteState]:
        """Lend what this node holds of a run, and store it again before the reply goes out."""
        yield SiteState()

    def disclosed(self, outcome: Outcome) -> Outcome:
        """Return the part of an outcome that the server may see."""
        return outcome

    def record(self, header: Mapping[str, Any], outcome: Outcome, bytes_sent: int) -> None:
        """Note what was answered, for whoever watches this node."""


def _reply_header(header: Mapping[str, Any], outcome: Outcome) -> dict[str, Any]:
    """Return what goes with a reply: which message it answers, and what the phase cost."""
    same = {name: header[name] for name in ("run", "round", "attempt", "phase", "client") if name in header}
    return {
        **same,
        "samples": outcome.samples,
        "steps": outcome.steps,
        "examples": outcome.examples,
        "seconds": outcome.seconds,
        "problem": outcome.problem or "",
        "detail": outcome.detail,
    }
