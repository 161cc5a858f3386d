"""Item 8 under secure sums: of a site's update, from which rows can be computed, the server has only noise.

The attack on single updates is in the test of item 8 without secure sums. It starts from the gradient or the update of
one site. Here a server keeps every byte that it receives, and looks for that update in it.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from farfield.algorithms import build
from farfield.federation.engines.flower.masked_sums import MASK
from farfield.federation.engines.flower.packing import unpack
from farfield.federation.federation import QuorumMissed
from tests.federation.engines.flower.in_process import over_grid
from tests.federation.engines.flower.test_masked_sums import exchange
from tests.toy import domains, initial

pytest.importorskip("flwr")
SETTINGS = {"lr": 1.0, "secure_sums": True}


def listened(settings: dict[str, Any]) -> list[dict[str, torch.Tensor]]:
    """Everything that the server of one round receives, by client."""
    algorithm = build("fedsgd", settings)
    fed, grid = over_grid("fedsgd", algorithm, domains(4), travelling=False)
    fed.begin(1, range(4))
    fed.map(algorithm.full_gradient, initial().state())
    received: list[dict[str, torch.Tensor]] = [{} for _ in range(4)]
    for reply in grid.received:
        header, groups = unpack(reply.content)
        assert groups["state"] == {}
        received[int(header["client"])] |= groups["values"]
    return received


def likeness(seen: torch.Tensor, update: torch.Tensor) -> float:
    return abs(float(torch.corrcoef(torch.stack([seen.double(), update.double()]))[0, 1]))


def test_no_message_to_the_server_has_anything_to_do_with_a_single_update() -> None:
    plain, secure = listened({**SETTINGS, "secure_sums": False}), listened(SETTINGS)
    updates = [each["gradient"] for each in plain]  # all that the attack needs, one by one
    size = len(updates[0])
    for each in secure:
        assert set(each) == {"keys", "signature", "sealed", "masked", "shares"}
    # Every sum of masked vectors but the one over all: the masks of those that are missing are left in it.
    for count in (1, 2, 3):
        for some in itertools.combinations(secure, count):
            seen = sum(each["masked"][:size] for each in some)
            assert isinstance(seen, torch.Tensor)
            assert float(seen.double().abs().median()) > 2.0**60  # gradients times rows are below 2^35 steps
            # Of 51 random numbers a likeness over 0.7 is a chance of 1 in 10^8.
            assert max(likeness(seen, update) for update in updates) < 0.7


def test_asking_again_with_one_site_fewer_does_not_give_the_difference() -> None:
    """The attack on sums: with and without a site, in the same round and for the same weights."""
    algorithm = build("fedsgd", SETTINGS)
    fed, _ = over_grid("fedsgd", algorithm, domains(4), travelling=False)
    fed.begin(1, range(4))
    first = fed.map(algorithm.full_gradient, initial().state()).sum("gradient")
    for others in ([0, 1, 2], [1, 2, 3]):
        fed.begin(1, range(4))
        with pytest.raises(QuorumMissed):
            fed.map(algorithm.full_gradient, initial().state(), among=others)
    assert "or one for other sites, in round 1, phase 'full_gradient'" in fed.events[-1].message
    # The same question for the same sites gives the same sum, and nothing new.
    fed.begin(1, range(4))
    assert torch.equal(fed.map(algorithm.full_gradient, initial().state()).sum("gradient"), first)


def test_a_sum_that_began_as_one_of_another_round_does_not_run_this_one() -> None:
    """The same attack by a server that agrees on masks for round 2 and then sends the question of round 1."""
    algorithm = build("fedsgd", SETTINGS)
    fed, grid = over_grid("fedsgd", algorithm, domains(4), travelling=False)
    fed.begin(1, range(4))
    fed.map(algorithm.full_gradient, initial().state())
    answer = grid._reply

    def of_another_round(message: Any) -> Any:
        header = message.content.config_records["header"]
        header["round"] = 1 if exchange(message) == MASK else 2
        reply = answer(message)
        reply.content.config_records["header"]["round"] = 1
        return reply

    grid._reply = of_another_round  # type: ignore[method-assign]
    fed.begin(1, range(4))
    with pytest.raises(QuorumMissed):
        fed.map(algorithm.full_gradient, initial().state(), among=[0, 1, 2])
    assert "not the next exchange of the secure sum that is under way" in fed.events[-1].message


def test_chosen_weights_and_repeats_of_a_round_are_refused() -> None:
    algorithm = build("fedsgd", SETTINGS)
    fed, _ = over_grid("fedsgd", algorithm, domains(4), travelling=False)
    fed.begin(1, range(4))
    fed.map(algorithm.full_gradient, initial().state())
    chosen = initial().state()
    chosen.parameters.mul_(0.5)
    fed.begin(1, range(4))
    with pytest.raises(QuorumMissed):
        fed.map(algorithm.full_gradient, chosen)
    assert "has answered another question" in fed.events[-1].message
