"""Refuse a model that the approved method cannot have made, because a chosen model makes single rows visible.

Round 1 begins with the model that the approved seed makes, and the site makes the same one. After that, the site
measures by itself, once per run, how far local training on its own rows leads from that first model (`Reference`), and
accepts as much change per round as the server rule can make of updates of that length, times `limits.model_change`:
since the last model that it trained, and since the first. The measure depends on nothing that the server sends but the
number of rows of the other sites, which is capped. A site that missed rounds accepts the change of as many rounds. The
models of training phases are remembered, on the disk. With differential privacy nothing is measured: the lengths of
noised updates follow from the approved settings.

Values that the server shares besides the model have to be declared by the method (`receives`), finite and, where they
are gradients, not longer than the same factor times the site's own gradient at the first model.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from farfield.algorithms import FedAvg
from farfield.federation.client import Client
from farfield.federation.local_training import train_client
from farfield.federation.refusal import Refused
from farfield.models import Layout, Model, ModelState, build_model
from farfield.records.checked_tensors import load_checked, save_checked
from farfield.records.checksums import DamagedFile
from farfield.reproducibility.devices import CPU
from farfield.reproducibility.randomness import generators_kept

#: Machines of different makes draw first weights that differ in the last digits.
FIRST_MODEL_TOLERANCE = 1e-5
#: The reference is measured by at most this many local steps, and extrapolated beyond.
REFERENCE_STEPS = 50
#: The steps that another site makes count for at most this many times the site's own.
MOST_STEPS_RATIO = 10.0
#: The share of the first model's length within which the accepted change grows in proportion to the rounds.
FREE_SHARE = 0.5
#: Running statistics beyond this are none that rows can have.
LARGEST_BUFFER = 1e6
#: Local settings of a method that decide how far its training leads.
_LOCAL = ("lr", "batch_size", "local_epochs", "local_steps", "momentum", "weight_decay", "optimizer", "class_weights")


@dataclass(frozen=True)
class Reference:
    """How far local training leads from the first model of a run, measured on the site's own rows."""

    #: The length of an update.
    update: float
    #: The length of the gradient of all training rows, or of the first batch where there are more.
    gradient: float


@dataclass(frozen=True)
class Anchor:
    """The last model that the site trained, and how many rounds had been made when it was made."""

    made: int
    parameters: Tensor
    reference: Reference


def memory_file(folder: Path, run: str) -> Path:
    """Return the path of what is remembered of a run. The server names runs, so the name is no part of the path."""
    return folder / f"model-{hashlib.sha256(run.encode()).hexdigest()[:32]}.safetensors"


def load_anchor(path: Path) -> Anchor | None:
    """Return the last model of a run that this site trained; None if it has trained none."""
    if not path.exists():
        return None
    try:
        tensors, metadata = load_checked(path, frozenset({"farfield"}))
        about = json.loads(metadata["farfield"])
        reference = Reference(float(about["update"]), float(about["gradient"]))
        return Anchor(int(about["made"]), tensors["parameters"], reference)
    except (DamagedFile, KeyError, ValueError, TypeError):
        raise Refused("ledger") from None


def save_anchor(path: Path, anchor: Anchor) -> None:
    """Write what is remembered of a run, or nothing of it."""
    about = {"made": anchor.made, "update": anchor.reference.update, "gradient": anchor.reference.gradient}
    save_checked(path, {"parameters": anchor.parameters}, {"farfield": json.dumps(about)})


def measure_reference(algorithm: Any, client: Client, spec: Any, seed: int) -> Reference:
    """Train plainly from the first model, for a few steps at most, and return the lengths that come of it."""
    params = algorithm.params.model_dump()
    local = {name: params[name] for name in _LOCAL if name in params}
    if getattr(algorithm, "single_step", False):
        local |= {"batch_size": 0, "local_steps": 1}
    model = build_model(spec, seed).on(client.device)
    start = model.vector.to(CPU, copy=True)
    steps = local_steps(local, client.samples)
    measured = min(steps, REFERENCE_STEPS)
    plain = FedAvg(FedAvg.Params(**{**local, "local_steps": measured, "weighting": "uniform"}))
    with generators_kept(client.device):
        torch.default_generator.manual_seed(0)
        update = torch.as_tensor(train_client(plain, client, model, {})["update"]).to(CPU)
        first = build_model(spec, seed).on(client.device)
        first.train()
        batch = next(client.sweep(client.training))
        first.backward(plain.loss(first, batch))
    length = float(torch.linalg.vector_norm(update, dtype=torch.float64)) * steps / measured
    gradient = float(torch.linalg.vector_norm(first.gradient.to(CPU), dtype=torch.float64))
    floor = 1e-6 * float(torch.linalg.vector_norm(start, dtype=torch.float64))
    return Reference(max(length, floor), max(gradient, floor))


def private_reference(algorithm: Any, rows: int, layout: Layout, first_length: float) -> Reference:
    """Return the lengths of private training, from the approved settings and the number of rows alone.

    A measure on the rows has no noise. Honest models would be refused by it, because noise is most of their change; and
    a refusal, which tells what is accepted, would tell of the rows.
    """
    p = algorithm.params
    noise = p.noise * p.clip * math.sqrt(layout.parameters)
    if p.privacy == "client":
        sent = p.clip + noise
        return Reference(p.lr * sent if algorithm.single_step else sent, sent)
    batch = rows if algorithm.single_step or not p.batch_size else min(p.batch_size, rows)
    gradient = p.clip + noise / batch
    if algorithm.single_step:
        return Reference(p.lr * gradient, gradient)
    epochs = max(p.schedule or (p.local_epochs,))
    steps = p.local_steps or epochs * -(-rows // batch)
    if p.optimizer == "adam":
        update = steps * math.sqrt(layout.parameters)
    else:  # gradients may all lead the same way; the noise of many steps does not
        update = (steps * p.clip + math.sqrt(steps) * noise / batch) / (1.0 - p.momentum)
    return Reference(p.lr * (update + steps * p.weight_decay * first_length), gradient)


def local_steps(params: Mapping[str, Any], rows: int) -> int:
    """Return how many local steps a client with so many rows makes in a round."""
    if params.get("local_steps"):
        return int(params["local_steps"])
    size = params.get("batch_size") or rows
    return max(1, int(params.get("local_epochs") or 1)) * max(1, -(-rows // max(1, min(size, rows))))


def change_per_round(algorithm: Any, reference: Reference, parameters: Tensor, layout: Layout, ratio: float) -> float:
    """Return how far one round can lead from `parameters`, by the server rule and updates of the reference's length."""
    p = algorithm.params
    length = reference.update * ratio
    own = float(torch.linalg.vector_norm(parameters, dtype=torch.float64))
    if getattr(algorithm, "single_step", False):
        # Fishr's second exchange adds a gradient with a weight of its own.
        length *= 1.0 + float(getattr(p, "fishr", 0.0))
    if p.server_optimizer == "sgd":
        change = p.server_lr * length / (1.0 - p.server_momentum)
    else:
        change = p.server_lr * min(adaptive_step(p) * math.sqrt(layout.parameters), length / p.server_epsilon)
    if "train_head" in algorithm.phases:  # FedLOE's second stage replaces the head by a mixture of heads
        head = parameters[layout.head]
        change += float(torch.linalg.vector_norm(head, dtype=torch.float64)) + length
    return float(change + p.server_lr * p.server_weight_decay * own)


def adaptive_step(params: Any) -> float:
    """Return the largest step of one entry by server Adam or Yogi, in units of the step size (Cauchy-Schwarz)."""
    beta1, beta2 = float(params.server_momentum), float(params.server_beta2)
    if beta1 * beta1 >= beta2:
        return 10.0
    return max(1.0, (1.0 - beta1) / math.sqrt((1.0 - beta2) * (1.0 - beta1 * beta1 / beta2)))


def steps_ratio(algorithm: Any, own_rows: int, other_rows: list[int]) -> float:
    """Return how many times more local steps the largest site makes than this one, at least 1 and capped."""
    params = algorithm.params.model_dump()
    if getattr(algorithm, "single_step", False):
        return 1.0
    own, most = local_steps(params, own_rows), max([local_steps(params, rows) for rows in other_rows], default=1)
    return min(MOST_STEPS_RATIO, max(1.0, most / own))


def check_sound(model: ModelState, layout: Layout) -> None:
    """Refuse parameters and buffers of another size, or that are not finite."""
    sizes = (layout.parameters,), (layout.buffers,)
    for tensor, size in zip((model.parameters, model.buffers), sizes, strict=True):
        if not isinstance(tensor, Tensor) or tuple(tensor.shape) != size or not tensor.is_floating_point():
            raise Refused("model-unsound")
        if not bool(torch.isfinite(tensor).all()):
            raise Refused("model-unsound")
    if layout.buffers and float(model.buffers.abs().max()) > LARGEST_BUFFER:
        raise Refused("model-unsound")


def check_first(broadcast: ModelState, first: ModelState) -> None:
    """Refuse a model that is not the one that the approved seed makes."""
    gap = float((broadcast.parameters - first.parameters).abs().max()) if len(first.parameters) else 0.0
    if gap > FIRST_MODEL_TOLERANCE * max(1.0, float(first.parameters.abs().max())):
        raise Refused("first-model", change=gap)
    check_buffers(broadcast, first)


def check_buffers(broadcast: ModelState, first: ModelState) -> None:
    """Refuse running statistics other than those of the first model."""
    if len(first.buffers) and float((broadcast.buffers - first.buffers).abs().max()) > FIRST_MODEL_TOLERANCE:
        raise Refused("model-unsound")


def allowed_change(rounds: int, per_round: float, factor: float, first_length: float) -> float:
    """Return how far so many rounds may lead from an earlier model.

    In proportion to the rounds up to a share of the first model's own length, because small steps may all lead the same
    way; beyond it with the square root of the rounds, because training that has come so far turns and slows down.
    """
    straight, free = factor * per_round * max(1, rounds), FREE_SHARE * first_length
    return max(min(straight, math.sqrt(free * straight)), straight / math.sqrt(max(1, rounds)))


def check_change(
    broadcast: ModelState, before: Tensor, rounds: int, per_round: float, factor: float, first_length: float
) -> None:
    """Refuse a model that is further from an earlier one than the rounds in between can lead."""
    change = float(torch.linalg.vector_norm(broadcast.parameters - before, dtype=torch.float64))
    allowed = allowed_change(rounds, per_round, factor, first_length)
    if change > allowed:
        needed = math.ceil(factor * change / allowed) if allowed > 0 else None
        raise Refused("model-change", change=change, rounds=max(1, rounds), allowed=allowed, needed=needed)


def check_shared(
    algorithm: Any, phase: str, shared: Mapping[str, Any], layout: Layout, reference: Reference | None, factor: float
) -> None:
    """Refuse shared values that the method does not declare, or that are not finite, of another size or too large."""
    declared = algorithm.receives.get(phase, {})
    for name, value in shared.items():
        if name not in declared:
            raise Refused("shared", name=name, phase=phase, algorithm=algorithm.name)
        tensor = torch.as_tensor(value)
        sizes = declared[name].sizes(layout)
        fits = tensor.dim() == len(sizes) and all(
            want is None or want == have for want, have in zip(sizes, tensor.shape, strict=True)
        )
        if not fits or (tensor.is_floating_point() and not bool(torch.isfinite(tensor).all())):
            raise Refused("shared-unsound", name=name)
        if declared[name].is_update and reference is not None:
            length = float(torch.linalg.vector_norm(tensor, dtype=torch.float64))
            if length > factor * reference.gradient:
                raise Refused("shared-unsound", name=name)


def first_model(model: Model, seed: int) -> ModelState:
    """Return the model that a run begins with."""
    return build_model(model.spec, seed).state()
