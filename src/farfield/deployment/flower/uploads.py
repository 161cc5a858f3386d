"""How much each site may send: the size of every reply is bounded by what the server declared for its message.

The ServerApp says with each message how large the reply may be. A site announces its reply with the tree of its
objects, and then sends the objects one by one. This keeps the account: a site may send as many bytes as its announced
replies may have, and nothing without one. Before the ServerApp is handed a reply, its objects are measured.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

#: Replies of a site that are kept although the server has not read them, such as late ones; older ones are removed.
KEPT = 2
#: Messages whose size is remembered.
REMEMBERED = 20_000
#: Seconds without a byte after which an upload counts as broken off.
SILENCE = 60.0
#: Refusals that the ServerApp is told of at a time; they are in a header.
TOLD = 50
#: What Flower adds to an object on its way, and the objects of a reply that are no tensors.
OVERHEAD, PLAIN_OBJECTS = 1024, 64
#: A tensor is sent in pieces; Flower's have five megabytes, and smaller ones are allowed down to this size.
SMALLEST_PIECE = 1 << 18
#: A message holds a record, which holds records, which hold arrays, which hold pieces; a deeper tree is none of ours.
DEEPEST = 8
#: The beginning of an object that is a piece of a tensor.
PIECE = b"ArrayChunk"


class Limit(NamedTuple):
    """The most bytes of a reply: of tensors, and of everything else."""

    tensors: int
    rest: int

    @property
    def objects(self) -> int:
        """The most objects of a reply."""
        return PLAIN_OBJECTS + self.tensors // SMALLEST_PIECE

    @property
    def upload(self) -> int:
        """The most bytes that are sent for a reply."""
        return self.tensors + self.rest + OVERHEAD * self.objects


class BadReply(Exception):
    """A reply that is refused, with the reason."""


@dataclass
class Expected:
    """A message to a site, and the reply that the site has announced for it."""

    node: int
    limit: Limit
    #: The id of the announced reply; empty before that.
    reply: str = ""
    #: The objects of the reply, from the root; an object that is in it twice is here twice.
    objects: tuple[str, ...] = ()
    #: When the site last sent something.
    heard: float = 0.0


@dataclass
class _Node:
    """What a site may still send, and its replies that are not read yet, oldest first."""

    left: int = 0
    replies: list[str] = field(default_factory=list)


class Uploads:
    """The account of all sites. `store` is Flower's store of objects."""

    def __init__(self) -> None:
        self._expected: OrderedDict[str, Expected] = OrderedDict()
        self._nodes: dict[int, _Node] = {}
        #: Messages whose replies were refused and not reported yet, with the reasons.
        self._refused: dict[str, str] = {}

    def expect(self, message: str, node: int, limit: Limit) -> None:
        """Note that a message goes to a node, and how large the reply may be."""
        self._expected[message] = Expected(node, limit)
        while len(self._expected) > REMEMBERED:
            self._expected.popitem(last=False)

    def check_announced(self, node: int, message: str, reply: str, tree: Any, store: Any) -> Expected | None:
        """Return the message that an announced reply belongs to; None if no reply is expected. Raises BadReply."""
        expected = self._expected.get(message)
        if expected is None:
            return None
        if expected.node != node:
            raise BadReply("it answers a message to another site")
        if expected.reply and expected.reply != reply:
            return None  # Flower refuses a second reply to a message
        try:
            if tree.object_id != reply:
                raise BadReply("its objects belong to another reply")
            held = _checked_tree(tree, expected.limit, store)
            _check_sizes(held, expected.limit, store)
        except BadReply as problem:
            self._refuse(message, problem)
            raise
        return expected

    def accept(self, message: str, reply: str, tree: Any, store: Any) -> None:
        """Note that Flower has accepted an announced reply: the site may now send its objects."""
        expected = self._expected[message]
        if expected.reply:
            return  # the same announcement once more
        expected.reply, expected.heard = reply, time.monotonic()
        expected.objects = tuple(name for name, _ in _walk(tree, expected.limit.objects))
        account = self._nodes.setdefault(expected.node, _Node())
        account.left = min(account.left + expected.limit.upload, KEPT * expected.limit.upload)
        account.replies.append(message)
        while len(account.replies) > KEPT:
            self._forget(account.replies[0], store)

    def left(self, node: int) -> int:
        """Return how many bytes a node may still send."""
        return self._nodes[node].left if node in self._nodes else 0

    def take(self, node: int, size: int, store: Any) -> None:
        """Count bytes that a node sends. Raises BadReply if they are more than it may send."""
        account = self._nodes.get(node, _Node())
        if size > account.left:
            self.refuse_upload(node, store)
            raise BadReply("it is larger than declared")
        account.left -= size
        for message in account.replies:
            self._expected[message].heard = time.monotonic()

    def give_back(self, node: int, size: int) -> None:
        """Count bytes as not sent, because Flower did not keep them: the site will send them again."""
        self._nodes.setdefault(node, _Node()).left += size

    def refuse_upload(self, node: int, store: Any) -> None:
        """Refuse the reply that a node is sending, because the node sends more than it may."""
        for message in self._nodes.get(node, _Node()).replies[-1:]:
            limit = self._expected[message].limit
            self._refuse(message, BadReply(f"it has more than the {limit.tensors + limit.rest} bytes that are allowed"))
            self._forget(message, store)

    def readable(self, messages: list[str], store: Any) -> tuple[list[str], str | None]:
        """Return the messages that the ServerApp may ask for, and the one of them whose reply it is handed.

        It is handed one reply at a time: if that one cannot be read, the others are not lost with it. A reply that is
        still arriving is not asked for, because the ServerApp would wait for the rest of it.
        """
        asked: list[str] = []
        handed = None
        for message in messages:
            expected = self._expected.get(message)
            if expected is None or (not expected.reply and message not in self._refused):
                asked.append(message)  # Flower says what is the matter: nothing yet, or a node that is gone
            elif handed is None and self._is_complete(message, expected, store):
                asked.append(message)
                handed = message
                self._release(message, expected)
        return asked, handed

    def take_refused(self, messages: list[str]) -> dict[str, str]:
        """Return the reasons for which replies to these messages were refused, each once and some at a time."""
        told = [message for message in messages if message in self._refused][:TOLD]
        return {message: self._refused.pop(message) for message in told}

    def _is_complete(self, message: str, expected: Expected, store: Any) -> bool:
        """Return whether all of a reply is there, and is not too large."""
        if message in self._refused:
            return False
        try:
            if not all(store.get(name) for name in expected.objects):
                if time.monotonic() - expected.heard > SILENCE:
                    raise BadReply(f"it was broken off: nothing came for {SILENCE:g} s")
                return False
            _check_sizes(expected.objects, expected.limit, store)
        except BadReply as problem:
            self._refuse(message, problem)
            self._forget(message, store)
            return False
        return True

    def _refuse(self, message: str, problem: BadReply) -> None:
        self._refused.setdefault(message, str(problem))

    def _release(self, message: str, expected: Expected) -> None:
        account = self._nodes[expected.node]
        account.replies = [other for other in account.replies if other != message]

    def _forget(self, message: str, store: Any) -> None:
        """Remove a reply from the store."""
        expected = self._expected.get(message)
        if expected is not None and expected.reply:
            self._release(message, expected)
            store.delete(expected.reply)


def _walk(tree: Any, most: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Return the objects of a tree with the ids of their children. Raises BadReply if they are more than `most`."""
    waiting, count = [(tree, 1)], 0
    while waiting:
        node, depth = waiting.pop()
        count += 1
        if count > most or depth > DEEPEST:
            raise BadReply(f"it has more than {most} objects, or they are nested more than {DEEPEST} deep")
        yield node.object_id, tuple(child.object_id for child in node.children)
        waiting.extend((child, depth + 1) for child in node.children)


def _checked_tree(tree: Any, limit: Limit, store: Any) -> tuple[str, ...]:
    """Return the objects of a tree. Raises BadReply if an object has other children elsewhere.

    Otherwise a small tree could stand for a large one, or hold on to the objects of earlier replies.
    """
    seen: dict[str, tuple[str, ...]] = {}
    found = list(_walk(tree, limit.objects))
    for name, children in found:
        if seen.setdefault(name, children) != children:
            raise BadReply("an object is in it twice, with different parts")
    for name, children in seen.items():
        if name in store and _children(store, name) != children:
            raise BadReply("an object is known already, with different parts")
    return tuple(name for name, _ in found)


def _children(store: Any, name: str) -> tuple[str, ...]:
    return tuple(child.object_id for child in store.get_object_tree(name).children)


def _check_sizes(names: tuple[str, ...], limit: Limit, store: Any) -> None:
    """Raise BadReply if the objects that are there have more bytes than allowed."""
    tensors = rest = 0
    for name in names:
        content: bytes = store.get(name) or b""
        if content.startswith(PIECE):
            tensors += len(content)
        else:
            rest += len(content)
    for what, size, most in (
        ("tensors", tensors, limit.tensors + OVERHEAD * limit.objects),
        ("everything else", rest, limit.rest),
    ):
        if size > most:
            raise BadReply(f"it has {size} bytes of {what}, and at most {most} are allowed")
