"""A network of site apps in this process that loses, delays, repeats and garbles what the sites send.

The sites run the code of a deployed site, with their files; the server is the deployment's own (`serve`). Only Flower's
processes are missing, so that a thousand rounds take minutes.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from flwr.app import ConfigRecord, Error, Message, RecordDict

from farfield.deployment.federation_file import FederationFile
from farfield.federation.engines.flower.engine import MESSAGE
from farfield.federation.engines.flower.packing import pack, unpack
from tests.deployment.sites_in_process import Sites, context
from tests.federation.engines.flower.in_process import answered, rewritten

#: The share of replies that meet each fate; together 30 %.
FATES: dict[str, float] = {
    "node failed": 0.08,
    "silent": 0.02,
    "late": 0.05,
    "not a number": 0.03,
    "too large": 0.03,
    "wrong shape": 0.03,
    "garbage": 0.03,
    "stale": 0.02,
    "twice": 0.01,
}


class FaultyGrid(Sites):
    """Sites whose replies to phases meet with trouble, by a random generator with a seed."""

    def __init__(self, folder: Path, federation: FederationFile, names: Iterable[str], seed: int | None) -> None:
        self._chance = None if seed is None else random.Random(seed)
        self._late: list[Message] = []
        self._before: dict[int, Message] = {}
        self.fates: Counter[str] = Counter()
        #: Resident memory in bytes at the first message of each round.
        self.memory: dict[int, int] = {}
        super().__init__(folder, federation, names)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids: list[str] = []
        for message in messages:
            before = len(self._ready)
            ids += super().push_messages([message])
            if message.metadata.message_type == MESSAGE:
                self.memory.setdefault(int(unpack(message.content)[0]["round"]), resident())
                replies, self._ready = self._ready[before:], self._ready[:before]
                for reply in replies:
                    self._ready += self._meets_its_fate(reply, message)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        ready = list(super().pull_messages(message_ids))
        # What was late comes in when something else is waited for.
        if self._late and self._chance is not None and self._chance.random() < 0.1:
            ready.append(self._late.pop(0))
        return ready

    def _meets_its_fate(self, reply: Message, message: Message) -> list[Message]:
        if self._chance is None:
            return [reply]
        drawn, fate = self._chance.random(), "fine"
        for name, share in FATES.items():
            drawn -= share
            if drawn < 0:
                fate = name
                break
        node = message.metadata.dst_node_id
        stale, self._before[node] = self._before.get(node), reply
        if fate == "stale" and stale is None:
            fate = "fine"
        self.fates[fate] += 1
        if fate == "fine":
            return [reply]
        if fate == "silent":
            return []
        if fate == "late":
            self._late.append(reply)
            return [Message(Error(code=5, reason="node unavailable"), reply_to=message)]
        if fate == "node failed":
            return [Message(Error(code=2, reason="raised"), reply_to=message)]
        if fate == "twice":
            return [reply, reply]
        if fate == "stale":
            assert stale is not None
            return [Message(stale.content, reply_to=message)]
        return [GARBLED[fate](reply, self._chance)]


def resident() -> int:
    """Return this process's resident memory in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _values(reply: Message) -> dict[str, torch.Tensor | float | int]:
    return dict(unpack(reply.content)[1].get("values", {}))


def _not_a_number(reply: Message, chance: random.Random) -> Message:
    values = {
        name: value * float("nan") if torch.is_tensor(value) else float("nan") for name, value in _values(reply).items()
    }
    return rewritten(reply, values=values)


def _too_large(reply: Message, chance: random.Random) -> Message:
    values = {
        name: torch.full_like(value, 3e38) if torch.is_tensor(value) and value.is_floating_point() else value
        for name, value in _values(reply).items()
    }
    return rewritten(reply, {"samples": 2**52}, values=values)


def _wrong_shape(reply: Message, chance: random.Random) -> Message:
    return rewritten(reply, values={**_values(reply), "update": torch.zeros(chance.randrange(1, 50))})


def _garbage(reply: Message, chance: random.Random) -> Message:
    noise = bytes(chance.randrange(256) for _ in range(200))
    content = chance.choice(
        (
            RecordDict({"header": ConfigRecord({"tensors": noise.decode("latin-1")})}),
            RecordDict(),
            pack({"phase": "train", "round": -1}, {"values": {"update": torch.zeros(3)}}),
        )
    )
    return Message(content, reply_to=answered(reply))


GARBLED: dict[str, Callable[[Message, random.Random], Message]] = {
    "not a number": _not_a_number,
    "too large": _too_large,
    "wrong shape": _wrong_shape,
    "garbage": _garbage,
}

__all__ = ["FATES", "FaultyGrid", "context", "resident"]
