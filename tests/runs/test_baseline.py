"""What differences are to: named by the user, FedAvg, or the first method."""

from __future__ import annotations

from pathlib import Path

import pytest

import farfield as ff
from farfield.errors import UserError
from farfield.report.metric_values import baseline_of
from farfield.runs import presets
from farfield.runs.plan import make_plan
from tests.toy import task


@pytest.mark.parametrize(
    ("algorithms", "asked", "label"),
    [
        (["fedprox", "fedavg"], None, "fedavg"),
        (["fedprox", "base=fedavg"], None, "base"),
        (["erm", "fedprox", "fedsgd"], None, "fedprox"),
        (["erm", "local-only"], None, "erm"),
        (["fedavg", "fedsgd"], "fedsgd", "fedsgd"),
        (["fedavg", "weak=fedprox:mu=0.1"], "weak", "weak"),
        (["fedavg", "weak=fedprox:mu=0.1"], "fedprox", "weak"),
    ],
)
def test_the_baseline_is_a_label_of_the_plan(algorithms: list[str], asked: str | None, label: str) -> None:
    plan = make_plan(task(3), algorithms=algorithms, baseline=asked)
    assert plan.baseline == label
    stands_in = any("FedAvg is not in this bench" in note for note in plan.notes)
    assert stands_in is (asked is None and not any("fedavg" in name for name in algorithms))


def test_an_unknown_baseline_gets_the_labels() -> None:
    with pytest.raises(UserError, match="there is no 'scaffold' to compare with; this bench has fedavg, fedprox"):
        ff.bench(task(3), ["fedavg", "fedprox"], baseline="scaffold")
    with pytest.raises(UserError, match="did you mean 'fedprox'"):
        make_plan(task(3), algorithms=["fedavg", "fedprox"], baseline="fedprx")


def test_differences_are_to_the_baseline(tmp_path: Path) -> None:
    result = ff.bench(task(4), ["fedavg", "fedsgd"], baseline="fedsgd", seeds=1, rounds=2, out=tmp_path / "b")
    table = result.results()
    assert table.baseline == "fedsgd"
    means = {line.algorithm: line.overall.mean for line in table.lines if line.overall is not None}
    of = {line.algorithm: line.difference for line in table.lines}
    assert of["fedsgd"] is None
    assert of["fedavg"] is not None
    assert of["fedavg"].mean == pytest.approx(means["fedavg"] - means["fedsgd"])
    assert "vs fedsgd" in result.results().markdown()


def test_older_plans_without_a_baseline_get_the_default_one() -> None:
    plan = {"variants": [{"label": name, "method": name} for name in ("fedprox", "fedavg")]}
    assert baseline_of(plan) == "fedavg"
    assert baseline_of({**plan, "baseline": "fedprox"}) == "fedprox"
    assert baseline_of({"variants": plan["variants"][:1]}) is None


def test_fedilc_is_compared_with_fedsgd_as_in_its_paper() -> None:
    for name in ("fedilc/eicu", "fedilc/colored-mnist", "fedilc/rotated-cifar10"):
        assert presets.load(name).options["baseline"] == "fedsgd"
