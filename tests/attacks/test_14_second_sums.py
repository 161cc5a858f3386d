"""A server that gets two sums over different sites for one question has the difference: a single site's numbers.

The sites of these tests know one another's keys, so a server that does not follow the protocol is promised to fail.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message

from farfield.federation.federation import QuorumMissed
from tests.deployment.sites_in_process import Sites, together
from tests.deployment.test_secure_sums_in_process import NAMES, Heard, engine, known_to_one_another, written

pytest.importorskip("flwr")


class TwoFaced(Heard):
    """A server that begins a sum for one round, and asks for the numbers of another one in it."""

    #: The round whose numbers are asked for; None for an honest server.
    really: int | None = None
    #: The round for which the sum is begun.
    asked = 0

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        for message in messages:
            header = message.content.config_records["header"]
            if self.really is not None and '"exchange": "mask"' in str(header.get("sum", "")):
                header["round"] = self.really
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Any) -> Any:
        for reply in super().pull_messages(message_ids):
            if self.really is not None:  # the server's own engine need not know
                reply.content.config_records["header"]["round"] = self.asked
            yield reply


@pytest.fixture
def sites(tmp_path: Path) -> TwoFaced:
    made = TwoFaced(tmp_path, written(tmp_path, algorithm="fedsgd"), NAMES)
    known_to_one_another(tmp_path, made)
    return made


def test_a_sum_that_was_begun_for_one_round_gives_no_numbers_of_another(sites: TwoFaced) -> None:
    made, _ = together(sites)
    fed, algorithm, model = engine(sites, made)
    fed.begin(1, range(4))
    fed.map(algorithm.full_gradient, model)
    sites.really, sites.asked = 1, 2
    fed.begin(2, range(4))
    with pytest.raises(QuorumMissed):
        fed.map(algorithm.full_gradient, model, among=[0, 1, 2])


def test_two_names_of_a_run_that_begin_alike_are_not_one_run(sites: TwoFaced) -> None:
    made, _ = together(sites)
    fed, algorithm, model = engine(sites, made, run="r" * 100 + "1")
    other, _, _ = engine(sites, made, run="r" * 100 + "2")
    got: list[torch.Tensor] = []
    for each, among in ((fed, range(4)), (other, range(3))):
        each.begin(1, range(4))
        try:
            got.append(torch.as_tensor(each.map(algorithm.full_gradient, model, among=list(among)).sum("gradient")))
        except QuorumMissed:
            continue
    assert len(got) < 2, "their difference is the fourth site's gradient"


def test_the_state_of_a_run_is_kept_under_no_other_name(tmp_path: Path) -> None:
    """Else a server could fill a site's disk with states, one for each name, by one question."""

    class Renaming(Sites):
        names = iter(range(100))

        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            messages = list(messages)
            for message in messages:
                header = message.content.config_records["header"]
                if "phase" in header:
                    header["run"] = f"other-{next(self.names)}"
            return super().push_messages(messages)

    sites = Renaming(tmp_path, written(tmp_path, set={}), NAMES)
    made, _ = together(sites)
    fed, algorithm, model = engine(sites, made)
    for _ in range(3):
        fed.begin(1, range(4))
        with pytest.raises(QuorumMissed):
            algorithm.round(fed, algorithm.start(model))
    assert list((tmp_path / "amber").glob("state-*")) == []
    rows = [json.loads(line) for line in (tmp_path / "amber" / "activity.jsonl").read_text().splitlines()]
    assert "asks for the state of another" in rows[-1]["text"]
