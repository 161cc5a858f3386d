"""The pages on images promise that their example runs as it stands and that their commands exist."""

from __future__ import annotations

import inspect
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from farfield.cli.bench import bench
from farfield.cli.main import run
from farfield.tasks.image_sets import SETS

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_example_of_image_folders_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FARFIELD_CACHE", str(tmp_path / "cache"))
    page = (DOCS / "image-folders.md").read_text()
    names: dict[str, Any] = {}
    blocks = BLOCK.findall(page)
    for text in [text for kind, text in blocks if kind == "python"]:
        exec(compile(text, "image-folders.md", "exec"), names)
    assert names["task"].domain_names == ("beach", "field", "night")
    assert len(names["result"].rows) == 6
    assert "fedprox" in capsys.readouterr().out
    commands = [text.strip().removeprefix("$ ") for kind, text in blocks if kind == "console" and "--data" in text]
    assert len(commands) == 1
    monkeypatch.setattr(sys, "argv", shlex.split(commands[0]))
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 0
    assert (tmp_path / "sites-bench-2" / "report.html").exists()


@pytest.mark.parametrize("page", ["image-folders.md", "backbones.md"])
def test_every_option_that_a_page_shows_exists(page: str) -> None:
    known = {f"--{name.replace('_', '-')}" for name in inspect.signature(bench).parameters} | {"--set", "--data"}
    shown = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", (DOCS / page).read_text())) - {"--folder"}
    assert shown <= known


def test_the_page_tells_the_counts_that_the_code_checks() -> None:
    page = (DOCS / "image-folders.md").read_text()
    for public in SETS:
        row = next(line for line in page.splitlines() if line.startswith(f"| `{public.name}` |"))
        assert row.endswith(f"| {public.classes} |")
        for domain, count in public.counts.items():
            assert not count or f"{domain} {count:,}" in row
