"""FedSGD: one full-batch gradient per client and round, one server step.

    McMahan et al., AISTATS 2017, section 2; FedILC's baseline with server Adam (Zhu et al. 2022).

The update of a client is −η_l ∇R_c over all its rows, so with the plain server optimizer this equals FedAvg with one
full-batch local step. FedILC's setting is lr=1, server_optimizer=adam, server_bias_correction=true, server_beta2=0.999,
server_epsilon=1e-8, and its rate as server_lr.

Differs from the paper in: nothing known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from farfield.algorithms.fedavg import FedAvg
from farfield.algorithms.full_gradients import full_gradients
from farfield.algorithms.registry import register
from farfield.algorithms.state import State
from farfield.algorithms.supports import Supports
from farfield.federation.client import Batch, Client
from farfield.federation.federation import Federation, Replies
from farfield.federation.local_training import load_own_buffers, share_buffers
from farfield.federation.phase import SCALAR, Named, Passes, Sends, phase, stacked_form
from farfield.models import Model, Stack
from farfield.privacy.record_level import private_full_gradient


@register
class FedSGD(FedAvg):
    """One full-batch gradient from each client, averaged."""

    name: ClassVar[str] = "fedsgd"
    family: ClassVar[str] = "baseline"
    paper: ClassVar[str] = "McMahan et al., AISTATS 2017, section 2"
    differences: ClassVar[tuple[str, ...]] = ()
    phases: ClassVar[tuple[str, ...]] = ("full_gradient",)
    single_step: ClassVar[bool] = True
    supports: ClassVar[Supports] = Supports(record_privacy=True, client_privacy=True)
    sent_update: ClassVar[str] = "gradient"
    fedavg_when: ClassVar[Mapping[str, Any] | None] = {"batch_size": 0, "local_steps": 1}

    class Params(FedAvg.Params):
        def idle(self) -> dict[str, str]:
            no_steps = ("momentum", "weight_decay", "optimizer")
            return {
                **super().idle(),
                **dict.fromkeys(no_steps, "there is one gradient per round and no local optimizer"),
            }

    params: Params

    def round(self, fed: Federation, state: State) -> State:
        gradients = fed.map(self.full_gradient, state.model)
        return state.step(self.aggregate(gradients))

    @phase(
        gradient=Sends(
            "parameters", "gradient of the mean loss over all training rows", is_update=True, in_sum="weighting"
        ),
        loss=Sends(SCALAR, "mean training loss", in_sum="weighting"),
        buffers=Sends(
            "buffers", "running statistics, where the norm policy averages them", optional=True, in_sum="samples"
        ),
    )
    def full_gradient(self, client: Client, model: Model) -> Named:
        load_own_buffers(client, model)
        rows = client.samples
        if self.params.privacy == "record":
            model.train()
            client.steps, client.examples = client.steps + 1, client.examples + rows
            return {"gradient": private_full_gradient(self, client, model)}
        gradient = torch.zeros_like(model.vector)
        total = 0.0
        model.train()
        # BatchNorm normalises by the batch, so there the full batch must be one.
        weights = self.class_weights(client, model)
        for x, y in client.sweep(client.training, rows if model.layout.buffers else None):
            loss = self.loss(model, Batch(x, y), class_weights=weights) * (len(y) / rows)
            model.backward(loss)
            gradient += model.gradient
            total += float(loss.detach())
        client.steps += 1
        client.examples += rows
        return {"gradient": gradient, "loss": total, **share_buffers(client, model)}

    @stacked_form("full_gradient", rows="training")
    def full_gradient_stack(self, clients: Sequence[Client], model: Stack, read: Passes) -> list[Named] | None:
        if self.params.privacy == "record":
            return None
        weights = [self.class_weights(client, model.as_model) for client in clients]
        return full_gradients(
            clients, model, read, weights, lambda part, batch, own: self.loss(part.as_model, batch, class_weights=own)
        )

    def updates(self, replies: Replies) -> Tensor:
        return replies.stack("gradient").mul_(-self.params.lr)

    def mean_of_sum(self, replies: Replies) -> Tensor:
        return (-self.params.lr * replies.mean("gradient")).to(torch.get_default_dtype())
