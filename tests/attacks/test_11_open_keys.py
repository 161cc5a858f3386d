"""Private keys that others on the machine can read are named, with the command that closes them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from farfield.cli.main import run
from farfield.deployment.credentials.create import make_authority, make_node_key, make_server_certificate
from farfield.deployment.credentials.verify import open_key_warnings


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o601])
def test_a_key_that_is_open_to_others_is_named_with_the_way_to_close_it(tmp_path: Path, mode: int) -> None:
    key = make_node_key(tmp_path, "amber").private
    assert open_key_warnings([key]) == []
    key.chmod(mode)
    (sentence,) = open_key_warnings([key])
    assert f"{mode:04o}" in sentence
    assert f"chmod 600 {key}" in sentence


def test_the_keys_of_the_server_and_of_its_authority_are_looked_at(tmp_path: Path) -> None:
    make_authority(tmp_path, 30)
    make_server_certificate(tmp_path)
    keys = [tmp_path / "server.key", tmp_path / "ca.key", tmp_path / "missing.key"]
    assert open_key_warnings(keys) == []
    for key in keys[:2]:
        key.chmod(0o644)
    assert len(open_key_warnings(keys)) == 2


def test_a_site_warns_its_operator_of_an_open_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    key = make_node_key(tmp_path, "amber").private
    key.chmod(0o644)
    (tmp_path / "federation.toml").write_text(
        'name = "toy"\nserver = "127.0.0.1:9"\nalgorithm = "fedavg"\nsites = 1\nrounds = 1\n'
    )
    (tmp_path / "site.toml").write_text('name = "amber"\ndata = "missing.csv"\nlabel = "y"\n')
    given = ["client", str(tmp_path / "federation.toml"), str(tmp_path), "--key", str(key), "--show"]
    monkeypatch.setattr(sys, "argv", ["farfield", *given])
    with pytest.raises(SystemExit):
        run()
    assert "has the mode 0644" in " ".join(capsys.readouterr().err.split())
