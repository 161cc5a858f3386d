"""FedLOE: overfit locally, then learn how to put the local experts together.

Each client is an expert on its own domain. Stage 1 is FedAvg with few communications: local models, averaged. Stage 2
freezes the featurizer, lets every client overfit a head of its own, and learns the mixture of the heads on tuning rows
with an objective of centralized domain generalization instead of taking the mean.

    Anonymous. FedLOE: Federated Domain Generalization via Locally Overfit Ensemble. Under review, 2023. Section 4,
    equations 10 to 12; Algorithm 1 and the penalties in appendix C.

Stage 1, rounds 1 … R₁: FedAvg on the rows that are not for tuning. Stage 2, the other rounds:

    ψ_c  = argmin L_c(θ, ψ), by some epochs from the common head, θ frozen                                        (10)
    φ    = argmin Σ_c p(c) E_c[ℓ(Σ_j φ_j ŷ_j, y)] + λ r(φ),  φ ∈ R^C, on all clients' tuning predictions          (11)
    ψ    ← Σ_c φ_c ψ_c                                                                                            (12)

r is nothing here, and IRM, V-REx or Fish in `fedloe_penalised.py`; `math.HeadMixture` has the formulas. Heads are
linear, so that mixing heads is mixing predictions, and (11) has as many unknowns as there are clients: it is solved by
Newton's method, or by the few steps from p of the paper (`phi_solver=sgd`) or its published code (`phi_solver=adam`).

Differs from the paper in: (11) is solved to its optimum by default; there is a ridge on φ − p then, without which
there is no optimum where the tuning rows are separable; few steps are on all tuning rows at once, not on mini-batches;
IRM averages over clients instead of adding up, and Fish over pairs; V-REx is the variance of the clients' risks
(section 2.1), and that of the losses inside a client (appendix C.1) is `variance=within`; groups are clients, the
published code's are domains (`groups=domains`); local steps are FedAvg's, though a tenth of the rows is set aside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, ClassVar, Literal

import torch
from pydantic import model_validator
from torch import Tensor

from farfield.algorithms.fedavg import FedAvg
from farfield.algorithms.parameters import choices, log_range, parameter
from farfield.algorithms.registry import AlgorithmError, register
from farfield.algorithms.state import State
from farfield.algorithms.supports import AtLeast, No, Supports
from farfield.federation.client import Batch, Client
from farfield.federation.federation import Federation, Replies, Reply
from farfield.federation.local_optimizer import LocalOptimizer
from farfield.federation.local_training import load_own_buffers
from farfield.federation.phase import SCALAR, Free, Named, Passes, Sends, phase, stacked_form
from farfield.math import HeadMixture, mix_heads
from farfield.math.head_mixture import Penalty
from farfield.models import Model, ModelState, Stack, task_loss

#: With more clients than this, their weights are recorded as a range only.
SHOWN_WEIGHTS = 20
ROWS = Free("tuning rows")
REVEALS = "predictions and labels of the tuning rows leave the client, and the server sees them one by one"


@dataclass(frozen=True)
class PhiObjective:
    """The penalty in φ's objective, and how φ gets there."""

    penalty: Penalty = "none"
    lam: float = 0.0
    #: Steps in which λ grows, for the exact solver.
    anneal: int = 0
    #: The share of Fish's sequential steps that φ follows.
    meta_lr: float = 1.0


class FedLOE(FedAvg):
    """Both stages; the variants say with which penalty φ is fitted."""

    family: ClassVar[str] = "ensemble"
    paper: ClassVar[str] = "FedLOE: Federated Domain Generalization via Locally Overfit Ensemble, under review, 2023"
    differences: ClassVar[tuple[str, ...]] = (
        "φ's problem is solved to its optimum; the paper's few SGD steps are phi_solver=sgd, the code's Adam "
        "phi_solver=adam",
        "few steps are on all tuning rows at once; the published code takes mini-batches of two domains",
        "a ridge on φ − p beside the optimum: without it there is none where tuning rows are separable",
        "penalties are means over clients (Fish: over pairs), so that λ does not depend on their number",
        "λ of IRM and V-REx is 1; the paper's 100 was for a few SGD steps and is too much for the optimum",
        "a φ that predicts next to nothing, which satisfies IRM and V-REx, is refused: the shares (or, where these do "
        "worse than predicting nothing, the φ of least risk), and an event",
        "groups are clients as in eq. 11; the published code's are domains: groups=domains",
        "local steps are FedAvg's, although the tuning rows are not trained on",
    )
    phases: ClassVar[tuple[str, ...]] = ("train", "train_head", "predict_tuning")
    stackable: ClassVar[bool] = True
    receives: ClassVar[Mapping[str, Mapping[str, Sends]]] = {
        "predict_tuning": {"heads": Sends((Free("clients"), "head"), "every client's head")}
    }
    supports: ClassVar[Supports] = Supports(
        mlp_head=No("cannot work with an mlp head: mixing heads is mixing predictions for linear heads only"),
        class_weights=No("fits its mixture of heads by the loss of all tuning rows alike"),
        record_privacy=No("sends predictions and labels of single tuning rows"),
        client_privacy=No("sends predictions and labels of single tuning rows"),
        rounds=AtLeast(2, "has two stages"),
        secure_sums=No("mixes the clients' heads by single predictions, and a sum has none of them"),
    )
    fedavg_when: ClassVar[Mapping[str, Any] | None] = {"stage2": 0.0, "tuning": 0.0}
    #: Size and decay of φ's steps where nothing is set: table 5 of the paper, and the published configurations.
    published_steps: ClassVar[Mapping[str, tuple[float, float]]] = {"sgd": (0.05, 5e-4), "adam": (0.01, 0.0)}

    class Params(FedAvg.Params):
        tuning: float = parameter(
            0.1, "share of a client's rows set aside for fitting φ", choices(0.1, 0.2), ge=0, lt=1
        )
        stage2: float = parameter(
            0.25, "share of the rounds, the last ones, that are stage 2", choices(0.1, 0.25, 0.5), ge=0, lt=1
        )
        head_epochs: int | None = parameter(
            None, "E₂, head epochs of a round; as in stage 1 by default", choices(1, 5, 20), ge=1
        )
        head_lr: float | None = parameter(None, "step size of the heads; lr by default", log_range(1e-4, 1.0), gt=0)
        head_optimizer: Literal["sgd", "adam"] | None = parameter(None, "of the heads; optimizer by default")
        head_weight_decay: float | None = parameter(
            None, "of the heads; weight_decay by default", log_range(1e-6, 1e-2), ge=0
        )
        groups: Literal["clients", "domains"] = parameter("clients", "what φ's objective compares")
        ridge: float = parameter(0.05, "ρ, weight of ρ/2 ‖φ − p‖² beside the risk", log_range(1e-3, 1.0), ge=0)
        phi_solver: Literal["exact", "sgd", "adam"] = parameter(
            "exact", "φ's optimum, or a few steps from p: the paper's SGD, or the published code's Adam"
        )
        phi_steps: int = parameter(
            10, "steps of phi_solver=sgd or adam, each on all tuning rows", choices(5, 20, 100), ge=1
        )
        phi_lr: float | None = parameter(
            None,
            "their size; by default 0.05 with sgd, 0.01 with adam (0.001 in fedloe-rex)",
            log_range(1e-4, 1.0),
            gt=0,
        )
        phi_weight_decay: float | None = parameter(
            None, "their coupled L2 weight; by default 5e-4 with sgd, 0 with adam", log_range(1e-6, 1e-2), ge=0
        )

        @model_validator(mode="after")
        def _something_to_tune_on(self) -> Any:
            if self.stage2 and not self.tuning:
                raise ValueError("stage 2 fits φ on tuning rows; set tuning over 0, or stage2=0 to go without")
            return self

        def idle(self) -> dict[str, str]:
            if not self.stage2:
                own = set(type(self).model_fields) - set(FedAvg.Params.model_fields) - {"stage2", "tuning"}
                return {**super().idle(), **dict.fromkeys(sorted(own), "stage2 is 0")}
            if self.phi_solver == "exact":
                steps = ("phi_steps", "phi_lr", "phi_weight_decay")
                return {**super().idle(), **dict.fromkeys(steps, "phi_solver is exact, which makes no such steps")}
            return {**super().idle(), "ridge": f"phi_solver is {self.phi_solver}, which has weight decay instead"}

    params: Params

    def limits(self) -> Supports:
        if self.params.stage2:
            return self.supports
        return replace(self.supports, rounds=AtLeast(), class_weights=True)  # FedAvg, then

    def in_second_stage(self, state: State) -> bool:
        if not self.params.stage2:
            return False
        if self.rounds is None:
            raise AlgorithmError(f"{self.name} has stages and must be told the number of rounds: build(…, rounds=30)")
        last: int = max(1, round(self.params.stage2 * self.rounds))
        return state.round >= max(1, self.rounds - last)

    def round(self, fed: Federation, state: State) -> State:
        if not self.in_second_stage(state):
            return super().round(fed, state)
        experts = fed.map(self.train_head, state.model)
        heads, shares = experts.stack("head"), experts.weights(self.params.weighting)
        answers = fed.map(self.predict_tuning, state.model, heads=heads)
        phi, diagnostics, notes = self.fit(answers, shares)
        mixed = mix_heads(heads, phi)
        parameters = state.model.parameters.clone()
        parameters[-len(mixed) :] = mixed  # the head comes last
        diagnostics = {"loss": float(experts.stack("loss").double() @ shares), **diagnostics}
        if len(phi) <= SHOWN_WEIGHTS:
            diagnostics |= {f"phi_{r.client}": float(weight) for r, weight in zip(experts, phi, strict=True)}
        return state.replace_model(ModelState(parameters, state.model.buffers), diagnostics, notes)

    # The client half.

    def batches(self, client: Client, model: Model, epochs: int | None = None) -> Iterator[Batch]:
        """As many steps as FedAvg makes on all rows, on those that are not for tuning."""
        p = self.params
        passes = ceil(client.samples / p.batch_size) if p.batch_size else 1
        client.training, _ = client.carve(p.tuning, "tuning")
        steps = p.local_steps if p.local_steps and not epochs else passes * (epochs or self.epochs(client.round))
        return client.batches(p.batch_size, steps=steps, least=self.least_rows(model))

    def most_work(self, samples: int, round: int) -> tuple[int, int] | None:
        p = self.params
        epochs = max(self.epochs(round), p.head_epochs or 1)
        steps, examples = self.work(samples, epochs)
        by_steps = (0, 0) if p.local_steps is None else self.work(samples, 1, p.local_steps)
        # As many steps as on all rows, each of at most a full batch.
        return max(steps, by_steps[0]), max(2 * examples, by_steps[1])

    def implausible(self, phase: str, values: Named, samples: int, validation: int | None) -> str | None:
        if phase == "predict_tuning":
            rows = {name: len(torch.as_tensor(values[name])) for name in ("predictions", "labels")}
            wanted = max(1, round(self.params.tuning * samples))
            wrong = next((name for name, count in rows.items() if count != wanted), None)
            if wrong is not None:
                return f"'{wrong}' has {rows[wrong]} rows, and {wanted} of its {samples} training rows are for tuning"
        return super().implausible(phase, values, samples, validation)

    @phase(
        head=Sends("head", "the client's own head, trained on its rows with the featurizer frozen", bounded=1),
        loss=Sends(SCALAR, "mean training loss over the head's steps"),
    )
    def train_head(self, client: Client, model: Model) -> Named:
        p = self.params
        load_own_buffers(client, model)
        model.eval()  # frozen: no dropout, no running statistics
        optimizer, head = self._head_optimizer(), model.vector[model.layout.head]
        total = model.vector.new_zeros(())
        for x, y in self.batches(client, model, p.head_epochs):
            with torch.no_grad():
                features = model.features(x)
            loss = task_loss(model.head(features), y)
            optimizer.step(head, model.head_gradient(loss))
            total += loss.detach()
        return {"head": head.clone(), "loss": float(total) / max(client.steps, 1)}

    def _head_optimizer(self) -> LocalOptimizer:
        p = self.params
        decay = p.weight_decay if p.head_weight_decay is None else p.head_weight_decay
        return LocalOptimizer(p.head_optimizer or p.optimizer, p.head_lr or p.lr, p.momentum, decay)

    @stacked_form("train_head", "training")
    def train_heads(self, clients: Sequence[Client], model: Stack, read: Passes) -> list[Named]:
        model.eval()
        optimizer, heads = self._head_optimizer(), model.vector[:, model.layout.head]
        first, second = torch.empty_like(heads), torch.empty_like(heads)
        totals = heads.new_zeros(len(clients))
        drawn = [self.batches(client, model.as_model, self.params.head_epochs) for client in clients]
        for step, where, (x, y) in read.steps(drawn):
            part = model.part(where)
            with torch.no_grad():
                features = part.features(x)
            loss = task_loss(part.head(features), y)
            optimizer.step_with(heads[where], part.head_gradient(loss), first[where], second[where], step)
            totals[where] += loss.detach()
        return [
            {"head": head.clone(), "loss": total / max(client.steps, 1)}
            for head, total, client in zip(heads, totals.tolist(), clients, strict=True)
        ]

    @phase(
        predictions=Sends((ROWS, Free("clients"), "outputs"), "logits under every client's head", warning=REVEALS),
        labels=Sends((ROWS,), "labels of the tuning rows", integers=None, warning=REVEALS),
    )
    @torch.no_grad()
    def predict_tuning(self, client: Client, model: Model, heads: Tensor) -> Named:
        load_own_buffers(client, model)
        model.eval()
        _, tuning = client.carve(self.params.tuning, "tuning")
        batches = list(client.sweep(tuning))
        features = torch.cat([model.features(x) for x, _ in batches])
        under = []
        for head in heads:
            model.vector[model.layout.head] = head
            under.append(model.head(features))
        return {"predictions": torch.stack(under, dim=1), "labels": torch.cat([y for _, y in batches])}

    @stacked_form("predict_tuning", "training")
    @torch.no_grad()
    def predict_all_tuning(
        self, clients: Sequence[Client], model: Stack, read: Passes, heads: Tensor
    ) -> list[dict[str, Tensor]]:
        model.eval()
        rows = [client.carve(self.params.tuning, "tuning")[1] for client in clients]
        groups: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}
        for where, (x, y) in read(rows):
            groups.setdefault((where.start, where.stop), []).append((model.part(where).features(x), y))
        replies = []
        for (first, last), passes in groups.items():
            part, features = model.part(slice(first, last)), torch.cat([own for own, _ in passes], dim=1)
            under = []
            for head in heads[first:last].unbind(1):
                part.vector[:, model.layout.head] = head
                under.append(part.head(features))
            labels = torch.cat([truth for _, truth in passes], dim=1)
            pairs = zip(torch.stack(under, dim=2), labels, strict=True)
            replies += [{"predictions": own, "labels": truth} for own, truth in pairs]
        return replies

    # The server half of stage 2.

    def fit(self, answers: Replies, shares: Tensor) -> tuple[Tensor, dict[str, float], list[str]]:
        """φ, what is recorded of it, and notes; where no φ can be used, the problem's reference is taken."""
        sound = Replies(tuple(r for r in answers if _fits(r, len(shares))))
        notes = [f"client {r.client}'s predictions do not fit the heads" for r in answers if r not in sound.replies]
        if not sound:
            return shares, {}, [*notes, "there are no tuning predictions; the heads' shares were taken for φ"]
        problem = self.problem(sound, shares)
        phi, doubt = self.solve(problem)
        if doubt:
            phi = problem.reference
            taken = "the heads' shares were" if phi is problem.centre else "the φ of least risk was"
            notes.append(f"{doubt}; {taken} taken for φ")
        values = {"penalty": problem.penalty_value(phi), "tuning_loss": problem.risk(phi)}
        values |= {"tuning_loss_before": problem.risk(shares), "phi_min": phi.min(), "phi_max": phi.max()}
        return phi, {name: float(value) for name, value in values.items()}, notes

    def problem(self, answers: Replies, shares: Tensor) -> HeadMixture:
        p = self.params
        return HeadMixture.pooled(
            [torch.as_tensor(r.values["predictions"]) for r in answers],
            [torch.as_tensor(r.values["labels"]) for r in answers],
            [r.domain if p.groups == "domains" else str(r.client) for r in answers],
            answers.weights(p.weighting),
            centre=shares,
            penalty=self.objective.penalty,
            lam=self.objective.lam,
            ridge=p.ridge,
        )

    @property
    def objective(self) -> PhiObjective:
        """Return the penalty in φ's objective and its settings."""
        return PhiObjective()

    def solve(self, problem: HeadMixture) -> tuple[Tensor, str]:
        """φ, and why it cannot be used, if so."""
        p = self.params
        if p.phi_solver == "exact":
            found = problem.solve(self.objective.anneal)
            if not found.converged:
                return found.x, f"no minimum in φ was found (gradient {found.gradient_norm:.1e})"
            return found.x, "the φ found predicts next to nothing" if problem.collapsed(found.x) else ""
        lr, decay = self.published_steps[p.phi_solver]
        lr = lr if p.phi_lr is None else p.phi_lr
        decay = decay if p.phi_weight_decay is None else p.phi_weight_decay
        phi = problem.descend(p.phi_solver, p.phi_steps, lr, decay, self.objective.meta_lr)
        return phi, "φ's steps led away from the clients' labels" if problem.collapsed(phi) else ""


def _fits(reply: Reply, heads: int) -> bool:
    """Whether an answer is about these heads, with a label from the classes for each of its rows."""
    predictions, labels = torch.as_tensor(reply.values["predictions"]), torch.as_tensor(reply.values["labels"])
    known = labels.is_floating_point() or bool(((labels >= 0) & (labels < max(2, predictions.shape[2]))).all())
    return 0 < len(labels) == len(predictions) and predictions.shape[1] == heads and known


@register
class FedLOEERM(FedLOE):
    """Locally overfit heads, mixed for the least risk on the clients' tuning rows."""

    name: ClassVar[str] = "fedloe-erm"
