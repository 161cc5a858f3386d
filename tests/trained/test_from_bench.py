"""A model that is trained with what a bench chose carries the bench's figures on its card."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import farfield as ff
from farfield.errors import UserError
from farfield.trained.from_bench import bench_choice, typical_settings
from tests.toy import domain, task


@pytest.fixture
def benched(tmp_path: Path) -> tuple[Path, ff.BenchResult]:
    folder = tmp_path / "bench"
    result = ff.bench(
        task(4),
        {"fedavg": "fedavg", "weak": ff.method("fedprox", mu=0.3)},
        seeds=2,
        rounds=3,
        settings={"lr": 0.07, "model.hidden": [5]},
        out=folder,
    )
    return folder, result


def test_the_method_and_its_settings_are_those_of_the_bench(
    benched: tuple[Path, ff.BenchResult], tmp_path: Path
) -> None:
    folder, _ = benched
    model = ff.load_model(ff.train(task(4), "weak", tmp_path / "model", from_bench=folder))
    about = model.about
    assert (about["method"], about["settings"]["mu"], about["settings"]["lr"]) == ("fedprox", 0.3, 0.07)
    assert about["spec"]["hidden"] == [5]
    same = ff.train(
        task(4), ff.method("fedprox", mu=0.3, lr=0.07), tmp_path / "same", rounds=3, settings={"model.hidden": [5]}
    )
    assert ff.load_model(same).model.state().sha256() == model.model.state().sha256()


def test_the_card_has_the_held_out_figures_and_the_estimate_for_a_new_site(
    benched: tuple[Path, ff.BenchResult], tmp_path: Path
) -> None:
    folder, result = benched
    ff.train(task(4), "weak", tmp_path / "model", from_bench=folder)
    card = (tmp_path / "model" / "README.md").read_text()
    for name in "abcd":
        values = [
            row["selection"]["source-validation"]["accuracy"]
            for row in result.rows
            if (row["algorithm"], row["held_out"]) == ("weak", name)
        ]
        assert f"| {name} | {np.mean(values):.4f} | {np.std(values, ddof=1):.4f} |" in card
    assert "## What a new site can expect" in card
    assert "4 " in card.partition("## What a new site can expect")[2]
    assert "Its settings are the bench's; none was tuned." in card


def test_without_a_name_the_recommended_method_is_trained(benched: tuple[Path, ff.BenchResult]) -> None:
    folder, result = benched
    assert bench_choice(folder).variant.label == result.answer().recommended


def test_a_bench_that_does_not_fit_is_refused_in_a_sentence(
    benched: tuple[Path, ff.BenchResult], tmp_path: Path
) -> None:
    folder, _ = benched
    with pytest.raises(UserError, match="the bench has no 'wak'; did you mean 'weak'"):
        ff.train(task(4), "wak", tmp_path / "m", from_bench=folder)
    base = task(4)
    other = ff.Task(base.name, base.kind, (*base.domains[:3], domain("d", 2.0)), base.classes, base.model)
    with pytest.raises(UserError, match="has other data than the bench"):
        ff.train(other, None, tmp_path / "m", from_bench=folder)
    with pytest.raises(UserError, match="there is no bench in"):
        ff.train(task(4), None, tmp_path / "m", from_bench=tmp_path / "nothing")
    with pytest.raises(UserError, match="give a task to train on"):
        ff.train(out=tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_tuned_settings_become_one_by_median_and_by_majority() -> None:
    best = {
        "a": {"mu": 0.1, "optimizer": "sgd", "nesterov": True},
        "b": {"mu": 0.001, "optimizer": "adam", "nesterov": True},
        "c": {"mu": 0.01, "optimizer": "adam", "nesterov": False},
    }
    assert typical_settings(best) == {"mu": 0.01, "optimizer": "adam", "nesterov": True}
    assert typical_settings({"a": {"mu": 1.0}, "b": {"mu": 2.0}}) == {"mu": 1.0}
    assert typical_settings({}) == {}


@pytest.fixture
def rare(tmp_path: Path) -> Path:
    """A table with 10 % of 'yes', which one column announces."""
    draw = np.random.default_rng(0)
    lines = ["sick,age,dose,site"]
    for site in "nsew":
        for number in range(60):
            sick = number % 10 == 0
            lines.append(f"{'yes' if sick else 'no'},{draw.normal(3.0 * sick):.3f},{draw.normal():.3f},{site}")
    path = tmp_path / "rare.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_threshold_moves_the_labels_and_not_the_probabilities(rare: Path, farfield: Callable[..., Any]) -> None:
    table = ["--data", str(rare), "--label", "sick", "--domain", "site"]
    assert farfield("train", *table, "--rounds", "3", "--out", "m").code == 0
    rows: dict[str, list[list[str]]] = {}
    for threshold in (None, "0.01", "0.99"):
        option = [] if threshold is None else ["--threshold", threshold]
        ran = farfield("predict", "m", str(rare), *option)
        rows[str(threshold)] = [line.split(",") for line in ran.out.split()[1:]]
    probabilities = [float(row[3]) for row in rows["None"]]
    assert [row[2:] for row in rows["0.01"]] == [row[2:] for row in rows["None"]]
    for threshold in (0.01, 0.99):
        expected = ["yes" if p >= threshold else "no" for p in probabilities]
        assert [row[1] for row in rows[str(threshold)]] == expected
    assert {row[1] for row in rows["0.01"]} == {"yes"}
    for wrong in ("0", "1.5"):
        ran = farfield("predict", "m", str(rare), "--threshold", wrong)
        assert ran.code == 2
        assert f"--threshold is a probability between 0 and 1, not {wrong}" in ran.err


def test_the_command_trains_from_a_bench_of_your_own_table(rare: Path, farfield: Callable[..., Any]) -> None:
    table = ["--data", str(rare), "--label", "sick", "--domain", "site"]
    ran = farfield("bench", *table, "-a", "fedavg", "--seeds", "1", "--rounds", "2", "--out", "b", "--quiet")
    assert ran.code == 0, ran.err
    ran = farfield("train", "--from", "b", "--out", "m")
    assert (ran.code, "give it again with --data" in ran.err) == (2, True)
    ran = farfield("train", "--from", "b", *table, "--out", "m")
    assert ran.code == 0, ran.err
    assert "method: fedavg (the bench recommends it)" in ran.err
    assert "AUROC" in Path("m/README.md").read_text()
    ran = farfield("train", "--from", "b", "-a", "fedavg", *table, "--out", "m2")
    assert (ran.code, "name it with --method" in ran.err) == (2, True)
    ran = farfield("train", "--method", "fedavg", *table, "--out", "m2")
    assert (ran.code, "--from" in ran.err) == (2, True)
