from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from farfield.cli.main import run


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


@pytest.fixture
def farfield(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Ran]:
    """Type a `farfield` command, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["farfield", *arguments])
        try:
            run()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return command
