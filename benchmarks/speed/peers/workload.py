"""What every contender trains: rows of each client, the order of its rows in each round, a network, a step size.

A folder holds it for the processes of the peers, which cannot import Farfield.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters


def mlp(widths: list[int]) -> nn.Module:
    """Linear layers from the first of the widths to the last, with ReLU between them."""
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def two_convolutions() -> nn.Module:
    """Two 3×3 convolutions, the second with stride 2, mean pool, linear layer."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def fediir_convnet() -> nn.Module:
    """FedIIR's network for digits: four 3×3 convolutions with GroupNorm after each ReLU, mean pool, linear layer."""
    layers: list[nn.Module] = []
    channels = 1
    for number, width in enumerate((64, 128, 128, 128)):
        layers += [nn.Conv2d(channels, width, 3, stride=2 if number == 1 else 1, padding=1), nn.ReLU()]
        layers += [nn.GroupNorm(8, width)]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def network(name: str) -> nn.Module:
    """Return the network of that name: 'mlp-64-64-10' with its widths, 'two-convolutions' or 'fediir-convnet'."""
    if name.startswith("mlp-"):
        return mlp([int(width) for width in name.split("-")[1:]])
    return {"two-convolutions": two_convolutions, "fediir-convnet": fediir_convnet}[name]()


@dataclass(frozen=True)
class Workload:
    """`x` and `y` have one entry per client; `orders` one per round and client; `initial` is the flat first model."""

    network: str
    x: Tensor
    y: Tensor
    orders: Tensor
    initial: Tensor
    batch: int
    lr: float

    @property
    def clients(self) -> int:
        return len(self.x)

    def model(self) -> nn.Module:
        """Return the network with the first weights."""
        made = network(self.network)
        vector_to_parameters(self.initial.clone(), made.parameters())
        return made

    def batches(self, client: int, round: int) -> list[Tensor]:
        """Return the rows of each mini-batch of a client in a round; rounds count from 1."""
        return list(self.orders[round - 1, client].split(self.batch))

    def save(self, folder: Path) -> None:
        arrays = {name: getattr(self, name).numpy() for name in ("x", "y", "orders", "initial")}
        np.savez(folder / "workload.npz", **arrays)
        (folder / "workload.json").write_text(
            json.dumps({"network": self.network, "batch": self.batch, "lr": self.lr}) + "\n"
        )

    @classmethod
    def load(cls, folder: Path) -> Workload:
        with np.load(folder / "workload.npz") as file:
            arrays = {name: torch.from_numpy(file[name]) for name in file.files}
        return cls(**arrays, **json.loads((folder / "workload.json").read_text()))


def train(model: nn.Module, workload: Workload, client: int, round: int, optimizer: torch.optim.Optimizer) -> None:
    """Make one epoch over a client's rows."""
    x, y = workload.x[client], workload.y[client]
    for rows in workload.batches(client, round):
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()


def bare_loop(model: nn.Module, workload: Workload, round: int) -> None:
    """Train one model on the mini-batches of all clients one after the other: no clients, no averaging, no checks."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=workload.lr)
    for client in range(workload.clients):
        train(model, workload, client, round, optimizer)


def write_report(folder: Path, model: nn.Module, rounds: list[float], bare: list[float], version: str) -> None:
    """Write what a peer's process measured: seconds per round, of the bare loop in the same turns, and the model."""
    np.save(folder / "model.npy", parameters_to_vector(model.parameters()).detach().numpy())
    (folder / "report.json").write_text(json.dumps({"rounds": rounds, "bare": bare, "version": version}) + "\n")
