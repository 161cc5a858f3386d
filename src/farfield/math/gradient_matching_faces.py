"""The clients that carry FedOMG's optimum where there are many more clients than dimensions, one at a time.

A face of the simplex is a set of clients. On its affine hull the minimiser of f(γ) = bᵀγ + c·‖Gᵀγ‖ has a closed form;
`settle` goes from face to face as the method of Lawson and Hanson for non-negative least squares does: the client with
the smallest slope joins, and whoever's weight would turn negative on the way to the face's minimiser leaves. f falls
from face to face, so none comes twice. A step is a few small calls, which is the point: `matching_solver` lets many
clients join in one of its dearer steps, and wins as long as a handful of them is enough.

Only K is looked at, so the last digits are not to be trusted. What counts is the face.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt

import torch
from torch import Tensor

#: Relative to a client's squared norm: hides rounding in K.
RIDGE = 1e-13
_TOLERANCE = 1e-11


@dataclass(frozen=True)
class _Lifted:
    """f, with one more coordinate that is the same for all clients.

    It moves no minimiser over a hull and adds a constant, `lift`, to each squared length, but makes updates linearly
    independent that are in general position: K of more clients than dimensions is singular, this matrix is not.
    """

    gram: Tensor
    lift: float
    sides: Tensor
    radius: float

    @staticmethod
    def of(gram: Tensor, linear: Tensor, radius: float) -> _Lifted:
        squares = gram.diagonal()
        lift = float(squares.mean())
        sides = torch.stack([torch.ones_like(linear), linear], dim=1)
        return _Lifted(gram + lift + torch.diag(RIDGE * squares), lift, sides, radius)

    def minimiser(self, face: Tensor) -> Tensor | None:
        """The minimiser over the affine hull of `face`; None if its clients are dependent all the same.

        It is nearest + τ·turn, where nearest is the hull's point next to the origin.
        """
        sides = self.sides[face]
        factor, failed = torch.linalg.cholesky_ex(self.gram[face][:, face])
        if int(failed):
            return None
        solved = torch.cholesky_solve(sides, factor)
        (total, shift), (_, power) = (sides.T @ solved).tolist()
        rest = max(1.0 / total - self.lift, 0.0)
        tau = balance(rest, power - shift**2 / total, self.radius, sqrt(rest + self.lift))
        ones, against = solved.unbind(dim=1)
        minimiser: Tensor = ones * ((1.0 + tau * shift) / total) - tau * against
        return minimiser


def balance(rest: float, reach: float, radius: float, length: float) -> float:
    """The τ at which c·τ is the length of a hull's point whose squared length is rest + τ²·reach.

    There f is least on the hull. If reach ≥ c² no τ does it, f falls without end that way, and a long one, by a
    `length` in the problem, is as good as any.
    """
    room = radius**2 - reach
    return sqrt(rest / room) if room > 1e-14 * radius**2 else 16.0 * length / radius


def settle(gram: Tensor, linear: Tensor, radius: float, gamma: Tensor) -> Tensor:
    """Weights next to the minimiser of bᵀγ + c·‖Gᵀγ‖, given K = GGᵀ, b, c and weights to begin with."""
    lifted = _Lifted.of(gram, linear, radius)
    face = gamma.nonzero().squeeze(1)
    weights = gamma[face]
    settled = gamma
    for _ in range(3 * gamma.numel()):
        lower = _descend(lifted, face, weights)
        if lower is None:
            break
        face, weights = lower
        settled = torch.zeros_like(gamma).index_copy_(0, face, weights)
        products = gram @ settled
        length = sqrt(max(float(settled @ products), 0.0))
        if length == 0.0:
            break
        slopes = linear + (radius / length) * products
        least, joining = slopes.min(dim=0, keepdim=True)
        gain = float(settled @ slopes - least)
        if gain <= _TOLERANCE * float(slopes.abs().max()) or float(settled[joining]) > 0.0:
            break
        face, weights = torch.cat([face, joining]), torch.cat([weights, torch.zeros_like(least)])
    return settled


def _descend(lifted: _Lifted, face: Tensor, weights: Tensor) -> tuple[Tensor, Tensor] | None:
    """The minimiser over `face`, or over what is left of it when those who would turn negative have gone."""
    while face.numel() > 1:
        aim = lifted.minimiser(face)
        if aim is None:
            return None
        leaving = aim <= 0.0
        if not bool(leaving.any()):
            return face, aim / aim.sum()
        share = torch.where(leaving, weights / (weights - aim).clamp_min(1e-300), inf)
        step = share.min()
        stays = share > step
        weights = (weights + step * (aim - weights))[stays].clamp_min(0.0)
        weights = weights / weights.sum()
        face = face[stays]
    return face, torch.ones_like(weights)
