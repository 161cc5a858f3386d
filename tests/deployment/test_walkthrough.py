"""docs/deploy.md promises that it runs from top to bottom in examples/hospitals: here it does, with made-up rows."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from farfield.records.sealed import open_sealed
from tests.deployment.network import children_of, free_port

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deploy.md").read_text()
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Each in "a terminal of its own"; what follows on the page is typed when these have ended.
OWN_TERMINAL = re.compile(r"farfield (server|client)\b(?!.*--show)")
#: Fewer than the page has: three rounds show what ten do.
ROUNDS = 3
PATIENCE = 600.0


def commands() -> list[str]:
    lines = [line for block in BLOCK.findall(PAGE) for line in block.splitlines()]
    assert all(line.startswith("$ ") for line in lines)
    return [line.removeprefix("$ ").replace("--rounds 10", f"--rounds {ROUNDS}") for line in lines]


class Walk:
    """A copy of the example, and the terminals in which the page's commands are typed."""

    def __init__(self, folder: Path) -> None:
        self.home, self.logs = folder / "hospitals", folder / "logs"
        tracked = ("README.md", "prepare.py", "federation.toml", "site.toml")
        for path in (ROOT / "examples" / "hospitals").rglob("*"):
            if path.name in tracked:
                to = self.home / path.relative_to(ROOT / "examples" / "hospitals")
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, to)
        file = self.home / "federation.toml"
        asked = file.read_text()
        assert "127.0.0.1:9443" in asked
        assert "rounds = 10" in asked
        asked = asked.replace("127.0.0.1:9443", f"127.0.0.1:{free_port()}").replace("rounds = 10", f"rounds = {ROUNDS}")
        file.write_text(asked)
        self.logs.mkdir()
        commands = folder / "bin"
        commands.mkdir()
        for name, runs in (("farfield", "-m farfield"), ("python", "")):
            (commands / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {runs} "$@"\n')
            (commands / name).chmod(0o755)
        self._environment = {**os.environ, "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "120"}
        self.terminals: dict[str, subprocess.Popen[bytes]] = {}

    def type(self, line: str) -> None:
        """Type a line; those that run on get a terminal of their own."""
        if not OWN_TERMINAL.match(line):
            self.wait_for_terminals()
            done = subprocess.run(
                ["sh", "-c", line],
                cwd=self.home,
                env=self._environment,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
            return
        if "--resume" in line:
            self.wait_for_terminals()
        log = self.logs / f"{len(self.terminals)}.log"
        with log.open("wb") as file:
            self.terminals[line] = subprocess.Popen(
                ["sh", "-c", f"exec {line}"],
                cwd=self.home,
                env=self._environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )

    def wait_for_terminals(self) -> None:
        until = time.monotonic() + PATIENCE
        while any(process.poll() is None for process in self.terminals.values()):
            for line, process in self.terminals.items():
                assert process.poll() in (None, 0), f"{line}\n{self.said(line)}"
            assert time.monotonic() < until, "\n\n".join(map(self.said, self.terminals))
            time.sleep(0.2)
        for line, process in self.terminals.items():
            assert process.returncode == 0, f"{line}\n{self.said(line)}"

    def said(self, line: str) -> str:
        return (self.logs / f"{list(self.terminals).index(line)}.log").read_text(errors="replace")

    def end(self) -> None:
        for process in self.terminals.values():
            if process.poll() is None:
                process.terminate()
        for process in self.terminals.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(40)
            if process.poll() is None:
                process.kill()
                process.wait()


@pytest.fixture
def walk(tmp_path: Path) -> Iterator[Walk]:
    made = Walk(tmp_path)
    try:
        yield made
    finally:
        made.end()
        until = time.monotonic() + 20
        while children_of(tmp_path) and time.monotonic() < until:
            time.sleep(0.2)
    assert not children_of(tmp_path)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_page_can_be_typed_from_top_to_bottom(walk: Walk) -> None:
    lines = commands()
    for line in lines:
        walk.type(line)
    walk.wait_for_terminals()
    server, *sites, again = walk.terminals
    assert [line.split()[1:4:2] for line in sites] == [
        ["client", name] for name in ("cleveland", "hungarian", "switzerland", "va")
    ]

    result = json.loads((walk.home / "model" / "run" / "result.json").read_text())
    assert (result["algorithm"], result["rounds"], result["clients"]) == ("fediir", ROUNDS, 3)
    assert not (walk.home / "model" / "run" / "events.jsonl").exists()
    (row,) = json.loads((walk.home / "joined.json").read_text())
    assert result["model_sha256"] == row["model_sha256"]
    assert result["model_sha256"] in walk.said(server)
    assert result["model_sha256"] in walk.said(again)

    measured = open_sealed(walk.home / "model" / "run")
    assert measured == open_sealed(walk.home / "joined" / "runs" / "fediir" / "va" / "seed-0")
    assert [number for number, _ in measured] == list(range(1, ROUNDS + 1))
    card = (walk.home / "model" / "README.md").read_text()
    assert "at 'va', which took no part in the training" in card
    assert "at 'va', which took no part in the training" in walk.said(server)
    assert "farfield bench" not in card, "nobody has the joined table"

    with (walk.home / "predictions.csv").open() as file:
        predicted = list(csv.DictReader(file))
    with (walk.home / "va" / "rows.csv").open() as file:
        assert len(predicted) == sum(1 for _ in csv.DictReader(file))
    assert {row["label"] for row in predicted} <= {"yes", "no"}
    for line in sites[:3]:
        assert "train: " in walk.said(line)
    assert "figures of the model on this site's rows" in walk.said(sites[3])


def test_every_option_and_key_that_the_page_shows_exists() -> None:
    import inspect

    from farfield.cli import certs, deployment
    from farfield.cli.bench import bench
    from farfield.cli.predict import predict
    from farfield.deployment.federation_file import FederationFile
    from farfield.deployment.site.site_file import SiteFile

    functions = (deployment.server, deployment.client, certs.server, certs.node, predict, bench)
    known = {f"--{name.replace('_', '-')}" for of in functions for name in inspect.signature(of).parameters}
    shown = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE))
    assert shown <= known | {"--set", "--json", "--made-up"}

    documented = PAGE.split("## The federation file")[1].split("## What leaves a site")[0]
    keys = {
        key for row in re.findall(r"^\| (`.*?) \|", documented, re.MULTILINE) for key in re.findall(r"`(.*?)`", row)
    }
    in_files = {field.alias or name for name, field in FederationFile.model_fields.items()} | set(SiteFile.model_fields)
    tables = {"set", "limits"}
    assert keys == {f"[{key}]" if key in tables else key for key in in_files - {"path"}} | {"bound"}  # under [set]


def test_the_example_files_can_be_read_and_name_four_hospitals() -> None:
    from farfield.deployment.federation_file import read_federation
    from farfield.deployment.site.site_file import read_site

    folder = ROOT / "examples" / "hospitals"
    federation = read_federation(folder)
    roles = [read_site(folder / name).role for name in ("cleveland", "hungarian", "switzerland", "va")]
    assert (federation.sites, federation.evaluating) == (roles.count("train"), roles.count("evaluate"))


def test_made_up_rows_are_marked_and_real_ones_are_cleaned(tmp_path: Path) -> None:
    folder = tmp_path / "hospitals"
    for name in ("cleveland", "hungarian", "switzerland", "va"):
        (folder / name).mkdir(parents=True)
    shutil.copy(ROOT / "examples" / "hospitals" / "prepare.py", folder)
    prepare = [sys.executable, str(folder / "prepare.py")]
    mark = folder / "va" / "THESE-ROWS-ARE-MADE-UP"

    done = subprocess.run([*prepare, "--made-up"], capture_output=True, text=True, check=True)
    assert done.stdout.count("made-up rows") == 4
    assert mark.exists()

    for name in ("cleveland", "hungarian", "switzerland", "va"):
        (tmp_path / f"processed.{name}.data").write_text("63.0,1.0,1.0,0,0,1.0,2.0,150.0,0.0,2.3,3.0,?,6.0,2\n")
    subprocess.run([*prepare, str(tmp_path)], capture_output=True, check=True)
    assert not mark.exists()
    with (folder / "va" / "rows.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["age"], row["chol"], row["trestbps"], row["ca"], row["disease"]) == ("63", "", "", "", "yes")

    (tmp_path / "processed.va.data").unlink()
    failed = subprocess.run([*prepare, str(tmp_path)], capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert "no rows of va" in failed.stderr
    assert "archive.ics.uci.edu" in failed.stderr
