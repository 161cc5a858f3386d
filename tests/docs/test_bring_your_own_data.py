"""The page promises that it can be run as it stands."""

from __future__ import annotations

import csv
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from farfield.cli.main import run

PAGE = Path(__file__).parents[2] / "docs" / "bring-your-own-data.md"
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _command(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", shlex.split(line))
    try:
        run()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    assert code == 0, line


@pytest.mark.slow
def test_every_block_of_the_page_runs_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FARFIELD_CACHE", str(tmp_path / "cache"))
    blocks = BLOCK.findall(PAGE.read_text())
    assert [kind for kind, _ in blocks].count("python") >= 3
    names: dict[str, Any] = {}
    commands = 0
    for kind, text in blocks:
        if kind == "python":
            exec(compile(text, str(PAGE), "exec"), names)
        for line in text.splitlines() if kind == "console" else ():
            assert line.startswith("$ farfield ")
            _command(line.removeprefix("$ "), monkeypatch)
            commands += 1
    assert commands == 7
    assert (tmp_path / "photos-bench" / "report.html").exists()
    assert (tmp_path / "visits-bench" / "report.html").exists()
    with (tmp_path / "predictions.csv").open() as file:
        predicted = [row["label"] for row in csv.DictReader(file)]
    died = [str(value) for value in names["visits"]["died"]]
    right = sum(a == b for a, b in zip(predicted, died, strict=True)) / len(died)
    assert right > 0.7  # the larger class alone is under 0.6
    assert "north" in capsys.readouterr().out
