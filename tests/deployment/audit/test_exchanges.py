"""Real exchanges in both logs: the server's and the sites', compared hash by hash, and the command that does it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from flwr.app import Message
from flwr.serverapp import Grid

from farfield.deployment.audit.compare import compare
from farfield.deployment.audit.content import describe
from farfield.deployment.audit.log import AuditLog
from farfield.deployment.audit.server_grid import AuditedGrid
from farfield.deployment.audit.summary import summarise
from farfield.deployment.audit.verify import verify
from farfield.deployment.federation_file import FederationFile
from farfield.deployment.server.ask_sites import Network
from farfield.deployment.server.joining import proposal
from farfield.federation.engines.flower.packing import pack, unpack
from farfield.federation.refusal import Refused
from tests.deployment.sites_in_process import Sites, context

NODES = {1: "amber", 2: "birch", 3: "cedar"}


@pytest.fixture
def logged(tmp_path: Path, federation: FederationFile) -> tuple[Sites, Network, Path]:
    """Sites in this process, asked by a server that keeps a log, twice."""
    sites = Sites(tmp_path, federation)
    log = AuditLog(tmp_path / "server", side="server", name="toy")
    network = Network(cast(Grid, AuditedGrid(cast(Grid, sites), log, NODES)))
    for _ in range(2):
        answers = network.ask(NODES, "describe", proposal(federation))
        assert all(not answer.problem for answer in answers.values())
    return sites, network, tmp_path


def test_what_the_server_received_is_what_each_site_sent(logged: tuple[Sites, Network, Path]) -> None:
    _, _, folder = logged
    server = verify(folder / "server" / "audit")
    assert server.intact
    for name in NODES.values():
        site = verify(folder / name / "audit")
        assert (site.intact, site.name, [e["kind"] for e in site.entries[1:]]) == (True, name, ["received", "sent"] * 2)
        found = compare(server, site)
        assert (found.down, found.up, found.problems, found.notes) == (2, 2, [], [])
        assert compare(site, server).up == 2, "in either order"
    (line,) = [of for of in summarise(server.entries) if of.peer == "amber"]
    assert (line.what, line.sent, line.received, line.refused, line.failed) == ("describe", 2, 2, 0, 0)


def test_a_reply_that_was_changed_on_its_way_differs(
    tmp_path: Path, federation: FederationFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    sites = Sites(tmp_path, federation)
    pull = sites.pull_messages

    def tampered(message_ids: Any) -> Any:
        for reply in pull(message_ids):
            reply.content.config_records["header"]["answer"] = json.dumps({"site": "amber", "role": "train"})
            yield reply

    monkeypatch.setattr(sites, "pull_messages", tampered)
    log = AuditLog(tmp_path / "server", side="server", name="toy")
    Network(cast(Grid, AuditedGrid(cast(Grid, sites), log, NODES))).ask([1], "describe", proposal(federation))
    found = compare(verify(tmp_path / "server" / "audit"), verify(tmp_path / "amber" / "audit"))
    assert (found.down, found.up) == (1, 0)
    assert found.problems[0].startswith("the server received another content than the site sent: describe, ")


def test_entries_that_one_side_lacks_are_told_apart(logged: tuple[Sites, Network, Path], federation: Any) -> None:
    sites, network, folder = logged
    sites.silent.add(1)
    network.ask([1], "describe", proposal(federation), seconds=0.0)
    server, site = verify(folder / "server" / "audit"), verify(folder / "amber" / "audit")
    found = compare(server, site)
    assert found.agrees, "a message can be lost on its way"
    assert found.notes[0].startswith("the server sent what the site's log does not have (1: lost on its way, or cut)")
    del site.entries[-1]  # a site that denies what it sent
    denied = compare(server, site)
    assert denied.problems[0].startswith("the server received what the site's log does not have (1)")
    site = verify(folder / "amber" / "audit")
    server.entries[:] = [e for e in server.entries if e["kind"] != "sent" or e["n"] != 2]  # one that denies a question
    assert "the site received what the server's log does not have (1)" in compare(server, site).problems[0]


def test_a_site_that_came_with_anothers_key_is_noted_and_not_blamed_for_the_others_messages(
    tmp_path: Path, federation: FederationFile
) -> None:
    """The server knows both keys as 'birch' at first; birch's own messages are in birch's log alone."""
    sites = Sites(tmp_path, federation)
    log = AuditLog(tmp_path / "server", side="server", name="toy")
    ask = proposal(federation)
    Network(cast(Grid, AuditedGrid(cast(Grid, sites), log, {1: "birch"}))).ask([1], "describe", ask)
    Network(cast(Grid, AuditedGrid(cast(Grid, sites), log, {1: "amber"}))).ask([1], "describe", ask)
    of_birch = {"kind": "received", "peer": "birch", "node": "1", "message": "another", "sha256": "0"}
    log.append({**of_birch, "kind": "sent"}, of_birch)
    server, site = verify(tmp_path / "server" / "audit"), verify(tmp_path / "amber" / "audit")
    found = compare(server, site)
    assert (found.down, found.up, found.problems) == (2, 2, [])
    assert found.notes == ["the site answered 1 messages with the key that the server knows as 'birch'"]
    log.append({**of_birch, "peer": "amber"})
    assert (
        "the server received what the site's log does not have (1)"
        in (compare(verify(tmp_path / "server" / "audit"), site).problems[0])
    )


def test_a_refused_question_is_marked_in_both_logs(logged: tuple[Sites, Network, Path], federation: Any) -> None:
    _, network, folder = logged
    assert network.ask([2], "describe", {**proposal(federation), "algorithm": "fedavg"})[2].problem
    for log in ("server", "birch"):
        lines = summarise(verify(folder / log / "audit").entries)
        assert sum(line.refused for line in lines) == 1, log


def test_no_reply_leaves_a_site_whose_log_cannot_be_written(tmp_path: Path, federation: FederationFile) -> None:
    sites = Sites(tmp_path, federation)
    (tmp_path / "amber" / "audit").write_text("a file in the place of the folder")
    reply = sites.apps[1](Message(pack({"ask": "describe", "given": "{}"}, {}), 1, "query.site"), context())
    header, groups = unpack(reply.content)
    assert header["problem"] == Refused("audit-log").wire
    assert header["answer"] == "null"
    assert not groups


def test_the_hash_does_not_depend_on_order_and_depends_on_every_value() -> None:
    tensors = {"values": {"update": torch.arange(5.0), "loss": 0.5}}
    content = pack({"phase": "train", "round": 1}, tensors)
    same = describe(pack({"round": 1, "phase": "train"}, {"values": {"loss": 0.5, "update": torch.arange(5.0)}}))
    assert same == describe(content)
    assert same.array_bytes == 20
    others = [
        pack({"phase": "train", "round": 2}, tensors),
        pack({"phase": "train", "round": True}, tensors),
        pack({"phase": "train", "round": 1}, {"values": {"update": torch.arange(5.0), "loss": 0.5000000001}}),
        pack({"phase": "train", "round": 1}, {"values": {"update": torch.arange(5.0) + 1e-6, "loss": 0.5}}),
        pack({"phase": "train", "round": 1}, {"values": {"update": torch.arange(5.0).view(1, 5), "loss": 0.5}}),
        pack({"phase": "train", "round": 1}, {"values": {"update2": torch.arange(5.0), "loss": 0.5}}),
    ]
    assert len({describe(other).sha256 for other in others} | {same.sha256}) == len(others) + 1


def farfield(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "farfield", *arguments], capture_output=True, text=True, timeout=120)


def test_the_command_verifies_compares_and_finds_what_is_broken(
    logged: tuple[Sites, Network, Path], tmp_path: Path
) -> None:
    _, _, folder = logged
    file = tmp_path / "audit.json"
    arguments = ["audit", str(folder / "server"), "--against", str(folder / "amber"), "--json", str(file)]
    good = farfield(*arguments)
    assert good.returncode == 0, good.stderr
    assert "site 'amber': 2 messages to the site and 2 replies have the same hash in both" in good.stdout
    written = json.loads(file.read_text())
    assert (written["good"], written["entries"], written["comparison"]["same_up"]) == (True, 13, 2)
    head = written["head"]
    assert farfield("audit", str(folder / "server"), "--head", head).returncode == 0
    path = folder / "amber" / "audit" / "audit.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"question":"describe"', b'"question":"nothing!"', 1))
    bad = farfield(*arguments)
    assert bad.returncode == 1
    assert "broken: entry 3 (line 3 of 'audit.jsonl') does not follow entry 2" in bad.stderr
    assert json.loads(file.read_text())["good"] is False
    missing = farfield("audit", str(tmp_path / "nowhere"))
    assert missing.returncode == 2
    assert "there is no audit log" in missing.stderr
