"""The versions that driver and node must have in common: other ones can give other bits, or cannot read a plan."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import version


def versions() -> dict[str, str]:
    """Return the versions here."""
    return {"farfield": version("farfield"), "torch": version("torch"), "Python": platform.python_version()}


def version_conflict(wanted: Mapping[str, str], here: Mapping[str, str], node: str) -> str | None:
    """Say in one sentence in which versions a node differs from the process that sends it runs; None if in none."""
    differ = [name for name in wanted if here.get(name) != wanted[name]]
    if not differ:
        return None
    there = ", ".join(f"{name} {here.get(name, 'unknown')}" for name in differ)
    needed = ", ".join(f"{name} {wanted[name]}" for name in differ)
    return f"the node {node} has {there}, and the runs need {needed}; install the same versions on every node"
