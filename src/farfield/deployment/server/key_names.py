"""Which name belongs to which key: a site may use only the name under which its key was registered."""

from __future__ import annotations

from collections.abc import Mapping


def wrong_name(names: Mapping[int, str] | None, node: int, claimed: object) -> str | None:
    """Return why a node may not use the name that it claims; None if it may.

    `names` are the names by node; empty for an open server, which knows no keys.
    """
    if not names:
        return None
    if node not in names:
        return f"its key is not among those that this run knows, and it calls itself '{claimed}'"
    if names[node] != claimed:
        return f"its key was registered as '{names[node]}.pub', and it calls itself '{claimed}'; the two must agree"
    return None
