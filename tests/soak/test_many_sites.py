"""Two hundred sites against one server, some of whose replies arrive twice: nothing is lost or counted twice.

As in `faulty_grid`, the sites and the server are the deployment's own, and only Flower's processes are missing.
`test_many_nodes` has these too, and takes hours with as many nodes on two cores.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tomli_w
import torch
from flwr.app import Message

import farfield as ff
from farfield.deployment.federation_file import read_federation
from farfield.deployment.server.output_folder import FLOWER, SETTINGS
from farfield.deployment.server.run import serve
from farfield.records import RunFolder
from tests.deployment.network import as_task
from tests.soak.faulty_grid import FaultyGrid
from tests.soak.test_many_nodes import rows

pytestmark = [pytest.mark.long, pytest.mark.timeout(5400)]

SHORT = bool(os.environ.get("FARFIELD_SHORT"))
SITES, ROUNDS = (12, 5) if SHORT else (200, 50)
NAMES = tuple(f"node-{number:03d}" for number in range(SITES))


class RepeatingSites(FaultyGrid):
    """Sites of which every fifth reply arrives twice, and every seventh once more when others are waited for."""

    def start(self, node: int, name: str, **given: object) -> None:
        home = self.folder / name
        home.mkdir(parents=True, exist_ok=True)
        x, y = rows(NAMES.index(name))
        np.savez(home / "rows.npz", x=x, y=y)
        # Of so few rows an honest update may show some by chance, and the round would go on without the site.
        self.start_with_rows(node, name, home, limits={"shown_rows": 24})

    def _meets_its_fate(self, reply: Message, message: Message) -> list[Message]:
        self.fates["answered"] += 1
        if self.fates["answered"] % 7 == 0:
            self.fates["again"] += 1
            self._late.append(reply)
        if self.fates["answered"] % 5 == 0:
            self.fates["twice"] += 1
            return [reply, reply]
        return [reply]


def test_with_many_sites_nothing_is_lost_and_nothing_is_counted_twice(tmp_path: Path) -> None:
    content = {
        "name": "many",
        "server": "127.0.0.1:9443",
        "algorithm": "fedavg",
        "rounds": ROUNDS,
        "sites": SITES,
        "quorum": 1.0,
        "deadline": 600.0,
        "evaluate_every": ROUNDS,
    }
    (tmp_path / "federation.toml").write_text(tomli_w.dumps(content))
    federation = read_federation(tmp_path / "federation.toml")
    grid = RepeatingSites(tmp_path / "sites", federation, NAMES, seed=0)
    out = tmp_path / "out"
    (out / FLOWER).mkdir(parents=True)
    settings = {"federation": federation.model_dump(mode="json"), "run": "many", "wait": 600.0, "start": "s"}
    (out / FLOWER / SETTINGS).write_text(json.dumps({**settings, "pid": os.getpid(), "names": {}}))
    serve(grid, out)  # type: ignore[arg-type]
    result = RunFolder(out / "run").result
    assert result is not None, (out / FLOWER / "activity.jsonl").read_text()[-2000:]
    torch.set_num_threads(1)
    task = as_task({name: rows(number) for number, name in enumerate(NAMES)})
    ff.train(task, "fedavg", tmp_path / "local", rounds=ROUNDS)
    local = json.loads((tmp_path / "local" / "run" / "result.json").read_text())
    assert result["model_sha256"] == local["model_sha256"], "a sum over other replies would have other bits"
    assert result["local_steps"] == local["local_steps"]
    assert result["bytes_up_by_phase"]["train"] == local["bytes_up_by_phase"]["train"]
    assert result["lost"] == local["lost"] == []
    assert grid.fates["twice"]
    assert grid.fates["again"]
    questions = Counter(
        (path.parent.name, row["round"])
        for path in (tmp_path / "sites").rglob("ledger.jsonl")
        for line in path.read_text().splitlines()
        if (row := json.loads(line)).get("phase") == "train"
    )
    assert len(questions) == SITES * ROUNDS
    assert set(questions.values()) == {1}
    print(
        f"{SITES} sites, {ROUNDS} rounds, {grid.fates['answered']} replies, {grid.fates['twice']} of them twice at once"
    )
