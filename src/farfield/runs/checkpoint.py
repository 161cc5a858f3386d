"""Turn the state of a run, its clients' state included, into the named tensors of a checkpoint, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from farfield.algorithms import State
from farfield.models import ModelState

ClientStates = Mapping[int, Mapping[str, Tensor]]


def to_tensors(state: State, clients: ClientStates) -> dict[str, Tensor]:
    """Name every tensor of the server's state and of what the clients keep between rounds."""
    return {
        "model/parameters": state.model.parameters,
        "model/buffers": state.model.buffers,
        **{f"slot/{name}": tensor for name, tensor in state.slots.items()},
        **{f"extra/{name}": tensor for name, tensor in state.extras.items()},
        **{f"client/{number}/{name}": t for number, named in clients.items() for name, t in named.items()},
    }


def from_tensors(fresh: State, tensors: Mapping[str, Tensor], round: int) -> tuple[State, dict[int, dict[str, Tensor]]]:
    """Return the saved state, on top of a fresh one of the same method, and what the clients kept."""
    slots: dict[str, Tensor] = {}
    extras: dict[str, Tensor] = {}
    clients: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        group, _, name = key.partition("/")
        if group == "slot":
            slots[name] = tensor
        elif group == "extra":
            extras[name] = tensor
        elif group == "client":
            number, _, name = name.partition("/")
            clients.setdefault(int(number), {})[name] = tensor
    model = ModelState(tensors["model/parameters"], tensors["model/buffers"])
    return replace(fresh, model=model, slots=slots, extras=extras, round=round), clients
