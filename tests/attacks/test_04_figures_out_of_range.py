"""A site says of itself what cannot be: its reply is dropped, counted, and named with the figure."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from farfield.algorithms import build
from farfield.deployment.server.evaluating_sites import read_metrics
from farfield.deployment.server.site_statistics import check_statistics
from farfield.diagnose.site_moments import SiteMoments, site_moments
from farfield.errors import UserError
from farfield.federation.federation import FederationError
from farfield.records.sealed import open_sealed
from farfield.tasks.user_data.preparation import Column, TablePreparation
from tests.attacks.hostile_sites import ChangeReply, Served, served

HOSTILE = 3


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return served(tmp_path_factory.mktemp("honest"))


def says(phase: str, header: dict[str, Any] | None = None, **values: Any) -> ChangeReply:
    """Replies to a phase with other figures in the envelope, or other values."""

    def change(given: dict[str, Any], sent: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        return (header or {}, {**sent, **values}) if given["phase"] == phase else ({}, sent)

    return change


def test_honest_sites_raise_no_doubt(honest: Served) -> None:
    assert honest.records.events() == []
    assert [row["clients"] for row in honest.records.rounds()] == [4, 4, 4]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"samples": 2**52}, "it says that it has 4503599627370496 training rows, and it joined with 30 rows"),
        ({"samples": 31}, "it says that it has 31 training rows, and it joined with 30 rows"),
        ({"samples": 0}, "it says that it has 0 training rows, and it joined with 30 rows"),
        ({"steps": 10**9}, "it says that it made 1000000000 steps, and with its rows and settings it can make 1"),
        ({"examples": 28}, "it says that it made 28 examples, and with its rows and settings it can make 27"),
        ({"seconds": 1e9}, "no reply within the deadline of 600 s"),
        ({"seconds": math.inf}, "its reply cannot be used: it took inf seconds"),
        ({"samples": -1}, "its reply cannot be used: its number of samples is -1"),
    ],
)
def test_rows_and_work_are_held_against_what_the_site_declared(
    tmp_path: Path, honest: Served, header: dict[str, Any], message: str
) -> None:
    run = served(tmp_path, reply=says("train", header))
    dropped = run.events("reply-dropped")
    assert [(e["round"], e["client"]) for e in dropped] == [(number, HOSTILE) for number in (1, 2, 3)]
    assert {e["message"] for e in dropped} == {message}
    # What it claims to have done is not counted either.
    assert run.result["local_steps"] <= honest.result["local_steps"]
    assert run.result["samples"] <= honest.result["samples"]


def test_the_number_of_training_rows_cannot_change_from_reply_to_reply(tmp_path: Path) -> None:
    def grow(header: dict[str, Any], values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"samples": 26 + header["round"]}, values

    run = served(tmp_path, reply=grow)
    dropped = {(e["round"], e["phase"]): e["message"] for e in run.events("reply-dropped")}
    assert (1, "train") not in dropped
    assert dropped[2, "train"] == "it says that it has 28 training rows, and it said 27 before"


FIGURES: dict[str, tuple[dict[str, Any], str]] = {
    "an accuracy of 1e30": ({"accuracy": 1e30}, "'accuracy' is 1e+30, and it lies between 0 and 1"),
    "an accuracy below 0": ({"accuracy": -0.1}, "'accuracy' is -0.1"),
    "a negative loss": ({"loss": -1.0}, "'loss' is -1, and it lies between 0 and 1e+30"),
    "a loss of 1e200": ({"loss": 1e200}, "'loss' has an entry of size 1.0e+200"),
    "a loss that is no number": ({"loss": math.nan}, "'loss' is not finite"),
    "an AUROC of 2": ({"auroc": 2.0}, "'auroc' is 2, and it lies between 0 and 1"),
    "more rows than it has": ({"rows": 31}, "'rows' is 31, and it can have 3"),
    "half a row": ({"rows": 2.5}, "'rows' is 2.5"),
    "negative rows": ({"rows": -3}, "'rows' is -3"),
    "rows of classes that do not add up": (
        {"class_rows": torch.tensor([1.0, 1.0, 0.0])},
        "'class_rows' add up to 2, and 'rows' is 3",
    ),
    "negative rows of a class": ({"class_rows": torch.tensor([-1.0, 3.0, 1.0])}, "'class_rows' is -1"),
    "more right than there are": (
        {"class_correct": torch.tensor([2.0, 0.0, 0.0]), "class_rows": torch.tensor([1.0, 1.0, 1.0])},
        "'class_correct' has more rows of a class than 'class_rows'",
    ),
    "an accuracy that its classes do not bear out": (
        {"accuracy": 1.0, "class_correct": torch.zeros(3)},
        "'class_correct' adds up to 0 of 3 rows, and 'accuracy' says otherwise",
    ),
    "a loss that its classes do not bear out": ({"loss": 9.0}, "and 'loss' says otherwise"),
}


@pytest.mark.parametrize("kind", FIGURES)
def test_validation_figures_are_held_against_their_ranges_and_each_other(tmp_path: Path, kind: str) -> None:
    values, message = FIGURES[kind]
    run = served(tmp_path, reply=says("evaluate", **values), rounds=1)
    (dropped,) = run.events("reply-dropped")
    assert (dropped["client"], dropped["phase"]) == (HOSTILE, "evaluate")
    assert message in dropped["message"]
    assert set(run.records.rounds()[-1]["validation"]) == {"amber", "birch", "cedar"}


def test_a_count_of_gradients_weighs_in_fediirs_mean_and_is_checked(tmp_path: Path) -> None:
    run = served(tmp_path, reply=says("head_gradient", batches=10**6), algorithm="fediir", rounds=1)
    (dropped,) = run.events("reply-dropped")
    assert dropped["message"] == "'batches' is 1e+06, and it can be 1 to 1"


def test_fedloes_tuning_rows_are_as_many_as_were_set_aside(tmp_path: Path) -> None:
    more = {"predictions": torch.zeros(500, 4, 3), "labels": torch.zeros(500, dtype=torch.int64)}
    run = served(tmp_path, reply=says("predict_tuning", **more), algorithm="fedloe-erm", rounds=2)
    (dropped,) = run.events("reply-dropped")
    assert dropped["message"] == "'predictions' has 500 rows, and 3 of its 27 training rows are for tuning"


METRICS: dict[str, tuple[Any, str]] = {
    "NaN": ({"accuracy": math.nan}, "its 'accuracy' is not a finite number"),
    "1e308": ({"loss": 1e308}, "its 'loss' is 1e+308, and it lies between 0 and 1e+30"),
    "an accuracy of 2": ({"accuracy": 2}, "its 'accuracy' is 2, and it lies between 0 and 1"),
    "a metric that is not declared": ({"accuracy": 0.5, "patients": 1.0}, "it sent 2 metrics, among them 'patients'"),
    "200,000 metrics": ({f"m{i}": 1.0 for i in range(200_000)}, "it sent 200000 metrics, among them 'm0'"),
    "a text": ({"accuracy": "0.9"}, "its 'accuracy' is not a finite number"),
    "true": ({"accuracy": True}, "its 'accuracy' is not a finite number"),
    "a list": ([0.5], "its metrics cannot be read"),
    "nothing": ({}, "its metrics cannot be read"),
    "a metric of a regression": ({"rmse": 0.5}, "among them 'rmse'"),
    "an escape sequence as a name": ({"\x1b[2J": 0.5}, "among them 'something'"),
}


@pytest.mark.parametrize("kind", METRICS)
def test_an_evaluating_sites_metrics_are_dropped_with_an_event_that_names_it(tmp_path: Path, kind: str) -> None:
    answer, message = METRICS[kind]

    def change(question: str, given: Any) -> Any:
        return answer if question == "measure" else given

    run = served(tmp_path, answer=change, evaluating=("dune",), rounds=1)
    (event,) = run.events("not-measured")
    assert event["message"].startswith("site 'dune' did not measure the model: ")
    assert message in event["message"]
    assert len(event["message"]) < 300
    assert dict(open_sealed(run.records.path)) in ({}, {1: {}})


def test_honest_metrics_are_kept(tmp_path: Path) -> None:
    run = served(tmp_path, evaluating=("dune",), rounds=1)
    assert run.events("not-measured") == []
    assert 0 <= dict(open_sealed(run.records.path))[1]["accuracy"] <= 1
    assert read_metrics({"rmse": 3.0, "r2": -7.5, "loss": 9.0, "mae": 2}, "regression")["r2"] == -7.5


def _told(**changes: Any) -> dict[str, Any]:
    """Honest statistics of a column of numbers, with some of them changed."""
    x = torch.tensor([[1.0], [2.0], [3.0], [10.0]], dtype=torch.float64)
    told = TABLE.statistics(x, torch.zeros(4, dtype=torch.int64))
    for key, value in changes.items():
        if key == "rows":
            told["rows"] = value
        else:
            told["columns"][0][key] = value
    return told


TABLE = TablePreparation((Column("age", "number"),))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": 10**12}, "'rows' is 1000000000000, and the site joined with 5 rows"),
        ({"known": 9}, "it has more values than the 4 rows"),
        ({"mean": math.nan}, "cannot be used: 'mean' input should be a finite number"),
        ({"mean": 1e300}, "cannot be used: 'mean' input should be less than or equal to 1"),
        ({"squares": -1.0}, "'squares' input should be greater than or equal to 0"),
        ({"median": 1e9}, "column 'age' has the median 1e+09, over a standard deviation from its mean 4"),
        ({"median": math.inf}, "'median' input should be a finite number"),
        ({"varies": False}, "column 'age' does not vary"),
    ],
)
def test_statistics_for_the_preparation_are_checked_and_the_site_is_named(
    changes: dict[str, Any], message: str
) -> None:
    check_statistics(TABLE, _told(), "dune", 5)
    with pytest.raises(FederationError) as refused:
        check_statistics(TABLE, _told(**changes), "dune", 5)
    assert str(refused.value).startswith("the statistics of site 'dune' cannot be: ")
    assert message in str(refused.value)


def test_a_server_names_the_site_whose_statistics_it_cannot_use(tmp_path: Path) -> None:
    def change(question: str, given: Any) -> Any:
        if question == "statistics":
            given["columns"][0]["median"] = 1e12
        return given

    with pytest.raises(FederationError, match=r"statistics of site 'dune' cannot be: column .* has the median 1e\+12"):
        served(tmp_path, answer=change)


def _moments(**changes: Any) -> SiteMoments:
    draw = np.random.default_rng(0)
    told = site_moments(draw.normal(size=(60, 2)), np.arange(60) % 3, 3)
    told = json.loads(json.dumps(told))
    for name, value in changes.items():
        told[name] = value if not isinstance(value, float) else (np.asarray(told[name]) * 0 + value).tolist()
    return SiteMoments.model_validate(told)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"counts": [10**9, 20, 20]}, "'counts' add up to more than the 60 rows"),
        ({"means": 1e35}, "'means' has an entry larger than 1e\\+30"),
        ({"scatter": 1e308}, "'scatter' has an entry larger than"),
        ({"information": 1e308}, "'information' has an entry larger than"),
        ({"scatter": [[-1.0, 0.0], [0.0, 1.0]]}, "'scatter' is no covariance"),
    ],
)
def test_moments_for_the_diagnosis_are_checked(changes: dict[str, Any], message: str) -> None:
    _moments().check(3, 2, rows=60)
    with pytest.raises(UserError, match=message):
        _moments(**changes).check(3, 2, rows=60)


def test_a_variance_of_a_label_is_not_negative() -> None:
    draw = np.random.default_rng(0)
    told = site_moments(draw.normal(size=(60, 2)), draw.normal(size=60), 0)
    SiteMoments.model_validate(told).check(0, 2, 60)
    with pytest.raises(UserError, match="moments of the label"):
        SiteMoments.model_validate({**told, "label_variance": -1.0}).check(0, 2, 60)


@pytest.mark.parametrize("name", ["fedavg", "fedsgd", "fediir", "fedilc-intra-geo", "scaffold", "fedloe-irm", "fedcir"])
@pytest.mark.parametrize(
    "settings", [{}, {"local_steps": 7}, {"batch_size": 0}, {"batch_size": 1}, {"schedule": (1, 3)}], ids=str
)
def test_the_most_work_is_never_less_than_what_an_honest_client_does(name: str, settings: dict[str, Any]) -> None:
    from tests.toy import domains, federation, initial

    algorithm = build(name, settings, 2)
    spec = algorithm.model_for(initial().spec)
    with federation(algorithm, domains(3), spec) as fed:
        fed.rows_of = lambda client: 200  # type: ignore[method-assign]
        state = algorithm.start(initial(spec).state())
        for number in (1, 2):
            fed.begin(number, range(3))
            state = algorithm.round(fed, state)
        fed.map_over(range(3), algorithm.evaluate, state.model)
        assert fed.events == []


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedsgd"])
@pytest.mark.parametrize("settings", [{"batch_size": 16}, {"local_steps": 7}, {"batch_size": 0}], ids=str)
def test_private_batches_are_not_more_work_than_there_can_be(name: str, settings: dict[str, Any]) -> None:
    """Each step counts the mean size of a batch, so that an epoch counts more examples than there are rows."""
    private = {"privacy": "record", "noise": 1.0, "clip": 1.0}
    test_the_most_work_is_never_less_than_what_an_honest_client_does(name, {**private, **settings})
