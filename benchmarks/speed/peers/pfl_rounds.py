"""FedAvg in Apple's pfl, in turns with the bare loop.

    python -m benchmarks.speed.peers.pfl_rounds FOLDER ROUNDS

Runs in an environment with pfl. Its simulation makes the rounds in this process; between two rounds the bare loop makes
one. Start-up is not counted, nor is the first round, in which pfl evaluates.
"""

from __future__ import annotations

import sys
import time
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.speed.peers.workload import Workload, bare_loop, write_report


class Net(nn.Module):
    """The workload's network with the two methods that pfl calls."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.network(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(float(self.loss(x, y)) * len(y), len(y))}


class Turns(TrainingProcessCallback):
    """Times each round, and a bare loop after it."""

    def __init__(self, workload: Workload) -> None:
        self._workload, self._bare_model = workload, workload.model()
        self.rounds: list[float] = []
        self.bare: list[float] = []
        self._started = 0.0

    def on_train_begin(self, *, model: Any) -> Metrics:
        self._started = time.perf_counter()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        between = time.perf_counter()
        self.rounds.append(between - self._started)
        bare_loop(self._bare_model, self._workload, central_iteration + 1)
        self._started = time.perf_counter()
        self.bare.append(self._started - between)
        return False, Metrics()


def main(folder: Path, rounds: int) -> None:
    torch.set_num_threads(1)
    workload = Workload.load(folder)
    net = Net(workload.model())
    numbers = count()

    def user(index: int) -> Dataset:
        """The rows of a client in the order of the round: pfl takes them as they come."""
        number = next(numbers) // workload.clients
        order = workload.orders[number, index]
        return Dataset(raw_data=[workload.x[index][order], workload.y[index][order]], user_id=str(index))

    clients = count()
    training = FederatedDataset(user, lambda: next(clients) % workload.clients)
    turns = Turns(workload)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,
            train_cohort_size=workload.clients,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=training, val_data=training, postprocessors=[WeightByDatapoints()]),
        PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0)),
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=workload.lr, local_batch_size=workload.batch),
        None,
        [turns],
        send_metrics_to_platform=False,
    )
    write_report(folder, net, turns.rounds[1:], turns.bare[1:], f"pfl {version('pfl')}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
