"""The prior knows the sources' labels and nothing else; its figures can be had by counting."""

from __future__ import annotations

from math import log
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import farfield as ff
from farfield.algorithms import AlgorithmError, build, parts
from farfield.federation.client import Client, Rows
from farfield.federation.engines.local import LocalFederation
from farfield.federation.federation import Replies, Reply
from farfield.models import Model, ModelSpec, build_model, probabilities
from farfield.runs.job import Job
from farfield.runs.plan import make_plan
from farfield.runs.single_run import schedule_of
from farfield.tasks.task import Domain, Task
from tests.toy import domains, population, sent, task


class Clients:
    """Clients with these training labels, as a federation."""

    def __init__(self, labels: list[list[Any]], dtype: torch.dtype, model: Model) -> None:
        self.model, self.layout = model, model.layout
        named = {f"d{i}": torch.tensor(of, dtype=dtype) for i, of in enumerate(labels)}
        domains = {name: Domain(name, torch.randn(len(y), 2), y) for name, y in named.items()}
        self.all = [
            Client(i, d, d, Rows(domains, [(d, torch.arange(len(domains[d].y)))]), Rows({}, ()), 0, 1, "count_labels")
            for i, d in enumerate(domains)
        ]

    def map(self, phase: Any, model: Any) -> Replies:
        return Replies(tuple(Reply(c.id, c.domain, c.samples, phase(c, self.model)) for c in self.all))


def predicted(labels: list[list[Any]], outputs: int, dtype: torch.dtype = torch.int64) -> Tensor:
    """What the prior says of three rows that it never saw, from clients with these training labels."""
    prior: Any = build("prior")
    model = build_model(prior.model_for(ModelSpec(input_shape=(2,), outputs=outputs, head_bias=False)), seed=0)
    model.load(prior.round(Clients(labels, dtype, model), prior.start(model.state())).model)
    return model(100 * torch.randn(3, 2)).detach()


def test_the_probabilities_are_the_class_shares_of_all_training_rows() -> None:
    logits = predicted([[0, 0, 1, 2], [0, 0, 0, 1, 1, 0]], outputs=3)
    torch.testing.assert_close(probabilities(logits), torch.tensor([[0.6, 0.3, 0.1]]).expand(3, 3))


def test_one_logit_is_the_log_odds_of_the_second_class() -> None:
    torch.testing.assert_close(predicted([[0, 0, 0, 1], [0, 0, 0, 1]], outputs=1), torch.full((3, 1), log(2 / 6)))


def test_a_regression_predicts_the_mean_label() -> None:
    values = predicted([[1.0, 2.0, 3.0], [10.0, 4.0]], outputs=1, dtype=torch.float32)
    torch.testing.assert_close(values, torch.full((3, 1), 4.0))


@pytest.mark.parametrize(("labels", "outputs", "empty"), [([[0, 0, 1]], 3, 2), ([[0, 0, 0]], 1, 1)])
def test_a_class_without_a_row_counts_as_half_a_row(labels: list[list[int]], outputs: int, empty: int) -> None:
    assert float(probabilities(predicted(labels, outputs))[0, empty]) == pytest.approx(0.5 / 3.5)


def test_only_the_sum_of_the_label_counts_reaches_the_server() -> None:
    prior, people = build("prior"), population(domains(2))
    model = build_model(prior.model_for(ModelSpec(input_shape=(4,), outputs=3)), seed=0)
    with LocalFederation(prior, model, people, seed=0) as fed:
        fed.begin(1, range(2))
        counts = [torch.as_tensor(reply["counts"]) for reply in sent(fed, prior.count_labels, model.state())]
        replies = fed.map(prior.count_labels, model.state())
        with pytest.raises(Exception, match="sum"):
            replies.stack("counts")
    assert [float(each.sum()) for each in counts] == replies.samples.tolist()
    assert replies.sum("counts").tolist() == (counts[0] + counts[1]).tolist()


def test_its_held_out_figures_are_those_of_counting(tmp_path: Path) -> None:
    makeup = {"a": (12, 4), "b": (12, 4), "c": (4, 12)}
    of = [Domain(name, torch.randn(16, 2), torch.tensor([0] * no + [1] * yes)) for name, (no, yes) in makeup.items()]
    model = ModelSpec(input_shape=(2,), outputs=2)
    counted = Task(name="counted", kind="classification", domains=tuple(of), classes=("no", "yes"), model=model)
    result = ff.bench(
        counted,
        "prior",
        references=False,
        held_out="c",
        seeds=1,
        rounds=6,
        validation=0.25,
        parallel=1,
        out=tmp_path / "b",
    )
    (row,) = result.rows
    assert (row["rounds"], row["local_steps"], row["samples"]) == (1, 0, 0)
    for chosen in row["selection"].values():
        assert chosen["round"] == 1
        assert chosen["accuracy"] == pytest.approx(4 / 16)
        assert chosen["auroc"] == pytest.approx(0.5)
        assert chosen["loss"] == pytest.approx(-(4 * log(0.75) + 12 * log(0.25)) / 16, rel=1e-4)


def test_all_clients_count_in_the_one_round_whatever_the_cohort() -> None:
    plan = make_plan(task(4), algorithms=["fedavg", "prior"], rounds=30, cohort=2)
    schedule = schedule_of(plan, Job("prior", "a", 0), plan.algorithm("prior"), 10)
    assert (schedule.cohort, schedule.rounds, schedule.evaluate_every) == (None, 1, 1)


def test_it_takes_no_server_half() -> None:
    with pytest.raises(AlgorithmError, match="prior trains nothing"):
        parts("prior+fedadam")
