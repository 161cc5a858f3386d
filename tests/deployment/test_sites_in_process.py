"""Sites and their server without processes: who joins, who is turned away, what a site answers and what it does not."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from farfield.deployment.activity import Activity
from farfield.deployment.federation_file import FederationFile, read_federation
from farfield.deployment.manifest.manifest import make_manifest, own_spec
from farfield.deployment.schema.site_schema import read_site_schema
from farfield.deployment.server import joining
from farfield.deployment.server.joining import Federated, JoiningError, gather, gather_again
from farfield.deployment.server.questions import Network
from farfield.deployment.site.app import FAILED, make_app
from farfield.deployment.site.data import open_site
from farfield.deployment.site.site import DeployedSite
from farfield.deployment.site.site_file import read_site
from farfield.federation.flower.assignment import Assignment
from farfield.federation.flower.packing import pack, unpack
from farfield.models import ModelSpec

NAMES = ("amber", "birch", "cedar")


class Sites:
    """A Grid whose nodes are site apps in this process. `here` are the nodes that are connected."""

    def __init__(self, folder: Path, federation: FederationFile, names: Iterable[str] = NAMES) -> None:
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
        self.folder, self.federation = folder, federation
        self.apps: dict[int, Any] = {}
        self.here: set[int] = set()
        self.silent: set[int] = set()
        self._ready: list[Message] = []
        for number, name in enumerate(names, 1):
            self.start(number, name)

    def start(self, node: int, name: str, *, columns: int = 4, folder: str | None = None, **site: Any) -> None:
        home = self.folder / (folder or name)
        home.mkdir(exist_ok=True)
        rows = np.random.default_rng(node)
        np.savez(home / "rows.npz", x=rows.normal(size=(30, columns)), y=np.arange(30) % 3)
        (home / "site.toml").write_text(tomli_w.dumps({"name": name, "data": "rows.npz", **site}))
        data = open_site(read_site(home))
        spec = own_spec(self.federation, data.schema)
        manifest = make_manifest(self.federation, schema=data.schema, spec=spec, role=data.site.role)
        self.apps[node] = make_app(DeployedSite(data, manifest), home)
        self.here.add(node)

    def notices(self, name: str) -> list[str]:
        path = self.folder / name / "activity.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [row["text"] for row in rows if row["kind"] in ("turned-away", "finished", "failed")]

    # What a server sees of Flower's Grid.

    def get_node_ids(self) -> Iterable[int]:
        return list(self.here)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid.uuid4())
            ids.append(message.metadata.message_id)
            node = message.metadata.dst_node_id
            if node in self.here and node not in self.silent:
                self._ready.append(self.apps[node](message, context()))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        ready, self._ready = self._ready, []
        return ready


def context() -> Context:
    return Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})


@pytest.fixture
def federation(tmp_path: Path) -> FederationFile:
    path = tmp_path / "federation.toml"
    content = {"name": "toy", "server": "127.0.0.1:9443", "algorithm": "scaffold", "rounds": 2, "sites": 3}
    path.write_text(tomli_w.dumps(content))
    return read_federation(path)


def together(sites: Sites, seconds: float = 0.0, names: dict[int, str] | None = None) -> tuple[Federated, list[str]]:
    said: list[str] = []
    made = gather(Network(sites), sites.federation, seconds, lambda kind, text: said.append(text), names)  # type: ignore[arg-type]
    return made, said


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
    made, said = together(sites, seconds=60.0)
    assert [member.name for member in made.training] == ["amber", "birch", "cedar"]
    assert any(told in text for text in sites.notices("third"))
    assert any("cannot take part" in text for text in said)


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

    def again(seconds: float) -> Federated:
        return gather_again(Network(sites), federation, known, made.agreed, seconds, lambda kind, text: None)  # type: ignore[arg-type]

    back = again(5.0)
    assert [(m.name, m.node > 0) for m in back.training] == [("amber", True), ("birch", False), ("cedar", True)]
    sites.here = {9}
    with pytest.raises(JoiningError, match=r"missing: 'amber', 'birch', 'cedar'"):
        again(0.0)


def ask(sites: Sites, node: int, question: str, given: dict[str, Any]) -> tuple[Any, str]:
    (answer,) = Network(sites).ask([node], question, given).values()  # type: ignore[arg-type]
    return answer.value, answer.problem


def assignment(sites: Sites, made: Federated, **changes: Any) -> Assignment:
    content = {
        "run": "r",
        "algorithm": "scaffold",
        "settings": make_settings(sites),
        "rounds": 2,
        "model": made.agreed.model,
        "seed": 0,
        "data": {"schema": made.agreed.model_dump(mode="json"), "fitted": None},
    }
    return Assignment(**{**content, **changes})


def make_settings(sites: Sites) -> dict[str, Any]:
    data = open_site(read_site(sites.folder / "amber"))
    return make_manifest(sites.federation, schema=data.schema, spec=None, role="train").settings


def phase(sites: Sites, given: Assignment, phase: str = "train", round: int = 1) -> str:
    """The problem that a site answers a phase's message with."""
    header = {
        "run": given.run,
        "round": round,
        "attempt": "a",
        "phase": phase,
        "client": "amber",
        "skipped": [],
        "travelling": False,
        "mark": "m",
        "accepted": "",
        "assignment": given.model_dump_json(),
    }
    message = Message(pack(header, {"model": {}, "shared": {}}), 1, "query.farfield")
    message.metadata.__dict__["_message_id"] = str(uuid.uuid4())
    reply, _ = unpack(sites.apps[1](message, context()).content)
    assert reply["detail"] == ""
    return str(reply["problem"])


def test_a_site_does_nothing_that_was_not_approved(tmp_path: Path, federation: FederationFile) -> None:
    sites = Sites(tmp_path, federation)
    made, _ = together(sites)
    fine = assignment(sites, made)
    assert "'fedavg'" in phase(sites, fine.model_copy(update={"algorithm": "fedavg"}))
    assert "the seed 0, and the server asks for 7" in phase(sites, fine.model_copy(update={"seed": 7}))
    assert "asks for 3" in phase(sites, fine.model_copy(update={"rounds": 3}))
    assert "round 5 of 2" in phase(sites, fine, round=5)
    assert "head_gradient" in phase(sites, fine, phase="head_gradient")
    huge = ModelSpec(**{**made.agreed.model.model_dump(), "hidden": (4096, 4096)})
    assert "model.hidden" in phase(sites, fine.model_copy(update={"model": huge}))
    assert "batch_size" in phase(sites, fine.model_copy(update={"settings": {**fine.settings, "batch_size": 1}}))
    _, problem = ask(sites, 1, "statistics", {"schema": fine.data["schema"], "seed": 5})
    assert "the seed 0, and the server asks for 5" in problem
    _, problem = ask(sites, 1, "measure", {"assignment": fine.model_dump(mode="json")})
    assert "trains, and does not measure" in problem


def test_what_goes_wrong_at_a_site_says_nothing_of_its_rows(tmp_path: Path, federation: FederationFile) -> None:
    """A schema that does not fit makes the reader complain of cells and paths; the server hears neither."""
    sites = Sites(tmp_path, federation)
    made, _ = together(sites)
    strange = {**made.agreed.model_dump(mode="json"), "classes": ["0", "1"]}
    value, problem = ask(sites, 1, "statistics", {"schema": strange, "seed": 0})
    assert (value, problem) == (None, FAILED)
    assert phase(sites, assignment(sites, made, data={"schema": strange, "fitted": None})) == FAILED
    told = [row["text"] for row in _rows(tmp_path / "amber") if row["kind"] == "refused"]
    assert any("class '2'" in text for text in told), "its operator reads it all"


def _rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "activity.jsonl").read_text().splitlines()]


def test_a_site_hears_only_notices_that_it_knows(tmp_path: Path, federation: FederationFile) -> None:
    sites = Sites(tmp_path, federation)
    assert ask(sites, 1, "notice", {"kind": "finished", "text": "done"}) == (True, "")
    _, problem = ask(sites, 1, "notice", {"kind": "phase", "text": "\x1b[2J"})
    assert "does not know that kind of notice" in problem
    assert sites.notices("amber") == ["done"]


def test_an_answer_that_is_no_answer_is_one_sites_problem(tmp_path: Path, federation: FederationFile) -> None:
    sites = Sites(tmp_path, federation, ("amber",))
    for answer in ("[" * 100_000, "{", json.dumps({"site": "amber"})):

        def lies(message: Message, context: Context, answer: str = answer) -> Message:
            return Message(pack({"ask": "describe", "answer": answer, "problem": ""}, {}), reply_to=message)

        sites.apps[1] = lies
        with pytest.raises(JoiningError, match="here are none"):
            together(sites)


def test_followers_read_what_is_new_and_only_of_their_own_start(tmp_path: Path) -> None:
    old, new = Activity(tmp_path, "one"), Activity(tmp_path, "two")
    old.add("failed", "long ago")
    follower = Activity(tmp_path, "two")
    follower.forget()
    old.add("failed", "still ending")
    new.add("started", "begins")
    assert [row["text"] for row in follower.news()] == ["begins"]
    assert not list(follower.news())
    with open(tmp_path / "activity.jsonl", "ab") as file:
        file.write(b'{"start": "two", "ki')  # a line on its way
    assert not list(follower.news())


def test_a_schema_of_a_site_is_what_the_server_reads(tmp_path: Path, federation: FederationFile) -> None:
    sites = Sites(tmp_path, federation)
    value, _ = ask(sites, 1, "describe", joining.offer(federation))
    assert read_site_schema(value["schema"]).rows == 30
    assert value["site"] == "amber"


def test_a_site_that_is_not_back_is_not_asked() -> None:
    answers = Network(None).ask([-1, -2], "describe", {})  # type: ignore[arg-type]
    assert {node: answer.problem for node, answer in answers.items()} == dict.fromkeys((-1, -2), "it is not connected")
