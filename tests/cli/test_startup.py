"""The list of commands: printed without importing the commands, and yet theirs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from farfield.cli.lazy_command import LazyCommand
from farfield.cli.main import command_line

Command = Callable[..., Any]
NAMES = [
    "bench",
    "diagnose",
    "tune",
    "train",
    "predict",
    "evaluate",
    "report",
    "list",
    "show",
    "server",
    "client",
    "data",
    "certs",
]
SLOW = {"torch", "numpy", "scipy", "sklearn", "pandas", "pyarrow", "flwr", "ray", "pydantic", "cryptography"}


def loaded_by(*arguments: str) -> set[str]:
    """The packages in memory when a command has ended, in an interpreter of its own."""
    code = (
        f"import sys; sys.argv = ['farfield', *{arguments}]\n"
        "from farfield.cli.main import run\n"
        "try: run()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    return set(done.stderr.split())


@pytest.mark.parametrize(
    "arguments", [("--help",), ("server", "--help"), ("certs", "--help"), ("audit", "--help")], ids=" ".join
)
def test_help_imports_no_slow_package(arguments: tuple[str, ...]) -> None:
    loaded = loaded_by(*arguments)
    assert "typer" in loaded
    assert SLOW.isdisjoint(loaded)


def test_the_version_needs_neither_a_slow_package_nor_rich() -> None:
    assert {*SLOW, "rich"}.isdisjoint(loaded_by("--version"))


def test_help_lists_every_command_in_order(farfield: Command) -> None:
    ran = farfield("--help")
    assert ran.code == 0
    first_words = [line.strip("│ ").partition(" ")[0] for line in ran.out.splitlines() if line.startswith("│ ")]
    assert [word for word in first_words if word in NAMES] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_text_in_the_list_is_the_first_paragraph_of_the_commands_own_help(name: str) -> None:
    listed = command_line().commands[name]
    assert isinstance(listed, LazyCommand)
    own = listed.load()
    assert own.name == name
    first, *_ = (own.help or "").split("\n\n")
    assert listed.help == " ".join(first.split())


def test_a_mistyped_command_is_answered_with_the_one_that_was_meant(farfield: Command) -> None:
    ran = farfield("bnech")
    assert ran.code == 2
    assert "No such command 'bnech'. Did you mean 'bench'?" in ran.err
