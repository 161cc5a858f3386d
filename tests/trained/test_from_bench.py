"""A model that is trained with what a bench chose carries the bench's figures on its card."""

from __future__ import annotations

from pathlib import Path

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


@pytest.mark.parametrize(
    ("rules", "sentence", "kept"),
    [
        (["last", "oracle"], "The model of this card is the one that last keeps.", "last"),
        (
            ["leave-one-domain-out"],
            "A training cannot choose by leave-one-domain-out, so source-validation chose",
            "source-validation",
        ),
    ],
)
def test_the_rule_of_the_bench_keeps_the_model(tmp_path: Path, rules: list[str], sentence: str, kept: str) -> None:
    ff.bench(task(3), "fedavg", references=False, seeds=1, rounds=2, rules=rules, out=tmp_path / "bench")
    folder = ff.train(task(3), "fedavg", tmp_path / "model", from_bench=tmp_path / "bench", rounds=5)
    card = (folder / "README.md").read_text()
    about = ff.load_model(folder).about
    assert sentence in card
    assert f"| round kept | {about['round']} of 5, by {kept} |" in card
    if kept == "last":
        assert about["round"] == 5


def test_tuned_settings_become_one_by_median_and_by_majority() -> None:
    best = {
        "a": {"mu": 0.1, "optimizer": "sgd", "nesterov": True},
        "b": {"mu": 0.001, "optimizer": "adam", "nesterov": True},
        "c": {"mu": 0.01, "optimizer": "adam", "nesterov": False},
    }
    assert typical_settings(best) == {"mu": 0.01, "optimizer": "adam", "nesterov": True}
    assert typical_settings({"a": {"mu": 1.0}, "b": {"mu": 2.0}}) == {"mu": 1.0}
    assert typical_settings({}) == {}
