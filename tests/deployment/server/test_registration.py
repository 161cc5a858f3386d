"""Keys are registered at a real SuperLink behind the gate: all of them by one process, each once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from farfield.deployment.credentials.create import make_authority, make_node_key, make_server_certificate
from farfield.deployment.flower.processes import ProcessError, free_port
from farfield.deployment.server import flower_command
from farfield.deployment.server.flower_command import FlowerCommand
from farfield.deployment.server.link_address import LinkAddress
from farfield.deployment.server.registration import register_keys
from farfield.deployment.server.site_roster import RosterError, fingerprint
from farfield.deployment.server.superlink_process import superlink
from farfield.records.checked_files import read_checked_json

#: More than a person would wait for, if each had a process of its own.
KEYS = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of Flower's files of a SuperLink that runs."""
    folder = tmp_path_factory.mktemp("flower")
    certs = folder / "certs"
    certs.mkdir()
    make_authority(certs, 2)
    make_server_certificate(certs, ["127.0.0.1"], 2)
    with superlink(LinkAddress("127.0.0.1", free_port(), certs / "ca.crt"), folder, certs):
        yield folder


def make_keys(folder: Path, *names: str) -> list[Path]:
    return [make_node_key(folder / "keys", name).public for name in names]


def known(folder: Path) -> set[str]:
    """The nodes that the SuperLink itself lists."""
    with FlowerCommand(folder) as flwr:
        listed = flwr("supernode", "list", flower_command.LINK, "--format", "json")
    assert listed.returncode == 0, listed.stdout
    return {node["node-id"] for node in json.loads(listed.stdout)["nodes"]}


@pytest.mark.long
def test_one_process_registers_all_keys_and_a_second_start_registers_none_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    start = FlowerCommand._start

    def counted(command: FlowerCommand) -> subprocess.Popen[str]:
        started.append(command)
        return start(command)

    monkeypatch.setattr(FlowerCommand, "_start", counted)
    keys = make_keys(folder, *(f"site-{number:02d}" for number in range(KEYS)))
    with FlowerCommand(folder) as flwr:
        names = register_keys(keys, folder, flwr)
    assert len(started) == 1
    assert {key.stem for key in keys} <= set(names.values())
    assert len(set(names.values())) == len(names)
    assert read_checked_json(folder / "nodes.json") == {
        node: [name, fingerprint(folder / "keys" / f"{name}.pub")] for node, name in names.items()
    }
    with FlowerCommand(folder) as flwr:
        assert register_keys(keys, folder, flwr) == names
    assert len(started) == 1, "with nothing to register there is nothing to start"
    assert known(folder) == set(names)


@pytest.mark.long
def test_a_key_that_flower_refuses_is_named_and_those_before_it_are_written_down(folder: Path) -> None:
    good, same, after = make_keys(folder, "good", "same", "after")
    same.write_bytes(good.read_bytes())
    with FlowerCommand(folder) as flwr:
        with pytest.raises(RosterError, match=r"same\.pub' cannot be registered: .*already in use"):
            register_keys([good, same, after], folder, flwr)
        written = {name for name, _ in read_checked_json(folder / "nodes.json").values()}
        assert "good" in written
        assert not written & {"same", "after"}
        assert "after" in register_keys([good, after], folder, flwr).values(), "the process goes on after a refusal"


@pytest.mark.long
def test_a_command_that_flower_does_not_know_is_an_error_and_not_the_end(folder: Path) -> None:
    with FlowerCommand(folder) as flwr:
        assert flwr("supernode", "no-such-command").returncode == 2
        assert flwr("supernode", "list", flower_command.LINK).returncode == 0


@pytest.mark.long
def test_without_the_secret_nothing_is_registered(folder: Path) -> None:
    (key,) = make_keys(folder, "stranger")
    before, secret = known(folder), (folder / "secret").read_text()
    (folder / "secret").write_text("a guess")
    try:
        with FlowerCommand(folder) as flwr, pytest.raises(RosterError, match="cannot be registered"):
            register_keys([key], folder, flwr)
    finally:
        (folder / "secret").write_text(secret)
    assert known(folder) == before


def test_a_process_that_does_not_answer_is_ended_with_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = [sys.executable, "-c", "import time; print('hello', flush=True); time.sleep(600)"]
    monkeypatch.setattr(flower_command, "gated", lambda _: silent)
    with FlowerCommand(tmp_path, seconds=1.0) as flwr, pytest.raises(ProcessError, match=r"not answered in 1 s"):
        flwr("supernode", "list")


def test_a_process_that_ends_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_command, "gated", lambda _: [sys.executable, "-c", "raise SystemExit('no memory')"])
    with FlowerCommand(tmp_path) as flwr:
        done = flwr("supernode", "list")
    assert done.returncode == 1
    assert done.stdout.strip() == "no memory"
