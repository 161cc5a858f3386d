"""FedAvg in Flower's own simulation, in turns with the bare loop.

    python -m benchmarks.speed.peers.flower_rounds FOLDER ROUNDS

Flower's FedAvg strategy, and a ClientApp that trains as Flower's tutorials do, on as many of Ray's processes as there
are cores. Between two rounds the bare loop makes one in this process. Start-up is not counted, nor are the first two
rounds, in which the processes import torch.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp, strategy
from flwr.simulation import run_simulation

from benchmarks.speed.peers.flower_client import FOLDER, app
from benchmarks.speed.peers.workload import Workload, bare_loop, network, write_report

WARM_UP = 2


class TimedFedAvg(strategy.FedAvg):
    """Flower's FedAvg; a round is timed from its configuration to the end of its aggregation."""

    def __init__(self, workload: Workload, **settings: Any) -> None:
        super().__init__(**settings)
        self._workload, self._bare_model = workload, workload.model()
        self.rounds: list[float] = []
        self.bare: list[float] = []
        self._started = 0.0

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        started = time.perf_counter()
        bare_loop(self._bare_model, self._workload, server_round)
        self._started = time.perf_counter()
        self.bare.append(self._started - started)
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        errors = [reply.error.reason for reply in replies if reply.has_error()]
        if errors or len(replies) < self._workload.clients:
            raise RuntimeError(f"round {server_round}: {len(replies)} replies, {len(errors)} errors: {errors[:1]}")
        aggregated = super().aggregate_train(server_round, replies)
        self.rounds.append(time.perf_counter() - self._started)
        return aggregated


def main(folder: Path, rounds: int) -> None:
    torch.set_num_threads(1)
    os.environ[FOLDER] = str(folder)
    workload = Workload.load(folder)
    server = ServerApp()

    @server.main()
    def run(grid: Grid, context: Context) -> None:
        averaging = TimedFedAvg(
            workload, fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=workload.clients
        )
        result = averaging.start(grid, ArrayRecord(workload.model().state_dict()), num_rounds=rounds)
        model = network(workload.network)
        model.load_state_dict(result.arrays.to_torch_state_dict())
        write_report(folder, model, averaging.rounds[WARM_UP:], averaging.bare[WARM_UP:], f"flwr {version('flwr')}")

    processes = {"num_cpus": os.cpu_count() or 1, "include_dashboard": False, "log_to_driver": False}
    run_simulation(
        server_app=server,
        client_app=app,
        num_supernodes=workload.clients,
        backend_config={"init_args": processes, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
