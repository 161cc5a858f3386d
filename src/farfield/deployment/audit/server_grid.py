"""Log every message that a server sends and every reply that it takes, at the one place that all of them pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from farfield.deployment.audit.content import about, describe
from farfield.deployment.audit.log import AuditLog
from farfield.deployment.server.bounded_grid import BoundedGrid

#: Messages without a reply whose subject is remembered.
MOST_AWAITED = 10_000


class AuditedGrid:
    """Flower's Grid with a log. `names` are the names of nodes, as far as they are known by their keys."""

    def __init__(self, grid: Grid | BoundedGrid, log: AuditLog, names: Mapping[int, str]) -> None:
        self._grid, self._log, self._names = grid, log, dict(names)
        #: By message what is awaited: an error in place of a reply does not say what it is about.
        self._asked: dict[str, dict[str, Any]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages, and return once the log has them too."""
        messages = list(messages)
        known: dict[int, str] = {}
        entries = []
        for message in messages:  # before they are sent, because Flower may take them apart
            peer = self._peer(message.metadata.dst_node_id, message)
            entries.append({**peer, **about(message), **describe(message.content, known).to_entry()})
        ids = list(self._grid.push_messages(messages))
        kept = []
        for message, entry in zip(messages, entries, strict=True):
            id = message.metadata.message_id
            if id not in ids:
                kept.append({"kind": "not-sent", **entry})
                continue
            entry |= {"flower_run": str(message.metadata.run_id), "message": id}
            kept.append({"kind": "sent", **entry})
            keys = ("peer", "node", "flower_run", "type", "run", "round", "phase", "question", "message")
            self._asked[id] = {key: entry[key] for key in keys if key in entry}
            if len(self._asked) > MOST_AWAITED:
                self._asked.pop(next(iter(self._asked)))
        if kept:
            self._log.append(*kept)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Take the replies that have come in, once the log has them."""
        replies = list(self._grid.pull_messages(message_ids))
        entries = []
        for reply in replies:
            id = reply.metadata.reply_to_message_id
            asked = self._asked.pop(id, {**self._peer(reply.metadata.src_node_id, None), "message": id})
            if reply.has_error():
                entries.append({"kind": "received-error", **asked, "code": reply.error.code})
            else:
                told = {key: value for key, value in about(reply).items() if key == "refused"}
                entries.append({"kind": "received", **asked, **told, **describe(reply.content).to_entry()})
        if entries:
            self._log.append(*entries)
        return replies

    def _peer(self, node: int, message: Message | None) -> dict[str, Any]:
        """Return who a node is: by its key, else by the name that a message to it has, else by its number."""
        named = self._names.get(node)
        if named is None and message is not None:
            header = next(iter(message.content.config_records.values()), None)
            named = str(header["client"])[:100] if header is not None and "client" in header else None
            if named is not None:
                self._names[node] = named
        return {"peer": named or f"node {node}", "node": str(node)}
