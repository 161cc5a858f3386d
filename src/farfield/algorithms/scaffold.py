"""SCAFFOLD: control variates correct the drift of local training.

    Karimireddy, Kale, Mohri, Reddi, Stich, Suresh. SCAFFOLD: Stochastic Controlled Averaging for Federated Learning.
    ICML 2020. Algorithm 1, option II.

Each client keeps c_i, the server c. A local step is y ← y − η_l (g(y) − c_i + c); afterwards
c_i⁺ = c_i − c + (x − y)/(K η_l), with K the number of local *steps*, and c ← c + (1/N) Σ_S (c_i⁺ − c_i).

Differs from the paper in: c and all c_i start at zero (the paper allows it); K is what the client did, so clients may
differ in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from farfield.algorithms.fedavg import FedAvg, Local
from farfield.algorithms.registry import register
from farfield.algorithms.state import State
from farfield.federation.client import Client
from farfield.federation.federation import Federation
from farfield.federation.phase import SCALAR, Named, Sends, phase
from farfield.math import control_update, server_control_update
from farfield.models import Model, ModelState


@register
class Scaffold(FedAvg):
    """FedAvg with control variates that cancel client drift."""

    name: ClassVar[str] = "scaffold"
    family: ClassVar[str] = "heterogeneity"
    paper: ClassVar[str] = "Karimireddy et al., SCAFFOLD, ICML 2020 (option II)"
    differences: ClassVar[tuple[str, ...]] = ("control variates start at zero", "K is the client's own step count")
    fedavg_with_one_client: ClassVar[bool] = True

    class Params(FedAvg.Params):
        weighting: Literal["samples", "uniform"] = Field("uniform", description="weight of a client in the mean")

        @model_validator(mode="after")
        def _plain_sgd(self) -> Any:
            if self.momentum or self.optimizer != "sgd":
                raise ValueError(
                    "scaffold's control variate is the mean gradient of plain local SGD; "
                    "set momentum=0 and optimizer=sgd"
                )
            return self

    def initial(self, model: ModelState) -> Mapping[str, Tensor]:
        return {"control": torch.zeros_like(model.parameters)}

    def round(self, fed: Federation, state: State) -> State:
        replies = fed.map(self.train, state.model, control=state.control)
        control = server_control_update(state.control, replies.stack("control_change"), fed.clients)
        return state.step(self.aggregate(replies), control=control)

    @phase(
        update=Sends("parameters", "local parameters minus the broadcast ones"),
        control_change=Sends("parameters", "change of the client's control variate", server_sees="sum"),
        loss=Sends(SCALAR, "mean training loss over the local steps"),
        buffers=Sends("buffers", "running statistics, where the norm policy averages them", optional=True),
    )
    def train(self, client: Client, model: Model, **shared: Any) -> Named:
        start = model.vector.clone()
        before = _own_control(client, start)
        reply = super().train(client, model, **shared)
        after = control_update(before, shared["control"], start, model.vector, client.steps, self.params.lr)
        client.state["control"] = after
        return {**reply, "control_change": after - before}

    def penalty(self, local: Local) -> Tensor:
        return torch.dot(local.shared["control"] - _own_control(local.client, local.start), local.parameters)

    def adjust(self, gradient: Tensor, local: Local) -> None:
        gradient.add_(local.shared["control"]).sub_(_own_control(local.client, local.start))


def _own_control(client: Client, like: Tensor) -> Tensor:
    return client.state.get("control", torch.zeros_like(like))
