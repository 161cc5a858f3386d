"""Remove a site from a run, or replace its key: by the server's operator alone, with the server running or stopped.

A running server is changed through Flower's Control API, which needs the secret that this start of the server has
made; only the server's user can read it. For a stopped server the change is written down, and the next start carries
it out before it starts the run.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from farfield.deployment.credentials.verify import check_public_key
from farfield.deployment.flower import gate
from farfield.deployment.flower.processes import ProcessError, exclusive
from farfield.deployment.server.flower_command import SECRET, FlowerCommand
from farfield.deployment.server.output_folder import AGREEMENT, FLOWER
from farfield.deployment.server.registration import register_key
from farfield.deployment.server.site_roster import (
    KEY_REPLACED,
    KEYS,
    NODES,
    RosterError,
    SiteChanges,
    SiteRoster,
    fingerprint,
)
from farfield.records import RecordsError
from farfield.records.atomic import write_atomic
from farfield.records.checked_files import read_checked_json
from farfield.records.run import sole_writer

#: Seconds to wait for a server that is starting.
START_SECONDS = 60.0


def remove_site(out: Path, name: str) -> str:
    """Remove a site, and return a sentence for the operator. Its key is not let in from now on."""
    with _changing(out) as (roster, flwr):
        nodes, changes = roster.nodes, roster.changes
        if name not in changes.removed:
            node = _node_of(nodes, name)
            _check_others_train(roster, name)
            changes.removed.append(name)
            changes.to_forget.append(node)
            changes.note("removed", name, fingerprint=nodes.pop(node)[1])
            roster.write(nodes, changes)
        if flwr:
            roster.forget_nodes(flwr)
    return f"site '{name}' is removed{_when(flwr)}; {_others(roster)}"


def rotate_key(out: Path, name: str, public: Path) -> str:
    """Replace a site's key, and return a sentence for the operator. The key before is not let in from now on."""
    if not public.is_file():
        raise RosterError(f"there is no key '{public}'; give the .pub that 'farfield certs node' has made at the site")
    check_public_key(public)
    with _changing(out) as (roster, flwr):
        nodes, changes = roster.nodes, roster.changes
        if name in changes.removed:
            raise RosterError(f"site '{name}' was removed from this run, which goes on without it; start a new run")
        now = fingerprint(public)
        if now != changes.newest_key(name):
            _node_of(nodes, name)
            _check_new(nodes, changes, name, now)
            _replace(roster, name, public, flwr)
        if flwr:
            roster.forget_nodes(flwr)
    return (
        f"site '{name}' has a new key{_when(flwr)}: it joins again with that key, and the key before is not let in; "
        f"put '{public}' as {name}.pub among the keys of the next run, too"
    )


def _replace(roster: SiteRoster, name: str, public: Path, flwr: FlowerCommand | None) -> None:
    nodes, changes, now = roster.nodes, roster.changes, fingerprint(public)
    node = _node_of(nodes, name)
    kept = roster.key_of(name)
    kept.parent.mkdir(mode=0o700, exist_ok=True)
    if flwr:  # before anything is written: what Flower refuses leaves all as it was
        nodes[register_key(public, name, flwr)] = [name, now]
    before = nodes.pop(node)[1]
    write_atomic(kept, public.read_bytes())
    changes.replaced.setdefault(name, []).append(before)
    changes.to_forget.append(node)
    changes.note(KEY_REPLACED, name, before=before, now=now)
    roster.write(nodes, changes)


@contextlib.contextmanager
def _changing(out: Path) -> Iterator[tuple[SiteRoster, FlowerCommand | None]]:
    """Return the roster, and Flower's command if the server is running; nobody else changes the roster meanwhile."""
    folder = out / FLOWER
    if not (folder / NODES).exists():
        raise RosterError(f"'{out}' is not the output folder of a server with keys; give the server's --out")
    with contextlib.ExitStack() as held:
        flwr = None
        try:
            held.enter_context(exclusive(folder, "running"))
        except ProcessError:
            _until_ready(folder)
            flwr = held.enter_context(FlowerCommand(folder))
        (folder / KEYS).mkdir(mode=0o700, exist_ok=True)
        try:
            held.enter_context(sole_writer(folder / KEYS, patience=0.0))
        except RecordsError:
            raise RosterError("another 'farfield site' is changing this server's sites; wait for it to end") from None
        yield SiteRoster(folder), flwr


def _until_ready(folder: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while not gate.ready_file(folder / SECRET).exists():
        if time.monotonic() > until:
            raise RosterError(f"the server is still starting after {START_SECONDS:g} s; try again")
        time.sleep(0.2)


def _node_of(nodes: dict[str, list[str]], name: str) -> str:
    for node, (of, _) in nodes.items():
        if of == name:
            return node
    known = ", ".join(f"'{of}'" for of, _ in nodes.values()) or "none"
    raise RosterError(f"this server knows no site '{name}'; its sites are {known}")


def _check_new(nodes: dict[str, list[str]], changes: SiteChanges, name: str, now: str) -> None:
    user = next((of for of, known in nodes.values() if known == now), None)
    if user == name:
        raise RosterError(f"this is the key that site '{name}' has now; make a new one with 'farfield certs node'")
    if user is not None:
        raise RosterError(f"this is the key of site '{user}'; two sites cannot share one")
    if any(now in known for known in changes.replaced.values()):
        raise RosterError("this key was replaced before, and is never let in again; make a new one")


def _check_others_train(roster: SiteRoster, name: str) -> None:
    """Refuse to remove the last site that trains."""
    path = roster.folder / AGREEMENT
    if not path.exists():
        return
    training = {site for site, role in read_checked_json(path)["sites"].items() if role == "train"}
    if name in training and not training - roster.removed - {name}:
        raise RosterError(f"'{name}' is the last site that trains; without it the run cannot go on: stop the server")


def _when(flwr: FlowerCommand | None) -> str:
    return "" if flwr else " (the server is stopped; its next start carries it out before it goes on)"


def _others(roster: SiteRoster) -> str:
    names = ", ".join(f"'{name}'" for name in sorted(roster.names.values()))
    return f"the run goes on with {names}; the model has learned from its rows until now"
