"""A Ray cluster of two nodes on this machine, and a method that says where it trains."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from farfield.algorithms import use

#: Trains as FedAvg does, a little slower, and notes the node, the run (by its learning rate) and the round.
METHOD = """
import json, os, time
from pathlib import Path
from farfield.algorithms import FedAvg, register

LOG = Path({log!r})

@register
class Noted(FedAvg):
    name = "noted-for-a-test"
    stackable = False
    def train(self, client, model, **shared):
        if client.domain == "a":
            row = dict(node=os.environ.get("FARFIELD_TEST_NODE", "driver"), run=self.params.lr, round=client.round)
            with open(LOG, "a") as file:
                file.write(json.dumps(row) + "\\n")
            time.sleep(0.05)
        return super().train(client, model, **shared)
"""


def noted_method(folder: Path) -> Path:
    """Register the method, and return the file that it notes its rounds in."""
    log = folder / "trained.jsonl"
    path = folder / "noted.py"
    path.write_text(METHOD.format(log=str(log)))
    use(path)
    return log


def trained(log: Path) -> list[dict[str, Any]]:
    """Return the rounds that were trained, in their order."""
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


@contextmanager
def cluster(nodes: int = 2) -> Iterator[Any]:
    """Start a cluster on loopback, one core per node; the driver is connected to the first node."""
    from farfield.federation.engines.ray_instance import import_ray

    ray = import_ray()
    from ray.cluster_utils import Cluster

    before = dict(os.environ)
    os.environ["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    options = {"num_cpus": 1, "include_dashboard": False, "node_ip_address": "127.0.0.1"}
    made = Cluster()
    try:
        for number in range(nodes):
            os.environ["FARFIELD_TEST_NODE"] = f"node-{number}"
            made.add_node(**options)
        os.environ["FARFIELD_TEST_NODE"] = "driver"
        ray.init(address=made.address, log_to_driver=False)
        made.wait_for_nodes(timeout=300)
        yield made
    finally:
        ray.shutdown()
        made.shutdown()
        for name in ("PYTHONPATH", "FARFIELD_TEST_NODE"):
            os.environ.pop(name, None)
            if name in before:
                os.environ[name] = before[name]


class KillNode:
    """An observer that kills the second node while a run is under way there and others are done."""

    def __init__(self, nodes: Any, log: Path) -> None:
        self._nodes, self._log = nodes, log
        self.done: list[str] = []
        #: Learning rates of the runs that were under way on the node when it was killed.
        self.lost: set[float] | None = None
        self.failed: dict[str, str] = {}

    def begin(self, total: int, done: int) -> None:
        pass

    def progress(self, progress: Any) -> None:
        where = {row["run"]: row["node"] for row in trained(self._log)}
        label = float(progress.job.algorithm.partition("=")[2])
        if self.lost is None and len(self.done) >= 2 and where.get(label) == "node-1" and progress.round >= 3:
            unfinished = {run for run, node in where.items() if node == "node-1" and str(run) not in self.done}
            self._nodes.remove_node(self._nodes.list_all_nodes()[1], allow_graceful=False)
            self.lost = unfinished

    def finished(self, job: Any, error: str | None) -> None:
        self.done.append(job.algorithm.partition("=")[2])
        if error is not None:
            self.failed[str(job)] = error
