"""The figures of the held-out site, from a run's sealed rows to the rows of a bench."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from sklearn.metrics import confusion_matrix, roc_auc_score

import farfield as ff
from farfield.models import build_model
from farfield.protocol.measurement import HeldOut
from tests.toy import task


def test_a_bench_carries_the_figures_of_the_site_in_the_chosen_round(tmp_path: Path) -> None:
    toy = task(3)
    result = ff.bench(toy, ["fedavg", "local-only"], held_out=["a"], seeds=1, rounds=2, out=tmp_path / "b")
    fedavg, local = (row["selection"]["last"] for row in result.rows)
    site = fedavg["site"]
    assert site["rows"] == len(toy.domain("a"))
    assert list(site["classes"]) == list(toy.classes)
    assert sum(site["classes"].values()) == site["rows"]
    right = sum(row[i] for i, row in enumerate(site["confusion"]))
    assert right / site["rows"] == pytest.approx(fedavg["accuracy"])
    assert site["brier"] == pytest.approx(fedavg["brier"], rel=1e-5)
    assert site["auroc"]["value"] == pytest.approx(fedavg["auroc"], rel=1e-5)
    # Several models have no figures of one.
    assert local["site"] is None
    assert json.loads(json.dumps(site)) == site


def test_a_held_out_site_is_measured_with_the_names_of_its_classes() -> None:
    toy = task(3)
    held_out = HeldOut(toy.domain("a"), toy.kind, toy.model, classes=toy.classes)
    model = build_model(toy.model, seed=1)
    got = held_out.measure_with_site([model.state()])
    assert {name: value for name, value in got.items() if name != "site"} == held_out.measure([model.state()])
    model.eval_unseen()
    with torch.no_grad():
        logits = model.predict(toy.domain("a").x)
    truth, scores = toy.domain("a").y, logits.double().softmax(1)
    assert got["site"]["confusion"] == confusion_matrix(truth, logits.argmax(1), labels=[0, 1, 2]).tolist()
    assert got["site"]["auroc"]["value"] == pytest.approx(roc_auc_score(truth, scores, multi_class="ovr"), abs=1e-6)
