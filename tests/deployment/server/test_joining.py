"""Who joins a run, who is turned away, and whom a resumed run waits for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message

from farfield.deployment.federation_file import FederationFile
from farfield.deployment.server import joining
from farfield.deployment.server.ask_sites import Network
from farfield.deployment.server.joining import JoinedSites, JoiningError, wait_for_known_sites
from farfield.federation.engines.flower.packing import pack
from tests.deployment.sites_in_process import NAMES, Sites, together


def test_sites_join_in_the_order_of_one_machine(tmp_path: Path, federation: FederationFile) -> None:
    made, _ = together(Sites(tmp_path, federation, ("cedar", "amber", "birch")))
    assert [member.name for member in made.training] == ["amber", "birch", "cedar"]
    assert [member.node for member in made.training] == [2, 3, 1]
    assert made.agreed.classes == ("0", "1", "2")


@pytest.mark.parametrize(
    ("site", "told"),
    [
        ({"name": "amber"}, "there is a site 'amber' already"),
        ({"name": "cedar", "columns": 5}, "shape"),
    ],
)
def test_a_site_that_does_not_fit_is_told_and_comes_back_as_the_same_node(
    tmp_path: Path, federation: FederationFile, monkeypatch: pytest.MonkeyPatch, site: dict[str, Any], told: str
) -> None:
    """With keys a node keeps its number, so what was asked of it before must be asked again."""
    sites = Sites(tmp_path, federation, ("amber", "birch"))
    sites.start(3, **site, folder="third")
    looks = iter(range(100))

    def sleep(seconds: float) -> None:
        look = next(looks)
        if look == 1:
            sites.here.discard(3)
        if look == 3:
            sites.start(3, "cedar", folder="third")

    monkeypatch.setattr(joining.time, "sleep", sleep)
    made, reported = together(sites, seconds=60.0)
    assert [member.name for member in made.training] == ["amber", "birch", "cedar"]
    assert any(told in text for text in sites.notices("third"))
    assert any("cannot take part" in text for text in reported)


def test_a_name_belongs_to_a_key(tmp_path: Path, federation: FederationFile) -> None:
    sites = Sites(tmp_path, federation)
    with pytest.raises(JoiningError, match="not all sites are there"):
        together(sites, names={1: "amber", 2: "birch", 3: "dune"})
    assert any("its key was registered as 'dune.pub'" in text for text in sites.notices("cedar"))


def test_a_site_that_is_late_is_asked_again(
    tmp_path: Path, federation: FederationFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    sites = Sites(tmp_path, federation)
    sites.silent = {2}
    monkeypatch.setattr(joining.time, "sleep", lambda seconds: sites.silent.clear())
    ask = Network.ask
    monkeypatch.setattr(Network, "ask", lambda self, *given, **more: ask(self, *given, **{**more, "seconds": 0.05}))
    made, _ = together(sites, seconds=30.0)
    assert len(made.training) == 3


def test_a_resumed_run_goes_on_with_its_own_sites_and_without_one_if_the_quorum_allows_it(
    tmp_path: Path, federation: FederationFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    sites = Sites(tmp_path, federation)
    made, _ = together(sites)
    known = dict.fromkeys(NAMES, "train")
    monkeypatch.setattr(joining, "FOR_THE_REST", 0.0)
    sites.here.discard(2)
    sites.start(9, "dune")

    def again(seconds: float) -> JoinedSites:
        return wait_for_known_sites(Network(sites), federation, known, made.agreed, seconds, lambda kind, text: None)  # type: ignore[arg-type]

    back = again(5.0)
    assert [(m.name, m.node > 0) for m in back.training] == [("amber", True), ("birch", False), ("cedar", True)]
    sites.here = {9}
    with pytest.raises(JoiningError, match=r"missing: 'amber', 'birch', 'cedar'"):
        again(0.0)


def test_an_answer_that_is_no_answer_is_one_sites_problem(tmp_path: Path, federation: FederationFile) -> None:
    sites = Sites(tmp_path, federation, ("amber",))
    for answer in ("[" * 100_000, "{", json.dumps({"site": "amber"})):

        def lies(message: Message, context: Context, answer: str = answer) -> Message:
            return Message(pack({"ask": "describe", "answer": answer, "problem": ""}, {}), reply_to=message)

        sites.apps[1] = lies
        with pytest.raises(JoiningError, match="here are none"):
            together(sites)
