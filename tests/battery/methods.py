"""Which methods, compositions and settings the battery runs: found by a look at what is registered."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from farfield.algorithms import AlgorithmError, FedAvg, build, method, names, use
from farfield.algorithms.worked_examples import worked_examples

# A file of one's own joins the battery: FARFIELD_USE=fedmine.py make battery
for _path in filter(None, os.environ.get("FARFIELD_USE", "").split(os.pathsep)):
    use(_path)

# The worked examples of the methods of this package; those of other methods stand in the methods' own files.
for _path in sorted((Path(__file__).parent / "examples").glob("*.py")):
    import_module(f"tests.battery.examples.{_path.stem}")

SETTINGS = {"lr": 0.1, "batch_size": 8}


@cache
def single() -> list[str]:
    return names()


@cache
def server_halves() -> list[str]:
    """The methods that can stand after a '+'."""
    return [name for name in names() if method(name).server_half]


@cache
def clients_for(server: str) -> list[str]:
    """The methods that a server half can stand after."""
    able = []
    for client in names():
        try:
            make(f"{client}+{server}")
        except AlgorithmError:
            continue
        able.append(client)
    return able


def one_per_server_half(check: str) -> list[str]:
    """One composition per server half for a check. Other checks take other clients, so that all have their turn."""
    turn = sum(map(ord, check))
    pairs = [(clients_for(server), server) for server in server_halves()]
    return [f"{clients[(turn + i) % len(clients)]}+{server}" for i, (clients, server) in enumerate(pairs)]


def offered_examples() -> list[str]:
    """Every method and composition that has a worked example, in the order of the examples."""
    return list(dict.fromkeys(example.method for example in worked_examples()))


#: Parameters that cannot change the toy problem's result, and why. What no setting of the others can bring to life is
#: told by `Params.idle` instead.
NO_EFFECT = {
    "*.zeros": "no gradient entry of the toy problem is exactly zero at one client and not at the other",
    "*.groups": "one client a domain: clients and domains are the same groups",
    "*.trim": "two clients have no majority, and a robust rule takes their mean",
    "*.f": "two clients have no majority, and a robust rule takes their mean",
    "*.keep": "two clients have no majority, and a robust rule takes their mean",
    "*.smoothing": "two clients have no majority, and a robust rule takes their mean",
    "*.anneal": "steps from λ = 0 towards the minimum; where it is the only one, all ways lead to it",
}


def fewest_clients(name: str) -> int:
    """The fewest clients that both halves of a method or composition work with."""
    return max(method(part).supports.clients.number for part in name.split("+"))


def own_parameters(name: str) -> list[str]:
    """The parameters that a method adds to FedAvg's."""
    return [parameter for parameter in method(name).Params.model_fields if parameter not in FedAvg.Params.model_fields]


def living_parameters() -> list[tuple[str, str, dict[str, Any]]]:
    """Every parameter of a method's own, with settings of the others under which it is not idle."""
    living = []
    for name in single():
        for parameter in own_parameters(name):
            idle = parameter in make(name).params.idle()
            if idle or not {f"*.{parameter}", f"{name}.{parameter}"} & set(NO_EFFECT):
                settings = next((s for s in nearby_settings(name) if _acts(name, parameter, s)), None)
                if settings is not None:
                    living.append((name, parameter, settings))
    return living


def idle_parameters() -> list[tuple[str, dict[str, Any], list[str]]]:
    """Settings of each method, with the parameters that say of themselves that they have no effect under them.

    What a method says as FedAvg does is tested with FedAvg alone, what it says of its defaults with these alone.
    """
    of_fedavg = [(s, parameter) for s in nearby_settings("fedavg") for parameter in _idle("fedavg", s)]
    found = []
    for name in single():
        always = _idle(name, {})
        for settings in nearby_settings(name):
            known = always if settings else set()
            idle = sorted(_idle(name, settings) - known)
            if name != "fedavg":
                idle = [parameter for parameter in idle if (settings, parameter) not in of_fedavg]
            if idle:
                found.append((name, settings, idle))
    return found


def nearby_settings(name: str) -> Iterator[dict[str, Any]]:
    """The defaults, and settings in which one parameter has another value: its choices, or 0."""
    yield {}
    fields = FedAvg.Params.model_fields if name == "fedavg" else own_parameters(name)
    for parameter in fields:
        for value in (*_choices(name, parameter), 0, 2):
            if value != method(name).Params.model_fields[parameter].default and can_be(name, {parameter: value}):
                yield {parameter: value}


def _acts(name: str, parameter: str, settings: dict[str, Any]) -> bool:
    return parameter not in settings and parameter not in _idle(name, settings)


def _idle(name: str, settings: dict[str, Any]) -> set[str]:
    return set(make(name, **settings).params.idle()) - set(settings)


def can_be(name: str, settings: dict[str, Any]) -> bool:
    """Whether a method takes these settings."""
    try:
        make(name, **settings)
    except AlgorithmError:
        return False
    return True


def _choices(name: str, parameter: str) -> list[Any]:
    """The values of a parameter that has a few."""
    field = method(name).Params.model_fields[parameter]
    if field.annotation is bool:
        return [False, True]
    kinds = [field.annotation, *get_args(field.annotation)]
    return [choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]


def other_value(name: str, parameter: str, settings: dict[str, Any]) -> object:
    """A valid value, with these settings of the others, that is not the default."""
    field = method(name).Params.model_fields[parameter]
    choices = _choices(name, parameter)
    if not choices and field.default is None:
        kind = next(kind for kind in get_args(field.annotation) if kind is not type(None))
        choices = [{int: 2, float: 0.01}.get(kind, (2,)), 2.0]
    elif not choices:
        choices = [field.default * 5 + 1, field.default * 3, field.default / 2, field.default + 1, 0.5]
    # A head's own setting is the model's where it is not given.
    same = (field.default, getattr(make(name).params, parameter.removeprefix("head_"), None))
    for choice in choices:
        if choice not in same and can_be(name, {**settings, parameter: choice}):
            return choice
    raise AssertionError(f"no other value of {name}.{parameter} is known to the battery; add one to other_value")


def make(name: str, **settings: object) -> FedAvg:
    """A method or composition for the toy problem."""
    return build(name, {**SETTINGS, **settings})
