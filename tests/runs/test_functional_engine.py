"""Runs on the engine that stacks by `torch.func`: its name in the records, and its own bits after an interruption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import farfield as ff
from farfield.models import ModelSpec
from farfield.runs.rounds import Progress
from farfield.tasks.task import Domain, Task

SPEC = ModelSpec(featurizer="convnet", input_shape=(1, 8, 8), outputs=2, hidden=(4, 16))


def images() -> Task:
    domains = []
    for number in range(4):
        random = torch.Generator().manual_seed(number)
        y = torch.arange(24 + 3 * number) % 2
        x = torch.rand((len(y), 1, 8, 8), generator=random) * (0.5 + 0.5 * y.view(-1, 1, 1, 1))
        domains.append(Domain("abcd"[number], x, y))
    defaults = {"rounds": 3, "lr": 0.1, "batch_size": 8}
    return Task("images", "classification", tuple(domains), ("x", "y"), model=SPEC, defaults=defaults)


def bench(out: Path, engine: str, methods: list[str], **options: Any) -> Any:
    return ff.bench(images(), methods, held_out=["a", "b"], seeds=1, out=out, engine=engine, parallel=1, **options)


def by_run(result: Any) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["algorithm"], row["held_out"]): row for row in result.rows}


def hashes(result: Any) -> dict[tuple[str, str], str]:
    return {key: row["model_sha256"] for key, row in by_run(result).items()}


def test_results_and_report_name_the_engine_and_what_it_means(tmp_path: Path) -> None:
    made, local = (bench(tmp_path / engine, engine, ["fedavg"]) for engine in ("batched-func", "local"))
    assert {row["engine"] for row in made.rows} == {"batched-func"}
    assert hashes(made) != hashes(local)
    truth = by_run(local)
    for key, row in by_run(made).items():
        assert row["selection"]["last"]["loss"] == pytest.approx(truth[key]["selection"]["last"]["loss"], rel=1e-4)
    sentence = "On batched-func, layers other than linear ones differ from other engines in their last bits."
    assert sentence in made.report(tmp_path / "made.html").read_text()
    assert sentence not in local.report(tmp_path / "local.html").read_text()


def test_a_run_has_its_bits_alone_among_others_and_after_an_interruption(tmp_path: Path) -> None:
    alone = hashes(bench(tmp_path / "alone", "batched-func", ["fedprox"]))
    rounds = 0

    class Impatient:
        def begin(self, total: int, done: int) -> None: ...
        def finished(self, job: Any, error: str | None) -> None: ...

        def progress(self, progress: Progress) -> None:
            nonlocal rounds
            rounds += progress.round >= 2
            if rounds > 3:
                raise KeyboardInterrupt

    out, methods = tmp_path / "out", ["fedavg", "fedprox", "scaffold"]
    with pytest.raises(KeyboardInterrupt):
        bench(out, "batched-func", methods, observer=Impatient(), checkpoint_every=1)
    assert list(out.glob("runs/**/checkpoint-*"))
    assert not list(out.glob("runs/**/result.json"))
    among = hashes(bench(out, "batched-func", methods, resume=True))
    assert len(among) == 6
    assert {key: among[key] for key in alone} == alone


def test_a_run_that_goes_on_on_another_engine_names_both(tmp_path: Path) -> None:
    class Impatient:
        def begin(self, total: int, done: int) -> None: ...
        def finished(self, job: Any, error: str | None) -> None: ...

        def progress(self, progress: Progress) -> None:
            if progress.round >= 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench(tmp_path / "out", "local", ["fedavg"], observer=Impatient(), checkpoint_every=1)
    made = by_run(bench(tmp_path / "out", "batched-func", ["fedavg"], resume=True))
    assert made["fedavg", "a"]["engine"] == "local, batched-func"
