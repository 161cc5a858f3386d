"""SCAFFOLD."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from farfield.algorithms.worked_examples import Toy, worked_example
from tests.battery.examples.naive import uniform


@worked_example("scaffold")
def control_variates(toy: Toy, p: Any) -> Tensor:
    """Algorithm 1, option II.

    y ← y − η(g(y) − c_i + c); c_i⁺ = c_i − c + (x − y)/(Kη); c ← c + (1/N) Σ_S (c_i⁺ − c_i).
    """
    x, c = toy.start, torch.zeros_like(toy.start)
    own = [torch.zeros_like(toy.start) for _ in range(toy.clients)]
    for cohort in toy.rounds:
        ends, changes = [], []
        for client in cohort:
            mine = own[client.id]

            def corrected(v: Tensor, rows: Tensor, y: Tensor, shift: Tensor = c - mine) -> Tensor:
                return toy.gradient(v, rows, y) + shift

            end = toy.sgd(x, client.batches, p.lr, corrected)
            after = mine - c + (x - end) / (len(client.batches) * p.lr)
            ends.append(end)
            changes.append(after - mine)
            own[client.id] = after
        x = uniform(ends)
        c = c + sum(changes, torch.zeros_like(c)) / toy.clients
    return x
