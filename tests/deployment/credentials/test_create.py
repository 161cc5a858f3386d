"""Certificates are made when a test runs. What they let in and keep out is tried over a loopback socket."""

from __future__ import annotations

import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("cryptography")
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from farfield.deployment.credentials.create import (
    CertificateError,
    has_authority,
    make_authority,
    make_node_key,
    make_server_certificate,
)
from tests.deployment.loopback import greeting


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    make_authority(tmp_path / "made", 30)
    make_server_certificate(tmp_path / "made", ["127.0.0.1", "fl.example.org", "[::1]"], 20)
    return tmp_path / "made"


@pytest.mark.parametrize("host", ["127.0.0.1", "fl.example.org", "::1"])
def test_whoever_trusts_the_ca_reaches_the_server_by_each_of_its_names(made: Path, host: str) -> None:
    assert greeting(made, made / "ca.crt", host) == "welcome"


@pytest.mark.parametrize("host", ["127.0.0.2", "other.example.org", "localhost"])
def test_a_server_is_refused_under_another_name(made: Path, host: str) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match=r"mismatch|doesn't match|not valid for"):
        greeting(made, made / "ca.crt", host)


def test_a_server_is_refused_by_whoever_trusts_another_ca(made: Path, tmp_path: Path) -> None:
    other = make_authority(tmp_path / "other", 30)
    with pytest.raises(ssl.SSLCertVerificationError, match="verify failed"):
        greeting(made, other.certificate, "127.0.0.1")


def test_private_keys_are_for_their_owner_alone(made: Path) -> None:
    node = make_node_key(made, "cleveland")
    assert [mode(path) for path in (made / "ca.key", made / "server.key", node.private)] == [0o600] * 3
    assert "PRIVATE" not in (made / "ca.crt").read_text() + (made / "server.crt").read_text() + node.public.read_text()


def test_a_certificate_ends_when_it_says_and_never_after_its_ca(tmp_path: Path) -> None:
    authority = make_authority(tmp_path, 10)
    made = make_server_certificate(tmp_path, days=400)
    assert made.until == authority.until
    assert abs(made.until - datetime.now(UTC) - timedelta(days=10)) < timedelta(minutes=5)


def test_flower_reads_a_sites_key_pair(tmp_path: Path) -> None:
    register = pytest.importorskip("flwr.cli.supernode.register")
    made = make_node_key(tmp_path, "zürich-2")
    # As in flwr.supernode.cli.flower_supernode, which does it inside a function that takes its whole command line.
    private = load_ssh_private_key(made.private.read_bytes(), None)
    public = load_ssh_public_key(made.public.read_bytes())
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert private.public_key() == public
    assert isinstance(private.curve, ec.SECP384R1)
    assert register.try_load_public_key(made.public).startswith(b"-----BEGIN PUBLIC KEY-----")


def test_two_sites_have_two_keys(tmp_path: Path) -> None:
    keys = [make_node_key(tmp_path, name).public.read_text().split() for name in ("a", "b")]
    assert keys[0][1] != keys[1][1]
    assert [key[2] for key in keys] == ["a", "b"]


def test_a_key_that_is_there_is_kept_unless_forced(made: Path) -> None:
    make_node_key(made, "a")
    before = {path.name: path.read_bytes() for path in made.iterdir()}
    for make in (
        lambda: make_authority(made, 30),
        lambda: make_server_certificate(made),
        lambda: make_node_key(made, "a"),
    ):
        with pytest.raises(CertificateError, match=r"is there and is kept .*--force"):
            make()
    assert {path.name: path.read_bytes() for path in made.iterdir()} == before
    make_node_key(made, "a", force=True)
    make_server_certificate(made, force=True)
    changed = {name for name, content in before.items() if (made / name).read_bytes() != content}
    assert changed == {"a.key", "a.pub", "server.key", "server.crt"}
    assert mode(made / "server.key") == mode(made / "a.key") == 0o600


def test_a_lost_public_key_does_not_cost_the_private_one(tmp_path: Path) -> None:
    made = make_node_key(tmp_path, "a")
    made.public.unlink()
    with pytest.raises(CertificateError, match=r"a\.key' is there"):
        make_node_key(tmp_path, "a")


@pytest.mark.parametrize("name", ["", ".", "..", "../a", "a/b", "a b", "-a", "ca", "Server", "a\n", "x" * 101])
def test_a_name_that_is_no_file_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CertificateError, match="cannot name a key"):
        make_node_key(tmp_path / "new", name)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("host", ["", "fl.example.org:9443", "https://fl.example.org", "300.1.2.3", "a b", "-a.org"])
def test_a_host_that_is_none_is_refused(made: Path, host: str) -> None:
    with pytest.raises(CertificateError, match="no host name or address"):
        make_server_certificate(made, [host], force=True)


def test_an_address_to_listen_on_is_none_to_connect_to(made: Path) -> None:
    with pytest.raises(CertificateError, match=r"0\.0\.0\.0 is an address to listen on"):
        make_server_certificate(made, ["0.0.0.0"], force=True)


@pytest.mark.parametrize("days", [0, -1, 10**6])
def test_a_time_that_is_none_is_refused(tmp_path: Path, days: int) -> None:
    with pytest.raises(CertificateError, match=f"{days} days"):
        make_authority(tmp_path, days)


def test_half_a_ca_and_anothers_key_sign_nothing(made: Path, tmp_path: Path) -> None:
    (made / "ca.key").rename(tmp_path / "ca.key")
    with pytest.raises(CertificateError, match=r"has ca\.crt but not ca\.key"):
        has_authority(made)
    (made / "ca.key").write_bytes(make_authority(tmp_path / "other", 3).key.read_bytes())
    with pytest.raises(CertificateError, match=r"ca\.key is not the key of ca\.crt"):
        make_server_certificate(made, force=True)
    (made / "ca.key").write_text("no key")
    with pytest.raises(CertificateError, match="cannot be read"):
        make_server_certificate(made, force=True)
