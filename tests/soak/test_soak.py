"""A long run with a third of the replies lost, late or garbled: memory stays flat, and the model is as good.

`make soak` runs it with a thousand rounds, `make soak-short` with few.
"""

from __future__ import annotations

import json
import os
import statistics
from pathlib import Path

import numpy as np
import pytest
import tomli_w
import torch

import farfield as ff
from farfield.deployment.federation_file import read_federation
from farfield.deployment.server.output_folder import FLOWER, SETTINGS
from farfield.deployment.server.run import serve
from farfield.records import RunFolder
from tests.soak.faulty_grid import FATES, FaultyGrid

pytestmark = [pytest.mark.long, pytest.mark.timeout(6000)]

SHORT = bool(os.environ.get("FARFIELD_SHORT"))
ROUNDS = int(os.environ.get("FARFIELD_ROUNDS", 60 if SHORT else 1000))
NAMES = tuple(f"site-{number:02d}" for number in range(10))
#: Bytes that the process may grow by between a tenth of the run and its end.
FLAT = 24 << 20


def rows(number: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Three overlapping classes, a little shifted at each site, so that no model has them all right."""
    generator = np.random.default_rng(1000 + number)
    y = np.arange(count) % 3
    x = np.eye(3, 6)[y] * 1.6 + 0.2 * np.sin(number) + generator.normal(size=(count, 6))
    return x.astype(np.float32), y.astype(np.int64)


class SoakedSites(FaultyGrid):
    """Ten sites with forty rows each."""

    def start(self, node: int, name: str, **given: object) -> None:
        home = self.folder / name
        home.mkdir(parents=True, exist_ok=True)
        x, y = rows(node, 40)
        np.savez(home / "rows.npz", x=x, y=y)
        self.start_with_rows(node, name, home)


def soaked(folder: Path, algorithm: str, faults: int | None, seed: int = 0) -> tuple[SoakedSites, float]:
    """Run the federation, and return its network and the accuracy of the last round's model on other rows."""
    folder.mkdir()
    content = {
        "name": "soak",
        "server": "127.0.0.1:9443",
        "algorithm": algorithm,
        "rounds": ROUNDS,
        "sites": len(NAMES),
        "seed": seed,
        "quorum": 0.3,
        "deadline": 0.5,
        "evaluate_every": 10,
        "set": {"lr": 0.05},
    }
    (folder / "federation.toml").write_text(tomli_w.dumps(content))
    federation = read_federation(folder / "federation.toml")
    grid = SoakedSites(folder / "sites", federation, NAMES, faults)
    out = folder / "out"
    (out / FLOWER).mkdir(parents=True)
    settings = {"federation": federation.model_dump(mode="json"), "run": "soak", "wait": 60.0, "start": "s"}
    (out / FLOWER / SETTINGS).write_text(json.dumps({**settings, "pid": os.getpid(), "names": {}}))
    serve(grid, out)  # type: ignore[arg-type]
    assert RunFolder(out / "run").result is not None, (out / FLOWER / "activity.jsonl").read_text()[-2000:]
    return grid, accuracy_of_last_round(out)


def accuracy_of_last_round(out: Path) -> float:
    """Measure the last checkpoint on rows of sites that took no part."""
    checkpoint = RunFolder(out / "run").latest_checkpoint()
    assert checkpoint is not None
    model = ff.load_model(out)
    model.model.vector.copy_(checkpoint.tensors["model/parameters"])
    x, y = (torch.from_numpy(each) for each in rows(77, 6000))
    examples = x if model.preparation is None else model.preparation.apply(x.double())
    return float((model.scores(examples).argmax(1) == y).float().mean())


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_a_third_of_the_replies_lost_or_garbled_harms_neither_memory_nor_accuracy(
    tmp_path: Path, algorithm: str
) -> None:
    clean = [soaked(tmp_path / f"clean-{seed}", algorithm, None, seed)[1] for seed in range(2 if SHORT else 3)]
    grid, accuracy = soaked(tmp_path / "faulty", algorithm, faults=7)
    troubled = 1 - grid.fates["fine"] / sum(grid.fates.values())
    start, end = grid.memory[max(2, ROUNDS // 10)], grid.memory[ROUNDS]
    noise = max(0.01, 3 * statistics.stdev(clean))
    print(
        f"{algorithm}: {ROUNDS} rounds, {troubled:.1%} of {sum(grid.fates.values())} replies troubled, memory "
        f"{start >> 20} MB at a tenth and {end >> 20} MB at the end, accuracy {accuracy:.4f}, clean "
        f"{', '.join(f'{each:.4f}' for each in clean)}"
    )
    assert abs(troubled - sum(FATES.values())) < 0.05
    assert end - start < FLAT
    assert abs(accuracy - statistics.mean(clean)) <= noise
    result = RunFolder(tmp_path / "faulty" / "out" / "run").result
    assert result is not None
    assert len(RunFolder(tmp_path / "faulty" / "out" / "run").rounds()) == ROUNDS
