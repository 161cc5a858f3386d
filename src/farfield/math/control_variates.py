"""SCAFFOLD's control variates, option II (Karimireddy et al., ICML 2020).

A client steps along g − c_i + c; afterwards its control becomes the average gradient it saw, read off its own
movement.
"""

from __future__ import annotations

import torch
from torch import Tensor


def control_update(
    control: Tensor, server_control: Tensor, start: Tensor, end: Tensor, steps: int, lr: float
) -> Tensor:
    """The client's new control, c_i − c + (start − end) / (steps · lr).

    `start` and `end` are the parameters before and after local training, `steps` the number of local *steps* (not
    epochs), `lr` the local rate. The formula assumes plain SGD: with momentum the movement is not the sum of the
    gradients.
    """
    if steps < 1 or lr <= 0.0:
        raise ValueError(f"a control needs at least one local step and a positive rate, got steps={steps}, lr={lr}")
    return control - server_control + (start - end) / (steps * lr)


@torch.no_grad()
def server_control_update(server_control: Tensor, total_change: Tensor, cohort: int, clients: int) -> Tensor:
    """c + (1/N) Σ_S (c_i⁺ − c_i), where `total_change` is the sum over this round's cohort.

    `clients` is N, the size of the whole federation, not of the cohort.
    """
    if clients < max(cohort, 1):
        raise ValueError(f"the federation has {clients} clients but {cohort} control changes arrived")
    return (server_control.to(torch.float64) + total_change.to(torch.float64) / clients).to(server_control.dtype)
