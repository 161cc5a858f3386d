"""FedProx through its class. Literals from golden.json, 'fedprox'."""

from __future__ import annotations

import pytest
import torch

from farfield.algorithms import Local, build
from tests.algorithms.linear import SPEC, linear, site, weights
from tests.toy import federation

pytestmark = pytest.mark.usefixtures("double")


def under_way() -> Local:
    """Local training that started at (1, −2) and is now at (1.5, −1)."""
    return Local(torch.tensor([1.5, -1.0]), torch.tensor([1.0, -2.0]), {})


def test_penalty_and_gradient_are_golden() -> None:
    algorithm = build("fedprox", {"mu": 0.1})
    gradient = torch.tensor([0.2, 0.1])
    algorithm.adjust(gradient, under_way())
    assert float(algorithm.penalty(under_way())) == pytest.approx(0.0625, abs=1e-15)
    assert gradient.tolist() == pytest.approx([0.25, 0.2], abs=1e-15)


def test_no_weight_means_no_penalty_and_the_gradient_as_it_was() -> None:
    algorithm = build("fedprox", {"mu": 0.0})
    gradient = torch.tensor([0.2, 0.1])
    algorithm.adjust(gradient, under_way())
    assert float(algorithm.penalty(under_way())) == 0.0
    assert gradient.tolist() == [0.2, 0.1]


def test_local_steps_are_pulled_back_to_where_the_round_began() -> None:
    algorithm = linear("fedprox", mu=0.5, lr=0.1, batch_size=0, local_steps=3)
    with federation(algorithm, [site("a", [2.0, -4.0])], SPEC) as fed:
        fed.begin(1, [0])
        (reply,) = fed.map(algorithm.train, weights(1.0, 1.0))
    # d ← d − 0.1·(g + 0.5·d) from d = 0: −0.1g, −0.195g, −0.28525g.
    assert reply.values["update"].tolist() == pytest.approx([-0.28525 * 2.0, 0.28525 * 4.0], abs=1e-15)


def test_the_pull_goes_through_the_momentum_as_any_gradient_does() -> None:
    algorithm = linear("fedprox", mu=0.5, lr=0.1, batch_size=0, local_steps=3, momentum=0.9)
    with federation(algorithm, [site("a", [1.0, 0.0])], SPEC) as fed:
        fed.begin(1, [0])
        (reply,) = fed.map(algorithm.train, weights(0.0, 0.0))
    # v: 1; 0.9 + 1 − 0.05 = 1.85; 0.9·1.85 + 1 − 0.5·0.285 = 2.5225.  d = −0.1·(1 + 1.85 + 2.5225)
    assert reply.values["update"].tolist() == pytest.approx([-0.53725, 0.0], abs=1e-15)
