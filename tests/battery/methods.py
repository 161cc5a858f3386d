"""Which methods and compositions the battery runs: everything that is registered, and everything that is offered."""

from __future__ import annotations

import os
from functools import cache
from typing import Literal, get_args, get_origin

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


#: Parameters that cannot change the toy problem's result, and why.
NO_EFFECT = {
    "*.zeros": "no gradient entry of the toy problem is exactly zero at one client and not at the other",
    "fedcir-reg.sigma_floor": "the floor is for the alignment, which this ablation does not have",
    "*.groups": "one client a domain: clients and domains are the same groups",
    "*.anneal": "steps from λ = 0 towards the minimum; where it is the only one, all ways lead to it",
    "*.phi_steps": "for φ's published steps, which are off by default",
    "*.phi_lr": "for φ's published steps, which are off by default",
    "*.phi_weight_decay": "for φ's published steps, which are off by default",
    "fedloe-fish.meta_lr": "for φ's published steps, which are off by default",
}


def own_parameters() -> list[tuple[str, str]]:
    """Every parameter that a method adds to FedAvg's."""
    return [
        (name, parameter)
        for name in single()
        for parameter in method(name).Params.model_fields
        if parameter not in FedAvg.Params.model_fields
        and not {f"*.{parameter}", f"{name}.{parameter}"} & set(NO_EFFECT)
    ]


def other_value(name: str, parameter: str) -> object:
    """A valid value that is not the default."""
    field = method(name).Params.model_fields[parameter]
    choices: list[object] = list(get_args(field.annotation)) if get_origin(field.annotation) is Literal else []
    if field.default is None:
        inner = next(a for a in get_args(field.annotation) if a is not type(None))
        choices = list(get_args(inner)) if get_origin(inner) is Literal else [2 if inner is int else 0.01]
        choices = [c for c in choices if c != getattr(make(name).params, parameter.removeprefix("head_"), None)]
    if isinstance(field.default, bool):
        choices = [not field.default]
    elif isinstance(field.default, int | float):
        choices = [field.default * 5 + 1, field.default * 3, field.default / 2, field.default + 1]
    for choice in choices:
        if choice != field.default:
            try:
                make(name, **{parameter: choice})
                return choice
            except AlgorithmError:
                continue
    raise AssertionError(f"no other value of {name}.{parameter} is known to the battery; add one to other_value")


def make(name: str, **settings: object) -> FedAvg:
    return build(name, {**SETTINGS, **settings})
