"""The sites of a server: which node has which name, which keys were replaced, and which sites were removed.

Two files among Flower's own: `nodes.json` has the registered nodes, and `site-changes.json` what the operator has
changed since the run was begun. The ServerApp reads both during a run, so a change holds from the next exchange on.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from farfield.deployment.server.flower_command import LINK, FlowerCommand
from farfield.errors import UserError
from farfield.records.checked_files import read_checked_json, write_checked_json
from farfield.records.checksums import DamagedFile

#: The nodes that are registered: the name and the key's fingerprint of each.
NODES = "nodes.json"
CHANGES = "site-changes.json"
#: A folder: the public keys that have replaced others.
KEYS = "replaced-keys"
#: What the history calls it.
KEY_REPLACED = "key-replaced"


class RosterError(UserError):
    """A change of a site or its key that is not possible, or a record of one that cannot be read."""


class SiteChanges(BaseModel):
    """What the operator has changed since the run was begun."""

    #: Sites that take no further part.
    removed: list[str] = Field(default_factory=list)
    #: By site the fingerprints of keys that are no longer let in.
    replaced: dict[str, list[str]] = Field(default_factory=dict)
    #: Nodes that the SuperLink has not forgotten yet.
    to_forget: list[str] = Field(default_factory=list)
    #: What was changed, and when, for whoever asks later.
    history: list[dict[str, Any]] = Field(default_factory=list)

    def newest_key(self, site: str) -> str | None:
        """Return the fingerprint of the key that has replaced a site's key last; None if none has."""
        now = (row.get("now") for row in reversed(self.history) if row["site"] == site and row["what"] == KEY_REPLACED)
        return next(now, None)

    def note(self, what: str, site: str, **facts: str) -> None:
        self.history.append({"time": time.time(), "what": what, "site": site, **facts})


def fingerprint(key: Path) -> str:
    """Return the hash that a key is recognised by."""
    return hashlib.sha256(key.read_bytes()).hexdigest()


class SiteRoster:
    """The sites of the server whose Flower files are in a folder. Every answer is read from the files anew."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def nodes(self) -> dict[str, list[str]]:
        """The name and the key's fingerprint of each node that may connect."""
        path = self.folder / NODES
        forgotten = self.changes.to_forget
        known = read_checked_json(path) if path.exists() else {}
        return {node: of for node, of in known.items() if node not in forgotten}

    @property
    def names(self) -> dict[int, str]:
        """The name of each registered node; empty for an open server."""
        return {int(node): name for node, (name, _) in self.nodes.items()}

    @property
    def changes(self) -> SiteChanges:
        path = self.folder / CHANGES
        try:
            return SiteChanges.model_validate(read_checked_json(path)) if path.exists() else SiteChanges()
        except (ValidationError, DamagedFile):
            raise RosterError(
                f"'{path}' is damaged; it says which keys are not let in any more, so the server does not go on "
                "without it"
            ) from None

    @property
    def removed(self) -> frozenset[str]:
        """The names of the sites that were removed."""
        return frozenset(self.changes.removed)

    def node_of(self, name: str) -> int | None:
        """Return the node that a site is registered as; None if there is none."""
        return next((node for node, of in self.names.items() if of == name), None)

    def write(self, nodes: dict[str, list[str]], changes: SiteChanges) -> None:
        """Write both files, the changes first: a node to be forgotten counts for nothing, whatever else is there."""
        write_checked_json(self.folder / CHANGES, changes.model_dump(mode="json"))
        write_checked_json(self.folder / NODES, nodes)

    def settle(self) -> None:
        """Finish what a killed command has begun to write."""
        if self.changes.to_forget:
            self.write(self.nodes, self.changes)

    def forget_nodes(self, flwr: FlowerCommand) -> None:
        """Let the running SuperLink forget the nodes that are not let in any more."""
        for node in self.changes.to_forget:
            done = flwr("supernode", "unregister", node, LINK)
            # A node that was forgotten before a kill could be written down is forgotten all the same.
            if done.returncode and not re.search("not found|already deleted", done.stdout, re.IGNORECASE):
                raise RosterError(
                    f"the SuperLink has not forgotten node {node} (see 'superlink.log' in '{self.folder}'); it counts "
                    "for nothing in the run, and the same command tries again"
                )
            nodes, changes = self.nodes, self.changes
            changes.to_forget.remove(node)
            self.write(nodes, changes)

    def key_of(self, name: str) -> Path:
        """Return where a key is that has replaced another one."""
        return self.folder / KEYS / f"{name}.pub"

    def admitted(self, keys: Sequence[Path]) -> tuple[Path, ...]:
        """Return the keys that may be registered: without those of removed sites, and with those that replace others.

        The operator's own folder may still have a key that was replaced; it is not let in again by a restart.
        """
        changes, admitted = self.changes, []
        for key in keys:
            if key.stem in changes.removed:
                continue
            if key.stem in changes.replaced:
                newest = self.key_of(key.stem)
                known = {*changes.replaced[key.stem], fingerprint(newest)}
                if fingerprint(key) not in known:
                    raise RosterError(
                        f"'{key}' is neither the key that site '{key.stem}' has now nor one that it had; replace it "
                        f"with 'farfield site rotate {key.stem} {key} --out …'"
                    )
                key = newest
            admitted.append(key)
        return tuple(admitted)

    def facts(self) -> dict[str, Any]:
        """Return what a result says about changes; nothing without any."""
        changes = self.changes
        said: dict[str, Any] = {}
        if changes.removed:
            said["removed_sites"] = sorted(changes.removed)
        if changes.replaced:
            said["replaced_keys"] = {name: len(of) for name, of in sorted(changes.replaced.items())}
        return said
