"""`farfield certs` as an operator types it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.deployment.loopback import greeting

pytest.importorskip("cryptography")
Command = Callable[..., Any]


def test_commands_make_a_ca_once_and_say_what_to_send_to_whom(farfield: Command) -> None:
    ran = farfield("certs", "server", "keys", "--host", "127.0.0.1", "--host", "fl.example.org")
    assert ran.code == 0
    assert "for 127.0.0.1, fl.example.org, valid until" in ran.out
    assert "Send keys/ca.crt to every site. Send ca.key and server.key to nobody" in ran.out
    authority = Path("keys/ca.crt").read_bytes()
    assert greeting(Path("keys"), Path("keys/ca.crt"), "fl.example.org") == "welcome"

    again = farfield("certs", "server", "keys")
    assert again.code == 2
    assert "'keys/server.key' is there and is kept" in again.err
    assert farfield("certs", "server", "keys", "--force").code == 0
    assert Path("keys/ca.crt").read_bytes() == authority
    assert greeting(Path("keys"), Path("keys/ca.crt"), "127.0.0.1") == "welcome"

    ran = farfield("certs", "node", "keys", "cleveland", "zurich")
    assert ran.code == 0
    assert "Send each .pub to the server's operator. A .key belongs on its site's machine alone" in ran.out
    assert {path.name for path in Path("keys").glob("*.pub")} == {"cleveland.pub", "zurich.pub"}


def test_a_refused_command_leaves_nothing_behind(farfield: Command) -> None:
    assert farfield("certs", "server", "keys", "--host", "https://x").code == 2
    assert farfield("certs", "node", "keys", "good", "../bad").code == 2
    assert not Path("keys").exists()


def test_help_needs_no_cryptography() -> None:
    code = (
        "import sys; sys.argv = ['farfield', '--help']\n"
        "from farfield.cli.main import run\n"
        "try: run()\n"
        "except SystemExit: pass\n"
        "assert 'cryptography' not in sys.modules and 'flwr' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=120)
