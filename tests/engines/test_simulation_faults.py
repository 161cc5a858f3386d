"""A simulation whose processes end, hang or are interrupted, and one of a user's own files (make simulation)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from farfield.algorithms import use
from farfield.federation.federation import FederationError
from farfield.records import RunFolder
from farfield.runs.engines import ENGINES
from farfield.runs.plan import Job, make_plan
from farfield.runs.single_run import run_job
from tests.toy import task

if not ENGINES["flower"].available:
    pytest.skip("needs farfield[sim]", allow_module_level=True)
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

METHODS = """
import os, time
from pathlib import Path
from farfield.algorithms import FedAvg, register

MARK = Path(__file__).with_suffix(".ended")

@register
class EndsOnce(FedAvg):
    name = "ends-once-for-a-test"
    def train(self, client, model, **shared):
        if client.round == 2 and client.domain == "b" and not MARK.exists():
            MARK.touch()
            os._exit(9)
        return super().train(client, model, **shared)

@register
class Hangs(FedAvg):
    name = "hangs-for-a-test"
    def train(self, client, model, **shared):
        if client.domain == "b":
            time.sleep(3600)
        return super().train(client, model, **shared)

@register
class Raises(FedAvg):
    name = "raises-for-a-test"
    def train(self, client, model, **shared):
        raise RuntimeError("the disk is full")

@register
class Halves(FedAvg):
    name = "halves-for-a-test"
    def loss(self, model, batch, **shared):
        return 0.5 * super().loss(model, batch, **shared)
"""


@pytest.fixture(scope="module")
def methods(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("methods") / "own.py"
    path.write_text(METHODS)
    use(path)
    return path


@pytest.fixture(scope="module")
def simulation() -> Iterator[Any]:
    from farfield.federation.engines.flower.ray_grid import Simulation
    from farfield.runs.simulation.node import app

    with Simulation(app, nodes=4, workers=2) as running:
        yield running


def run_on(simulation: Any, name: str, folder: Path, rounds: int = 3, **options: Any) -> dict[str, Any]:
    from farfield.runs.own_methods import own_methods
    from farfield.runs.simulation.engine import engine_on

    problem = task(4)
    plan = make_plan(problem, algorithms=[name], held_out=["d"], seeds=1, rounds=rounds, **options)
    with engine_on(simulation, own_methods(plan)) as engine:
        return run_job(plan, problem, Job(name, "d", 0), folder, engine=engine)


def dropped(folder: Path) -> list[tuple[int, int, str]]:
    return [(e["round"], e["client"], e["message"]) for e in RunFolder(folder).events() if e["kind"] == "reply-dropped"]


def test_a_client_whose_process_ends_is_run_again_to_the_same_bits(
    simulation: Any, methods: Path, tmp_path: Path
) -> None:
    result = run_on(simulation, "ends-once-for-a-test", tmp_path / "ended")
    assert (result["rounds"], result["lost"]) == (3, [])
    assert dropped(tmp_path / "ended") == []
    again = {(e["round"], e["client"]) for e in RunFolder(tmp_path / "ended").events() if e["kind"] == "run-again"}
    assert (2, 1) in again
    assert {round for round, _ in again} == {2}
    whole = run_on(simulation, "fedavg", tmp_path / "whole")
    assert result["model_sha256"] == whole["model_sha256"]


def test_a_client_that_hangs_is_late_and_holds_nobody_up(simulation: Any, methods: Path, tmp_path: Path) -> None:
    assert run_on(simulation, "hangs-for-a-test", tmp_path, rounds=2, deadline=2.0)["rounds"] == 2
    assert [(round, client) for round, client, _ in dropped(tmp_path)] == [(1, 1), (2, 1)]
    assert {message for _, _, message in dropped(tmp_path)} == {"no reply within the deadline of 2 s"}


def test_what_a_client_raises_is_one_sentence(simulation: Any, methods: Path, tmp_path: Path) -> None:
    with pytest.raises(FederationError, match=r"RuntimeError: the disk is full\), 3 rounds in a row") as error:
        run_on(simulation, "raises-for-a-test", tmp_path)
    assert "\n" not in str(error.value)


def test_after_all_that_the_bits_are_still_those_of_the_local_engine(
    simulation: Any, methods: Path, tmp_path: Path
) -> None:
    problem = task(4)
    plan = make_plan(problem, algorithms=["scaffold"], held_out=["d"], seeds=1, rounds=3)
    local = run_job(plan, problem, Job("scaffold", "d", 0), tmp_path / "local")
    assert run_on(simulation, "scaffold", tmp_path / "flower")["model_sha256"] == local["model_sha256"]


def table(folder: Path) -> Path:
    rows = [f"{'abc'[n % 3]},{n * 0.37 % 7:.3f},{'mf'[n % 2]},{(n // 3) % 2}" for n in range(120)]
    path = folder / "visits.csv"
    path.write_text("\n".join(["site,age,sex,died", *rows]))
    return path


def farfield(*arguments: str) -> list[str]:
    # A test run in the background of a shell ignores Ctrl-C, and what it starts would do so too.
    listen = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    return [sys.executable, "-c", f"{listen}; from farfield.cli.main import run; run()", *arguments]


def test_the_command_line_simulates_a_users_own_table_and_methods(methods: Path, tmp_path: Path) -> None:
    common = [
        "bench",
        "--no-references",
        "--data",
        str(table(tmp_path)),
        "--label",
        "died",
        "--domain",
        "site",
        "--use",
        str(methods),
    ]
    common += ["-a", "fedavg,mine=halves-for-a-test+fedomg:lr=0.05", "--held-out", "a", "--seeds", "1", "--rounds", "2"]
    found = {}
    for engine in ("local", "flower"):
        file = tmp_path / f"{engine}.json"
        out = ["--out", str(tmp_path / engine), "--json", str(file), "--engine", engine]
        done = subprocess.run(farfield(*common, *out), capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        assert "ray" not in (done.stdout + done.stderr).lower().replace(str(tmp_path).lower(), "")
        found[engine] = [(row["algorithm"], row["model_sha256"]) for row in json.loads(file.read_text())]
    assert found["local"] == found["flower"]


def test_an_interrupted_simulation_leaves_no_process_and_no_folder(methods: Path, tmp_path: Path) -> None:
    common = [
        "bench",
        "--no-references",
        "--data",
        str(table(tmp_path)),
        "--label",
        "died",
        "--domain",
        "site",
        "--use",
        str(methods),
    ]
    common += ["-a", "fedavg", "--held-out", "a", "--seeds", "1", "--rounds", "100000", "--engine", "flower"]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    (tmp_path / "tmp").mkdir()
    process = subprocess.Popen(
        farfield(*common, "--out", str(tmp_path / "out")), env=environment, start_new_session=True
    )
    limit = time.monotonic() + 240
    while not list(tmp_path.glob("out/runs/**/rounds.jsonl")) and time.monotonic() < limit:
        assert process.poll() is None
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=120) == 130
    time.sleep(2)
    session = [entry for entry in Path("/proc").glob("[0-9]*") if _session(entry) == process.pid]
    assert session == []
    assert list((tmp_path / "tmp").glob("farfield-rows-*")) == []


def _session(process: Path) -> int:
    """The session that a living process belongs to; those that ended and were not asked after do not count."""
    try:
        state, _, _, session = (process / "stat").read_text().rpartition(")")[2].split()[:4]
    except OSError:
        return -1
    return -1 if state == "Z" else int(session)
