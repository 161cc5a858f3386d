"""FedLOE's small problem: how much of each client's head goes into the common one.

For linear heads, mixing heads is mixing predictions: Σ_c φ_c (W_c z + b_c) = (Σ φ_c W_c) z + Σ φ_c b_c. So φ can be
fitted on predictions alone, and has one entry per client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from farfield.math.averaging import ordered_sum
from farfield.math.head_gradients import residuals
from farfield.math.invariance import fish_inner_product, fish_step, vrex_penalty
from farfield.math.newton import Minimum, newton_minimum
from farfield.math.server_step import Slots, adam_step, sgd_step

Penalty = Literal["none", "irm", "rex", "rex-within", "fish"]


@torch.no_grad()
def mix_heads(heads: Tensor, phi: Tensor) -> Tensor:
    """ψ = Σ_c φ_c ψ_c over the rows of a (clients, d) matrix, in float64 and in row order, in the heads' dtype."""
    return ordered_sum(heads, phi).to(heads.dtype)


@dataclass(frozen=True)
class HeadMixture:
    """Eq. 11 of FedLOE as a function of φ: Σ_g p(g) R_g(φ) + λ r(φ) + ρ/2 ‖φ − φ₀‖².

    `predictions` (n, heads, outputs) are of all tuning rows under every head, `targets` (n,) their labels (or values,
    for the squared error), `groups` (n,) which client or domain a row belongs to, `weights` p(g), one per group.
    `centre` is φ₀. The penalties r are, with f = Σ_c φ_c ŷ_c and groups of equal weight:

    - "irm": mean over groups of the squared derivative of R_g(w · f) at w = 1;
    - "rex": variance over groups of R_g; "rex-within": mean over groups of the variance of the losses inside;
    - "fish": minus the mean over pairs of groups of ⟨∇_φ R_g, ∇_φ R_h⟩.
    """

    predictions: Tensor
    targets: Tensor
    groups: Tensor
    weights: Tensor
    centre: Tensor
    penalty: Penalty = "none"
    lam: float = 0.0
    ridge: float = 0.0

    def __post_init__(self) -> None:
        for name in ("predictions", "weights", "centre"):
            object.__setattr__(self, name, getattr(self, name).detach().to(torch.float64))
        if self.targets.is_floating_point():
            object.__setattr__(self, "targets", self.targets.to(torch.float64))
        members = F.one_hot(self.groups, len(self.weights)).T.to(torch.float64)
        #: Averages over the rows of each group, as a matrix.
        object.__setattr__(self, "_mean", members / members.sum(dim=1, keepdim=True))

    @classmethod
    def pooled(
        cls,
        predictions: Sequence[Tensor],
        targets: Sequence[Tensor],
        groups: Sequence[str],
        shares: Tensor,
        centre: Tensor,
        penalty: Penalty = "none",
        lam: float = 0.0,
        ridge: float = 0.0,
    ) -> HeadMixture:
        """The problem on the tuning sets of several clients, each with the name of its group and its share."""
        order = list(dict.fromkeys(groups))
        of_client = torch.tensor([order.index(name) for name in groups])
        weights = torch.zeros(len(order), dtype=torch.float64).index_add_(0, of_client, shares.to(torch.float64))
        of_row = of_client.repeat_interleave(torch.tensor([len(y) for y in targets]))
        return cls(torch.cat([*predictions]), torch.cat([*targets]), of_row, weights, centre, penalty, lam, ridge)

    def group_risks(self, phi: Tensor) -> Tensor:
        return self._of_groups(self._losses(self._mixed(phi)))

    def group_gradients(self, phi: Tensor) -> Tensor:
        """∇_φ R_g, one row per group."""
        errors = self._errors(self._mixed(phi))
        return self._of_groups((errors.unsqueeze(1) * self.predictions).sum(dim=2))

    def risk(self, phi: Tensor) -> Tensor:
        return self.weights @ self.group_risks(phi)

    def penalty_value(self, phi: Tensor) -> Tensor:
        """r(φ), without λ."""
        if self.penalty == "irm":
            mixed = self._mixed(phi)
            return self._of_groups((self._errors(mixed) * mixed).sum(dim=1)).square().mean()
        if self.penalty == "rex":
            return vrex_penalty(self.group_risks(phi))
        if self.penalty == "rex-within":
            losses = self._losses(self._mixed(phi))
            return self._of_groups((losses - self._of_groups(losses)[self.groups]).square()).mean()
        pairs = len(self.weights) * (len(self.weights) - 1) / 2
        if self.penalty == "fish" and pairs:
            return -fish_inner_product(self.group_gradients(phi)) / pairs
        return 0.0 * phi.sum()

    def objective(self, phi: Tensor, lam: float | None = None) -> Tensor:
        lam = self.lam if lam is None else lam
        value = self.risk(phi) + self.ridge / 2 * (phi - self.centre).square().sum()
        return value + lam * self.penalty_value(phi) if lam else value

    def solve(self, anneal: int = 1) -> Minimum:
        """The minimiser φ. Without a penalty the problem is convex and this is its optimum.

        With one it is not: φ = 0 satisfies IRM and V-REx and predicts nothing. Two ways lead to a minimum: straight
        from φ₀, and from the optimum without the penalty while λ grows to its value in `anneal` steps (0 leaves this
        way out). The lower of the two is taken, but one that has not `collapsed` before one that has.
        """
        direct = newton_minimum(self.objective, self.centre)
        if not self.lam or self.penalty == "none" or not anneal:
            return direct
        x = self.centre
        for step in range(anneal + 1):
            lam = self.lam * step / anneal
            annealed = newton_minimum(lambda phi, lam=lam: self.objective(phi, lam), x)  # type: ignore[misc]
            x = annealed.x
        return min(annealed, direct, key=lambda m: (not m.converged, self.collapsed(m.x), m.value))

    def descend(
        self, optimizer: Literal["sgd", "adam"], steps: int, lr: float, weight_decay: float = 0.0, meta_lr: float = 1.0
    ) -> Tensor:
        """φ after a few optimizer steps from φ₀ on all tuning rows: how FedLOE was published.

        Each step follows the gradient of Σ_g p(g) R_g + λ r. There is no ridge: few steps and the decay towards zero
        (coupled, as in `torch.optim`) keep φ small. With "fish", each of the `steps` is one of Fish's own: an optimizer
        step on every group's risk in turn, of which φ goes the share `meta_lr`; λ has no part in it.
        """
        slots: Slots = {}

        def step(phi: Tensor, gradient: Tensor) -> Tensor:
            nonlocal slots
            if optimizer == "sgd":
                phi, slots = sgd_step(phi, -gradient, slots, lr, weight_decay=weight_decay)
            else:
                phi, slots = adam_step(phi, -gradient, slots, lr, 0.9, 0.999, 1e-8, True, weight_decay)
            return phi

        def of_group(group: int) -> Callable[[Tensor], Tensor]:
            return lambda phi: self.group_gradients(phi)[group]

        phi, groups = self.centre, [of_group(group) for group in range(len(self.weights))]
        for _ in range(steps):
            if self.penalty == "fish":
                phi = fish_step(phi, groups, step, meta_lr)
            else:
                phi = step(phi, self._gradient(phi))
        return phi

    @cached_property
    def reference(self) -> Tensor:
        """The φ without a penalty that others are measured by, and that is taken where they are refused.

        It is φ₀, unless φ₀ does worse than predicting nothing (heads that are sure and wrong): then it is the φ of the
        least risk, if that one does better than φ₀.
        """
        if bool(self.risk(self.centre) <= self._nothing):
            return self.centre
        # Convex without the penalty. From φ = 0, because at φ₀ logits can be so large that no curvature is left.
        least = newton_minimum(lambda phi: self.objective(phi, lam=0.0), torch.zeros_like(self.centre))
        return least.x if least.converged and bool(self.risk(least.x) < self.risk(self.centre)) else self.centre

    def collapsed(self, phi: Tensor) -> bool:
        """Whether φ bought a small penalty with the risk, and the `reference` is to be taken instead.

        φ is refused where it gives up more than half of what the reference gains over predicting nothing (φ = 0). Where
        the reference gains nothing either, φ is refused only if it has more risk than the reference. So a φ with less
        risk than what would be taken for it is never refused, and a φ that does worse than predicting nothing is
        accepted only where the reference does worse still.
        """
        taken = self.risk(self.reference)
        return not bool(self.risk(phi) <= torch.maximum((taken + self._nothing) / 2, taken))

    @property
    def _nothing(self) -> Tensor:
        return self.risk(torch.zeros_like(self.centre))

    def _gradient(self, phi: Tensor) -> Tensor:
        at = phi.detach().clone().requires_grad_()
        value = self.risk(at) + self.lam * self.penalty_value(at) if self.lam else self.risk(at)
        return torch.autograd.grad(value, at)[0]

    def _mixed(self, phi: Tensor) -> Tensor:
        return torch.einsum("nck,c->nk", self.predictions, phi)

    def _losses(self, mixed: Tensor) -> Tensor:
        if self.targets.is_floating_point():
            return (mixed.squeeze(1) - self.targets).square()
        if mixed.shape[1] == 1:
            return F.binary_cross_entropy_with_logits(mixed.squeeze(1), self.targets.to(mixed.dtype), reduction="none")
        return F.cross_entropy(mixed, self.targets, reduction="none")

    def _errors(self, mixed: Tensor) -> Tensor:
        """Derivative of each row's loss by its mixed predictions."""
        if self.targets.is_floating_point():
            return 2.0 * (mixed - self.targets.unsqueeze(1))
        return residuals(mixed, self.targets)

    def _of_groups(self, rows: Tensor) -> Tensor:
        mean: Tensor = self._mean  # type: ignore[attr-defined]
        return mean @ rows
