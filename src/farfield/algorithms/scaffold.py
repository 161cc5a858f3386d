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
from torch import Tensor

from farfield.algorithms.fedavg import FedAvg
from farfield.algorithms.parameters import fixed, parameter
from farfield.algorithms.registry import register
from farfield.algorithms.state import State
from farfield.algorithms.supports import No, Supports
from farfield.federation.client import Client
from farfield.federation.federation import Federation
from farfield.federation.local_training import Local
from farfield.federation.phase import Named, Sends, adds_to
from farfield.math import control_update, server_control_update
from farfield.models import Model, ModelState


@register
class Scaffold(FedAvg):
    """FedAvg with control variates that cancel client drift."""

    name: ClassVar[str] = "scaffold"
    family: ClassVar[str] = "heterogeneity"
    paper: ClassVar[str] = "Karimireddy et al., SCAFFOLD, ICML 2020 (option II)"
    differences: ClassVar[tuple[str, ...]] = ("control variates start at zero", "K is the client's own step count")
    receives: ClassVar[Mapping[str, Mapping[str, Sends]]] = {
        "train": {"control": Sends("parameters", "c, the server's control variate", is_update=True)}
    }
    supports: ClassVar[Supports] = Supports(
        momentum=No("keeps the mean gradient of plain local SGD as its control variate, and momentum changes it"),
        adam=No("keeps the mean gradient of plain local SGD as its control variate, and Adam changes it"),
        clip=No("sends exact changes of its control variates, which clip would cut"),
        record_privacy=True,  # control variates are made from updates, whose gradients have noise
        client_privacy=No("keeps control variates whose exact changes must be sent, without noise"),
    )
    stackable: ClassVar[bool] = True
    fedavg_with_one_client: ClassVar[bool] = True

    class Params(FedAvg.Params):
        weighting: Literal["samples", "uniform"] = parameter("uniform", "weight of a client in the mean")

        momentum: float = parameter(0.0, "0: control variates are for plain SGD", fixed(), ge=0, lt=1)
        optimizer: Literal["sgd", "adam"] = parameter("sgd", "sgd: control variates are for plain SGD", fixed())

    params: Params

    def initial(self, model: ModelState) -> Mapping[str, Tensor]:
        return {"control": torch.zeros_like(model.parameters)}

    def round(self, fed: Federation, state: State) -> State:
        replies = fed.map(self.train, state.model, control=state.control)
        control = server_control_update(state.control, replies.sum("control_change"), len(replies), fed.clients)
        return state.step(self.aggregate(replies), control=control)

    def before_training(self, client: Client, model: Model, **shared: Any) -> Mapping[str, Tensor]:
        return {"own_control": client.state.get("control", torch.zeros_like(model.vector))}

    def penalty(self, local: Local) -> Tensor:
        value: Tensor = ((local.control - local.own_control) * local.parameters).sum(-1)
        return value

    def adjust(self, gradient: Tensor, local: Local) -> None:
        gradient.add_(local.control).sub_(local.own_control)

    @adds_to(
        "train",
        control_change=Sends(
            "parameters", "change of the client's control variate", server_sees="sum", bounded=2, privacy="noise"
        ),
    )
    def after_training(self, client: Client, model: Model, local: Local) -> Named:
        before = local.own_control
        after = control_update(before, local.control, local.start, model.vector, client.steps, self.params.lr)
        client.state["control"] = after
        return {"control_change": after - before}
