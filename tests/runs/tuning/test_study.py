"""Trials: as many for every method, never about the held-out domain, and the same after a kill."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import farfield as ff
from farfield.errors import UserError
from farfield.records import read_config, sole_writer
from farfield.records.tuning_trials import read_trials, tuned_words
from farfield.runs.job import Job
from farfield.runs.rounds import Progress
from tests.toy import task

OPTIONS: dict[str, Any] = {"seeds": 1, "rounds": 2, "held_out": ["a", "c"], "parallel": 1}
SOURCE = Path(ff.__file__).parent


def bench(out: Path, methods: Any = ("fedavg", "fedprox"), tune: int = 3, **options: Any) -> ff.BenchResult:
    return ff.bench(options.pop("on", task(3)), methods, tune=tune, out=out, **{**OPTIONS, **options})


def trials(out: Path) -> list[dict[str, Any]]:
    """The trials without the time they took."""
    return [{k: v for k, v in row.items() if k != "seconds"} for row in read_trials(out)]


class Killed(Exception):
    pass


class Killer:
    """Ends a bench after so many runs."""

    def __init__(self, after: int) -> None:
        self.left = after

    def begin(self, total: int, done: int) -> None:
        pass

    def progress(self, progress: Progress) -> None:
        pass

    def finished(self, job: Job, error: str | None) -> None:
        self.left -= 1
        if self.left == 0:
            raise Killed


def test_every_method_gets_as_many_trials_and_local_steps_for_every_held_out_domain(tmp_path: Path) -> None:
    bench(tmp_path / "b", ["fedavg", "fedprox", "erm"])
    found = trials(tmp_path / "b")
    assert len(found) == 3 * 3 * 2  # trials, methods, held-out domains
    for held_out in ("a", "c"):
        of = [row for row in found if row["held_out"] == held_out]
        # Two clients with 36 to 51 training rows each, batches of 8, two rounds; erm has them in one client.
        assert len({row["local_steps"] for row in of if row["algorithm"] != "erm"}) == 1
        assert len({row["settings"]["lr"] for row in of}) == 3  # the same draws for all methods
    first = [row for row in found if row["number"] == 0]
    assert all(row["default"] and row["settings"]["lr"] == 0.1 for row in first)
    assert not any(row["default"] for row in found if row["number"] > 0)


def test_the_best_trial_by_its_records_is_what_the_runs_are_made_with(tmp_path: Path) -> None:
    result = bench(tmp_path / "b")
    plan = read_config(tmp_path / "b" / "bench.toml")
    for row in result.rows:
        key = (row["algorithm"], row["held_out"])
        of = [t for t in trials(tmp_path / "b") if (t["algorithm"], t["held_out"]) == key]
        # By hand: the mean over the two sources of the loss in the recorded round.
        for trial in of:
            path = tmp_path / "b/tuning" / key[0] / key[1] / f"trial-{trial['number']:04d}/seed-0/rounds.jsonl"
            rounds = [json.loads(line) for line in path.read_text().splitlines()]
            chosen = next(r["validation"] for r in rounds if r["round"] == trial["round"])
            assert trial["criterion"] == pytest.approx(sum(d["loss"] for d in chosen.values()) / 2)
            assert set(chosen) == {"a", "b", "c"} - {key[1]}
        best = min(of, key=lambda t: t["criterion"])
        assert best["criterion"] <= of[0]["criterion"]  # trial 0 is the default
        assert row["tuned"] == best["settings"] == plan["tuned"][key[0]]["best"][key[1]]
        assert row["settings"].items() >= best["settings"].items()
        assert tuned_words(plan, key[0]) == "tuned (3 trials)"
    assert [line["chosen"] for line in result.table()] == ["tuned (3 trials)", "tuned (3 trials)"]


def test_the_held_out_domain_can_hold_anything_and_the_same_settings_are_chosen(tmp_path: Path) -> None:
    honest = task(3)
    target = honest.domains[0]
    noise = torch.randn(target.x.shape, generator=torch.Generator().manual_seed(9))
    other = replace(target, x=1000 * noise, y=target.y.flip(0))
    bench(tmp_path / "one", held_out="a")
    bench(tmp_path / "two", held_out="a", on=replace(honest, domains=(other, *honest.domains[1:])))
    assert trials(tmp_path / "one") == trials(tmp_path / "two")


def test_trials_measure_no_held_out_rows_and_no_run_opens_sealed_ones(tmp_path: Path) -> None:
    bench(tmp_path / "b", tune_by="leave-one-domain-out", held_out="a", tune=2)
    assert list((tmp_path / "b" / "runs").rglob("target.sealed.jsonl"))
    assert not list((tmp_path / "b" / "tuning").rglob("*sealed*"))
    readers = [path.name for path in (SOURCE / "runs").rglob("*.py") if "open_sealed" in path.read_text()]
    assert readers == []


def test_nested_trials_are_judged_on_each_source_while_it_is_held_out_too(tmp_path: Path) -> None:
    bench(tmp_path / "b", ["fedavg"], tune=2, tune_by="leave-one-domain-out", held_out="a")
    for row in trials(tmp_path / "b"):
        assert set(row["domains"]) == {"b", "c"}
        for domain in ("b", "c"):
            path = tmp_path / "b/tuning/fedavg/a" / f"trial-{row['number']:04d}/inner-{domain}/seed-0/rounds.jsonl"
            rounds = [json.loads(line) for line in path.read_text().splitlines()]
            chosen = next(r for r in rounds if r["round"] == row["round"])
            assert set(chosen["validation"]) == {"b", "c"} - {domain}
            assert row["domains"][domain] == chosen["inner"]["loss"]


@pytest.mark.slow
def test_a_tuning_that_was_killed_goes_on_to_the_same_trials_and_settings(tmp_path: Path) -> None:
    whole = bench(tmp_path / "whole", tune=11, held_out="a", rounds=1)
    for after in (5, 20, 22):  # in the first wave, in it again, after the trial that Optuna proposed for fedavg
        with pytest.raises(Killed):
            bench(tmp_path / str(after), tune=11, held_out="a", rounds=1, observer=Killer(after))
        again = bench(tmp_path / str(after), tune=11, held_out="a", rounds=1, resume=True)
        assert trials(tmp_path / str(after)) == trials(tmp_path / "whole")
        assert [row["model_sha256"] for row in again.rows] == [row["model_sha256"] for row in whole.rows]
    assert len(trials(tmp_path / "whole")) == 22


@pytest.mark.slow
def test_several_runs_at_once_make_the_same_trials(tmp_path: Path) -> None:
    bench(tmp_path / "one")
    bench(tmp_path / "two", parallel=2)
    assert trials(tmp_path / "one") == trials(tmp_path / "two")


def test_a_trial_that_fails_is_recorded_and_never_chosen(tmp_path: Path) -> None:
    bench(tmp_path / "b", ["fedavg"], settings={"lr": 1e30}, tune_only=["lr"], held_out="a", rounds=3)
    found = trials(tmp_path / "b")
    assert found[0]["state"] == "failed"  # no update is finite, and three missed rounds end a run
    assert found[0]["criterion"] is None
    assert "3 rounds in a row" in found[0]["error"]
    best = read_config(tmp_path / "b" / "bench.toml")["tuned"]["fedavg"]["best"]["a"]
    assert best["lr"] < 1.0


def test_resuming_with_another_number_of_trials_is_refused(tmp_path: Path) -> None:
    bench(tmp_path / "b", ["fedavg"], tune=1, held_out="a")
    with pytest.raises(UserError, match=r"tuning\.trials is 1 there and 2 here"):
        bench(tmp_path / "b", ["fedavg"], tune=2, held_out="a", resume=True)


def test_tune_alone_finds_settings_for_all_domains_together(tmp_path: Path) -> None:
    result = ff.tune(task(3), ["fedavg", "fedprox:mu=0.01"], trials=3, rounds=2, out=tmp_path / "t")
    assert set(result.best) == {"fedavg", "fedprox:mu=0.01"}
    assert all(set(of) == {""} and set(of[""]) == {"lr"} for of in result.best.values())
    assert all(set(row["domains"]) == {"a", "b", "c"} for row in result.trials)
    lr = result.best["fedavg"][""]["lr"]
    assert read_config(tmp_path / "t" / "best.toml")["fedavg"] == {"lr": lr}
    assert result.lines()[0].endswith(f"--set fedavg.lr={lr:g}")
    assert "-a 'fedprox:mu=0.01:lr=" in result.lines()[1]
    again = ff.tune(task(3), ["fedavg", "fedprox:mu=0.01"], trials=3, rounds=2, out=tmp_path / "t", resume=True)
    assert again.best == result.best
    with pytest.raises(UserError, match="holds this tuning already"):
        ff.tune(task(3), ["fedavg", "fedprox:mu=0.01"], trials=3, rounds=2, out=tmp_path / "t")
    with pytest.raises(UserError, match=r"holds another tuning: rounds is 2 there and 1 here"):
        ff.tune(task(3), ["fedavg", "fedprox:mu=0.01"], trials=3, rounds=1, out=tmp_path / "t", resume=True)


def test_a_tuned_bench_grows_by_methods_and_held_out_domains_which_are_tuned_as_well(tmp_path: Path) -> None:
    bench(tmp_path / "b", ["fedavg"], tune=2, held_out="a")
    before = trials(tmp_path / "b")
    ff.bench(task(3), ["fedprox"], held_out="c", out=tmp_path / "b", resume=True, parallel=1)
    after = trials(tmp_path / "b")
    found = {(row["algorithm"], row["held_out"], row["number"]) for row in after}
    assert found == {(m, d, n) for m in ("fedavg", "fedprox") for d in ("a", "c") for n in (0, 1)}
    assert [row for row in after if (row["algorithm"], row["held_out"]) == ("fedavg", "a")] == before
    with pytest.raises(UserError, match="tuned in trials of 2 rounds, so the runs cannot have 4"):
        ff.bench(task(3), rounds=4, out=tmp_path / "b", resume=True)


def test_growing_a_tuned_bench_keeps_what_was_tuned_while_the_new_trials_are_made(tmp_path: Path) -> None:
    bench(tmp_path / "b", ["fedavg"], tune=2, held_out="a")
    before = read_config(tmp_path / "b" / "bench.toml")["tuned"]["fedavg"]
    with pytest.raises(Killed):
        ff.bench(task(3), ["fedprox"], out=tmp_path / "b", resume=True, parallel=1, observer=Killer(1))
    assert read_config(tmp_path / "b" / "bench.toml")["tuned"] == {"fedavg": before}


def test_a_study_without_a_usable_trial_is_told_and_noted(tmp_path: Path) -> None:
    told: list[str] = []
    options: dict[str, Any] = {"settings": {"lr": 1e30}, "rounds": 3}
    bench(tmp_path / "b", ["fedavg"], tune=1, tune_only=["lr"], held_out="a", tell=told.append, **options)
    sentence = next(
        line for line in told if line.startswith("fedavg is not tuned with a held out: none of its 1 trials")
    )
    plan = read_config(tmp_path / "b" / "bench.toml")
    assert sentence in plan["notes"]
    assert plan["tuned"] == {}
    result = ff.tune(task(3), ["fedavg"], trials=1, only=["lr"], out=tmp_path / "t", **options)
    assert result.lines()[0].startswith("fedavg is not tuned: none of its 1 trials can be used")


@pytest.mark.parametrize("held_out", [["a"], None])
def test_nested_trials_that_would_have_one_class_are_refused_before_any_work(
    tmp_path: Path, held_out: list[str] | None
) -> None:
    honest = task(3)
    honest = replace(honest, classes_from_rows=True)
    one_class = [replace(each, y=torch.zeros_like(each.y)) for each in honest.domains[1:2]]
    domains = (honest.domains[0], *one_class, honest.domains[2]) if held_out else (honest.domains[0], *one_class)
    with pytest.raises(UserError, match="class"):
        ff.tune(
            replace(honest, domains=domains),
            ["fedavg"],
            trials=1,
            by="leave-one-domain-out",
            held_out=held_out,
            rounds=1,
            out=tmp_path / "t",
        )
    assert not (tmp_path / "t").exists()


def test_fresh_does_not_touch_a_tuning_that_another_process_writes(tmp_path: Path) -> None:
    options: dict[str, Any] = {"trials": 1, "rounds": 1, "out": tmp_path / "t"}
    ff.tune(task(3), ["fedavg"], **options)
    before = trials(tmp_path / "t")
    with sole_writer(tmp_path / "t", patience=0.0), pytest.raises(UserError, match="another process is writing"):
        ff.tune(task(3), ["fedprox"], fresh=True, **options)
    assert trials(tmp_path / "t") == before
