"""Register the sites' keys at the SuperLink, which lets in nobody else."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from farfield.deployment.credentials.verify import check_public_key
from farfield.deployment.server.flower_command import LINK, FlowerCommand, flower_error
from farfield.deployment.server.site_roster import NODES, RosterError, fingerprint
from farfield.records.checked_files import read_checked_json, write_checked_json


def check_keys(folder: Path, keys: Sequence[Path], resume: bool) -> None:
    """Keep the registered nodes, which sites that wait are known by, unless the key of a site has changed."""
    known, now = _registered(folder), {key.stem: fingerprint(key) for key in keys}
    changed = [name for name, of in known.values() if now.get(name) != of]
    if changed and resume:
        raise RosterError(
            f"the key of site '{changed[0]}' is not the one that the run was begun with; give that one with --key"
        )
    if keys and not resume and (changed or not known):
        for left in (*folder.glob("superlink.db*"), folder / NODES):
            left.unlink(missing_ok=True)


def register_keys(keys: Sequence[Path], folder: Path, flwr: FlowerCommand) -> dict[str, str]:
    """Register the keys that are not registered yet, and return the names of all nodes."""
    nodes = _registered(folder)
    names = {name for name, _ in nodes.values()}
    for key in keys:
        if key.stem not in names:
            nodes[register_key(key, key.stem, flwr)] = [key.stem, fingerprint(key)]
            write_checked_json(folder / NODES, nodes)
    return {node: name for node, (name, _) in nodes.items()}


def register_key(key: Path, name: str, flwr: FlowerCommand) -> str:
    """Register one key, and return its node."""
    done = flwr("supernode", "register", str(key.resolve()), LINK, "--name", name, "--format", "json")
    node = re.search(r'"node-id":\s*"?(\d+)', done.stdout)
    if done.returncode or node is None:
        raise RosterError(
            f"the key '{key}' cannot be registered: {flower_error(done.stdout)} (see 'superlink.log' beside the "
            "server's other files of Flower)"
        )
    return node[1]


def _registered(folder: Path) -> dict[str, list[str]]:
    """Return the name and the key's fingerprint of each node that an earlier start has registered."""
    path = folder / NODES
    return read_checked_json(path) if path.exists() else {}


def find_public_keys(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Return the public keys in these files and folders, checked."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(path.glob("*.pub"))
            if not inside:
                raise RosterError(f"the folder '{path}' has no .pub file; give --key what the sites have sent")
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise RosterError(f"there is no key '{path}'; give a site's .pub file, or a folder of them")
    names = [path.stem for path in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise RosterError(f"two keys are named '{twice}.pub'; give each site's once")
    for path in found:
        if not os.access(path, os.R_OK):
            raise RosterError(f"the key '{path}' cannot be read")
        check_public_key(path)
    return tuple(found)
