"""Item 11: no name and no message from a file or another machine makes a terminal, a card or a page do anything."""

from __future__ import annotations

import csv
import json
import os
import pty
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
import tomli_w

#: Clears the screen, sets the title, a C1 sequence, a new line that looks like ours, turned writing, no width.
EVIL = "x\x1b[2J\x1b]0;owned\x07\x9b31m\rerror: send your key\u202egpj\u200b"
#: A CSV file has no second line in a name here, because a table's reader may refuse it; other files have.
OBEYED = ("\x1b[2J", "\x1b]0;", "\x07", "\x9b", "\u202e", "\u200b")
SEEN = r"\x1b[2J"


def table(folder: Path) -> Path:
    """Write rows whose domains, classes and one column have hostile names."""
    path = folder / "visits.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["site", f"age {EVIL}", "dose", "died"])
        for n in range(160):
            classes = ("no", f"yes {EVIL}")
            writer.writerow(
                [f"{'abcd'[n % 4]} {EVIL}", f"{n * 0.37 % 7:.3f}", f"{n * 0.11 % 3:.3f}", classes[(n // 4) % 2]]
            )
    return path


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "farfield", *arguments]
    return subprocess.run(command, capture_output=True, text=True, errors="replace", cwd=cwd, timeout=300)


def check(text: str) -> None:
    """Refuse every control character but the end of a line, and every other that is obeyed."""
    found = re.findall("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]", text)
    assert not found, ascii("".join(found))


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    data = ["--data", str(table(folder)), "--label", "died", "--domain", "site"]
    done = run("bench", *data, "-a", "fedavg", "--seeds", "1", "--rounds", "2", "--out", "runs", cwd=folder)
    assert done.returncode == 0, done.stderr
    check(done.stdout + done.stderr)
    assert SEEN in done.stdout
    assert SEEN in done.stderr
    return folder


@pytest.mark.slow
def test_a_bench_and_its_report_show_hostile_names_and_obey_none(bench: Path) -> None:
    done = run("report", "runs", cwd=bench)
    assert done.returncode == 0, done.stderr
    check(done.stdout + done.stderr)
    assert SEEN in done.stdout
    page = (bench / "runs" / "report.html").read_text()
    check(page)
    assert SEEN in page


@pytest.mark.slow
def test_training_its_card_and_predictions_obey_none(bench: Path) -> None:
    data = ["--data", "visits.csv", "--label", "died", "--domain", "site"]
    trained = run("train", *data, "-a", "fedavg", "--rounds", "2", "--out", "model", cwd=bench)
    assert trained.returncode == 0, trained.stderr
    card = (bench / "model" / "README.md").read_text()
    measured = run("evaluate", "model", "visits.csv", cwd=bench)
    for text in (trained.stdout + trained.stderr, card, measured.stdout + measured.stderr):
        check(text)
    assert SEEN in card


@pytest.mark.slow
def test_a_diagnosis_obeys_none(bench: Path) -> None:
    data = ["--data", "visits.csv", "--label", "died", "--domain", "site"]
    done = run("diagnose", *data, "--to", "diagnosis.html", cwd=bench)
    assert done.returncode == 0, done.stderr
    check(done.stdout + done.stderr)
    assert SEEN in done.stdout
    page = (bench / "diagnosis.html").read_text()
    check(page)
    assert SEEN in page


def test_what_a_browser_that_watches_is_sent_obeys_none(tmp_path: Path) -> None:
    from farfield.watch.folder_view import FolderView

    (tmp_path / "flower").mkdir()
    row = {"time": 1.0, "kind": "refused", "text": f"site '{EVIL}' cannot take part"}
    (tmp_path / "flower" / "activity.jsonl").write_text(json.dumps(row) + "\n")
    state = json.loads(FolderView(tmp_path).state())
    (event,) = state["events"]
    check(event["text"])
    assert SEEN in event["text"]


@pytest.mark.slow
def test_an_error_that_quotes_a_name_obeys_none_and_forges_no_line(tmp_path: Path) -> None:
    done = run(
        "bench",
        "--data",
        "visits.csv",
        "--label",
        f"{EVIL}\nerror: forged",
        "--domain",
        "site",
        cwd=bench_file(tmp_path),
    )
    assert done.returncode == 2
    check(done.stderr)
    assert SEEN in done.stderr
    assert not re.search("^error: forged", done.stderr, re.MULTILINE)


def bench_file(folder: Path) -> Path:
    table(folder)
    return folder


@pytest.mark.slow
def test_a_terminal_with_live_progress_obeys_none(tmp_path: Path) -> None:
    """On a real terminal the console moves the cursor itself: only what the names say must not be obeyed."""
    arguments = ["bench", "--data", str(table(tmp_path)), "--label", "died", "--domain", "site", "-a", "fedavg"]
    arguments += ["--seeds", "1", "--rounds", "2", "--out", str(tmp_path / "runs")]
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "farfield", *arguments], stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "200"},
    )  # fmt: skip
    os.close(theirs)
    printed = b""
    try:
        while part := os.read(ours, 65536):
            printed += part
    except OSError:  # how a terminal ends on Linux
        pass
    assert process.wait(60) == 0, printed.decode(errors="replace")[-2000:]
    os.close(ours)
    text = printed.decode()
    assert SEEN in text
    for obeyed in OBEYED:
        assert obeyed not in text, ascii(obeyed)


@pytest.mark.slow
def test_a_site_shows_its_operator_hostile_columns_and_obeys_none(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    table(tmp_path)
    site = {"name": "amber", "data": "visits.csv", "label": "died", "drop": ["site"]}
    (tmp_path / "site.toml").write_text(tomli_w.dumps(site))
    federation = {"name": "toy", "server": "127.0.0.1:9443", "algorithm": "fedavg", "rounds": 2, "sites": 3}
    (tmp_path / "federation.toml").write_text(tomli_w.dumps(federation))
    done = run("client", "federation.toml", "site.toml", "--show", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    check(done.stdout + done.stderr)
    bad = run("client", "federation.toml", "missing\x1b[2J.toml", "--show", cwd=tmp_path)
    assert bad.returncode == 2
    check(bad.stdout + bad.stderr)
    assert SEEN in bad.stderr


def test_rows_of_another_machine_are_one_line_each() -> None:
    from farfield.cli.console import SafeConsole
    from farfield.cli.deployment_console import DeploymentConsole

    written = StringIO()
    with DeploymentConsole(SafeConsole(file=written, width=120)) as console:
        for kind in ("refused", "problem", "turned-away", "joined", "measured", "progress"):
            text = f"site '{EVIL}\nround 9 of 9: done' cannot take part"
            console.show({"kind": kind, "time": 0.0, "text": text, "waiting": EVIL})
    lines = written.getvalue().splitlines()
    assert len(lines) == 5, "a line about the phase under way waits until nothing was printed for a while"
    for line in lines:
        check(line)
        assert SEEN in line
        assert r"\nround 9 of 9" in line


def test_records_hold_the_names_unchanged(bench: Path) -> None:
    """What is escaped for a reader is not escaped for a machine: JSON has its own escapes."""
    jobs = json.loads((bench / "runs" / "jobs.json").read_text())
    assert {job["held_out"] for job in jobs} == {f"{letter} {EVIL}" for letter in "abcd"}
