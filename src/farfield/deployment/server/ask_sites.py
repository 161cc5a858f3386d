"""Ask sites questions over Flower's Grid, outside the rounds: who they are, what data they have, how a model does."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from farfield.deployment.server.bounded_grid import BoundedGrid, expect_replies
from farfield.federation.engines.flower.engine import failure
from farfield.federation.engines.flower.packing import BadMessage, pack, unpack
from farfield.federation.phase import Named
from farfield.federation.refusal import readable

MESSAGE = "query.site"
#: Seconds between looks for an answer.
LOOK = 0.05
#: The most characters of an answer; a site's description of a problem is cut to its limit.
LONGEST_ANSWER, LONGEST_TEXT = 10_000_000, 500


@dataclass(frozen=True)
class Answer:
    """A site's answer, or why there is none."""

    value: Any = None
    problem: str = ""
    #: Whether there was no answer in time; it may have come since.
    late: bool = False


class Network:
    """The nodes of a Flower network, and the questions to them."""

    def __init__(self, grid: Grid | BoundedGrid) -> None:
        self._grid = grid

    def nodes(self) -> list[int]:
        return sorted(self._grid.get_node_ids())

    def ask(
        self,
        nodes: Iterable[int],
        question: str,
        given: Mapping[str, Any],
        groups: Mapping[str, Named] | None = None,
        seconds: float = 60.0,
    ) -> dict[int, Answer]:
        """Ask several nodes the same question. Every node has an answer, if only that there was none in time."""
        waiting: dict[str, int] = {}
        answers: dict[int, Answer] = {}
        expect_replies(self._grid, 0, LONGEST_ANSWER)
        for node in nodes:
            if node <= 0:  # a site of a resumed run that is not back
                answers[node] = Answer(problem="it is not connected")
                continue
            content = pack({"ask": question, "given": json.dumps(given)}, dict(groups or {}))
            (sent,) = self._grid.push_messages([Message(content, node, MESSAGE)])
            if sent:
                waiting[sent] = node
            else:
                answers[node] = Answer(problem="the question could not be sent")
        until = time.monotonic() + seconds
        while waiting and time.monotonic() < until:
            for reply in self._grid.pull_messages(list(waiting)):
                node_id = waiting.pop(reply.metadata.reply_to_message_id, None)
                if node_id is not None:
                    answers[node_id] = _read(reply, question)
            if waiting:
                time.sleep(LOOK)
        for node in waiting.values():
            answers[node] = Answer(problem=f"no answer within {seconds:g} s", late=True)
        return answers


def _printable(text: str) -> str:
    """Return a text from another machine, cut, and without characters that a terminal would obey."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:LONGEST_TEXT])


def _read(reply: Message, question: str) -> Answer:
    if reply.has_error():
        return Answer(problem=failure(reply.error))
    try:
        header, _ = unpack(reply.content)
        if header.get("ask") != question:
            raise BadMessage("it answers another question")
        text = str(header["answer"])
        if len(text) > LONGEST_ANSWER:
            raise BadMessage(f"it has {len(text)} characters, and {LONGEST_ANSWER} are allowed")
        return Answer(json.loads(text), _printable(readable(str(header["problem"])[:LONGEST_TEXT])))
    except (BadMessage, KeyError, ValueError, RecursionError) as error:
        return Answer(problem=f"its answer cannot be used: {error}")
