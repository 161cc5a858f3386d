"""The pages on images promise that their example runs as it stands and that their commands exist."""

from __future__ import annotations

import csv
import inspect
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from farfield.cli.bench import bench
from farfield.cli.main import run
from farfield.cli.predict import predict
from farfield.cli.train import train
from farfield.tasks.data_sets.image_sets import SETS

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.long
def test_the_example_of_image_folders_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FARFIELD_CACHE", str(tmp_path / "cache"))
    page = (DOCS / "image-folders.md").read_text()
    names: dict[str, Any] = {}
    ran = []
    for kind, text in BLOCK.findall(page):
        if kind == "python":
            exec(compile(text, "image-folders.md", "exec"), names)
        for line in text.splitlines() if kind == "console" else ():
            if line.startswith("$ farfield "):
                ran.append(shlex.split(line.removeprefix("$ ")))
                assert _run(ran[-1], monkeypatch) == 0, line
    assert names["task"].domain_names == ("beach", "field", "night")
    assert len(names["result"].rows) == 6
    assert [words[1] for words in ran] == ["bench", "train", "predict", "predict", "evaluate"]
    assert (tmp_path / "sites-bench-2" / "report.html").exists()
    out = capsys.readouterr().out
    assert "fedprox" in out
    assert "\nnight/lying/00.png," in out
    with (tmp_path / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["file"] == "lying/00.png"
    assert len(rows) == 80
    assert sum(row["file"].startswith(row["label"]) for row in rows) > 60  # one label for all would be right for 40


def _run(words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        run()
    return int(ended.value.code or 0)


@pytest.mark.parametrize("page", ["image-folders.md", "backbones.md"])
def test_every_option_that_a_page_shows_exists(page: str) -> None:
    commands = (bench, train, predict)
    names = {name for command in commands for name in inspect.signature(command).parameters}
    known = {f"--{name.replace('_', '-')}" for name in names} | {"--set", "--data"}
    shown = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", (DOCS / page).read_text())) - {"--folder"}
    assert shown <= known


def test_the_page_tells_the_counts_that_the_code_checks() -> None:
    page = (DOCS / "image-folders.md").read_text()
    for public in SETS:
        row = next(line for line in page.splitlines() if line.startswith(f"| `{public.name}` |"))
        assert row.endswith(f"| {public.classes} |")
        for domain, count in public.counts.items():
            assert not count or f"{domain} {count:,}" in row
