"""A site's doctor: one thing is wrong at a time, and the check that is about it says so."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import tomli_w

pytest.importorskip("flwr")

from farfield.deployment.credentials.create import make_authority, make_node_key, make_server_certificate
from farfield.deployment.doctor.check import Check
from farfield.deployment.doctor.network import check_clock
from farfield.deployment.doctor.site import check_site
from farfield.deployment.federation_file import read_federation
from farfield.deployment.site.site_file import read_site
from tests.deployment.doctor.answering_server import answering
from tests.deployment.network import free_port


class Site:
    """A site's files in a folder; what a test changes is the one thing that is wrong."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.certs, self.key = folder, folder / "certs", folder / "amber.key"
        self.authority, self.host = folder / "certs" / "ca.crt", "127.0.0.1"
        make_authority(self.certs, 100)
        make_server_certificate(self.certs, ["127.0.0.1"], 90)
        make_node_key(folder, "amber")
        np.savez(folder / "rows.npz", x=np.random.default_rng(0).normal(size=(30, 4)), y=np.arange(30) % 3)
        (folder / "site.toml").write_text(tomli_w.dumps({"name": "amber", "data": "rows.npz"}))

    def checks(self, port: int) -> dict[str, Check]:
        content = {"name": "toy", "server": f"{self.host}:{port}", "algorithm": "fedavg", "rounds": 2, "sites": 1}
        (self.folder / "federation.toml").write_text(tomli_w.dumps(content))
        made = check_site(
            read_federation(self.folder), read_site(self.folder), self.folder / "state", authority=self.authority,
            key=self.key,
        )  # fmt: skip
        return {check.name: check for check in made}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def port(site: Site) -> Iterator[int]:
    with answering(site.certs) as port:
        yield port


def test_where_all_is_right_nothing_fails_and_no_cell_is_printed(site: Site, port: int) -> None:
    checks = site.checks(port)
    assert {check.status for name, check in checks.items() if name != "approval"} == {"ok"}
    assert checks["approval"].status == "warning"
    assert "--show" in checks["approval"].text
    assert "30 rows of 'amber'" in checks["data"].text
    assert "3 classes" in checks["data"].text
    assert "for 89 more days" in checks["certificate"].text or "for 90 more days" in checks["certificate"].text
    cell = f"{np.load(site.folder / 'rows.npz')['x'][0, 0]:.3f}"
    assert not any(cell in check.text for check in checks.values())
    assert not (site.folder / "state").exists(), "a doctor changes nothing"


def test_a_name_that_cannot_be_resolved(site: Site, port: int) -> None:
    site.host = "no-such-host.invalid"
    checks = site.checks(port)
    assert checks["name"].status == "failed"
    assert "no-such-host.invalid" in checks["name"].text
    assert "connection" not in checks, "what depends on it is not tried"


def test_nobody_listens(site: Site) -> None:
    checks = site.checks(free_port())
    assert checks["connection"].status == "failed"
    assert "is it running" in checks["connection"].text


def test_a_server_that_another_authority_has_signed(site: Site, port: int, tmp_path: Path) -> None:
    site.authority = make_authority(tmp_path / "other", 3).certificate
    checks = site.checks(port)
    assert checks["certificate"].status == "failed"
    assert "must be signed by" in checks["certificate"].text


def test_an_authority_that_is_no_certificate_says_nothing_about_the_server(site: Site, port: int) -> None:
    site.authority = site.key
    checks = site.checks(port)
    assert checks["authority"].status == "failed"
    assert "is no certificate" in checks["authority"].text
    assert "TLS" not in checks, "the server was not asked"
    assert "data" in checks, "what does not depend on it is checked"


def test_a_certificate_for_another_name(site: Site) -> None:
    make_server_certificate(site.certs, ["fl.example.org"], 90, force=True)
    with answering(site.certs) as port:
        checks = site.checks(port)
    assert checks["certificate"].status == "failed"
    assert "is not for '127.0.0.1'" in checks["certificate"].text


@pytest.mark.parametrize(("from_days", "to_days", "said"), [(-3, -1, "has expired"), (1, 3, "is not valid yet")])
def test_a_certificate_out_of_its_time(site: Site, from_days: int, to_days: int, said: str) -> None:
    _sign(site.certs, from_days, to_days)
    with answering(site.certs) as port:
        checks = site.checks(port)
    assert checks["certificate"].status == "failed"
    assert said in checks["certificate"].text
    assert "clock" in checks["certificate"].text


def test_a_certificate_that_ends_soon_is_a_warning(site: Site) -> None:
    _sign(site.certs, -1, 7)
    with answering(site.certs) as port:
        assert site.checks(port)["certificate"].status == "warning"


def _sign(certs: Path, from_days: int, to_days: int) -> None:
    """A server's certificate with other dates than `farfield certs` makes."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

    authority = x509.load_pem_x509_certificate((certs / "ca.crt").read_bytes())
    old = x509.load_pem_x509_certificate((certs / "server.crt").read_bytes())
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(
        subject_name=old.subject, issuer_name=authority.subject, public_key=old.public_key(), serial_number=7,
        not_valid_before=now + timedelta(days=from_days), not_valid_after=now + timedelta(days=to_days),
    )  # fmt: skip
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    key = load_pem_private_key((certs / "ca.key").read_bytes(), None)
    (certs / "server.crt").write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))  # type: ignore[arg-type]


def test_what_answers_without_tls_or_is_no_farfield_server(site: Site) -> None:
    with answering(None) as port:
        assert site.checks(port)["TLS"].status == "failed"
    with answering(site.certs, status=404) as port:
        checks = site.checks(port)
    assert checks["server"].status == "failed"
    assert "is no farfield server" in checks["server"].text
    with answering(site.certs, status=503) as port:
        assert site.checks(port)["server"].status == "warning"


def test_a_server_that_says_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    from farfield.deployment.doctor import network

    monkeypatch.setattr(network, "PATIENCE", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        checks = site.checks(silent.getsockname()[1])
    assert checks["TLS"].status == "failed"


@pytest.mark.parametrize(
    ("clock", "status"), [(0.0, "ok"), (-30.0, "failed"), (200.0, "warning"), (400.0, "failed"), (None, "warning")]
)
def test_the_clock_is_compared_with_the_servers(site: Site, clock: float | None, status: str) -> None:
    with answering(site.certs, clock=clock) as port:
        check = site.checks(port)["clock"]
    assert check.status == status, check.text
    if clock == -30.0:
        assert "ahead of" in check.text


def test_the_clocks_limits_are_flowers() -> None:
    """A site over 5 s ahead or 305 s behind is turned away (SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE)."""
    from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE

    ahead, behind = SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
    assert check_clock(-ahead - 0.6).status == "failed"
    assert check_clock(-ahead - 0.4).status == "warning"
    assert check_clock(behind - 0.4).status == "failed"
    assert check_clock(behind - 0.6).status == "warning"


def test_a_key_that_others_can_read_or_that_is_none(site: Site, port: int) -> None:
    site.key.chmod(0o644)
    check = site.checks(port)["key's mode"]
    assert check.status == "failed"
    assert "0644" in check.text
    assert f"chmod 600 '{site.key}'" in check.text
    site.key = site.folder / "amber.pub"
    site.key.chmod(0o644)
    checks = site.checks(port)
    assert checks["key"].status == "failed"
    assert "key's mode" not in checks, "a public key may be read by everybody"
    site.key = site.folder / "nowhere.key"
    assert "there is no file" in site.checks(port)["key"].text


def test_a_key_of_another_name(site: Site, port: int) -> None:
    site.key = make_node_key(site.folder, "birch").private
    assert site.checks(port)["key's name"].status == "warning"


def test_data_that_cannot_be_read_and_an_approval(site: Site, port: int) -> None:
    (site.folder / "rows.npz").write_bytes(b"no archive")
    assert site.checks(port)["data"].status == "failed"
    shutil.rmtree(site.folder / "state", ignore_errors=True)


def test_an_approval_is_found(site: Site, port: int) -> None:
    from farfield.deployment.manifest.approval import save_approval
    from farfield.deployment.manifest.manifest import make_manifest, own_spec
    from farfield.deployment.site.data import open_site

    site.checks(port)
    federation, data = read_federation(site.folder), open_site(read_site(site.folder))
    spec = own_spec(federation, data.schema)
    (site.folder / "state").mkdir(mode=0o700)
    save_approval(site.folder / "state", make_manifest(federation, schema=data.schema, spec=spec, role="train"))
    checks = site.checks(port)
    assert checks["approval"].status == "ok"
    assert checks["state"].status == "ok"
    (site.folder / "state").chmod(0o755)
    assert site.checks(port)["state"].status == "warning"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from farfield.deployment.doctor.machine import check_folder\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "print([c.status for c in check_folder('out', Path('/etc/farfield-out'), private=True)])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['failed']"


def test_a_full_disk_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from farfield.deployment.doctor import machine

    statuses = []
    for free in (10**8, 10**9, 10**10):
        monkeypatch.setattr(machine.shutil, "disk_usage", lambda path, free=free: type("U", (), {"free": free}))
        statuses.append([check.status for check in machine.check_folder("out", tmp_path / "new", private=True)])
    assert statuses == [["ok", "failed"], ["ok", "warning"], ["ok", "ok"]]


def test_a_mask_that_lets_others_write_is_a_warning() -> None:
    from farfield.deployment.doctor.machine import check_umask

    before = os.umask(0o002)
    try:
        assert check_umask().status == "warning"
        assert os.umask(0o027) == 0o002, "it is what it was"
        assert check_umask().status == "ok"
    finally:
        os.umask(before)
