"""Two hundred nodes against one real server: nothing is lost, and nothing is counted twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import farfield as ff
from tests.deployment.network import PATIENCE, Deployment, as_task, deployment

pytestmark = [pytest.mark.long, pytest.mark.timeout(5400)]

SHORT = bool(os.environ.get("FARFIELD_SHORT"))
NODES, ROUNDS = (12, 5) if SHORT else (200, 50)
NAMES = tuple(f"node-{number:03d}" for number in range(NODES))


def rows(number: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(number)
    y = np.arange(24) % 3
    x = np.eye(3, 5)[y] * 2.0 + 0.02 * number + generator.normal(size=(24, 5))
    return x.astype(np.float32), y.astype(np.int64)


def test_with_many_nodes_nothing_is_lost_and_nothing_is_counted_twice(tmp_path: Path) -> None:
    with deployment(
        tmp_path / "net",
        sites=(),
        algorithm="fedavg",
        rounds=ROUNDS,
        evaluate_every=ROUNDS,
        deadline=1200.0,
        quorum=1.0,
    ) as net:
        _add_nodes(net)
        server = net.server("--wait", "3000")
        net.until("listening", lambda: "sites can connect" in net.said("server"), seconds=3000.0)
        with open(net.folder / "nodes.log", "wb") as log:
            nodes = subprocess.Popen(
                [sys.executable, "-m", "tests.soak.many_nodes", str(net.folder)], stdout=log, stderr=log
            )
        try:
            assert server.wait(PATIENCE * 15) == 0, net.said("server")[-3000:]
            assert nodes.wait(PATIENCE) == 0
        finally:
            nodes.kill()
            nodes.wait()
        result = net.result()
        assert not net.events()
    torch.set_num_threads(1)
    ff.train(
        as_task({name: rows(number) for number, name in enumerate(NAMES)}), "fedavg", tmp_path / "local", rounds=ROUNDS
    )
    local = json.loads((tmp_path / "local" / "run" / "result.json").read_text())
    assert result["model_sha256"] == local["model_sha256"], "a sum over other replies would have other bits"
    assert result["local_steps"] == local["local_steps"]
    assert result["bytes_up_by_phase"]["train"] == local["bytes_up_by_phase"]["train"]
    answered = Counter(
        (name, row["round"])
        for name in NAMES
        for line in (net.folder / name / "activity.jsonl").read_text().splitlines()
        if (row := json.loads(line))["kind"] == "phase" and row["phase"] == "train"
    )
    assert answered == Counter({(name, round): 1 for name in NAMES for round in range(1, ROUNDS + 1)})
    print(f"{NODES} nodes, {ROUNDS} rounds, {sum(answered.values())} updates, {result['seconds']:.0f} s of rounds")


def _add_nodes(net: Deployment) -> None:
    for number, name in enumerate(NAMES):
        # Of so few rows an honest update may show some by chance, and the round would go on without the site.
        net.add_site(name, *rows(number), limits={"shown_rows": 24})
    net.file.write_text(net.file.read_text().replace("sites = 0", f"sites = {NODES}"))
    (net.folder / "nodes.json").write_text(json.dumps({"names": list(NAMES)}))
