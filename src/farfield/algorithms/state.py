"""What a server holds between rounds, and how an aggregated direction becomes a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from torch import Tensor

from farfield.math import adam_step, sgd_step, yogi_step
from farfield.models import ModelState

if TYPE_CHECKING:
    from farfield.algorithms.fedavg import FedAvg


@dataclass(frozen=True)
class Aggregate:
    """What came out of a cohort: a descent direction for the parameters, and the buffers' new values if they travel.

    The two are kept apart, so that no rule or optimizer made for parameters can touch a running statistic.
    """

    direction: Tensor
    buffers: Tensor | None = None
    diagnostics: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class State:
    """The global model, the server optimizer's slots, and what the method itself keeps (`extras`).

    `state.target` reads the extra named 'target'; `state.step(aggregate, target=new)` gives the next state with a new
    one. A state is never changed in place.
    """

    model: ModelState
    params: FedAvg.Params
    slots: Mapping[str, Tensor] = field(default_factory=dict)
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    diagnostics: Mapping[str, float] = field(default_factory=dict)
    #: What was done otherwise than usual in the last round, such as a safe fallback; recorded as events.
    notes: tuple[str, ...] = ()
    round: int = 0

    def __getattr__(self, name: str) -> Tensor:
        extras: Mapping[str, Tensor] = self.__dict__.get("extras", {})
        if name in extras:
            return extras[name]
        raise AttributeError(f"the state has no '{name}'; it keeps {sorted(extras) or 'no extras'}")

    def step(
        self,
        aggregate: Aggregate,
        diagnostics: Mapping[str, float] | None = None,
        notes: Sequence[str] = (),
        **extras: Tensor,
    ) -> State:
        """The next state: the direction goes through the server optimizer, the buffers are taken as they are."""
        parameters, slots = server_step(self.params, self.model.parameters, aggregate.direction, self.slots)
        buffers = self.model.buffers if aggregate.buffers is None else aggregate.buffers
        return replace(
            self,
            model=ModelState(parameters, buffers),
            slots=slots,
            extras={**self.extras, **extras},
            diagnostics={**aggregate.diagnostics, **(diagnostics or {})},
            notes=(*aggregate.notes, *notes),
            round=self.round + 1,
        )

    def replace_model(
        self,
        model: ModelState,
        diagnostics: Mapping[str, float] | None = None,
        notes: Sequence[str] = (),
        **extras: Tensor,
    ) -> State:
        """The next state with this model as it is: for a round that computes the model itself, not a direction."""
        kept = self.keep(diagnostics, **extras)
        return replace(kept, model=model, notes=tuple(notes))

    def keep(self, diagnostics: Mapping[str, float] | None = None, **extras: Tensor) -> State:
        """The next state with the same model: for a round that changes only what the method keeps."""
        return replace(
            self, extras={**self.extras, **extras}, diagnostics=dict(diagnostics or {}), notes=(), round=self.round + 1
        )


def server_step(
    params: FedAvg.Params, parameters: Tensor, direction: Tensor, slots: Mapping[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """One step of the server optimizer that `params` names."""
    if params.server_optimizer == "sgd":
        return sgd_step(
            parameters,
            direction,
            dict(slots),
            lr=params.server_lr,
            momentum=params.server_momentum,
            weight_decay=params.server_weight_decay,
        )
    adaptive = {
        "lr": params.server_lr,
        "beta1": params.server_momentum,
        "beta2": params.server_beta2,
        "epsilon": params.server_epsilon,
        "weight_decay": params.server_weight_decay,
    }
    if params.server_optimizer == "yogi":
        return yogi_step(parameters, direction, dict(slots), **adaptive)
    return adam_step(parameters, direction, dict(slots), bias_correction=params.server_bias_correction, **adaptive)
