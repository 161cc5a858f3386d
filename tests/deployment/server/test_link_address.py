"""Where a server listens, and how its own processes reach it."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from cryptography import x509

from farfield.deployment.credentials.create import make_authority, make_server_certificate
from farfield.deployment.federation_file import FederationFile
from farfield.deployment.flower.listening import VARIABLE, open_socket
from farfield.deployment.flower.processes import ProcessError
from farfield.deployment.server.link_address import BindError, check_bind, link_address
from tests.deployment.network import free_port


def certificates(folder: Path, *hosts: str) -> Path:
    make_authority(folder, 2)
    make_server_certificate(folder, hosts, 2)
    return folder


def test_without_bind_everybody_uses_the_address_of_the_federation_file(
    tmp_path: Path, federation: FederationFile
) -> None:
    at = link_address(federation, tmp_path, None)
    assert (at.shown, at.authority, at.variables) == ("127.0.0.1:9443", None, {})
    six = federation.model_copy(update={"server": "[::1]:9443"})
    assert link_address(six, tmp_path, None).shown == "[::1]:9443"


def test_behind_nat_own_processes_trust_a_certificate_that_this_start_has_made(
    tmp_path: Path, federation: FederationFile
) -> None:
    public = certificates(tmp_path / "certs", "fl.example.org")
    at = link_address(federation, tmp_path, public, "0.0.0.0:7000")
    assert at.shown == "localhost:7000"
    told = json.loads(at.variables[VARIABLE])
    assert (told["host"], told["port"]) == ("0.0.0.0", 7000)
    made = x509.load_pem_x509_certificate(Path(told["certificate"]).read_bytes())
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [name.value for name in names] == ["localhost"]
    assert at.authority is not None
    authority = x509.load_pem_x509_certificate(at.authority.read_bytes())
    made.verify_directly_issued_by(authority)
    folder = at.authority.parent
    assert sorted(path.name for path in folder.iterdir()) == ["ca.crt", "server.crt", "server.key"], "no key that signs"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    before = at.authority.read_bytes()
    assert link_address(federation, tmp_path, public, "0.0.0.0:7000").authority == at.authority
    assert at.authority.read_bytes() != before


def test_a_certificate_that_is_for_localhost_is_used_for_own_processes_too(
    tmp_path: Path, federation: FederationFile
) -> None:
    public = certificates(tmp_path / "certs", "fl.example.org", "localhost")
    at = link_address(federation, tmp_path, public, "127.0.0.1:7000")
    assert at.authority == public.resolve() / "ca.crt"
    assert json.loads(at.variables[VARIABLE]) == {"host": "127.0.0.1", "port": 7000}


@pytest.mark.parametrize(
    ("bind", "said"),
    [
        ("0.0.0.0", "give host:port"),
        ("::1:9443", "brackets"),
        ("0.0.0.0:0", "not a valid port"),
        ("0.0.0.0:9443", "--insecure is for addresses of this machine"),
    ],
)
def test_an_address_that_is_none_or_not_safe_is_refused(federation: FederationFile, bind: str, said: str) -> None:
    with pytest.raises(BindError, match=said):
        check_bind(federation, bind, insecure=True)


def test_an_address_that_is_not_this_machines_or_in_use_is_refused(federation: FederationFile) -> None:
    with pytest.raises(ProcessError, match=r"cannot listen at 192\.0\.2\.7:9443"):
        check_bind(federation, "192.0.2.7:9443", insecure=False)
    port = free_port()
    with open_socket("127.0.0.1", port), pytest.raises(ProcessError, match="in use"):
        check_bind(federation, f"127.0.0.9:{port}", insecure=False)  # loopback is needed as well
    away = federation.model_copy(update={"server": "192.0.2.7:9443"})
    with pytest.raises(ProcessError, match="--bind"):
        check_bind(away, None, insecure=False)
