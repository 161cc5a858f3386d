"""FedCiR: clients agree on the distribution of the features of each class, which a generator at the server imagines.

The representation of an example is a Gaussian. The server trains a generator of features on the heads that the clients
sent, so it needs nothing that FedAvg does not have, and fits a Gaussian to each class of what it generates. Clients
classify generated features too (informative: L_reg) and pull their Gaussians to their class's (client-invariant:
L_align).

    Li, Lin, Shao, Mao, Zhang. FedCiR: Client-Invariant Representation Learning for Federated Non-IID Features. IEEE
    Transactions on Mobile Computing, 2024. Algorithm 1; local objective eq. 18, L_align eq. 17, generator eq. 15.

    L_k = CE(head(z), y) + λ_reg CE(head(G(ỹ, ε)), ỹ) + λ_align KL(N(μ(x), σ²(x)) ‖ N(μ_g(y), σ_g²(y)))

with z = μ(x) + σ(x)ε, ỹ uniform, and the divergence summed over dimensions.

Differs from the paper in: eq. 17's log σ(y) is read as log σ(x); the regularisers wait until the generator has been
trained (`warmup`), and a training of it that makes things worse is undone; σ_g has a floor; λ_align suits small models
(the paper's 1e-6 to 5e-7 is for 512 features). The paper leaves the generator's optimizer, sizes and number of draws
open: Adam here, with the sizes of FedGen, its template. p(k) follows `weighting`.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from farfield.algorithms.fedavg import FedAvg
from farfield.algorithms.fedcir_generator import Generator, consensus_loss
from farfield.algorithms.parameters import choices, fixed, log_range, parameter
from farfield.algorithms.registry import register
from farfield.algorithms.state import State
from farfield.algorithms.supports import No, Supports
from farfield.federation.client import Batch, Client
from farfield.federation.federation import Federation
from farfield.federation.local_training import Local
from farfield.federation.phase import SCALAR, Free, Named, Sends, adds_to
from farfield.math import class_gaussians, gaussian_kl
from farfield.math.stacks import own_rows
from farfield.models import Layout, Model, ModelState, head_logits, task_loss

#: Rows on which a client measures its divergence, for the records.
MEASURED_ROWS = 128


@register
class FedCiR(FedAvg):
    """Informative and client-invariant features, by a generator that the server trains on the clients' heads."""

    name: ClassVar[str] = "fedcir"
    family: ClassVar[str] = "invariance"
    paper: ClassVar[str] = "Li et al., FedCiR: Client-Invariant Representation Learning, IEEE TMC 2024"
    differences: ClassVar[tuple[str, ...]] = (
        "log σ(y) in eq. 17 is read as log σ(x), and the divergence is summed over dimensions",
        "the regularisers wait until the generator has been trained; the paper's box uses it untrained: warmup=0",
        "a training that makes the generator worse than guessing is undone; the classes' σ_g have a floor",
        "the generator's optimizer, sizes and draws, which the paper leaves open: Adam, and FedGen's sizes",
        "λ_align suits small models; the paper's, for 512 features, is 5e-7 to 1e-6",
    )
    receives: ClassVar[Mapping[str, Mapping[str, Sends]]] = {
        "train": {
            "generator": Sends(Free("generator"), "parameters of the generator"),
            "generator_statistics": Sends((Free("statistics"), Free("generator")), "of its normalisation"),
            "class_mu": Sends(("classes", "features"), "means of the classes' Gaussians"),
            "class_sigma": Sends(("classes", "features"), "their standard deviations"),
        }
    }
    supports: ClassVar[Supports] = Supports(
        regression=No("imagines the features of each class, and a regression task has no classes"),
        record_privacy=No("trains on distances to Gaussians of whole classes, in which one row has no bounded part"),
        client_privacy=No("sends the heads and the classes of single clients, from which the server imagines features"),
        secure_sums=No("trains its generator on each client's head, and a sum has none of them"),
    )
    representation: ClassVar[Literal["plain", "gaussian"]] = "gaussian"
    stackable: ClassVar[bool] = True
    penalty_weight: ClassVar[str | tuple[str, ...] | None] = ("lambda_reg", "lambda_align")
    fedavg_when: ClassVar[Mapping[str, Any] | None] = {"lambda_reg": 0.0, "lambda_align": 0.0}

    class Params(FedAvg.Params):
        lambda_reg: float = parameter(
            0.5, "λ_reg, weight of classifying generated features", log_range(1e-2, 10.0), ge=0
        )
        lambda_align: float = parameter(
            1e-3, "λ_align, weight of the divergence to the class's Gaussian", log_range(1e-7, 1e-1), ge=0
        )
        warmup: int = parameter(
            1, "rounds of generator training before the regularisers count", choices(0, 1, 3, 5), ge=0
        )
        generator_steps: int = parameter(5, "E_g, steps of the generator in a round", choices(1, 5, 20), ge=1)
        generator_lr: float = parameter(1e-2, "γ_g, step size of the generator's Adam", log_range(1e-4, 1e-1), gt=0)
        generator_decay: float = parameter(
            1e-2, "coupled L2 weight of the generator's Adam", log_range(1e-4, 1e-1), ge=0
        )
        generator_batch: int = parameter(
            32, "B, generated features in a step of the generator", choices(16, 32, 64), ge=2
        )
        generator_hidden: int = parameter(128, "width of the generator's hidden layer", choices(64, 128, 256), ge=1)
        generator_noise: int = parameter(32, "dimensions of ε", choices(16, 32, 64), ge=1)
        generator_draws: int = parameter(
            64, "generated features per class that its Gaussian is fitted to", fixed(), ge=2
        )
        sigma_floor: float = parameter(
            0.5, "least standard deviation of a class's Gaussian", log_range(1e-2, 2.0), gt=0
        )
        weighting: Literal["samples", "uniform"] = parameter("uniform", "weight of a client, and p(k)")

        def idle(self) -> dict[str, str]:
            idle = super().idle()
            if not self.lambda_align:
                idle["sigma_floor"] = "lambda_align is 0"
            if not (self.lambda_reg or self.lambda_align):
                own = FedCiR.Params.model_fields.keys() - FedAvg.Params.model_fields.keys()
                idle |= dict.fromkeys(own - {"lambda_reg", "lambda_align"}, "lambda_reg and lambda_align are 0")
            return idle

    params: Params

    def initial(self, model: ModelState) -> Mapping[str, Tensor]:
        # Empty until the first round, which knows the model's layout and has the server's random numbers.
        return {"generator": torch.zeros(0)}

    def round(self, fed: Federation, state: State) -> State:
        if not (self.params.lambda_reg or self.params.lambda_align):
            return super().round(fed, state)
        kept = state.extras if len(state.generator) else self._untrained(fed)
        replies = fed.map(self.train, state.model, **self._shared(kept))  # lines 5-7
        heads = state.model.parameters[fed.layout.head] + self.updates(replies)[:, fed.layout.head]
        weights = replies.weights(self.params.weighting)
        kept, diagnostics, notes = self._fit(fed, kept, heads, weights)  # lines 8-11
        if replies.has("divergence"):
            diagnostics["divergence"] = float(replies.stack("divergence").double() @ weights)
        return state.step(self.aggregate(replies), diagnostics, notes, **kept)  # line 12

    # The server's generator.

    def _generator(self, layout: Layout) -> Generator:
        p = self.params
        return Generator(max(layout.outputs, 2), p.generator_noise, p.generator_hidden, layout.features)

    def _untrained(self, fed: Federation) -> Mapping[str, Tensor]:
        made = self._generator(fed.layout)
        parameters = made.initial(fed.generator("generator"), torch.get_default_dtype())
        measured = self._fitted(made, parameters, *self._draws(fed, made, parameters.dtype))
        return {"generator": parameters, "generator_rounds": torch.zeros((), dtype=torch.int64), **measured}

    def _draws(self, fed: Federation, made: Generator, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        labels = torch.arange(made.classes).repeat_interleave(self.params.generator_draws)
        return made.draw(labels, dtype, fed.generator("draws")), labels

    def _fitted(self, made: Generator, parameters: Tensor, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """What is measured on draws: the normalisation's statistics and the classes' Gaussians (line 11)."""
        mu, sigma = class_gaussians(made(parameters, inputs), labels, made.classes, self.params.sigma_floor)
        statistics = made.statistics(parameters, inputs)
        return {"generator_statistics": statistics, "class_mu": mu, "class_sigma": sigma}

    def _fit(
        self, fed: Federation, kept: Mapping[str, Tensor], heads: Tensor, weights: Tensor
    ) -> tuple[Mapping[str, Tensor], dict[str, float], tuple[str, ...]]:
        """E_g steps on eq. (15) and new Gaussians; what was kept before, if the training failed.

        In float64: Adam turns the smallest gradient into a full step, so rounding must not decide its sign.
        """
        p, made = self.params, self._generator(fed.layout)

        def judge(features: Tensor, labels: Tensor) -> Tensor:
            return consensus_loss(head_logits(fed.layout, heads.double(), features), labels, weights)

        old = kept["generator"].double()
        parameters, slots = made.trained(
            old,
            {name: kept[f"generator_{name}"] for name in ("m", "v", "count") if f"generator_{name}" in kept},
            judge,
            fed.generator("generator training"),
            steps=p.generator_steps,
            batch=p.generator_batch,
            lr=p.generator_lr,
            decay=p.generator_decay,
        )
        inputs, labels = self._draws(fed, made, torch.float64)
        before, after = (float(judge(made(each, inputs), labels)) for each in (old, parameters))
        new = {"generator": parameters, **{f"generator_{name}": slot for name, slot in slots.items()}}
        new |= self._fitted(made, parameters, inputs, labels)
        new = {name: t.to(heads.dtype) if t.is_floating_point() else t for name, t in new.items()}
        finite = all(bool(torch.isfinite(t).all()) for t in new.values())
        if finite and after <= max(before, log(made.classes)):
            return {**kept, **new, "generator_rounds": kept["generator_rounds"] + 1}, {"generator_loss": after}, ()
        note = f"the training of the generator failed (loss {before:.3g} before, {after:.3g} after) and was undone"
        return kept, {"generator_loss": before}, (note,)

    def _shared(self, kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the clients need: nothing before the generator has been trained, then what has a weight."""
        if int(kept["generator_rounds"]) < self.params.warmup:
            return {}
        reg = ("generator", "generator_statistics") if self.params.lambda_reg else ()
        align = ("class_mu", "class_sigma") if self.params.lambda_align else ()
        return {name: kept[name] for name in (*reg, *align)}

    # The client.

    @adds_to(
        "train",
        divergence=Sends(SCALAR, f"mean L_align on {MEASURED_ROWS} training rows after training", optional=True),
    )
    def after_training(self, client: Client, model: Model, local: Local) -> Named:
        if "class_mu" not in local.shared:
            return {}
        model.eval()
        x, y = next(client.sweep(client.training, MEASURED_ROWS))
        with torch.no_grad():
            return {"divergence": float(_align(*model.represent(x), y, local.shared))}

    def loss(self, model: Model, batch: Batch, **shared: Any) -> Tensor:
        """Eq. (18) with one sample of z per example."""
        mu, sigma = model.represent(batch.x)
        weights = shared.get("class_weights")  # generated labels are balanced by themselves
        loss = task_loss(model.head(model.draw(mu, sigma)), batch.y, class_weights=weights)
        if "generator" in shared:
            made = self._generator(model.layout)
            labels = model.integers(made.classes, batch.y)
            noise = model.normal(mu.new_empty(*labels.shape, made.noise))
            features = made(shared["generator"], made.inputs(labels, noise), shared["generator_statistics"])
            loss = loss + self.params.lambda_reg * task_loss(model.head(features), labels)
        if "class_mu" in shared:
            loss = loss + self.params.lambda_align * _align(mu, sigma, batch.y, shared)
        return loss


def _align(mu: Tensor, sigma: Tensor, y: Tensor, shared: Mapping[str, Tensor]) -> Tensor:
    """L_align, eq. (17): the mean divergence of the examples' Gaussians from their class's."""
    references = (own_rows(shared[name], y) for name in ("class_mu", "class_sigma"))
    return gaussian_kl(mu, sigma, *references).mean(-1)


@register
class FedCiRReg(FedCiR):
    """FedCiR with L_reg alone: the paper's FedReg."""

    name: ClassVar[str] = "fedcir-reg"
    penalty_weight: ClassVar[str | tuple[str, ...] | None] = "lambda_reg"
    fedavg_when: ClassVar[Mapping[str, Any] | None] = {"lambda_reg": 0.0}

    class Params(FedCiR.Params):
        lambda_align: ClassVar[float] = 0.0  # type: ignore[misc]


@register
class FedCiRAlign(FedCiR):
    """FedCiR with L_align alone: the paper's FedAlign."""

    name: ClassVar[str] = "fedcir-align"
    penalty_weight: ClassVar[str | tuple[str, ...] | None] = "lambda_align"
    fedavg_when: ClassVar[Mapping[str, Any] | None] = {"lambda_align": 0.0}

    class Params(FedCiR.Params):
        lambda_reg: ClassVar[float] = 0.0  # type: ignore[misc]
