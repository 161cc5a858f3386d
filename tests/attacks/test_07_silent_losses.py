"""Item 7: a reply that is lost is said where the result is read, and a killed worker changes no bit."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

#: Methods whose worker is killed as the kernel would kill it: once, or each time that client b is trained in round 2.
METHODS = """
import os, signal
from pathlib import Path
from farfield.algorithms import FedAvg, register

ARMED = Path(__file__).with_suffix(".armed")

@register
class KilledOnce(FedAvg):
    name = "killed-once-for-a-test"
    def train(self, client, model, **shared):
        reply = super().train(client, model, **shared)
        if client.round == 2 and client.domain == "b" and ARMED.exists():
            ARMED.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return reply

@register
class KilledAlways(FedAvg):
    name = "killed-always-for-a-test"
    def train(self, client, model, **shared):
        if client.round == 2 and client.domain == "b" and ARMED.exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().train(client, model, **shared)
"""


def table(folder: Path) -> Path:
    rows = [f"{'abcd'[n % 4]},{n * 0.37 % 7:.3f},{n * 0.11 % 3:.3f},{(n // 4) % 2}" for n in range(160)]
    path = folder / "visits.csv"
    path.write_text("\n".join(["site,age,dose,died", *rows]))
    return path


def bench(
    folder: Path, method: str, out: str, *more: str
) -> tuple[subprocess.CompletedProcess[str], list[dict[str, object]]]:
    methods = folder / "killed.py"
    methods.write_text(METHODS)
    file = folder / f"{out}.json"
    command = [
        sys.executable, "-m", "farfield", "bench", "--data", str(table(folder)), "--label", "died", "--domain", "site",
        "--use", str(methods), "-a", method, "--held-out", "a", "--seeds", "1", "--rounds", "4", "--no-references",
        "--out", str(folder / out), "--json", str(file), *more,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "120"}, timeout=300)
    return done, json.loads(file.read_text()) if file.exists() else []


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", pytest.param("flower", marks=pytest.mark.long)])
def test_a_worker_that_is_killed_once_changes_no_bit_of_a_bench(tmp_path: Path, engine: str) -> None:
    if engine == "flower":
        pytest.importorskip("ray")
    whole, expected = bench(tmp_path, "killed-once-for-a-test", "whole", "--workers", "1", "--parallel", "1")
    assert whole.returncode == 0, whole.stderr
    (tmp_path / "killed.armed").touch()
    killed, found = bench(tmp_path, "killed-once-for-a-test", "killed", "--workers", "2", "--engine", engine)
    assert not (tmp_path / "killed.armed").exists(), "no worker was killed, so nothing was shown"
    assert killed.returncode == 0, killed.stderr
    assert found[0]["model_sha256"] == expected[0]["model_sha256"]
    assert found[0]["lost"] == []
    events = (tmp_path / "killed" / "runs").rglob("events.jsonl")
    kinds = [json.loads(line)["kind"] for file in events for line in file.read_text().splitlines()]
    assert set(kinds) == {"run-again"}


@pytest.mark.slow
def test_a_run_whose_own_process_is_killed_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    two = ["--seeds", "2", "--workers", "1"]
    whole, expected = bench(tmp_path, "killed-once-for-a-test", "whole", *two, "--parallel", "1")
    assert whole.returncode == 0, whole.stderr
    (tmp_path / "killed.armed").touch()
    killed, found = bench(tmp_path, "killed-once-for-a-test", "killed", *two, "--parallel", "2")
    assert not (tmp_path / "killed.armed").exists(), "no run was killed, so nothing was shown"
    assert killed.returncode == 0, killed.stderr
    assert [row["model_sha256"] for row in found] == [row["model_sha256"] for row in expected]
    assert len(found) == 2
    (tmp_path / "killed.armed").touch()
    lost, _ = bench(tmp_path, "killed-always-for-a-test", "lost", *two, "--parallel", "2")
    assert lost.returncode == 1
    assert "its process ended with exit code -9" in lost.stderr


@pytest.mark.slow
def test_a_bench_that_lost_a_client_says_so_in_table_doubts_rows_report_and_exit_code(tmp_path: Path) -> None:
    whole, expected = bench(tmp_path, "killed-always-for-a-test", "whole", "--workers", "1", "--parallel", "1")
    assert whole.returncode == 0, whole.stderr
    assert "replies lost" not in whole.stdout
    (tmp_path / "killed.armed").touch()
    done, found = bench(tmp_path, "killed-always-for-a-test", "killed", "--workers", "2")
    assert done.returncode == 1
    assert found[0]["model_sha256"] != expected[0]["model_sha256"]
    why = "its worker process ended 3 times in a row (exit code -9)"
    (lost,) = found[0]["lost"]  # type: ignore[misc]
    assert (lost["name"], lost["asked"], lost["took_part"], lost["lost_rounds"]) == ("b", 4, 3, [2])  # type: ignore[index]
    assert lost["dropped"] == {why: 1}  # type: ignore[index]
    printed = " ".join(done.stdout.split())
    assert "replies lost in 1 run" in printed
    assert "1 run lost replies of clients, so a rerun can give another model: " in printed
    assert f"without a, seed 0: of b ({why})." in printed
    page = (tmp_path / "killed" / "report.html").read_text()
    assert "1 run lost replies of clients" in page


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_server_that_lost_a_site_says_so_as_it_happens_and_wherever_the_result_is_read(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from tests.deployment.network import SITES, deployment

    with deployment(tmp_path / "net", rounds=8, deadline=6.0, quorum=0.5) as net:
        server = net.server()
        clients = {name: net.client(name) for name in SITES}
        net.until("two rounds", lambda: any(r["kind"] == "round" and r["round"] >= 2 for r in net.activity("server")))
        net.kill(clients["cedar"])
        net.wait(server)
        for name in ("amber", "birch"):
            net.wait(clients[name])
    said = net.said("server")
    lines = [line for line in said.splitlines() if not line.startswith(("model:", "sha256", "lost:", "audit:"))]
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", line) for line in lines), said
    late = [line for line in lines if "site 'cedar': no reply within the deadline of 6 s" in line]
    first_round_without = next(line for line in lines if "amber, birch; without cedar" in line)
    assert late, said
    assert lines.index(late[0]) < lines.index(first_round_without), "it is told before the round is over"
    assert re.search("round 1 of 8: loss .*, all 3 sites, about .* left", said)
    result = net.result()
    (lost,) = result["lost"]
    assert lost["name"] == "cedar"
    assert lost["took_part"] < lost["asked"] == 8
    assert f"took part: amber, birch in all 8 rounds; cedar in {lost['took_part']} of 8 rounds" in said
    sentence = f"Replies were lost: cedar took part in {lost['took_part']} of 8 rounds"
    assert f"lost: {sentence}" in said
    assert sentence in (net.out / "README.md").read_text()
    from farfield.watch.single_view import SingleView

    assert any(sentence in problem for problem in SingleView(net.out).snapshot()["problems"])
    from farfield.deployment.audit.compare import compare
    from farfield.deployment.audit.verify import find_log, verify

    server_log = verify(find_log(net.out))
    assert server_log.intact
    assert f"audit: {len(server_log.entries)} entries, head {server_log.head.sha256}" in said  # type: ignore[union-attr]
    for name in SITES:
        found = compare(server_log, verify(find_log(net.folder / name)))
        assert found.problems == [], name
        assert found.up >= 2 * lost["took_part"], "train and evaluate, in every round that it took part in"
        assert bool(found.notes) == (name == "cedar"), "only what was sent to a dead site is at one side alone"


def test_a_finished_deployment_that_lost_nothing_says_nothing_of_losses() -> None:
    from farfield.records.participation import loss_sentences

    assert loss_sentences([], 0) == []
    assert loss_sentences(None, None) == [], "a result from before losses were counted"
    damaged = [{"dropped": 3}, "x", {"name": "a", "dropped": {"late": "many"}}, {"dropped": ["late"]}]
    assert len(loss_sentences(damaged, "x")) == 1


@pytest.mark.slow
def test_a_training_that_lost_a_client_says_so_when_it_ends_and_on_the_card(tmp_path: Path) -> None:
    methods = tmp_path / "killed.py"
    methods.write_text(METHODS)
    (tmp_path / "killed.armed").touch()
    command = [
        sys.executable, "-m", "farfield", "train", "--data", str(table(tmp_path)), "--label", "died", "--domain",
        "site", "--use", str(methods), "-a", "killed-always-for-a-test", "--rounds", "3", "--workers", "2",
        "--out", str(tmp_path / "model"),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    sentence = (
        "Replies were lost: b took part in 2 of 3 rounds (its worker process ended 3 times in a row (exit code -9))"
    )
    assert f"lost: {sentence}" in done.stdout
    assert sentence in (tmp_path / "model" / "README.md").read_text()


@pytest.mark.slow
def test_a_sweep_over_settings_that_lost_a_client_says_so_in_its_last_lines_and_exit_code(tmp_path: Path) -> None:
    (tmp_path / "killed.armed").touch()
    sweep = ["--workers", "2", "--sweep", "lr=0.05,0.1"]
    done, found = bench(tmp_path, "killed-always-for-a-test", "swept", *sweep)
    assert done.returncode == 1, done.stderr
    assert [bool(row["lost"]) for row in found] == [True, True]
    assert "lost: 2 of them lost replies of clients" in done.stderr
