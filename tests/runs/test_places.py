"""Where runs are made: what is refused before any work."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import farfield as ff
from farfield.errors import UserError
from farfield.records.checked_files import read_checked_json
from farfield.runs.places import check_place, open_place
from farfield.runs.plan import Job, make_plan
from farfield.runs.sweep import open_sweep, run_sweep
from farfield.runs.work_order import WorkOrder
from tests.toy import task


@pytest.mark.parametrize(
    "on", ["rays", "ray://", "ray://host", "ray://host:0", "ray://host:70000", "10.0.0.1:6379", ""]
)
def test_a_place_that_is_none_is_refused(on: str) -> None:
    with pytest.raises(UserError, match=r"there is no place '.*' to make runs on; give ray .* or ray://HOST:PORT"):
        check_place(on, "local", None)


@pytest.mark.parametrize(
    "on", ["ray", "ray://host.example:10001", "ray://10.0.0.1:10001", "ray://[fe80::1]:10001", None]
)
def test_places_are_known(on: str | None) -> None:
    check_place(on, "batched", None)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"engine": "flower"}, "cannot be sent to a cluster; give --engine local or batched"),
        ({"workers": 2}, "omit --workers 2"),
        ({"on": "spark"}, "no place 'spark'"),
    ],
)
def test_a_bench_refuses_before_it_makes_a_folder(tmp_path: Path, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        ff.bench(task(), ["fedavg"], out=tmp_path / "out", **{"on": "ray", **options})
    assert not (tmp_path / "out").exists()


def test_without_ray_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farfield.runs.places.find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"pip install 'farfield\[sim\]'"):
        check_place("ray", "local", None)


@pytest.mark.parametrize(
    ("address", "why"), [("ray://127.0.0.1:9", "Connection refused"), ("ray://no-such-host.invalid:10001", ".+")]
)
def test_a_cluster_that_is_not_there_is_one_sentence_at_once(
    tmp_path: Path, address: str, why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ray", reason="needs farfield[sim]")
    started = time.monotonic()
    with pytest.raises(UserError, match=rf"^there is no Ray cluster at {address} \({why}\); start one there") as error:
        ff.bench(task(), ["fedavg"], seeds=1, rounds=1, out=tmp_path, on=address)
    assert time.monotonic() - started < 25, "Ray itself would try for 30 seconds"
    assert "\n" not in str(error.value)
    assert "".join(capfd.readouterr()) == ""


def test_a_bench_that_is_whole_starts_no_cluster(tmp_path: Path) -> None:
    options: dict[str, Any] = {"seeds": 1, "rounds": 1, "held_out": ["a"], "out": tmp_path}
    ff.bench(task(), ["fedavg"], **options)
    told: list[str] = []
    ff.bench(task(), ["fedavg"], on="ray", resume=True, tell=told.append, **options)
    assert told == []


class Loses:
    """A place from which no run comes back."""

    def run(self, order: WorkOrder, jobs: Sequence[Job], *_: object) -> dict[Job, str]:
        return dict.fromkeys(jobs, "it was lost with its node")


def test_a_run_that_never_came_back_is_recorded_as_failed(tmp_path: Path) -> None:
    plan = make_plan(task(), algorithms=["fedavg"], held_out=["c"], seeds=1, rounds=1)
    with open_sweep(plan, tmp_path / "out", resume=False):
        (job,) = run_sweep(plan, task(), tmp_path / "out", place=Loses())
    assert read_checked_json(job.folder(tmp_path / "out") / "failure.json") == {"error": "it was lost with its node"}


def test_this_machine_is_the_default() -> None:
    with open_place(None) as place:
        assert type(place).__name__ == "ThisMachine"
