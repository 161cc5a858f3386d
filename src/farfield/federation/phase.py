"""Phases: the methods of an algorithm that run where a client's data is, and what they may send back.

    @phase(update=Sends("parameters", "the local parameters minus the broadcast ones"))
    def train(self, client, model, **shared): ...

A phase gets the client, the resident model loaded with what was broadcast, and the shared values. It returns named
tensors and scalars, and only the ones it declares. With every reply goes an envelope: the client, its number of
training examples, and the steps it made.

A hook that adds an output to a phase declares that output alone:

    @adds_to("train", control_change=Sends("parameters", "change of the control variate", server_sees="sum"))
    def after_training(self, client, model, local): ...
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from torch import Tensor

from farfield.models import Layout

Function = TypeVar("Function", bound=Callable[..., Any])

#: What a phase returns and what a server may share: named tensors and scalars, nothing else.
Named = Mapping[str, "Tensor | float | int"]


class Free(str):
    """A size that only the client knows, with a name for people: `Free("tuning rows")`."""


SIZES = ("parameters", "head", "final layer", "buffers", "features", "outputs", "classes")


@dataclass(frozen=True)
class Sends:
    """One thing that leaves a client in a phase.

    `shape` is a size by name ("parameters", "head", "final layer", "buffers", "features", "outputs", "classes"), a
    number, `Free("tuning rows")` where only the client knows it, or a tuple of these; `()` is a scalar. One output of a
    classifier stands for two classes.
    `server_sees` says whether the server needs each client's value or only their sum. What is needed only in sum
    reaches the server half only as a sum (`replies.sum(name)`).
    """

    shape: str | int | tuple[str | int, ...]
    meaning: str
    server_sees: Literal["each", "sum"] = "each"
    optional: bool = False
    #: Whether the tensor holds integers (int64) instead of the model's floats; None where both can be, as for labels.
    integers: bool | None = False
    #: Whether it is a change or a gradient, whose length an update step may limit.
    is_update: bool = False
    #: For what is no update and is bounded with the updates at the server: the power of a gradient that it grows with.
    bounded: int = 0
    #: With differential privacy: "noise" leaves with noise, "withhold" does not leave, and "public" says nothing of the
    #: rows. None is "noise" for an update and "withhold" for the rest.
    privacy: Literal["noise", "withhold", "public"] | None = None
    warning: str = ""
    #: The smallest and the largest value that an entry can have; None where only the limits of every reply hold.
    range: tuple[float, float] | None = None
    #: How it enters a secure sum where the server needs each client's otherwise: "sum" as it is, or multiplied by a
    #: weight whose sum is sent too, so that the server has the weighted mean. The weight is "samples" (the client's
    #: training rows), "weighting" (these, or 1, as the setting says), or another output of the phase by its name. Empty
    #: where the server cannot do without each client's.
    in_sum: str = ""

    def __post_init__(self) -> None:
        for size in self.dimensions:
            if isinstance(size, str) and not isinstance(size, Free) and size not in SIZES:
                near = difflib.get_close_matches(size, SIZES, n=1)
                hint = f"did you mean '{near[0]}'?" if near else f"sizes are {', '.join(SIZES)}, or Free({size!r})"
                raise ValueError(f"unknown size '{size}'; {hint}")

    @property
    def in_privacy(self) -> Literal["noise", "withhold", "public"]:
        """What becomes of it with differential privacy."""
        return self.privacy or ("noise" if self.is_update else "withhold")

    @property
    def dimensions(self) -> tuple[str | int, ...]:
        return self.shape if isinstance(self.shape, tuple) else (self.shape,)

    @property
    def power(self) -> int:
        """The power of an update's length that the server bounds it by; 0 where it is not bounded."""
        return self.bounded or int(self.is_update)

    def sizes(self, layout: Layout) -> tuple[int | None, ...]:
        """The shape in numbers for this model; None where only the client knows."""
        known = {
            "parameters": layout.parameters,
            "head": layout.head.stop - layout.head.start,
            "final layer": layout.final.stop - layout.final.start,
            "buffers": layout.buffers,
            "features": layout.features,
            "outputs": layout.outputs,
            "classes": max(2, layout.outputs),
        }
        return tuple(d if isinstance(d, int) else known.get(d) for d in self.dimensions)


SCALAR: tuple[str | int, ...] = ()


def phase(**sends: Sends) -> Callable[[Function], Function]:
    """Mark a method as a phase and declare what it sends."""

    def mark(function: Function) -> Function:
        function.__sends__ = sends  # type: ignore[attr-defined]
        return function

    return mark


def local_training(**sends: Sends) -> Callable[[Function], Function]:
    """Mark a phase that is the engine's loop of local training, and declare what it sends.

    The body is for an engine that trains one client at a time. Another engine may run the same loop for a stack of
    clients, with the method's hooks (see `local_training.py`). A method that overrides such a phase with a plain
    `@phase` does something else, and is run client by client.
    """

    def mark(function: Function) -> Function:
        function.__trains__ = True  # type: ignore[attr-defined]
        return phase(**sends)(function)

    return mark


def adds_to(phase: str, **sends: Sends) -> Callable[[Function], Function]:
    """Mark a hook that adds outputs to the reply of a phase, and declare these outputs."""

    def mark(function: Function) -> Function:
        function.__adds__ = (phase, sends)  # type: ignore[attr-defined]
        return function

    return mark


def stacked_form(phase: str, rows: Literal["training", "validation"]) -> Callable[[Function], Function]:
    """Mark a method as what a phase does for a stack of clients: `form(clients, model, read, **shared)`.

    It returns the replies of the clients, in their order, with the bits that the phase gives for each alone; None if
    it cannot with these settings. The clients are ordered by how many of these rows they have, `model` is the stack of
    their models, and `read()` yields their rows. A method that overrides the phase and not its form is run client by
    client.
    """

    def mark(function: Function) -> Function:
        function.__form__ = (phase, rows)  # type: ignore[attr-defined]
        return function

    return mark


class Passes(Protocol):
    """Reads the rows of a stack of clients, in full passes or by the mini-batches that each client drew."""

    def __call__(self, rows: Any = None) -> Iterator[tuple[slice, Any]]:
        """Neighbours with as many rows, and a stacked batch of the next rows of each; rows pass in their order.

        `rows` are others than the form asks for, one for each client.
        """
        ...

    def steps(self, drawn: Sequence[Iterable[Any]]) -> Iterator[tuple[int, slice, Any]]:
        """The number of a step, neighbours whose batches of it have one length, and a stack of these batches."""
        ...


def form_of(algorithm: Any, phase: str) -> tuple[Callable[..., Any], str] | None:
    """Return what a phase does for a stack of clients and which rows it reads; None where there is no such form."""
    for cls in type(algorithm).__mro__:
        for name, member in vars(cls).items():
            if getattr(member, "__form__", ("",))[0] == phase:
                return getattr(algorithm, name), member.__form__[1]
        if phase in vars(cls):
            return None
    return None


def is_local_training(phase: Callable[..., Any]) -> bool:
    """Whether a phase is the engine's loop of local training."""
    return bool(getattr(phase, "__trains__", False))


def declared_sends(phase: Callable[..., Any]) -> dict[str, Sends]:
    """What a phase of an algorithm sends, after its update steps; an error for a method that is not a phase."""
    name = getattr(phase, "__name__", repr(phase))
    if not hasattr(phase, "__sends__"):
        raise TypeError(f"'{name}' is not a phase; mark it with @phase(...) and declare what it sends")
    algorithm = getattr(phase, "__self__", None)
    if algorithm is None:
        return dict(phase.__sends__)
    return declared_phases(algorithm)[name]


def declared_phases(algorithm: Any) -> dict[str, dict[str, Sends]]:
    """Every phase of an algorithm with what leaves a client in it, after the algorithm's update steps."""
    declared: dict[str, dict[str, Sends]] | None = vars(algorithm).get("_declared_phases")
    if declared is None:
        declared = phases_of(type(algorithm))
        for step in getattr(algorithm, "update_steps", ()):
            declared = {name: dict(step.declare(sends)) for name, sends in declared.items()}
        algorithm._declared_phases = declared  # asked for with every reply
    return declared


def phases_of(algorithm: type) -> dict[str, dict[str, Sends]]:
    """Every phase of a class with its declarations, inherited ones first; update steps are not in it."""
    names = dict.fromkeys(name for cls in reversed(algorithm.__mro__) for name in vars(cls))
    members = {name: getattr(algorithm, name) for name in names}
    phases = {name: dict(member.__sends__) for name, member in members.items() if hasattr(member, "__sends__")}
    for cls in reversed(algorithm.__mro__):
        for name, member in vars(cls).items():
            if hasattr(member, "__adds__"):
                extended, sends = member.__adds__
                if extended not in phases:
                    raise TypeError(f"'{name}' adds to the phase '{extended}', and {algorithm.__name__} has none")
                again = next((output for output in sends if output in phases[extended]), None)
                if again is not None:
                    raise TypeError(f"'{name}' adds '{again}' to '{extended}', which declares it already")
                phases[extended] |= sends
    return phases


def inherit_declarations(algorithm: type) -> None:
    """Let an overriding method keep what its parent declared, so that `@phase` is written once."""
    for name, member in vars(algorithm).items():
        if callable(member) and not hasattr(member, "__sends__"):
            inherited = next((vars(c)[name] for c in algorithm.__mro__[1:] if name in vars(c)), None)
            sends = getattr(inherited, "__sends__", None)
            if sends is not None:
                member.__sends__ = sends
