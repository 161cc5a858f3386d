"""The convex problem behind FedOMG's server step, solved to rounding.

    minimise over the simplex   f(γ) = bᵀγ + c·‖Gᵀγ‖,   ‖Gᵀγ‖² = γᵀKγ

A second-order cone problem in as many variables as there are clients; all it needs is the Gram matrix K = GGᵀ. The
slopes h = b + c·Kγ/‖Gᵀγ‖ bound the optimum from below by min_u h_u, which is how every answer here is certified.

The method is an active-set method. On the affine hull of a set of clients the minimiser has a closed form, because
minimising f is minimising ½γᵀKγ + τ·bᵀγ for the one τ with c·τ = ‖Gᵀγ‖, and γ is linear in τ. Each iteration takes
the clients that carry weight, adds those whose slope says they should, and searches towards the minimiser over
their hull, dropping those whose weight would turn negative. Should that not help, weight moves from the client with
the largest slope to the one with the smallest (a pairwise Frank-Wolfe step), which always does. f never rises, and
a handful of iterations is usual. With many more clients than dimensions and a wide radius it would be a hundred, so
that after a few the search goes on from where `matching_faces` says.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isinf, sqrt

import torch
from torch import Tensor

from farfield.math.gradient_matching_faces import RIDGE, balance, settle

# How far along the way to the hull's minimiser to look; negative weights are cut off at zero.
_FRACTIONS = torch.tensor([1.0, 0.6, 0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3], dtype=torch.float64).unsqueeze(1)
_ROUNDING = 4e-16
_TOLERANCE = 1e-13
_LIMIT = 500
_PATIENCE = 5


@dataclass(frozen=True)
class SimplexProblem:
    """f as above, with ‖Gᵀγ‖ measured from an origin.

    Kγ is read as `origin_products` + K(γ − origin), and γᵀKγ likewise from `origin_square`. With zeros that is the
    plain Gram matrix. With the products and the square of a nearly optimal γ, computed from the updates themselves,
    rounding in K only enters through the small rest: the cure where updates cancel to a fraction of their length.

    `floor` is a lower bound on the optimum that is known beforehand. `smoothing` replaces ‖x‖ by √(‖x‖² +
    smoothing²), small enough not to matter unless the optimum lies at x = 0, where f has a kink.
    """

    gram: Tensor
    linear: Tensor
    radius: float
    floor: float
    smoothing: float
    origin: Tensor
    origin_products: Tensor
    origin_square: float


@dataclass(frozen=True)
class _Points:
    """Points of the simplex, one a row, with everything that is read at them."""

    gamma: Tensor
    products: Tensor
    length: Tensor
    slopes: Tensor
    value: Tensor
    gap: Tensor

    @staticmethod
    def of(problem: SimplexProblem, gamma: Tensor) -> _Points:
        move = gamma - problem.origin
        moved = move @ problem.gram
        products = problem.origin_products + moved
        square = problem.origin_square + 2.0 * (move @ problem.origin_products) + (move * moved).sum(dim=1)
        square = square.clamp_min(0.0)
        length = (square + problem.smoothing**2).sqrt()
        slopes = problem.linear + problem.radius * products / length.unsqueeze(1)
        linear = gamma @ problem.linear
        bound = slopes.amin(dim=1).clamp_min(problem.floor)
        return _Points(
            gamma=gamma,
            products=products,
            length=length,
            slopes=slopes,
            value=linear + problem.radius * length,
            gap=linear + problem.radius * square.sqrt() - bound,
        )

    def row(self, k: int) -> _Points:
        return _Points(self.gamma[k], self.products[k], self.length[k], self.slopes[k], self.value[k], self.gap[k])


def minimise_on_simplex(problem: SimplexProblem, start: Tensor) -> Tensor:
    """The minimiser of `problem`, searched from `start` or from the best single client, whichever is lower."""
    at = _Points.of(problem, torch.cat([start.unsqueeze(0), torch.eye(start.numel(), dtype=start.dtype)]))
    at = at.row(int(at.value.argmin()))
    magnitudes = problem.linear.abs()
    widen = True
    for iteration in range(_LIMIT):
        if iteration == _PATIENCE:
            at, widen = _on_another_face(problem, at), False
        size = float(at.gamma @ magnitudes + problem.radius * at.length)
        if float(at.gap) <= _TOLERANCE * size:
            break
        carrying = at.gamma > 0
        members = carrying | (at.slopes < at.gamma @ at.slopes) if widen else carrying
        tried = _Points.of(problem, torch.cat([_pairwise(problem, at, carrying), _towards_hull(problem, at, members)]))

        # Close to the optimum f is flat to the last digit while the gap is not, so the gap decides between equals.
        noise = _ROUNDING * (size + problem.radius * _terms_of_square(problem, at) / float(at.length))
        better = (tried.value < at.value - noise) | ((tried.value <= at.value + noise) & (tried.gap < at.gap))
        helped = bool(better[1:].any())
        if helped:
            better[0] = False
        elif not bool(better[0]):
            if not widen:
                break
            widen = False
            continue
        values = torch.where(better, tried.value, inf)
        at = tried.row(int(torch.where(values <= values.min() + noise, tried.gap, inf).argmin()))
        widen = helped
    return at.gamma


def _terms_of_square(problem: SimplexProblem, at: _Points) -> float:
    """The size of the terms that γᵀKγ is summed from: where updates nearly cancel, far more than what is left."""
    move = (at.gamma - problem.origin).abs()
    own = float(move @ problem.gram.diagonal().sqrt()) ** 2
    return problem.origin_square + 2.0 * float(move @ problem.origin_products.abs()) + own


def _on_another_face(problem: SimplexProblem, at: _Points) -> _Points:
    gamma = settle(problem.gram, problem.linear, problem.radius, at.gamma)
    there = _Points.of(problem, gamma.unsqueeze(0)).row(0)
    return there if bool(there.value < at.value) else at


def _pairwise(problem: SimplexProblem, at: _Points, carrying: Tensor) -> Tensor:
    """Move weight from the carrying client with the largest slope to the client with the smallest, as one row."""
    worst = int(torch.where(carrying, at.slopes, -inf).argmax())
    direction = torch.zeros_like(at.gamma)
    direction[int(at.slopes.argmin())] += 1.0
    direction[worst] -= 1.0
    return _line_search(problem, at, direction)


def _towards_hull(problem: SimplexProblem, at: _Points, members: Tensor) -> Tensor:
    """Candidates on the way from γ to the minimiser of f over the affine hull of `members`, one a row."""
    index = members.nonzero().squeeze(1)
    nothing = at.gamma.new_empty(0, at.gamma.numel())
    if index.numel() < 2:
        return nothing

    # Differences to the shortest update: their Gram matrix is accurate also for clients far shorter than the others.
    gram, norms = problem.gram[index][:, index], problem.gram.diagonal()[index]
    pivot = int(norms.argmin())
    matrix = gram - gram[pivot] - gram[:, pivot].unsqueeze(1) + gram[pivot, pivot]
    matrix.diagonal().add_(RIDGE * norms + 1e-30 * norms.max())
    matrix[pivot], matrix[:, pivot], matrix[pivot, pivot] = 0.0, 0.0, 1.0
    sides = torch.stack([at.products, problem.linear], dim=1)[index]
    sides = sides - sides[pivot]
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if int(failed):
        return nothing
    moves = -torch.cholesky_solve(sides, factor)
    moves[pivot] = -moves.sum(dim=0)

    # γ + shorten + τ·turn is the hull's minimiser of ½γᵀKγ + τ·bᵀγ, and its squared length is rest + τ²·reach.
    rest, reach = (sides * moves).sum(dim=0).tolist()
    rest, reach = float(at.length) ** 2 + rest, -reach
    shorten, turn = at.gamma.new_zeros(2, at.gamma.numel()).index_copy_(1, index, moves.T.contiguous())
    current = float(at.length) / problem.radius
    tau = balance(max(rest, problem.smoothing**2), reach, problem.radius, float(at.length))
    direction = shorten + tau * turn
    ahead = torch.cat([at.gamma + _FRACTIONS * direction, (at.gamma + shorten + current * turn).unsqueeze(0)])
    return torch.cat([_feasible(ahead), _line_search(problem, at, direction)])


def _line_search(problem: SimplexProblem, at: _Points, direction: Tensor) -> Tensor:
    """The minimiser of f on the ray from γ along `direction` inside the simplex, as one row."""
    steps = torch.where(direction < 0, -at.gamma / direction, inf)
    limit = float(steps.min())
    if isinf(limit):
        return at.gamma.unsqueeze(0)
    slope = float(problem.linear @ direction)
    along = float(at.products @ direction)
    square = float(direction @ (problem.gram @ direction))
    length = float(at.length)
    if square <= 0.0:
        step = limit if slope + problem.radius * along / length < 0 else 0.0
    else:
        # f along the ray is slope·t + c·√(square·(t + along/square)² + offset): stationary where the cosine balances.
        balance = -slope / (problem.radius * sqrt(square))
        if abs(balance) >= 1.0:
            step = limit if balance > 0.0 else 0.0
        else:
            offset = max(length**2 - along**2 / square, 0.0)
            step = (balance * sqrt(offset * square / (1.0 - balance**2)) - along) / square
            step = min(max(step, 0.0), limit)
    end = at.gamma + step * direction
    return _feasible((torch.where(steps <= limit, 0.0, end) if step >= limit else end).unsqueeze(0))


def _feasible(gamma: Tensor) -> Tensor:
    gamma = gamma.clamp_min(0.0)
    return gamma / gamma.sum(dim=1, keepdim=True)
