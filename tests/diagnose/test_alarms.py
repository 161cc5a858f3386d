"""Each alarm rings on a made task with its shift, and is silent on the others."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import farfield as ff
from farfield.algorithms.registry import method
from farfield.diagnose.advice import METHODS, conclusion, fitting, remedy
from farfield.diagnose.diagnosis import diagnose
from farfield.diagnose.finding import KINDS, Diagnosis
from studies.diagnose_alarms import MADE, domain, none


@cache
def found_in(name: str) -> Diagnosis:
    """The quick diagnosis of a made task, once for all tests."""
    return diagnose(MADE[name][0](0), quick=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
def test_the_alarms_that_should_ring_do_and_no_other(name: str) -> None:
    expected, found = MADE[name][1], found_in(name)
    assert set(found.alarms) == set(expected)
    assert [finding.kind for finding in found.results] == list(KINDS)


@pytest.mark.slow
def test_alike_domains_of_few_rows_and_many_columns_ring_nothing() -> None:
    # More columns than a small domain can support: heads overfit, and chance must know it.
    for seed in range(2):
        draw = np.random.default_rng(seed)
        sizes = {"a": 30, "b": 60, "c": 150}
        parts = {site: (draw.standard_normal((n, 39)), (draw.random(n) < 0.3).astype(int)) for site, n in sizes.items()}
        assert diagnose(ff.task_from_arrays("thin", parts), quick=True, seed=seed).alarms == ()


def test_alike_domains_say_that_fedavg_is_enough_and_shifted_ones_name_methods() -> None:
    alike = found_in("none")
    assert "FedAvg is likely enough" in alike.conclusion
    assert all(finding.methods == () for finding in alike.results)
    label = found_in("label shift")
    assert "FedAvg is likely enough" in label.conclusion
    assert "class weights" in label.conclusion
    moved = found_in("feature shift")
    assert moved["feature shift"].methods == ("fedcir",)
    assert "compare with fedcir, which makes representations alike" in moved["feature shift"].remedy
    assert "The features move and the concept does not" in moved.conclusion
    turned = found_in("gradient conflict")
    assert {"fedomg", "fediir", "fedloe-erm"} <= {m for f in turned.results for m in f.methods}
    assert "hints from the data, not proofs" in turned.conclusion


def test_every_method_that_a_finding_speaks_for_can_be_used() -> None:
    for name in {name for names in METHODS.values() for name in names}:
        assert method(name)


def test_a_regression_has_concept_shift_where_slopes_differ_and_none_where_only_the_noise_does() -> None:
    def sites(slopes: tuple[float, ...], noises: tuple[float, ...]) -> ff.Task:
        draw = np.random.default_rng(0)
        parts = {}
        for number, (slope, noise) in enumerate(zip(slopes, noises, strict=True)):
            x = draw.standard_normal((150, 4))
            parts[f"s{number}"] = (x, slope * x[:, 0] + x[:, 1] + noise * draw.standard_normal(150))
        return ff.task_from_arrays("numbers", parts)

    same = diagnose(sites((1.0, 1.0, 1.0), (0.2, 0.5, 1.0)), quick=True)
    assert same["concept shift"].verdict == "silent"
    assert same["label leak"].measure.startswith("rank correlation")
    other = diagnose(sites((1.0, 0.0, -1.0), (0.5, 0.5, 0.5)), quick=True)
    assert other["concept shift"].verdict == "alarm"
    assert other["gradient conflict"].verdict == "alarm"
    # What does not support a regression is not spoken for.
    named = {name for finding in other.results for name in finding.methods}
    assert named
    assert all(method(name).supports.regression is True for name in named)


def test_a_shift_of_a_regressions_label_is_a_label_shift() -> None:
    draw = np.random.default_rng(0)
    parts = {s: (draw.standard_normal((100, 3)), m + draw.standard_normal(100)) for s, m in (("a", 0.0), ("b", 1.5))}
    found = diagnose(ff.task_from_arrays("numbers", parts), quick=True)["label shift"]
    assert found.verdict == "alarm"
    low, high = sorted(found.details["standardised_differences"])
    assert low == pytest.approx(-high)  # two domains of one size lie at the same distance from their mean


def test_the_same_seed_gives_the_same_diagnosis_and_json_brings_it_back() -> None:
    task = none(0, rows=40)
    found = diagnose(task, quick=True)
    assert found == diagnose(task, quick=True)
    assert Diagnosis.from_json(found.to_json()) == found
    assert found.to_json()["conclusion"] == found.conclusion
    assert len(found.findings()) == len(KINDS) + 1
    assert found.findings()[0].startswith("Label shift: silent. ")


def test_what_is_no_diagnosis_is_refused_in_a_sentence() -> None:
    with pytest.raises(ff.UserError, match="its format is null"):
        Diagnosis.from_json({})
    with pytest.raises(ff.UserError, match="its format is null"):
        Diagnosis.from_json([1])
    broken = {**diagnose(none(0, rows=20), quick=True).to_json(), "rows": "many"}
    with pytest.raises(ff.UserError, match="damaged at 'rows'"):
        Diagnosis.from_json(broken)
    with pytest.raises(KeyError, match="no finding 'shift'"):
        diagnose(none(0, rows=20), quick=True)["shift"]


def test_one_domain_a_tiny_one_one_class_and_constant_columns_cannot_say_and_do_not_fail() -> None:
    draw = np.random.default_rng(0)
    alone = diagnose(ff.task_from_arrays("alone", {"a": domain(draw, 50)}), quick=True)
    assert {f.kind: f.verdict for f in alone.results if f.kind != "label leak"} == {
        kind: "cannot say" for kind in KINDS if kind != "label leak"
    }
    assert "Nothing can be said" in alone.conclusion

    x, y = domain(draw, 60)
    sites = {"a": (x[:30], y[:30]), "b": (x[30:], y[30:]), "few": domain(draw, 3), "one": (x[:20] + 9, [1] * 20)}
    small = diagnose(ff.task_from_arrays("small", sites, classes=("no", "yes")), quick=True)
    assert any("'few'" in note for note in small.notes)
    assert "Without 'one'" in small["concept shift"].sentence
    assert small["concept shift"].details["domains"] == ["a", "b"]

    flat = {s: (np.ones((20, 2)), [0, 1] * 10) for s in "ab"}
    constant = diagnose(ff.task_from_arrays("flat", flat), quick=True)
    for kind in ("feature shift", "concept shift", "gradient conflict"):
        assert constant[kind].verdict == "cannot say"

    tiny = diagnose(ff.task_from_arrays("tiny", {s: domain(draw, 3) for s in "ab"}, classes=("n", "y")), quick=True)
    assert tiny["feature shift"].verdict == "cannot say"
    assert tiny["label shift"].verdict in ("silent", "cannot say")


def test_all_labels_the_same_cannot_say() -> None:
    draw = np.random.default_rng(0)
    parts = {s: (draw.standard_normal((30, 3)), np.zeros(30, dtype=int)) for s in "ab"}
    found = diagnose(ff.task_from_arrays("same", parts, classes=("no", "yes")), quick=True)
    assert [found[k].verdict for k in ("label shift", "concept shift", "label leak")] == ["cannot say"] * 3
    numbers = {s: (draw.standard_normal((30, 3)), np.zeros(30)) for s in "ab"}
    found = diagnose(ff.task_from_arrays("same", numbers), quick=True)
    assert [found[k].verdict for k in ("label shift", "concept shift", "label leak")] == ["cannot say"] * 3


def test_gaps_are_filled_by_the_tasks_own_preparation_and_a_gap_of_one_site_is_a_leak() -> None:
    draw = np.random.default_rng(0)
    parts = {}
    for site in "abc":
        x, y = domain(draw, 60)
        x[draw.random(x.shape) < 0.1] = np.nan
        if site == "c":
            x[:, 5] = np.nan
        parts[site] = (x, y)
    found = diagnose(ff.task_from_arrays("gaps", parts), quick=True)
    leak = found["domain leak"]
    assert leak.verdict == "silent"  # the gaps of the others keep it below 0.99
    assert leak.details["columns"][0] == "x5 is missing"
    known = np.concatenate([np.isnan(parts[site][0][:, 5]) for site in "ab"])
    assert leak.value == pytest.approx(1 - known.mean() / 2)  # ties count half


@pytest.mark.slow
def test_many_domains_are_bounded_and_the_diagnosis_says_so() -> None:
    draw = np.random.default_rng(0)
    parts = {f"site-{n:03}": domain(draw, 10 + n % 2) for n in range(170)}
    found = diagnose(ff.task_from_arrays("many", parts, classes=("no", "yes")), quick=True)
    assert len(found["feature shift"].details["domains"]) == 24
    assert any("24 domains with the most rows of 170" in note and "14,365" in note for note in found.notes)
    assert len(found["label shift"].details["domains"]) == 170
    assert found.alarms == ()


def test_methods_that_do_not_fit_are_not_spoken_for() -> None:
    assert fitting("feature shift", "classification") == ("fedcir",)
    assert fitting("feature shift", "regression") == ()  # FedCiR needs classes
    assert "fedcir" not in remedy("feature shift", ())
    told = conclusion({"feature shift": "alarm"}, {"feature shift": ()})
    assert "no method here is made for that on this kind of task" in told
