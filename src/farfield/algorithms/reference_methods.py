"""The two ends of the table: all data in one place, and each client alone on its own data.

ERM pools the training rows of all clients and trains on them: what could be had if data might move. Local-only trains
each client on its own and shares nothing: what a client has without a federation. Neither is a federated method.

    Vapnik. The Nature of Statistical Learning Theory. 1995.

Local steps: a round of ERM passes over the pooled rows as often as a client passes over its own, so that ERM takes
about as many steps in a round as all clients together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from farfield.algorithms.fedavg import FedAvg
from farfield.algorithms.registry import register
from farfield.algorithms.state import State
from farfield.algorithms.supports import No, Supports
from farfield.federation.client import Client
from farfield.federation.federation import Federation
from farfield.federation.local_training import Local, train_client
from farfield.federation.phase import SCALAR, Named, Passes, Sends, local_training, stacked_form
from farfield.models import Model, ModelState, Stack


@register
class ERM(FedAvg):
    """Centralized training on the pooled rows: an upper reference, not federated."""

    name: ClassVar[str] = "erm"
    family: ClassVar[str] = "reference"
    paper: ClassVar[str] = "Vapnik 1995"
    differences: ClassVar[tuple[str, ...]] = ("the raw data leaves every client: a reference, not a federated method",)
    not_composable: ClassVar[str] = "pools the data, so there are no clients' updates for a server rule"
    pooled: ClassVar[bool] = True
    stackable: ClassVar[bool] = True
    supports: ClassVar[Supports] = Supports(
        record_privacy=True,
        client_privacy=No("has one client with the rows of all, so there is no client to hide"),
        secure_sums=No("pools the rows in one place, so there is no sum"),
    )

    class Params(FedAvg.Params):
        def idle(self) -> dict[str, str]:
            return {**super().idle(), "weighting": "there is one client with the rows of all"}

    params: Params


@register
class LocalOnly(FedAvg):
    """Each client alone: results are the mean over the clients' own models."""

    name: ClassVar[str] = "local-only"
    family: ClassVar[str] = "reference"
    paper: ClassVar[str] = ""
    differences: ClassVar[tuple[str, ...]] = ("models are sent for evaluation only and are never averaged",)
    not_composable: ClassVar[str] = "never aggregates, so there is nothing for a server rule to do"
    fedavg_with_one_client: ClassVar[bool] = True
    supports: ClassVar[Supports] = Supports(
        record_privacy=No("sends whole models of single clients for evaluation, and is no federation to protect"),
        client_privacy=No("sends whole models of single clients for evaluation, and is no federation to protect"),
        secure_sums=No("keeps one model per client, so there is no sum"),
    )
    one_model: ClassVar[bool] = False
    stackable: ClassVar[bool] = True

    class Params(FedAvg.Params):
        def idle(self) -> dict[str, str]:
            server = {name for name in FedAvg.Params.model_fields if name.startswith("server_")}
            why = "there is no server step, and models are sent for evaluation only"
            return {**super().idle(), **dict.fromkeys((*server, "weighting", "clip"), why)}

    params: Params

    def round(self, fed: Federation, state: State) -> State:
        replies = fed.map(self.train, state.model)
        own = {f"model-{r.client}": r.values["parameters"] for r in replies}
        own |= {f"buffers-{r.client}": r.values["buffers"] for r in replies if "buffers" in r.values}
        losses = replies.stack("loss").double()
        return state.keep({"loss": float(losses.mean())}, **own)

    @local_training(
        parameters=Sends("parameters", "the client's own model, for evaluation only"),
        loss=Sends(SCALAR, "mean training loss over the local steps"),
        buffers=Sends("buffers", "the client's own running statistics", optional=True),
    )
    def train(self, client: Client, model: Model, **shared: Any) -> Named:
        return train_client(self, client, model, shared)

    def before_training(self, client: Client, model: Model, **shared: Any) -> Mapping[str, Tensor]:
        _load_own_model(client, model)
        return {}

    def after_training(self, client: Client, model: Model, local: Local) -> Named:
        client.state["parameters"] = own = model.vector.clone()
        if not model.layout.buffers:
            return {"parameters": own}
        client.state["buffers"] = buffers = model.buffer_vector.clone()
        return {"parameters": own, "buffers": buffers}

    def evaluate(self, client: Client, model: Model) -> Named:
        _load_own_model(client, model)
        return super().evaluate(client, model)

    @stacked_form("evaluate", rows="validation")
    def evaluate_stack(self, clients: Sequence[Client], model: Stack, read: Passes) -> list[Named] | None:
        for vector, client in zip(model.vector, clients, strict=True):
            if "parameters" in client.state:
                vector.copy_(client.state["parameters"])
        return super().evaluate_stack(clients, model, read)

    def models(self, state: State) -> list[ModelState]:
        clients = sorted(int(name.removeprefix("model-")) for name in state.extras if name.startswith("model-"))
        own = [
            ModelState(state.extras[f"model-{c}"], state.extras.get(f"buffers-{c}", state.model.buffers))
            for c in clients
        ]
        return own or [state.model]


def _load_own_model(client: Client, model: Model) -> None:
    if "parameters" in client.state:
        own = client.state.get("buffers", model.buffer_vector)
        model.load(ModelState(client.state["parameters"], own.clone()))
