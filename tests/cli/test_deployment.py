"""Mistakes at `farfield server` and `farfield client`: one sentence at the place that can mend it, and exit code 2."""

from __future__ import annotations

import importlib.util
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from farfield.deployment.federation_file import read_federation
from farfield.deployment.flower.processes import free_port
from farfield.records import RunFolder
from farfield.records.run import sole_writer

pytestmark = pytest.mark.skipif(importlib.util.find_spec("flwr") is None, reason="needs Flower")

FEDERATION = 'name = "heart"\nserver = "127.0.0.1:{port}"\nalgorithm = "fediir"\nrounds = 2\nsites = 1\n'
SITE = 'name = "cleveland"\ndata = "rows.csv"\nlabel = "disease"\ncategorical = ["cp"]\n'
ROWS = "age,cp,disease\n" + "".join(f"{40 + row},{row % 4},{'yes' if row % 3 else 'no'}\n" for row in range(20))

SERVER = ["server", "federation.toml", "--out", "model"]
CLIENT = ["client", "federation.toml", "cleveland"]
CERTS = ["--certs", "certs"]
KEYS = ["--key", "keys"]
KNOWN = ["--ca", "certs/ca.crt", "--key", "cleveland/cleveland.key"]


@pytest.fixture
def port() -> Iterator[int]:
    """A port that nobody else takes during the test; nobody listens at it."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


@pytest.fixture
def hospital(farfield: Callable[..., Any], tmp_path: Path, port: int) -> Path:
    """A folder in which everything is right; each test breaks one thing."""
    (tmp_path / "federation.toml").write_text(FEDERATION.format(port=port))
    (tmp_path / "cleveland").mkdir()
    (tmp_path / "cleveland" / "site.toml").write_text(SITE)
    (tmp_path / "cleveland" / "rows.csv").write_text(ROWS)
    assert farfield("certs", "server", "certs").code == 0
    assert farfield("certs", "node", "cleveland", "cleveland").code == 0
    (tmp_path / "keys").mkdir()
    (tmp_path / "cleveland" / "cleveland.pub").rename(tmp_path / "keys" / "cleveland.pub")
    return tmp_path


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def refused(ran: Any, *phrases: str) -> None:
    """Exit code 2, and one sentence that names all of this."""
    assert ran.code == 2, ran
    assert ran.err.startswith("error: "), ran.err
    assert len(ran.err.strip().splitlines()) == 1, ran.err
    assert "Traceback" not in ran.err
    for phrase in phrases:
        assert phrase in ran.err, ran.err


BROKEN = {
    "the label's column is missing": (
        CLIENT + KNOWN,
        ("cleveland/site.toml", 'label = "disease"', 'label = "diesase"'),
        ("cleveland/site.toml", "'label'", "'diesase'", "did you mean 'disease'?"),
    ),
    "a column of categories is missing": (
        CLIENT + KNOWN,
        ("cleveland/rows.csv", "age,cp,disease", "age,pain,disease"),
        ("cleveland/site.toml", "'categorical'", "'cp'", "there are age, pain, disease"),
    ),
    "no label": (
        CLIENT + KNOWN,
        ("cleveland/site.toml", 'label = "disease"', ""),
        ("cleveland/site.toml", "'label'", "age, cp, disease"),
    ),
    "another file of rows": (
        CLIENT + KNOWN,
        ("cleveland/site.toml", "rows.csv", "row.csv"),
        ("cleveland/site.toml", "'data'", "cleveland/row.csv"),
    ),
    "a key of the site file misspelt": (
        CLIENT + KNOWN,
        ("cleveland/site.toml", "categorical", "categoric"),
        ("cleveland/site.toml", "'categoric'", "did you mean 'categorical'?"),
    ),
    "a method that the site does not know": (
        CLIENT + KNOWN,
        ("federation.toml", "fediir", "fedirr"),
        ("federation.toml", "'algorithm'", "'fedirr'", "did you mean 'fediir'?"),
    ),
    "a method that the server does not know": (
        SERVER + CERTS + KEYS,
        ("federation.toml", "fediir", "fednew"),
        ("federation.toml", "'algorithm'", "'fednew'", "choose one of", "a newer version"),
    ),
    "a key of the federation file misspelt": (
        SERVER + CERTS + KEYS,
        ("federation.toml", "rounds", "round"),
        ("federation.toml", "'round'", "did you mean 'rounds'?"),
    ),
    "no address": (
        CLIENT + KNOWN,
        ("federation.toml", "server =", "# server ="),
        ("federation.toml", "no key 'server'", "127.0.0.1:9443"),
    ),
    "a certificate for another host": (
        SERVER + CERTS + KEYS,
        ("federation.toml", "127.0.0.1", "127.0.0.2"),
        ("certs/server.crt", "is for 127.0.0.1, localhost, ::1", "'127.0.0.2'", "--force --host 127.0.0.2"),
    ),
    "an insecure server for everyone": (
        [*SERVER, "--insecure"],
        ("federation.toml", "127.0.0.1", "0.0.0.0"),
        ("--insecure is for addresses of this machine", "'0.0.0.0:", "farfield certs server", "--certs"),
    ),
    "an insecure server at a public address": (
        [*SERVER, "--insecure"],
        ("federation.toml", "127.0.0.1", "192.0.2.7"),
        ("--insecure is for addresses of this machine", "'192.0.2.7:", "--certs"),
    ),
    "an insecure site with a server elsewhere": (
        [*CLIENT, "--insecure"],
        ("federation.toml", "127.0.0.1", "192.0.2.7"),
        ("--insecure is for a server on this machine", "'192.0.2.7:", "--ca"),
    ),
    "an address of another machine": (
        SERVER + CERTS + KEYS,
        ("federation.toml", "127.0.0.1", "192.0.2.7"),
        ("cannot listen at 192.0.2.7:", "'server' in the federation file"),
    ),
    "a key that is none": (
        CLIENT + KNOWN,
        ("cleveland/cleveland.key", "PRIVATE KEY", "SOMETHING"),
        ("cleveland/cleveland.key", "farfield certs node"),
    ),
    "an authority that is none": (
        [*CLIENT, *KNOWN, "--accept"],
        ("certs/ca.crt", "CERTIFICATE", "SOMETHING"),
        ("certs/ca.crt", "no certificate", "--ca"),
    ),
    "a public key that is none": (
        SERVER + CERTS + KEYS,
        ("keys/cleveland.pub", "ecdsa", "something"),
        ("keys/cleveland.pub", "no public key", "farfield certs node"),
    ),
}


@pytest.mark.parametrize(("arguments", "broken", "phrases"), BROKEN.values(), ids=BROKEN.keys())
def test_what_is_wrong_in_a_file_is_named_with_the_way_out(
    farfield: Callable[..., Any],
    hospital: Path,
    arguments: list[str],
    broken: tuple[str, str, str],
    phrases: tuple[str, ...],
) -> None:
    name, old, new = broken
    change(hospital / name, old, new)
    refused(farfield(*arguments), *phrases)
    assert not (hospital / "model").exists()


MISTYPED: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "a server without a certificate": (SERVER, ("farfield certs server", "--certs")),
    "a server that knows no key": (SERVER + CERTS, ("no site's key", "--key")),
    "a folder without keys": ([*SERVER, *CERTS, "--key", "cleveland"], ("'cleveland'", "no .pub", "--key")),
    "a key that is not there": ([*SERVER, *CERTS, "--key", "keys/va.pub"], ("no key 'keys/va.pub'",)),
    "a folder without certificates": (
        [*SERVER, "--certs", "keys", *KEYS],
        ("'keys' has no server.crt", "farfield certs server keys"),
    ),
    "certificates, and insecure": ([*SERVER, *CERTS, "--insecure"], ("--certs", "--insecure")),
    "no federation file for a server": (
        ["server", "heart.toml", "--out", "model", *CERTS, *KEYS],
        ("no federation file 'heart.toml'",),
    ),
    "no federation file for a site": (
        ["client", "heart.toml", "cleveland", *KNOWN],
        ("no federation file 'heart.toml'", "operator"),
    ),
    "no site file": (["client", "federation.toml", "va", *KNOWN], ("no site file 'va",)),
    "a folder without a site file": (
        ["client", "federation.toml", "certs", *KNOWN],
        ("no site file 'certs/site.toml'",),
    ),
    "a folder that is not empty": (
        ["server", "federation.toml", "--out", "keys", *CERTS, *KEYS],
        ("'keys' is not empty", "--out"),
    ),
    "nothing to resume": ([*SERVER, *CERTS, *KEYS, "--resume"], ("no run in 'model'", "--resume")),
    "a site without an authority": ([*CLIENT, "--key", "cleveland/cleveland.key"], ("--ca ca.crt", "its operator")),
    "a site without a key": ([*CLIENT, "--ca", "certs/ca.crt"], ("private key", "farfield certs node", "--key")),
    "a site's key that is not there": (
        [*CLIENT, "--ca", "certs/ca.crt", "--key", "va.key"],
        ("no file 'va.key' for --key",),
    ),
    "an authority that is not there": (
        [*CLIENT, "--ca", "ca.crt", "--key", "cleveland/cleveland.key"],
        ("no file 'ca.crt' for --ca",),
    ),
    "a key, and insecure": ([*CLIENT, *KNOWN, "--insecure"], ("--key", "--insecure")),
}


@pytest.mark.parametrize(("arguments", "phrases"), MISTYPED.values(), ids=MISTYPED.keys())
def test_what_is_missing_is_named_with_the_way_out(
    farfield: Callable[..., Any], hospital: Path, arguments: list[str], phrases: tuple[str, ...]
) -> None:
    refused(farfield(*arguments), *phrases)
    assert not (hospital / "model").exists()


def test_a_port_in_use_is_named_by_the_server(farfield: Callable[..., Any], hospital: Path, port: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        taken = listening.getsockname()[1]
        change(hospital / "federation.toml", str(port), str(taken))
        ran = farfield(*SERVER, *CERTS, *KEYS)
    refused(ran, f"127.0.0.1:{taken}", "in use", "'server' in the federation file")


def test_a_server_that_does_not_answer_is_named_by_the_site(
    farfield: Callable[..., Any], hospital: Path, port: int
) -> None:
    ran = farfield(*CLIENT, *KNOWN, "--accept")
    refused(ran, f"no server answers at 127.0.0.1:{port}", "is it running", "--wait")


def test_what_would_leave_can_be_read_before_there_are_keys(farfield: Callable[..., Any], hospital: Path) -> None:
    ran = farfield(*CLIENT, "--show")
    assert ran.code == 0
    assert "head_gradient" in ran.out
    assert not (hospital / "cleveland" / ".farfield").exists()


def test_nothing_leaves_that_was_not_approved(farfield: Callable[..., Any], hospital: Path) -> None:
    ran = farfield(*CLIENT, *KNOWN)
    refused(ran, "was not approved", "--accept")
    assert not list(hospital.rglob("approval.json"))


def test_an_approval_is_kept_and_asked_for_again_when_the_federation_changes(
    farfield: Callable[..., Any], hospital: Path
) -> None:
    refused(farfield(*CLIENT, *KNOWN, "--accept"), "no server answers")
    refused(farfield(*CLIENT, *KNOWN), "no server answers")
    change(hospital / "federation.toml", "rounds = 2", "rounds = 3")
    refused(farfield(*CLIENT, *KNOWN), "was not approved", "rounds is 2 there and 3 here", "--accept")


def test_a_start_that_came_to_nothing_leaves_a_folder_to_start_in_again(
    farfield: Callable[..., Any], hospital: Path
) -> None:
    (hospital / "model" / "flower").mkdir(parents=True)
    (hospital / "model" / "run").mkdir()
    (hospital / "model" / "run" / ".lock").touch()
    refused(farfield(*SERVER, *CERTS, *KEYS), "in use")  # the port's test keeps it: all else was right
    (hospital / "model" / "notes.txt").touch()
    refused(farfield(*SERVER, *CERTS, *KEYS), "not empty and holds no run")


def test_two_servers_do_not_share_a_folder(farfield: Callable[..., Any], hospital: Path) -> None:
    (hospital / "federation.toml").write_text(FEDERATION.format(port=free_port()))
    (hospital / "model" / "flower").mkdir(parents=True)
    with sole_writer(hospital / "model" / "flower", patience=0.0):
        refused(farfield(*SERVER, *CERTS, *KEYS), "another 'farfield server' is running with --out 'model'")


def test_a_run_is_not_resumed_with_another_federation_file(farfield: Callable[..., Any], hospital: Path) -> None:
    begun = read_federation(hospital / "federation.toml").model_dump(mode="json")
    (hospital / "model" / "flower").mkdir(parents=True)
    (hospital / "model" / "flower" / "server.json").write_text(json.dumps({"federation": begun}))
    RunFolder(hospital / "model" / "run").create({})
    change(hospital / "federation.toml", "rounds = 2", "rounds = 3\ndeadline = 9.0")
    refused(farfield(*SERVER, *CERTS, *KEYS, "--resume"), "'model'", "rounds is 2 there and 3 here", "another --out")
    change(hospital / "federation.toml", "rounds = 3", "rounds = 2")
    refused(farfield(*SERVER, *CERTS, *KEYS, "--resume"), "in use")  # a deadline may change


def test_registered_keys_stay_for_sites_that_wait_and_another_key_is_noticed(hospital: Path) -> None:
    from farfield.deployment.server.registration import check_keys
    from farfield.deployment.server.site_roster import NODES, RosterError, fingerprint

    folder, key = hospital / "flower", hospital / "keys" / "cleveland.pub"
    folder.mkdir()
    database = folder / "superlink.db"
    database.touch()
    check_keys(folder, [key], resume=False)
    assert not database.exists(), "of a start that ended before it had written down what it registered"
    database.touch()
    (folder / NODES).write_text(json.dumps({"17": ["cleveland", fingerprint(key)]}))
    for resume in (False, True):
        check_keys(folder, [key], resume=resume)
    assert database.exists()
    key.write_text(key.read_text() + " another")
    with pytest.raises(RosterError, match="'cleveland' is not the one that the run was begun with"):
        check_keys(folder, [key], resume=True)
    assert database.exists()
    check_keys(folder, [key], resume=False)
    assert not database.exists()
    assert not (folder / NODES).exists()


@pytest.mark.parametrize(
    ("printed", "error"),
    [
        ('{\n  "success": false,\n  "error-message": "it is\\nknown \\"already\\""\n}\n', 'it is known "already"'),
        ("╭─ Error ─╮\n│ no link │\n╰─────────╯\n", "no link"),
        ("{\n}\n", "it gave no reason"),
    ],
)
def test_the_error_of_flowers_command_is_passed_on(printed: str, error: str) -> None:
    from farfield.deployment.server.flower_command import flower_error

    assert flower_error(printed) == error
