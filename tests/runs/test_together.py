"""Many runs on the batched engine at once: the records of the local engine, whatever runs beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import farfield as ff
from farfield.algorithms import FedAvg
from farfield.records import RunFolder
from farfield.records.atomic import read_rows
from farfield.runs.rounds import Progress
from farfield.runs.together.open_runs import Abandoned, run_together
from tests.toy import task

METHODS = ["fedavg", "fedprox:mu=0.3", "scaffold", "fediir", "fedavg+fedomg", "local-only", "prior", "erm"]
#: What differs from run to run of the same computation.
TIMES = ("seconds", "server_seconds", "peak_memory_mb", "engine")


def records(folder: Path) -> dict[str, Any]:
    """Everything that the runs of a bench have recorded, without times."""
    found = {}
    for path in sorted(folder.glob("runs/**/result.json")):
        run = RunFolder(path.parent)
        result = {name: value for name, value in (run.result or {}).items() if name not in TIMES}
        found[str(path.parent.relative_to(folder))] = (
            result,
            run.rounds(),
            list(read_rows(path.parent / "target.sealed.jsonl")),
        )
    return found


def bench(out: Path, engine: str, methods: list[Any] = METHODS, **options: Any) -> dict[str, Any]:
    ff.bench(task(), methods, seeds=2, rounds=4, out=out, engine=engine, **options)
    return records(out)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return bench(tmp_path_factory.mktemp("local") / "out", "local", parallel=1)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", [1, 2])
def test_the_records_are_those_of_the_local_engine(tmp_path: Path, alone: dict[str, Any], parallel: int) -> None:
    assert bench(tmp_path / "out", "batched", parallel=parallel) == alone
    assert len(alone) == len(METHODS) * 3 * 2


def test_a_run_is_the_same_without_the_others(tmp_path: Path, alone: dict[str, Any]) -> None:
    for name, found in bench(tmp_path / "out", "batched", ["scaffold"], parallel=1).items():
        assert found == alone[name]


@pytest.mark.slow
def test_an_interrupted_bench_goes_on_to_the_same_bits(tmp_path: Path, alone: dict[str, Any]) -> None:
    rounds = 0

    class Impatient:
        def begin(self, total: int, done: int) -> None: ...
        def finished(self, job: Any, error: str | None) -> None: ...

        def progress(self, progress: Progress) -> None:
            nonlocal rounds
            rounds += progress.round >= 2
            if rounds > 40:
                raise KeyboardInterrupt

    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        bench(out, "batched", parallel=1, observer=Impatient(), checkpoint_every=1)
    assert list(out.glob("runs/**/checkpoint-*")), "it was interrupted in the middle"
    assert len(list(out.glob("runs/**/result.json"))) < len(alone)
    assert bench(out, "batched", parallel=2, resume=True) == alone


class Fails(FedAvg):
    name = "fails"

    def round(self, fed: Any, state: Any) -> Any:
        if state.round == 1:
            raise ValueError("the second round fails")
        return super().round(fed, state)


def test_a_run_that_fails_costs_the_others_nothing(tmp_path: Path, alone: dict[str, Any]) -> None:
    found = bench(tmp_path / "out", "batched", ["fedavg", {"fails": Fails()}, "fediir"], parallel=1)
    assert {name: of for name, of in alone.items() if "/fedavg/" in name or "/fediir/" in name} == found
    failed = sorted((tmp_path / "out").glob("runs/fails/**/failure.json"))
    assert len(failed) == 6
    assert "the second round fails" in json.loads(failed[0].read_text())["error"]


def test_an_error_in_what_serves_all_is_the_error_of_each() -> None:
    def work(serve: Any) -> None:
        serve("no request")

    errors = run_together([work, work])
    assert [type(error) for error in errors] == [AttributeError, AttributeError]


def test_runs_are_abandoned_when_one_of_them_is_interrupted() -> None:
    seen: list[str] = []

    def waits(serve: Any) -> None:
        try:
            serve("never served")
        except Abandoned:
            seen.append("abandoned")
            raise

    def interrupts(_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_together([waits, interrupts])
    assert seen == ["abandoned"]


def test_workers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ff.UserError, match="omit --workers 2 and give --parallel"):
        bench(tmp_path / "out", "batched", workers=2)
    assert not (tmp_path / "out").exists()
