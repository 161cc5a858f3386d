"""One site's key cannot take another site's seat: not when a run is resumed, and not between two rounds.

The sites' apps answer in this process; the server is the real one, from its settings file to its records.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from farfield.deployment.federation_file import FederationFile, read_federation
from farfield.deployment.server import engine, joining
from farfield.deployment.server.output_folder import FLOWER, SETTINGS
from farfield.deployment.server.run import serve
from farfield.federation.engines.flower.packing import unpack
from tests.deployment.sites_in_process import Sites

SITES = ("amber", "birch", "cedar")
#: The node of each site's key, and a fourth key that belongs to 'dune', which is no site of the run.
NODES = {1: "amber", 2: "birch", 3: "cedar", 4: "dune"}


class Thief(Sites):
    """Before a round, 'amber' is cut off, and whoever has another key calls itself 'amber'."""

    def __init__(self, folder: Path, federation: FederationFile, steal_before: int, thief: int) -> None:
        super().__init__(folder, federation, SITES)
        self._steal_before, self._thief = steal_before, thief
        #: Rounds in which a node was asked to train, by node.
        self.asked: dict[int, list[int]] = {}

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        listed = list(messages)
        for message in listed:
            header, _ = unpack(message.content)
            if "round" in header:
                self.asked.setdefault(message.metadata.dst_node_id, []).append(int(header["round"]))
                if int(header["round"]) == self._steal_before - 1:
                    self.steal()
        return super().push_messages(listed)

    def steal(self) -> None:
        if 1 in self.here:
            replying = self.apps[1]
            self.start(self._thief, "amber", folder="thief")
            self.here.discard(1)
            self.apps[1] = replying


def server(folder: Path, sites: Sites, federation: FederationFile) -> list[str]:
    """Run a server to its end, and return what it told its operator."""
    out = folder / "out"
    (out / FLOWER).mkdir(parents=True, exist_ok=True)
    settings = {
        "federation": federation.model_dump(mode="json"),
        "run": "run",
        "wait": 2.0,
        "start": "start",
        "pid": os.getpid(),
        "names": {str(node): name for node, name in NODES.items()},
    }
    (out / FLOWER / SETTINGS).write_text(json.dumps(settings))
    serve(sites, out)  # type: ignore[arg-type]
    return [json.loads(line)["text"] for line in (out / FLOWER / "activity.jsonl").read_text().splitlines()]


@pytest.fixture
def federation(tmp_path: Path) -> FederationFile:
    content = 'name = "toy"\nserver = "127.0.0.1:9443"\nalgorithm = "fedavg"\nrounds = 4\nsites = 3\n'
    (tmp_path / "federation.toml").write_text(content + "quorum = 0.5\ndeadline = 5\n")
    return read_federation(tmp_path / "federation.toml")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "FOR_THE_REST", 0.5)
    monkeypatch.setattr(engine, "LOOK", 0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("thief", "key"), [(2, "birch"), (4, "dune")])
def test_a_resumed_run_gives_a_seat_to_the_key_that_had_it(
    tmp_path: Path, federation: FederationFile, monkeypatch: pytest.MonkeyPatch, thief: int, key: str
) -> None:
    class Cut(Exception):
        """The server's power is cut."""

    class Stopped(Sites):
        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            listed = list(messages)
            if any(unpack(message.content)[0].get("round") == 3 for message in listed):
                raise Cut
            return super().push_messages(listed)

    first = Stopped(tmp_path, federation, SITES)
    with pytest.raises(Cut):
        server(tmp_path, first, federation)
    sites = Thief(tmp_path, federation, steal_before=100, thief=thief)
    sites.here.discard(thief)
    sites.steal()
    said = server(tmp_path, sites, federation)
    assert any(f"its key was registered as '{key}.pub', and it calls itself 'amber'" in text for text in said), said
    assert thief not in sites.asked, "the thief was asked to train in amber's place"
    assert not any("site 'amber' is back" in text for text in said)
    assert any("its key was registered as" in text for text in sites.notices("thief")), "and it is told"


@pytest.mark.slow
def test_between_rounds_a_new_node_gets_the_seat_of_its_own_key_only(
    tmp_path: Path, federation: FederationFile
) -> None:
    sites = Thief(tmp_path, federation, steal_before=3, thief=4)
    said = server(tmp_path, sites, federation)
    assert sites.asked[1] == sorted(sites.asked[1])
    assert max(sites.asked[1]) < 3 <= max(sites.asked[2])
    assert 4 not in sites.asked, "the thief was asked to train in amber's place"
    refused = "its key was registered as 'dune.pub', and it calls itself 'amber'"
    assert any(refused in text for text in said), said
    rows = [json.loads(line) for line in (tmp_path / "out" / "run" / "events.jsonl").read_text().splitlines()]
    assert any(row["kind"] == "site-refused" and refused in row["message"] for row in rows), rows


@pytest.mark.slow
def test_without_keys_a_site_that_is_a_new_node_is_recognised(
    tmp_path: Path, federation: FederationFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open server on loopback has no keys to check; the check above must not be a refusal of everybody."""
    monkeypatch.setattr("tests.attacks.test_06_stolen_seat.NODES", {})
    sites: Any = Thief(tmp_path, federation, steal_before=3, thief=4)
    said = server(tmp_path, sites, federation)
    assert any("site 'amber' is connected again, as a new node" in text for text in said), said
    assert 4 in sites.asked
