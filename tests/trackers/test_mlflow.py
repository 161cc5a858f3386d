"""The store is read back by MLflow's own client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import farfield as ff
from farfield.trackers import MLflow
from farfield.trackers.mlflow_runs import metric_name
from tests.toy import task
from tests.trackers.small_bench import StopAfter, interrupt, recorded, small_bench

mlflow = pytest.importorskip("mlflow")


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A database with MLflow's tables: making them takes seconds, copying them nothing."""
    path = tmp_path_factory.mktemp("mlflow") / "empty.db"
    mlflow.MlflowClient(f"sqlite:///{path}").search_experiments()
    return path.read_bytes()


@pytest.fixture
def uri(tmp_path: Path, empty_store: bytes, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "runs.db").write_bytes(empty_store)
    return f"sqlite:///{tmp_path / 'runs.db'}"


def runs_in(uri: str, experiment: str = "toy") -> dict[str, Any]:
    client = mlflow.MlflowClient(uri)
    found = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    names = [run.info.run_name for run in found]
    assert len(names) == len(set(names))
    return {run.info.run_name: run for run in found}


def history(uri: str, run: Any, metric: str) -> list[tuple[int, float]]:
    found = mlflow.MlflowClient(uri).get_metric_history(run.info.run_id, metric)
    return sorted((m.step, m.value) for m in found)


@pytest.mark.slow
def test_each_run_has_its_rounds_settings_and_held_out_figures_under_one_parent(tmp_path: Path, uri: str) -> None:
    result = small_bench(tmp_path / "b", MLflow(uri))
    runs = runs_in(uri)
    (parent,) = [run for name, run in runs.items() if name.startswith("toy ")]
    names = ["fedavg/a/seed-0", "fedavg/b/seed-0", "fedprox/a/seed-0", "fedprox/b/seed-0"]
    assert sorted(set(runs) - {parent.info.run_name}) == names
    assert {run.info.status for run in runs.values()} == {"FINISHED"}

    run = runs["fedprox/b/seed-0"]
    assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert run.data.params["held_out"] == "b"
    assert float(run.data.params["settings.mu"]) == result.rows[-1]["settings"]["mu"]
    rows = recorded(tmp_path / "b", "fedprox", "b")
    assert history(uri, run, "loss") == [(row["round"], row["loss"]) for row in rows]
    evaluated = [row for row in rows if "validation" in row]
    expected = [(row["round"], row["validation"]["a"]["loss"]) for row in evaluated]
    assert history(uri, run, "validation/a/loss") == expected
    (row,) = [r for r in result.rows if (r["algorithm"], r["held_out"]) == ("fedprox", "b")]
    for rule, chosen in row["selection"].items():
        assert history(uri, run, f"held_out/{rule}/accuracy") == [(chosen["round"], chosen["accuracy"])]
    assert history(uri, run, "cost/bytes_up") == [(4, row["bytes_up"])]


def test_a_resumed_bench_goes_on_in_the_same_runs_without_a_step_twice(tmp_path: Path, uri: str) -> None:
    out = tmp_path / "b"
    options: dict[str, Any] = {"rounds": 4, "seeds": 1, "held_out": ["a", "b"], "parallel": 1, "out": out}
    with pytest.raises(KeyboardInterrupt):
        ff.bench(task(), ["fedavg"], callbacks=[MLflow(uri), StopAfter(6)], **options)
    before = runs_in(uri)
    assert {name: run.info.status for name, run in before.items() if "/" in name} == {
        "fedavg/a/seed-0": "FINISHED",
        "fedavg/b/seed-0": "KILLED",
    }
    assert [step for step, _ in history(uri, before["fedavg/b/seed-0"], "loss")] == [1, 2]
    assert not [name for run in before.values() for name in run.data.metrics if "held" in name]

    for _ in range(2):  # the second time nothing is left to do
        result = ff.bench(task(), ["fedavg"], callbacks=[MLflow(uri)], resume=True, **options)
        after = runs_in(uri)
        assert {name: run.info.run_id for name, run in after.items()} == {n: r.info.run_id for n, r in before.items()}
        assert {run.info.status for run in after.values()} == {"FINISHED"}
        for domain in ("a", "b"):
            expected = [(row["round"], row["loss"]) for row in recorded(out, "fedavg", domain)]
            assert history(uri, after[f"fedavg/{domain}/seed-0"], "loss") == expected
            assert len(history(uri, after[f"fedavg/{domain}/seed-0"], "held_out/last/accuracy")) == 1
            assert len(history(uri, after[f"fedavg/{domain}/seed-0"], "cost/seconds")) == 1
    assert len(result.rows) == 2


def test_a_run_that_repeats_rounds_after_a_kill_does_not_send_them_twice(tmp_path: Path, uri: str) -> None:
    small_bench(tmp_path / "b", MLflow(uri))
    interrupt(tmp_path / "b", "fedavg", "b", after=1)
    small_bench(tmp_path / "b", MLflow(uri), resume=True)
    run = runs_in(uri)["fedavg/b/seed-0"]
    assert [step for step, _ in history(uri, run, "loss")] == [1, 2, 3, 4]
    assert [step for step, _ in history(uri, run, "validation/a/loss")] == [2, 4]


def test_the_default_store_is_in_the_bench_folder(tmp_path: Path, uri: str, empty_store: bytes) -> None:
    store = tmp_path / "m" / "run" / "trackers" / "mlflow.db"
    made = ff.Callback()
    made.on_bench_start = lambda plan, folder: (  # type: ignore[assignment,method-assign]
        store.parent.mkdir(parents=True), store.write_bytes(empty_store))  # fmt: skip
    ff.train(task(), "fedavg", tmp_path / "m", rounds=2, callbacks=[made, MLflow()])
    run = runs_in(f"sqlite:///{store}")["fedavg/seed-0"]
    assert [step for step, _ in history(f"sqlite:///{store}", run, "loss")] == [1, 2]


@pytest.mark.parametrize("uri", ["file:runs", "runs", "./mlruns"])
def test_a_folder_is_refused_with_the_way_out(uri: str) -> None:
    with pytest.raises(ff.UserError, match=f"no longer keeps runs in a folder, as '{uri}' asks.*sqlite"):
        MLflow(uri)


def test_names_that_mlflow_refuses_become_names_that_it_takes_and_stay_apart() -> None:
    from mlflow.utils.validation import _validate_metric_name

    awkward = ["validation/a&b/loss", "validation/a%b/loss", "validation/../loss", "validation//loss", "x" * 400]
    awkward += ["x" * 399 + "y", "validation/<script>/loss", "validation/a\nb/loss", "validation/./loss"]
    made = [metric_name(name) for name in awkward]
    for name in made:
        _validate_metric_name(name)
    assert len(set(made)) == len(awkward)
    assert metric_name("validation/St. Mary's/loss").startswith("validation/St. Mary_s/loss-")
    assert metric_name("validation/Zürich 2/loss") == "validation/Zürich 2/loss"
