"""Robust rules as methods and as right halves: what they say when a cohort is too small, and what they refuse."""

from __future__ import annotations

import pytest
import torch

from farfield.algorithms import AlgorithmError, Direction, FedAvg, Misfit, build, method
from farfield.algorithms.fedavg import Sends, local_training
from farfield.federation.phase import SCALAR
from tests.toy import SPEC

RULES = ["median", "trimmed-mean", "krum", "multi-krum", "geometric-median"]


def ruled(algorithm: FedAvg, updates: torch.Tensor, weights: torch.Tensor | None = None) -> Direction:
    shares = torch.full((len(updates),), 1 / len(updates), dtype=torch.float64) if weights is None else weights
    found = algorithm.rule(updates, shares, algorithm.combine(updates, shares))
    return found if isinstance(found, Direction) else Direction(found)


@pytest.mark.parametrize("rule", RULES)
def test_two_updates_have_no_majority_and_an_event_says_what_was_taken(rule: str) -> None:
    found = ruled(build(rule), torch.tensor([[0.0, 2.0], [4.0, 0.0]]))
    assert found.direction.tolist() == [2.0, 1.0]
    (note,) = found.notes
    assert note.startswith("fewer than 3 updates: nothing tells a wrong one")


@pytest.mark.parametrize("rule", RULES)
def test_fewer_than_three_clients_are_refused_before_anything_runs(rule: str) -> None:
    with pytest.raises(Misfit, match="takes the side of most clients, and two have no majority and needs at least 3"):
        build(rule).check(SPEC, "classification", 2)
    with pytest.raises(Misfit, match="two have no majority"):
        method(rule)().check_server(2)


@pytest.mark.parametrize("rule", ["krum", "multi-krum"])
def test_a_cohort_too_small_for_f_is_held_to_what_it_allows_and_an_event_says_so(rule: str) -> None:
    updates = torch.tensor([[0.0], [1.0], [3.0], [7.0]])
    found = ruled(build(rule, {"f": 1}), updates)
    assert found.notes == ("4 updates allow for f = 0 wrong ones, not 1: Krum needs n ≥ 2f + 3",)
    assert found.direction.tolist() == ruled(build(rule, {"f": 0}), updates).direction.tolist()


def test_samples_weigh_in_the_geometric_median_alone() -> None:
    updates = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.5]], dtype=torch.float64)
    weights = torch.tensor([0.7, 0.1, 0.1, 0.1], dtype=torch.float64)
    for rule in RULES:
        same = torch.equal(ruled(build(rule), updates).direction, ruled(build(rule), updates, weights).direction)
        assert same == (rule != "geometric-median")
        assert ("weighting" in build(rule).params.idle()) == (rule != "geometric-median")


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "client", ["fedavg", "fedprox", "scaffold", "fediir", "fedcir", "fedloe-irm", "fedilc-inter-geo"]
)
def test_every_rule_stands_after_every_client_method(client: str, rule: str) -> None:
    pair = build(f"{client}+{rule}")
    assert isinstance(pair, method(client))
    assert type(pair.server) is method(rule)


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_goes_with_a_server_optimizer_and_with_no_other_rule(rule: str) -> None:
    assert build(f"{rule}+fedadam").params.server_optimizer == "adam"
    for other in ("fedomg", "fedilc-geometric"):
        with pytest.raises(AlgorithmError, match="both bring the rule"):
            build(f"{other}+{rule}")


@pytest.mark.parametrize("rule", RULES)
def test_a_method_whose_updates_are_seen_only_in_sum_is_refused(rule: str) -> None:
    class Summed(FedAvg):
        name = "summed"

        @local_training(
            update=Sends("parameters", "change", server_sees="sum", is_update=True), loss=Sends(SCALAR, "loss")
        )
        def train(self, client, model, **shared):  # type: ignore[no-untyped-def]
            return {}

    params = build("fedavg", {"weighting": "uniform"}).params
    with pytest.raises(AlgorithmError, match=f"{rule} needs each client's update, and summed sends only their sum"):
        Summed(params, method(rule)(params))


def test_the_geometric_median_says_so_where_it_did_not_converge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(method("geometric-median"), "TOLERANCE", 0.0)
    generator = torch.Generator().manual_seed(0)
    found = ruled(build("geometric-median"), torch.randn(4, 5, generator=generator))
    assert found.notes == () or found.notes[0].startswith("the geometric median was left at a gradient of")
    assert found.diagnostics["iterations"] >= 1
