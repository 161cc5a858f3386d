"""Compare the log of a server with the log of a site: what one says that it sent, the other must have received."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from farfield.deployment.audit.verify import Verified
from farfield.errors import UserError

#: Differences that are described; the others are counted.
DESCRIBED = 20


@dataclass
class Comparison:
    """The messages between a server and one site, by the logs of both."""

    site: str
    #: Messages whose hash is the same in both logs: down to the site, and up to the server.
    down: int = 0
    up: int = 0
    #: What differs, one sentence each: the two logs cannot both be right.
    problems: list[str] = field(default_factory=list)
    #: Differences that a lost message or a kill explains.
    notes: list[str] = field(default_factory=list)
    #: Messages in the site's log of runs that the server's log does not know.
    elsewhere: int = 0

    @property
    def agrees(self) -> bool:
        return not self.problems


def compare(one: Verified, other: Verified) -> Comparison:
    """Compare two verified logs, in either order."""
    sides = {one.side: one, other.side: other}
    if set(sides) != {"server", "site"}:
        raise UserError(
            f"'{one.folder}' is the log of a {one.side or 'nobody'}, and '{other.folder}' of a "
            f"{other.side or 'nobody'}; give the log of a server and the log of a site"
        )
    server, site = sides["server"], sides["site"]
    found = Comparison(site.name)
    runs = {entry.get("flower_run") for entry in server.entries if entry.get("kind") == "sent"}
    here = [entry for entry in site.entries if entry.get("flower_run") in runs]
    found.elsewhere = sum("message" in entry and entry.get("flower_run") not in runs for entry in site.entries)
    ids = {entry["message"] for entry in here if "message" in entry}
    nodes = {entry.get("node") for entry in server.entries if entry.get("message") in ids}
    there = []
    borrowed: dict[str, int] = {}
    for entry in server.entries:
        peer, node = str(entry.get("peer")), entry.get("node")
        if peer == site.name or entry.get("message") in ids or (node in nodes and peer == f"node {node}"):
            there.append(entry)
            if entry.get("kind") == "sent" and peer not in (site.name, f"node {node}"):
                borrowed[peer] = borrowed.get(peer, 0) + 1
    for peer, messages in borrowed.items():
        found.notes.append(f"the site answered {messages} messages with the key that the server knows as '{peer}'")
    found.down = _match(found, _by_id(there, "sent"), _by_id(here, "received"), "the server sent", "the site received")
    found.up = _match(found, _by_id(there, "received"), _by_id(here, "sent"), "the server received", "the site sent")
    return found


def _by_id(entries: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {str(entry["message"]): entry for entry in entries if entry.get("kind") == kind and "message" in entry}


def _match(
    found: Comparison, server: dict[str, dict[str, Any]], site: dict[str, dict[str, Any]], at_server: str, at_site: str
) -> int:
    same = 0
    differing, missing, extra = [], [], []
    for id, entry in server.items():
        if id not in site:
            missing.append(entry)
        elif site[id].get("sha256") != entry.get("sha256"):
            differing.append(entry)
        else:
            same += 1
    extra = [entry for id, entry in site.items() if id not in server]
    for entry in differing[:DESCRIBED]:
        found.problems.append(f"{at_server} another content than {at_site}: {_what(entry)}")
    if at_server.endswith("sent"):
        # A message can be lost on its way to the site; the site cannot have received what nobody sent.
        _tell(found.notes, missing, f"{at_server} what the site's log does not have", "lost on its way, or cut")
        _tell(found.problems, extra, f"{at_site} what the server's log does not have", "")
    else:
        _tell(found.problems, missing, f"{at_server} what the site's log does not have", "")
        _tell(found.notes, extra, f"{at_site} what the server's log does not have", "late, lost on its way, or cut")
    if len(differing) > DESCRIBED:
        found.problems.append(f"and {len(differing) - DESCRIBED} more contents differ")
    return same


def _tell(into: list[str], entries: list[dict[str, Any]], what: str, why: str) -> None:
    if entries:
        shown = "; ".join(_what(entry) for entry in entries[:3])
        more = f"; and {len(entries) - 3} more" if len(entries) > 3 else ""
        into.append(f"{what} ({len(entries)}{f': {why}' if why else ''}): {shown}{more}")


def _what(entry: dict[str, Any]) -> str:
    subject = entry.get("phase") or entry.get("question") or entry.get("type")
    round = f"round {entry['round']}, " if "round" in entry else ""
    return f"{round}{subject}, {entry.get('time')}"
