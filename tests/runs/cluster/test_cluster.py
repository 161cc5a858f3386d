"""Runs on a real Ray cluster (make cluster): the bits of one process, also when a node is killed in the middle."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs farfield[sim]")

import farfield as ff
from farfield.algorithms import registry
from farfield.runs.engines import BatchedEngine, LocalEngine
from farfield.runs.plan import make_plan
from farfield.runs.sweep import open_sweep, run_sweep
from tests.runs.cluster.two_nodes import KillNode, cluster, noted_method, trained
from tests.runs.test_together import records
from tests.toy import task

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

RATES = (0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08)
ROUNDS = 40


def sweep(out: Path, algorithms: list[str], **options: Any) -> dict[Any, str]:
    """Make the runs of a plan in a folder, at a place of choice."""
    rounds = options.pop("rounds", ROUNDS)
    plan = make_plan(task(), algorithms=algorithms, held_out=["c"], seeds=1, rounds=rounds)
    with open_sweep(plan, out, resume=(out / "bench.toml").exists()):
        return run_sweep(plan, task(), out, **options)


@pytest.mark.parametrize("shared", [True, False], ids=["shared folder", "shipped"])
def test_a_killed_node_costs_its_unfinished_runs_alone(
    tmp_path: Path, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_METHODS", dict(registry._METHODS))  # the method is another one in the next test
    log = noted_method(tmp_path)
    variants = [f"noted-for-a-test:lr={rate}" for rate in RATES]
    with cluster() as nodes:
        from farfield.runs.cluster.driver import Cluster

        told: list[str] = []
        observer = KillNode(nodes, log)
        place = Cluster(told.append, look_for_folder=shared)
        failures = sweep(
            tmp_path / "cluster", variants, place=place, observer=observer, checkpoint_every=2, parallel=None
        )
    on_cluster = trained(log)
    log.unlink()
    sweep(tmp_path / "alone", variants, parallel=1)
    assert (failures, observer.failed) == ({}, {})
    assert records(tmp_path / "cluster") == records(tmp_path / "alone")
    assert len(records(tmp_path / "alone")) == len(RATES)
    assert {row["node"] for row in on_cluster} == {"node-0", "node-1"}
    assert observer.lost
    times = {(rate, number): 0 for rate in RATES for number in range(1, ROUNDS + 1)}
    for row in on_cluster:
        times[row["run"], row["round"]] += 1
    assert min(times.values()) == 1
    assert {run for (run, _), count in times.items() if count > 1} <= observer.lost
    begun_again = {run for (run, number), count in times.items() if number == 1 and count > 1}
    # Checkpoints in a shared folder outlive the node; else the run begins once more.
    assert begun_again == (set() if shared else observer.lost)
    assert len(told) == len(observer.lost)
    assert all("made again: " in sentence and "c held out, seed 0" in sentence for sentence in told)
    assert not list((tmp_path / "cluster").glob(".on-*"))


def test_the_mailbox_is_on_the_node_of_the_driver() -> None:
    with cluster() as nodes:
        import ray
        from ray._private.state import actors

        from farfield.runs.cluster.driver import _mailbox

        driver, other = (node.node_id for node in nodes.list_all_nodes())
        for _ in range(8):  # where Ray is free to choose, it takes the other node at least once
            with _mailbox() as mailbox:
                ray.get(mailbox.fetch.remote())
        placed = [actor["Address"]["NodeID"] for actor in actors().values()]
        assert placed == [driver] * 8
        assert other not in placed


def test_batched_runs_on_a_cluster_have_the_bits_of_one_process(tmp_path: Path) -> None:
    methods = ["fedavg", "fedprox:mu=0.3", "scaffold", "fediir", "fedavg+fedomg"]
    sweep(tmp_path / "alone", methods, parallel=1, rounds=5)
    with cluster():
        from farfield.runs.cluster.driver import Cluster

        for shared in (True, False):
            place, out = Cluster(look_for_folder=shared), tmp_path / f"cluster-{shared}"
            assert sweep(out, methods, place=place, engine=BatchedEngine(), rounds=5, parallel=None) == {}
            assert records(out) == records(tmp_path / "alone")
        # A run that was begun elsewhere goes on from its checkpoint on a node that does not see the folder.
        begun = tmp_path / "begun"
        sweep(begun, ["scaffold"], rounds=3, parallel=1)
        place = Cluster(look_for_folder=False)
        sweep(begun, ["scaffold"], rounds=5, place=place, engine=LocalEngine(), parallel=None)
        alone = {name: found for name, found in records(tmp_path / "alone").items() if "scaffold" in name}
        assert records(begun) == alone


def test_tuning_runs_on_a_cluster_choose_the_same(tmp_path: Path) -> None:
    options: dict[str, Any] = {"trials": 4, "only": ["lr"], "rounds": 2}
    alone = ff.tune(task(), ["fedavg"], out=tmp_path / "alone", **options)
    with cluster():
        spread = ff.tune(task(), ["fedavg"], out=tmp_path / "cluster", on="ray", **options)
    assert spread.best == alone.best
    assert len(spread.trials) == 4


def test_what_fails_on_a_node_names_the_run_and_costs_no_other(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(
        "from farfield.algorithms import FedAvg, register\n"
        "import os\n"
        "@register\n"
        "class Raises(FedAvg):\n"
        "    name = 'raises-on-a-node-for-a-test'\n"
        "    def aggregate(self, *arguments, **options):\n"
        "        raise RuntimeError('the disk is full')\n"
        "@register\n"
        "class Ends(FedAvg):\n"
        "    name = 'ends-on-a-node-for-a-test'\n"
        "    def aggregate(self, *arguments, **options):\n"
        "        os._exit(9)\n"
    )
    ff.algorithms.use(path)
    methods = ["fedavg", "raises-on-a-node-for-a-test", "ends-on-a-node-for-a-test"]
    with cluster():
        from farfield.runs.cluster.driver import Cluster

        failures = sweep(tmp_path / "out", methods, rounds=2, place=Cluster(look_for_folder=False), parallel=None)
    told = {str(job): error for job, error in failures.items()}
    assert told["raises-on-a-node-for-a-test, c held out, seed 0"] == "RuntimeError: the disk is full"
    assert (
        "it was lost with its node or its process 5 times in a row"
        in told["ends-on-a-node-for-a-test, c held out, seed 0"]
    )
    assert [name for name in records(tmp_path / "out") if "fedavg" in name] != []


@pytest.fixture
def head(tmp_path: Path) -> Iterator[dict[str, int]]:
    """A cluster as `ray start` makes it, of one node with two cores, and its ports."""
    ports = {}
    for name in ("gcs", "client"):
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            ports[name] = found.getsockname()[1]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    }
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus", "2"),
        *("--node-ip-address", "127.0.0.1", "--port", str(ports["gcs"]), "--include-dashboard", "false"),
        *("--ray-client-server-port", str(ports["client"]), "--temp-dir", f"/tmp/ff-test-{os.getpid()}"),
    ]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        limit = time.monotonic() + 300
        for port in ports.values():
            while time.monotonic() < limit:
                with socket.socket() as asked:
                    if asked.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.5)
        yield ports
    finally:
        process.terminate()
        process.wait(120)


def test_a_cluster_is_reached_by_a_client_and_by_its_address(
    tmp_path: Path, head: dict[str, int], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"seeds": 2, "rounds": 3, "held_out": ["c"]}
    ff.bench(task(), ["fedavg", "scaffold"], out=tmp_path / "alone", parallel=1, **options)
    told: list[str] = []
    client = f"ray://127.0.0.1:{head['client']}"
    ff.bench(task(), ["fedavg", "scaffold"], out=tmp_path / "client", on=client, tell=told.append, **options)
    assert told == [f"Ray cluster at {client}: 1 node, 2 cores"]
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{head['gcs']}")
    ff.bench(task(), ["fedavg", "scaffold"], out=tmp_path / "address", on="ray", tell=told.append, **options)
    assert told[1:] == [f"Ray cluster at 127.0.0.1:{head['gcs']}: 1 node, 2 cores"]
    assert "ray" not in "".join(capfd.readouterr()).lower()  # what matters of Ray was told
    assert records(tmp_path / "client") == records(tmp_path / "alone")
    assert records(tmp_path / "address") == records(tmp_path / "alone")


def test_ctrl_c_leaves_what_is_done_and_one_process_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "bench"
    listen = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    start = [sys.executable, "-c", f"{listen}; from farfield.cli.main import run; run()"]
    options = [
        "bench",
        "rotated-digits",
        "--no-references",
        "-a",
        "fedavg,scaffold",
        "--seeds",
        "1",
        "--held-out",
        "0,15",
    ]
    options += ["--rounds", "150", "--no-diagnose", "--out", str(out)]
    process = subprocess.Popen(
        [*start, *options, "--on", "ray"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    limit = time.monotonic() + 600
    while not list(out.glob("runs/*/*/*/checkpoint-*")) and process.poll() is None and time.monotonic() < limit:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 130, errors
    assert "starting Ray on this machine" in errors
    assert re.search(r"To go on:\n\s+farfield bench .*--on ray --resume", errors)
    assert "Traceback" not in errors
    left = subprocess.run(["pgrep", "-f", f"--out {out}"], capture_output=True, text=True).stdout.split()
    assert left == []
    ended = subprocess.run([*start, *options, "--resume"], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    whole = tmp_path / "whole"
    again = [whole if option == str(out) else option for option in options]
    assert subprocess.run([*start, *again], capture_output=True).returncode == 0
    assert {name: found[0]["model_sha256"] for name, found in records(out).items()} == {
        name: found[0]["model_sha256"] for name, found in records(whole).items()
    }
