"""A trained model on labelled data of a new site."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import farfield as ff
from farfield.protocol.measurement import HeldOut
from farfield.protocol.metrics import classification_metrics, regression_metrics
from farfield.tasks import Domain
from tests.tasks.tables import visits, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    task = ff.read_table(write(visits(120), tmp_path / "visits.csv"), label="died", domain="hospital")
    return ff.train(task, "fedavg", tmp_path / "model", rounds=5)


def test_the_figures_are_those_of_a_held_out_domain(folder: Path, tmp_path: Path) -> None:
    new = visits(40, seed=7).assign(hospital="ulm")
    path = write(new, tmp_path / "ulm.csv")
    trained = ff.load_model(folder)
    result = trained.evaluate(path)
    x, _ = trained.read(path)
    y = torch.tensor([trained.classes.index(text) for text in new["died"]])
    held_out = HeldOut(Domain("ulm", x, y), "classification", trained.model.spec)
    assert result.metrics == held_out.measure([trained.model.state()])
    assert (result.overall.rows, result.domains, result.notes) == (40, (), ())
    low, high = result.overall.interval or (0, 0)
    assert low < result.metrics["accuracy"] < high
    assert ff.evaluate(folder, path, label="died").to_json() == result.to_json()


def test_the_figures_name_the_label_and_the_method(tmp_path: Path) -> None:
    task = ff.read_table(write(visits(120), tmp_path / "visits.csv"), label="died", domain="hospital")
    folder = ff.train(task, {"weak": ff.method("fedprox", mu=0.01)}, tmp_path / "model", rounds=1)
    told = ff.evaluate(folder, write(visits(40, seed=7), tmp_path / "new.csv")).to_json()
    assert (told["algorithm"], told["method"], told["round"]) == ("weak", "fedprox", 1)


def test_domains_are_measured_apart_and_together(folder: Path, tmp_path: Path) -> None:
    new = visits(60, seed=3).replace({"hospital": {"north": "ulm", "west": "lyon"}})
    result = ff.evaluate(folder, write(new, tmp_path / "new.parquet"))
    assert [(d.name, d.rows) for d in result.domains] == [("ulm", 20), ("south", 20), ("lyon", 20)]
    shares = [d.metrics["accuracy"] for d in result.domains]
    assert result.metrics["accuracy"] == pytest.approx(np.mean(shares))
    assert any("trained on domains of the names 'south'" in note for note in result.notes)
    alone = ff.evaluate(folder, write(new[new["hospital"] == "ulm"], tmp_path / "ulm.csv"))
    assert alone.metrics == result.domains[0].metrics
    assert "| lyon | 20 |" in str(result)
    assert "Average precision: of finding the rows of 'yes'." in str(result)


def test_what_the_model_does_not_know_is_left_out_and_named(folder: Path, tmp_path: Path) -> None:
    new = visits(30, seed=3).assign(hospital="ulm")
    bare = ff.evaluate(folder, write(new.drop(index=[0, 1, 2]), tmp_path / "bare.csv"))
    new.loc[0, "died"], new.loc[1, "died"], new.loc[2, "died"] = "Yes", "maybe", None
    new.loc[5, "ward"] = "maternity"
    result = ff.evaluate(folder, write(new, tmp_path / "new.csv"))
    said = " | ".join(result.notes)
    assert "left out what has no label: row 3" in said
    # 'Yes' is a spelling of the model's 'yes'.
    assert "1 of 29 rows have classes that the model never learned and are left out: 'maybe' (1)" in said
    assert "'maternity' in row 6" in said
    right = round(result.metrics["accuracy"] * 28)
    assert f"would make the accuracy {100 * right / 29:.1f} %" in said
    assert (result.overall.rows, bare.overall.rows) == (28, 27)


def test_a_class_that_is_absent_leaves_auroc_out(folder: Path, tmp_path: Path) -> None:
    new = visits(30, seed=3).query("died == 'yes'")
    result = ff.evaluate(folder, write(new, tmp_path / "new.csv"))
    assert "auroc" not in result.metrics
    assert any("no row here has the class 'no'" in note for note in result.notes)
    assert result.to_json()["by_class"]["no"] == {"rows": 0, "recall": None}


@pytest.mark.parametrize(
    ("label", "change", "phrase"),
    [
        (None, {"drop": ["died"]}, "'new.csv' has no column 'died', the model's label; give --label"),
        ("dead", {}, "there is no column 'dead' for the label"),
        ("hospital", {}, "no label is a class of this model, which knows 'no', 'yes'; there is 'north' (3)"),
    ],
)
def test_what_cannot_be_measured_is_said(
    folder: Path, tmp_path: Path, label: str | None, change: dict[str, list[str]], phrase: str
) -> None:
    new = visits(9).drop(columns=change.get("drop", []))
    with pytest.raises(ff.UserError) as caught:
        ff.evaluate(folder, write(new, tmp_path / "new.csv"), label=label)
    assert phrase in str(caught.value)


def arrays(seed: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(seed).normal(0, 1, (40, 3))
    return x, (x[:, 0] > 0).astype(np.int64)


def test_arrays_bring_their_labels_in_a_file(tmp_path: Path) -> None:
    task = ff.task_from_arrays("a", {"p": arrays(0), "q": arrays(1)}, classes=["low", "high"])
    ff.train(task, "fedavg", tmp_path / "m", rounds=3)
    x, y = arrays(2)
    np.savez(tmp_path / "new.npz", x=x, y=y, domain=np.repeat(["r", "s"], 20))
    np.savez(tmp_path / "named.npz", x=x, truth=np.array(["low", "high"])[y])
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    result = ff.evaluate(tmp_path / "m", tmp_path / "new.npz")
    assert [d.name for d in result.domains] == ["r", "s"]
    trained = ff.load_model(tmp_path / "m")
    outputs = trained.outputs(trained.read(tmp_path / "new.npz").x).numpy()
    assert result.metrics == pytest.approx(classification_metrics(outputs, y), rel=1e-5)
    named = ff.evaluate(tmp_path / "m", tmp_path / "named.npz", label="truth")
    apart = ff.evaluate(tmp_path / "m", tmp_path / "x.npy", label=str(tmp_path / "y.npy"))
    assert named.metrics == apart.metrics == pytest.approx(result.metrics)
    with pytest.raises(ff.UserError, match="has no array 'y'; it has x, truth"):
        ff.evaluate(tmp_path / "m", tmp_path / "named.npz")
    with pytest.raises(ff.UserError, match="holds no labels; give --label FILE"):
        ff.evaluate(tmp_path / "m", tmp_path / "x.npy")


def test_a_table_of_numbers_serves_a_model_of_images_as_arrays(tmp_path: Path) -> None:
    ff.train("rotated-digits", "fedavg", tmp_path / "m", rounds=1)
    import pandas as pd

    digits = np.random.default_rng(0).integers(0, 2, (20, 64)).astype(float)
    frame = pd.DataFrame(digits, columns=[f"pixel {i}" for i in range(64)]).assign(digit=np.arange(20) % 10)
    result = ff.evaluate(tmp_path / "m", write(frame, tmp_path / "digits.csv"), label="digit")
    np.savez(tmp_path / "digits.npz", x=digits, y=np.arange(20) % 10)
    assert result.metrics == pytest.approx(ff.evaluate(tmp_path / "m", tmp_path / "digits.npz").metrics)


def test_a_number_has_its_loss_in_its_own_units_with_an_interval(tmp_path: Path) -> None:
    frame = visits(90).assign(cost=lambda f: f["age"] * 100 + 7)
    task = ff.read_table(write(frame, tmp_path / "v.csv"), label="cost", domain="hospital", drop=["died"])
    ff.train(task, "fedavg", tmp_path / "m", rounds=3)
    new = visits(30, seed=5).assign(hospital="ulm", cost=lambda f: f["age"] * 100 + 7)
    result = ff.evaluate(tmp_path / "m", write(new, tmp_path / "new.csv"))
    trained = ff.load_model(tmp_path / "m")
    guess = trained.outputs(trained.read(tmp_path / "new.csv").x).numpy()
    assert result.metrics == pytest.approx(regression_metrics(guess, new["cost"].to_numpy()))
    low, high = result.overall.interval or (0, 0)
    assert low < result.metrics["loss"] < high
    assert result.to_json()["loss_95"] == [low, high]


def test_an_evaluated_site_has_the_figures_of_a_held_out_one(folder: Path, tmp_path: Path) -> None:
    new = visits(80, seed=7).assign(hospital="ulm")
    path = write(new, tmp_path / "ulm.csv")
    trained = ff.load_model(folder)
    result = trained.evaluate(path)
    x, _ = trained.read(path)
    y = torch.tensor([trained.classes.index(text) for text in new["died"]])
    held_out = HeldOut(Domain("ulm", x, y), "classification", trained.model.spec, classes=trained.classes)
    assert result.to_json()["site"] == held_out.measure_with_site([trained.model.state()])["site"]
    sites = result.sites()
    assert sites is not None
    assert [column.heading for column in sites.columns][:4] == ["site", "rows", "events", "AUROC"]
    assert [cell.text for cell in sites.rows[0]][:3] == ["all", "80", str(int(y.sum()))]


def test_a_thin_site_says_why_it_has_no_calibration(folder: Path, tmp_path: Path) -> None:
    new = visits(12, seed=7).assign(hospital="ulm")
    sites = ff.evaluate(folder, write(new, tmp_path / "ulm.csv")).sites()
    assert sites is not None
    assert [cell.text for cell in sites.rows[0]][4:] == ["–", "–"]
    assert any("calibration and net benefit need" in note for note in sites.notes)
