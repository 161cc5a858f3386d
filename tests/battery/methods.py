"""Which methods and compositions the battery runs: everything that is registered, and everything that is offered."""

from __future__ import annotations

import os
from functools import cache

from farfield.algorithms import AlgorithmError, FedAvg, build, method, names, params_of, use

# A file of one's own joins the battery: FARFIELD_USE=fedmine.py make battery
for _path in filter(None, os.environ.get("FARFIELD_USE", "").split(os.pathsep)):
    use(_path)

SETTINGS = {"lr": 0.1, "batch_size": 8}


@cache
def single() -> list[str]:
    return names()


@cache
def compositions() -> list[str]:
    """Every pair 'client+server' that is not refused."""
    servers = [n for n in names() if method(n).server_half]
    offered = []
    for client in names():
        for server in servers:
            try:
                params_of(f"{client}+{server}")
            except AlgorithmError:
                continue
            offered.append(f"{client}+{server}")
    return offered


def everything() -> list[str]:
    return [*single(), *compositions()]


def make(name: str, **settings: object) -> FedAvg:
    return build(name, {**SETTINGS, **settings})
