"""The diagnosis beside a bench: there when asked for, changes no result, and is made once."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import farfield as ff
from farfield.records.diagnosis_file import read_diagnosis
from farfield.runs import diagnosis
from tests.toy import task


def run(folder: Path, **options: object) -> ff.BenchResult:
    return ff.bench(task(), algorithms="fedavg", seeds=1, rounds=2, parallel=1, out=folder, **options)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_diagnosis_is_written_when_asked_for_and_changes_no_result(tmp_path: Path) -> None:
    with_it = run(tmp_path / "with", diagnose=True)
    without = run(tmp_path / "without")
    found = read_diagnosis(tmp_path / "with")
    assert found is not None
    assert (found.domains, found.data, found.quick) == (("a", "b", "c"), task().data_hash, True)
    assert found == ff.diagnose(task(), quick=True)
    assert (
        read_diagnosis(tmp_path / "without") is None
    )  # six rounds in all: a diagnosis would take longer than the runs
    assert [r["model_sha256"] for r in with_it.rows] == [r["model_sha256"] for r in without.rows]
    assert [r["selection"] for r in with_it.rows] == [r["selection"] for r in without.rows]


def test_a_long_bench_has_one_by_default_and_a_failure_of_it_stops_no_bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis, "WORTH_ROUNDS", 6)
    run(tmp_path / "long")
    assert read_diagnosis(tmp_path / "long") is not None
    run(tmp_path / "declined", diagnose=False)
    assert read_diagnosis(tmp_path / "declined") is None

    def fails(*_: object, **__: object) -> None:
        raise ValueError("a singular matrix")

    monkeypatch.setattr(diagnosis, "diagnose", fails)
    with pytest.warns(UserWarning, match="left out: a singular matrix"):
        assert len(run(tmp_path / "failed").rows) == 3
    run(tmp_path / "long", resume=True)  # it is there for these data, and is not made again
    with pytest.raises(ValueError, match="singular"):
        run(tmp_path / "asked", diagnose=True)


def test_it_is_made_beside_the_runs_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "WORTH_ROUNDS", 6)
    made = diagnosis.diagnose

    def noted(*given: object, **options: object) -> object:
        (tmp_path / "process").write_text(str(os.getpid()))
        return made(*given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(diagnosis, "diagnose", noted)
    ff.bench(task(), algorithms="fedavg", seeds=1, rounds=2, parallel=2, out=tmp_path / "bench")
    assert read_diagnosis(tmp_path / "bench") == ff.diagnose(task(), quick=True)
    assert int((tmp_path / "process").read_text()) != os.getpid()

    def fails(*_: object, **__: object) -> None:
        raise ValueError("a singular matrix")

    monkeypatch.setattr(diagnosis, "diagnose", fails)
    with pytest.warns(UserWarning, match="left out: a singular matrix"):
        ff.bench(task(), algorithms="fedavg", seeds=1, rounds=2, parallel=2, out=tmp_path / "failed")

    def ends(*_: object, **__: object) -> None:
        os._exit(3)

    monkeypatch.setattr(diagnosis, "diagnose", ends)
    with pytest.warns(UserWarning, match="left out: its process ended"):
        ff.bench(task(), algorithms="fedavg", seeds=1, rounds=2, parallel=2, out=tmp_path / "ended")


def test_a_damaged_diagnosis_is_none(tmp_path: Path) -> None:
    (tmp_path / "diagnosis.json").write_text("{")
    assert read_diagnosis(tmp_path) is None
    (tmp_path / "diagnosis.json").write_text(json.dumps({"format": 9}))
    assert read_diagnosis(tmp_path) is None
