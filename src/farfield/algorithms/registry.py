"""Methods by name, and the grammar `client+server` that puts one method's clients under another's server.

@register
class FedMine(FedAvg): ...

build("fedmine", {"lr": 0.05})
build("fedprox+fedadam", {"mu": 0.1, "server_lr": 0.01})
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import pkgutil
import re
import sys
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError, create_model

from farfield.errors import UserError

if TYPE_CHECKING:
    from farfield.algorithms.fedavg import FedAvg

Method = TypeVar("Method", bound=type)

_METHODS: dict[str, type] = {}
_NOT_METHODS = {
    "registry",
    "state",
    "parameters",
    "fedcir_generator",
    "worked_examples",
    "supports",
    "validation_figures",
}


class AlgorithmError(UserError):
    """A name, a combination or a parameter that cannot work, in one sentence."""


def register(method: Method) -> Method:
    """Make a method known by its `name`. A name that is taken by other code is refused."""
    name = method.name  # type: ignore[attr-defined]
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name):
        raise AlgorithmError(f"'{name}' cannot name a method; use lower-case letters, digits and hyphens")
    taken = _METHODS.get(name)
    if taken is not None and (taken.__module__, taken.__qualname__) != (method.__module__, method.__qualname__):
        raise AlgorithmError(f"the name '{name}' is taken by {taken.__module__}.{taken.__qualname__}")
    _METHODS[name] = method
    return method


def discover() -> None:
    """Import every method file of this package, and those that installed packages offer."""
    package = importlib.import_module("farfield.algorithms")
    for module in pkgutil.iter_modules(package.__path__):
        if module.name not in _NOT_METHODS:
            importlib.import_module(f"farfield.algorithms.{module.name}")
    for entry in entry_points(group="farfield.algorithms"):
        entry.load()


def use(path: str | Path) -> None:
    """Import a file of your own that registers methods."""
    path = Path(path)
    if not path.is_file():
        raise AlgorithmError(f"there is no file '{path}' to take methods from")
    name = f"farfield_used_{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise AlgorithmError(f"'{path}' is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise AlgorithmError(f"'{path}' does not import: {type(error).__name__}: {error}") from error


def names() -> list[str]:
    return sorted(_METHODS)


def method(name: str) -> type[FedAvg]:
    """The class of a single method."""
    if name not in _METHODS:
        near = difflib.get_close_matches(name, _METHODS, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"choose one of {', '.join(names())}"
        raise AlgorithmError(f"unknown algorithm '{name}'; {hint}")
    return _METHODS[name]


def parts(name: str) -> tuple[type[FedAvg], tuple[type[FedAvg], ...]]:
    """The client method and the server methods that a name like 'a+b' stands for; refused if they cannot work."""
    client, *servers = [method(part.strip()) for part in name.split("+")]
    seen: dict[str, str] = {}
    if servers and client.not_composable:
        raise AlgorithmError(f"'{name}' cannot work: {client.name} {client.not_composable}")
    for aspect in client.server_half if servers else ():
        seen[aspect] = client.name
    for server in servers:
        if not server.server_half:
            able = [n for n in names() if _METHODS[n].server_half]  # type: ignore[attr-defined]
            raise AlgorithmError(
                f"'{name}' cannot work: {server.name} has no server half; after a '+' can stand {', '.join(able)}"
            )
        for aspect in server.server_half:
            if aspect in seen:
                raise AlgorithmError(f"'{name}' cannot work: {seen[aspect]} and {server.name} both bring the {aspect}")
            seen[aspect] = server.name
    return client, tuple(servers)


def params_of(name: str) -> type[FedAvg.Params]:
    """The parameters of a method or a composition: the client's, plus what the servers add or set differently."""
    client, servers = parts(name)
    if not servers:
        return client.Params
    base = method("fedavg").Params
    fields: dict[str, Any] = {}
    for server in servers:
        for field_name, field in _own_fields(server, base).items():
            taken = {**client.Params.model_fields, **{n: f for n, (_, f) in fields.items()}}.get(field_name)
            if field_name not in base.model_fields and taken is not None and repr(taken) != repr(field):
                raise AlgorithmError(f"'{name}' cannot work: the parameter '{field_name}' is in both parts")
            fields[field_name] = (field.annotation, field)
    return create_model(f"{name} parameters", __base__=_idle_of_both(client, servers, base), **fields)


def _idle_of_both(
    client: type[FedAvg], servers: tuple[type[FedAvg], ...], base: type[FedAvg.Params]
) -> type[FedAvg.Params]:
    """The client's parameters, whose `idle` leaves it to each server to say what of the server's own has no effect."""

    class Params(client.Params):  # type: ignore[name-defined, misc]
        def idle(self) -> dict[str, str]:
            idle: dict[str, str] = super().idle()
            for server in servers:
                # Whether the clients' weights count is for a rule to say.
                own = {*_own_fields(server, base), *({"weighting"} if "rule" in server.server_half else ())}
                said = server.Params.model_construct(**self.model_dump()).idle()
                idle = {n: why for n, why in idle.items() if n not in own} | {n: said[n] for n in own if n in said}
            return idle

    return Params


def _own_fields(server: type[FedAvg], base: type[BaseModel]) -> dict[str, Any]:
    """What a server half adds: a rule its own parameters, an optimizer its settings of the server optimizer."""
    params = server.Params
    declared = {n for c in params.__mro__ if c not in base.__mro__ for n in vars(c).get("__annotations__", {})}
    own = {n: f for n, f in params.model_fields.items() if n in declared}
    return {
        n: f
        for n, f in own.items()
        if n not in base.model_fields or ("optimizer" in server.server_half and n.startswith("server_"))
    }


def build(name: str, settings: Mapping[str, Any] | None = None, rounds: int | None = None) -> FedAvg:
    """The method or composition of that name with these parameters, for a run of that many rounds."""
    client, servers = parts(name)
    params_type = params_of(name)
    for key in settings or {}:
        check_parameter(key, params_type, name)
    try:
        params = params_type(**(settings or {}))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        message = message[0].lower() + message[1:]
        raise AlgorithmError(
            f"{name}: {where} = {first['input']!r}: {message}" if where else f"{name}: {message}"
        ) from error
    ruling = [s for s in servers if "rule" in s.server_half]
    made = client(params, ruling[0](params) if ruling else None, rounds)
    made.check_settings()
    return made


def check_parameter(key: str, params: type[BaseModel], name: str) -> None:
    if key not in params.model_fields:
        near = difflib.get_close_matches(key, params.model_fields, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"it has {', '.join(params.model_fields)}"
        raise AlgorithmError(f"{name} has no parameter '{key}'; {hint}")
