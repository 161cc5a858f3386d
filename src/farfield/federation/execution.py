"""One phase on one client: the code that every engine runs where the client's data is.

This is the one place where numbers move between the CPU and a client's device. What a phase is given (the broadcast,
the shared values, the client's state) is moved to the device before it, and what it gives is moved to the CPU after it,
before any update step or check. So neither methods nor anything at the server knows of devices.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from farfield.federation.client import Client
from farfield.federation.outgoing_updates import UpdateStep
from farfield.federation.phase import Named, Sends, declared_sends, phases_of
from farfield.federation.reply_checks import fault, state_fault
from farfield.models import Model, ModelState
from farfield.reproducibility.devices import CPU
from farfield.reproducibility.randomness import derive_seed, seed_layers


@dataclass
class Outcome:
    """What came of a phase on a client: values, or why there are none. `state` is the client's state to keep."""

    client: int
    domain: str
    samples: int = 0
    values: Named = field(default_factory=dict)
    state: dict[str, Tensor] = field(default_factory=dict)
    problem: str | None = None
    detail: str = ""
    steps: int = 0
    examples: int = 0
    seconds: float = 0.0
    #: What was done otherwise than usual, for an event; empty where nothing was.
    note: str = ""


def run_phase(
    algorithm: Any,
    phase: str,
    model: Model,
    broadcast: ModelState,
    client: Client,
    shared: Mapping[str, Tensor | float | int],
) -> Outcome:
    """Load the broadcast model, run the phase, check what it wants to send. Never raises for a client's failure."""
    started = time.perf_counter()
    outcome = Outcome(client.id, client.domain, client.samples)
    try:
        seed_layers(client.device, seed_of_layers(client, phase))
        method = getattr(algorithm, phase, None)
        sends = declared_sends(method) if callable(method) else {}  # a name that is no phase must not be called
        model.on(client.device).load(broadcast)
        if client.device != CPU:
            client.state = moved(client.state, client.device)
        # Copies, as over a wire: what a phase does to them must not reach the server or the next client.
        own = {n: v.to(client.device, copy=True) if isinstance(v, Tensor) else v for n, v in shared.items()}
        values: Named = method(client, model, **own)  # type: ignore[misc]
        complete(outcome, algorithm, phase, values, client, sends, model)
    except (Exception, SystemExit) as error:  # a client's failure is the round's business, not the program's
        fail(outcome, error)
    outcome.steps, outcome.examples = client.steps, client.examples
    outcome.seconds = time.perf_counter() - started
    return outcome


def seed_of_layers(client: Client, phase: str) -> int:
    """Return the seed of what layers and losses draw in a phase of a client."""
    return derive_seed(client.seed, client.round, client.name, phase, "layers")


def complete(
    outcome: Outcome,
    algorithm: Any,
    phase: str,
    values: Named,
    client: Client,
    sends: Mapping[str, Sends],
    model: Model,
) -> None:
    """Take what a phase returned as the outcome, on the CPU, after the update steps and the checks."""
    if client.device != CPU:
        values, client.state = moved(values, CPU), moved(client.state, CPU)
    values = _after_steps(algorithm, phase, values, client)
    outcome.problem = fault(values, sends, model.layout) or state_fault(client.state)
    if outcome.problem is None:
        outcome.values, outcome.state = _apart(values, model), _apart(client.state, model)


def moved(values: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """Return the values with their tensors on a device; those that are there already are not copied."""
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in values.items()}


def fail(outcome: Outcome, error: BaseException) -> None:
    """Take an error as the outcome. Of full memory torch tells a page; what happened is in its first two sentences."""
    text = str(error)
    if isinstance(error, torch.OutOfMemoryError):
        text = f"{'. '.join(text.split('. ')[:2]).rstrip('.')}; take a smaller batch_size, or another --device"
    outcome.problem = f"{type(error).__name__}: {text}"
    outcome.detail = "".join(traceback.format_exception(error))


def _after_steps(algorithm: Any, phase: str, values: Named, client: Client) -> Named:
    """The reply after the algorithm's update steps."""
    steps: Sequence[UpdateStep] = getattr(algorithm, "update_steps", ())
    sends: Mapping[str, Sends] = phases_of(type(algorithm))[phase] if steps else {}
    for step in steps:
        values = step.apply(values, sends, client)
        sends = step.declare(sends)
    return values


def _apart(values: Mapping[str, Any], model: Model) -> dict[str, Any]:
    """The values, with tensors that do not change when the resident model trains the next client."""
    own = (model.vector, model.gradient, model.buffer_vector) if model.device == CPU else ()
    resident = {t.untyped_storage().data_ptr() for t in own}
    apart = dict(values)
    for name, value in values.items():
        if isinstance(value, Tensor):
            inside = value.untyped_storage().data_ptr() in resident
            apart[name] = value.detach().clone() if inside else value.detach()
    return apart
