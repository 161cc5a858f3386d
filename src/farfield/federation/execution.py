"""One phase on one client: the code that every engine runs where the client's data is."""

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
from farfield.reproducibility.randomness import derive_seed


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
    torch.default_generator.manual_seed(derive_seed(client.seed, client.round, client.name, phase, "layers"))
    try:
        method = getattr(algorithm, phase, None)
        sends = declared_sends(method) if callable(method) else {}  # a name that is no phase must not be called
        model.load(broadcast)
        # Copies, as over a wire: what a phase does to them must not reach the server or the next client.
        own = {name: v.clone() if isinstance(v, Tensor) else v for name, v in shared.items()}
        values: Named = method(client, model, **own)  # type: ignore[misc]
        complete(outcome, algorithm, phase, values, client, sends, model)
    except (Exception, SystemExit) as error:  # a client's failure is the round's business, not the program's
        fail(outcome, error)
    outcome.steps, outcome.examples = client.steps, client.examples
    outcome.seconds = time.perf_counter() - started
    return outcome


def complete(
    outcome: Outcome,
    algorithm: Any,
    phase: str,
    values: Named,
    client: Client,
    sends: Mapping[str, Sends],
    model: Model,
) -> None:
    """Take what a phase returned as the outcome, after the update steps and the checks."""
    values = _after_steps(algorithm, phase, values, client)
    outcome.problem = fault(values, sends, model.layout) or state_fault(client.state)
    if outcome.problem is None:
        outcome.values, outcome.state = _apart(values, model), _apart(client.state, model)


def fail(outcome: Outcome, error: BaseException) -> None:
    """Take an error as the outcome."""
    outcome.problem = f"{type(error).__name__}: {error}"
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
    resident = {t.untyped_storage().data_ptr() for t in (model.vector, model.gradient, model.buffer_vector)}
    apart = dict(values)
    for name, value in values.items():
        if isinstance(value, Tensor):
            inside = value.untyped_storage().data_ptr() in resident
            apart[name] = value.detach().clone() if inside else value.detach()
    return apart
