"""The bound on a model's change lets honest runs go on, however long they are."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from farfield.algorithms import build
from farfield.deployment.site.limits import Limits
from farfield.deployment.site.plausible_model import (
    allowed_change,
    change_per_round,
    check_change,
    measure_reference,
)
from farfield.federation.engines.batched.engine import BatchedFederation
from farfield.models import ModelSpec, build_model
from farfield.tasks.task import Domain
from tests.soak.test_soak import rows
from tests.toy import population


def test_the_bound_grows_in_proportion_and_then_with_the_square_root_of_the_rounds() -> None:
    # Half of the first model's length, 4, is reached in 10 rounds of 0.4.
    assert [allowed_change(rounds, 0.2, 2.0, 8.0) for rounds in (1, 5, 10)] == pytest.approx([0.4, 2.0, 4.0])
    assert [allowed_change(rounds, 0.2, 2.0, 8.0) for rounds in (40, 1000)] == pytest.approx([8.0, 40.0])
    # Rounds that lead further than that at once: each counts, and many with their square root.
    assert [allowed_change(rounds, 5.0, 2.0, 8.0) for rounds in (1, 4)] == pytest.approx([10.0, 20.0])


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [(), (16,), (64,)])
def test_a_thousand_honest_rounds_are_accepted(hidden: tuple[int, ...]) -> None:
    sites = [Domain(f"s{n}", *(torch.from_numpy(each) for each in rows(n, 40))) for n in range(10)]
    featurizer = "mlp" if hidden else "identity"
    spec = ModelSpec(input_shape=(6,), outputs=3, featurizer=featurizer, hidden=hidden or (8,))
    algorithm, people = build("fedavg", {"lr": 0.05}), population(sites)
    model, first = build_model(spec, 0), build_model(spec, 0).state()
    client = people.client(0, seed=0, round=1, phase="train", state={})
    reference, length = measure_reference(algorithm, client, spec, 0), float(first.parameters.norm())
    per_round = change_per_round(algorithm, reference, first.parameters, model.layout, 1.0)
    with BatchedFederation(algorithm, model, people, seed=0) as fed:
        state = algorithm.start(first)
        for number in range(1, 1001):
            fed.begin(number, range(10))
            state = replace(algorithm.round(fed, state), round=number)
            check_change(state.model, first.parameters, number, per_round, Limits().model_change, length)
