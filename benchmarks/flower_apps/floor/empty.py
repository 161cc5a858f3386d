"""An empty round: as many exchanges and bytes as FedIIR's, with nothing done in between.

A message has the form that Flower's own strategies give it: arrays, here a single one, and a small record beside them.
A node answers it at once. Bytes are drawn anew for each exchange, because Flower does not send again what it has.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from farfield.federation.engines.flower.engine import Exchange as Grid
from farfield.federation.engines.flower.engine import until_next_look


@dataclass(frozen=True)
class Exchange:
    """Bytes to each node, and bytes back."""

    kind: str
    down: int
    up: int


def exchanges(parameters: int, head: int) -> tuple[Exchange, Exchange]:
    """What FedIIR exchanges with a node: model against classifier gradient, model and target against update."""
    return Exchange("gradient", 4 * parameters, 4 * head), Exchange("train", 4 * (parameters + head), 4 * parameters)


def answer_at_once(app: ClientApp, of: Sequence[Exchange]) -> None:
    """Let a node's app answer the empty exchanges, too."""
    for exchange in of:
        app.query(f"empty_{exchange.kind}")(_answering(exchange.up))


def empty_round(grid: Grid, nodes: Sequence[int], of: Sequence[Exchange]) -> float:
    """The seconds that the exchanges take, one after the other; the looks for replies are those of our engine."""
    started = time.perf_counter()
    for exchange in of:
        content = RecordDict({"arrays": _array(exchange.down), "config": ConfigRecord({"server-round": 1})})
        messages = [Message(content, node, f"query.empty_{exchange.kind}", group_id="empty") for node in nodes]
        waiting = set(grid.push_messages(messages))
        last_reply = time.monotonic()
        while waiting:
            replies = list(grid.pull_messages(list(waiting)))
            for reply in replies:
                if reply.has_error():
                    raise RuntimeError(f"an empty exchange failed: {reply.error}")
                waiting.discard(reply.metadata.reply_to_message_id)
            if waiting:
                if replies:
                    last_reply = time.monotonic()
                time.sleep(until_next_look(last_reply))
    return time.perf_counter() - started


def _answering(size: int):
    def answer(message: Message, context: Context) -> Message:
        content = RecordDict({"arrays": _array(size), "metrics": MetricRecord({"num-examples": 1})})
        return Message(content, reply_to=message)

    return answer


def _array(size: int) -> ArrayRecord:
    return ArrayRecord({"0": Array(dtype="uint8", shape=(size,), stype="bytes", data=os.urandom(size))})
