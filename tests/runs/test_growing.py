"""A bench that grows: what is there stays to the byte, and what is added is as if it had been there from the start."""

from __future__ import annotations

import json
import shutil
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

import farfield as ff
from farfield.algorithms import FedAvg, build, names
from farfield.errors import UserError
from farfield.records import RecordsError
from farfield.report.collect import collect
from farfield.runs.growing import depends_on_rounds
from tests.older_records import without_checksums
from tests.toy import task

METHODS = ["fedavg", "scaffold", "fedsgd"]
#: A run's times and its place in memory are the only figures that may differ.
#: What a run was made on is chosen by how many runs are made at once.
MEASURED = ("seconds", "server_seconds", "peak_memory_mb", "engine")


def figures(result: ff.BenchResult) -> dict[tuple[str, str, int], dict[str, Any]]:
    return {
        (row["algorithm"], row["held_out"], row["seed"]): {k: v for k, v in row.items() if k not in MEASURED}
        for row in result.rows
    }


def content(folder: Path) -> dict[str, bytes]:
    kept = [p for p in sorted((folder / "runs").rglob("*")) if p.is_file() and p.name != ".lock"]
    return {str(p.relative_to(folder)): p.read_bytes() for p in kept}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("growing") / "b"
    ff.bench(task(4), METHODS[:1], held_out=["a"], seeds=1, rounds=3, evaluate_every=2, out=out, checkpoint_every=2)
    return out


@pytest.fixture
def there(small: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small, tmp_path / "b"))


def test_resume_alone_keeps_the_plan_that_is_there(there: Path) -> None:
    before, plan = content(there), (there / "bench.toml").read_bytes()
    result = ff.bench(task(4), out=there, resume=True)
    assert [(r["algorithm"], r["held_out"], r["seed"]) for r in result.rows] == [("fedavg", "a", 0)]
    assert content(there) == before
    assert (there / "bench.toml").read_bytes() == plan


@pytest.mark.slow
def test_methods_seeds_and_domains_are_added_and_runs_that_are_there_stay(there: Path, tmp_path: Path) -> None:
    before, told = content(there), []
    grown = ff.bench(task(4), ["fedsgd"], held_out=["c"], seeds=[4], out=there, resume=True, tell=told.append)
    assert told == [f"adding to the bench in '{there}': method fedsgd; held-out domain c; seed 4"]
    after = content(there)
    assert {name: after[name] for name in before} == before
    options: dict[str, Any] = {"held_out": ["a", "c"], "seeds": [0, 4], "rounds": 3, "evaluate_every": 2}
    whole = ff.bench(task(4), ["fedavg", "fedsgd"], out=tmp_path / "whole", **options)
    assert figures(grown) == figures(whole)
    assert grown.sweep.plan["baseline"] == "fedavg"
    assert not [note for note in grown.sweep.plan["notes"] if "FedAvg is not in this bench" in note]


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [5, 6])
def test_more_rounds_end_in_the_bits_of_a_longer_run(tmp_path: Path, rounds: int) -> None:
    """Round 3 was evaluated as the last one, which a longer run would not do: that evaluation goes."""
    options: dict[str, Any] = {"held_out": ["a"], "seeds": 1, "evaluate_every": 2, "equal_steps": False}
    ff.bench(task(4), METHODS, rounds=3, out=tmp_path / "b", checkpoint_every=2, **options)
    longer = ff.bench(task(4), out=tmp_path / "b", rounds=rounds, equal_steps=False, resume=True)
    whole = ff.bench(task(4), METHODS, rounds=rounds, out=tmp_path / "whole", **options)
    assert figures(longer) == figures(whole)
    for name in ("rounds.jsonl", "target.sealed.jsonl"):
        for path in (tmp_path / "whole").rglob(name):
            there = tmp_path / "b" / path.relative_to(tmp_path / "whole")
            assert there.read_text() == path.read_text()


def test_more_rounds_keep_the_ratio_of_methods_with_one_step_per_round(tmp_path: Path) -> None:
    options: dict[str, Any] = {"held_out": ["a"], "seeds": 1, "evaluate_every": 2}
    ff.bench(task(3), ["fedavg", "fedsgd"], rounds=2, out=tmp_path / "b", **options)
    longer = ff.bench(task(3), rounds=4, out=tmp_path / "b", resume=True)
    whole = ff.bench(task(3), ["fedavg", "fedsgd"], rounds=4, out=tmp_path / "whole", **options)
    assert figures(longer) == figures(whole)


def test_a_run_that_is_too_short_for_the_grown_plan_is_not_a_result(there: Path) -> None:
    text = (without_checksums(there) / "bench.toml").read_text()
    (there / "bench.toml").write_text(text.replace("rounds = 3", "rounds = 9").replace("fedavg = 3", "fedavg = 9"))
    sweep = collect(there, "test")
    assert not sweep.rows
    assert sweep.completeness.sentence.startswith("0 of 1 run is done, 1 failed or stopped halfway; 0 of 1 held-out")


@pytest.mark.parametrize(
    ("options", "phrase"),
    [
        ({"rounds": 2}, "rounds is 3 there and 2 here"),
        ({"settings": {"lr": 0.5}}, "settings.fedavg.lr is 0.1 there and 0.5 here"),
        ({"algorithms": ["fedavg:lr=0.5", "fedavg"]}, None),
        ({"validation": 0.4}, "validation is 0.1 there and 0.4 here"),
        ({"held_out": ["a+b"]}, "domain 'a' is held out in two groups"),
        ({"algorithms": ["again=fedavg"]}, "'fedavg' and 'again' are the same variant"),
        ({"evaluate_every": 3}, "evaluate_every is 2 there and 3 here"),
        ({"baseline": "fedprox"}, "there is no 'fedprox' to compare with; this bench has fedavg"),
    ],
)
def test_what_would_change_a_run_is_refused(there: Path, options: dict[str, Any], phrase: str | None) -> None:
    before, plan = content(there), (there / "bench.toml").read_bytes()
    if phrase is None:
        assert len(ff.bench(task(4), out=there, resume=True, **options).rows) == 2
        return
    with pytest.raises(UserError, match=phrase):
        ff.bench(task(4), out=there, resume=True, **options)
    assert content(there) == before
    assert (there / "bench.toml").read_bytes() == plan


def test_a_method_that_plans_by_the_number_of_rounds_cannot_be_made_longer(tmp_path: Path) -> None:
    ff.bench(task(4), ["fedavg", "fedloe-erm"], held_out=["a"], seeds=1, rounds=2, out=tmp_path / "b")
    with pytest.raises(UserError, match="'fedloe-erm' does not do the same in all rounds"):
        ff.bench(task(4), rounds=4, out=tmp_path / "b", resume=True)


def test_fedloe_alone_reads_the_number_of_rounds() -> None:
    reading = {name for name in names() if depends_on_rounds(build(name))}
    assert reading == {name for name in names() if name.startswith("fedloe")}


def test_without_resume_the_sentence_says_what_resuming_would_add(there: Path) -> None:
    with pytest.raises(UserError, match="add --resume to add seeds 1 and 2 or --fresh"):
        ff.bench(task(4), ["fedavg"], held_out=["a"], seeds=3, rounds=3, evaluate_every=2, out=there)


def test_another_baseline_is_told(there: Path) -> None:
    told: list[str] = []
    result = ff.bench(task(4), ["fedsgd"], baseline="fedsgd", out=there, resume=True, tell=told.append)
    assert "differences to fedsgd in place of fedavg" in told[0]
    assert result.results().baseline == "fedsgd"
    assert json.loads(json.dumps(result.table()))[1]["difference"] is None


def test_the_note_on_what_stands_in_for_fedavg_is_of_the_whole_bench(there: Path) -> None:
    result = ff.bench(task(4), ["fedsgd", "fedprox"], out=there, resume=True)
    assert result.sweep.plan["baseline"] == "fedavg"
    assert not [note for note in result.sweep.plan["notes"] if note.startswith("FedAvg is not in this bench")]


def test_a_property_that_reads_the_number_of_rounds_counts() -> None:
    class ByProperty(FedAvg):
        @property
        def half(self) -> int:
            return self.rounds // 2

    class ByCachedProperty(FedAvg):
        @cached_property
        def half(self) -> int:
            return self.rounds // 2

    fedavg = build("fedavg")
    assert not depends_on_rounds(fedavg)
    for cls in (ByProperty, ByCachedProperty):
        made = object.__new__(cls)
        made.__dict__.update(fedavg.__dict__)
        assert depends_on_rounds(made)


def test_an_inner_run_that_is_too_short_for_the_grown_plan_is_missing(tmp_path: Path) -> None:
    options: dict[str, Any] = {"references": False, "held_out": ["a"], "seeds": 1, "rules": ["leave-one-domain-out"]}
    ff.bench(task(3), "fedavg", rounds=2, out=tmp_path / "b", **options)
    inner = tmp_path / "b/runs/fedavg/a/inner-b"
    short = shutil.copytree(inner, tmp_path / "short")
    assert len(ff.bench(task(3), rounds=4, out=tmp_path / "b", resume=True).rows) == 1
    shutil.rmtree(inner)
    shutil.copytree(short, inner)
    sweep = collect(tmp_path / "b", "test")
    assert not sweep.rows
    assert "inner runs are missing" in sweep.failures[0]["error"]


def test_a_validation_figure_that_is_not_a_number_is_refused_in_a_sentence(tmp_path: Path) -> None:
    ff.train(task(3), "fedavg", tmp_path / "m", rounds=3, checkpoint_every=1)
    run = tmp_path / "m" / "run"
    rows = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    for row in rows:
        row.pop("check")
        row["validation"]["a"] = dict.fromkeys(row["validation"]["a"], "high")
    (run / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run / "result.json").unlink()
    with pytest.raises(RecordsError, match="has a validation figure that is not a number; remove the folder"):
        ff.train(task(3), "fedavg", tmp_path / "m", rounds=3, resume=True)
