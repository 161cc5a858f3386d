"""The event files are read back by TensorBoard's own EventAccumulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import farfield as ff
from farfield.runs.job import Job
from farfield.trackers import TensorBoard
from tests.toy import task
from tests.trackers.small_bench import StopAfter, interrupt, recorded, small_bench

event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    reader: Any = event_accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    reader.Reload()
    return {tag: [(event.step, event.value) for event in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def close(values: list[tuple[int, float]]) -> Any:
    """TensorBoard keeps single precision."""
    return [(step, pytest.approx(value, rel=1e-6)) for step, value in values]


def test_every_recorded_figure_of_a_round_is_in_the_event_files(tmp_path: Path) -> None:
    small_bench(tmp_path / "b", TensorBoard())
    found = scalars(tmp_path / "b" / "trackers" / "tensorboard" / "fedprox" / "a" / "seed-0")
    rows = recorded(tmp_path / "b", "fedprox", "a")
    assert found["loss"] == close([(row["round"], row["loss"]) for row in rows])
    evaluated = [row for row in rows if "validation" in row]
    assert [row["round"] for row in evaluated] == [2, 4]
    for domain in ("b", "c"):
        expected = [(row["round"], row["validation"][domain]["accuracy"]) for row in evaluated]
        assert found[f"validation/{domain}/accuracy"] == close(expected)
    means = [(r["round"], (r["validation"]["b"]["loss"] + r["validation"]["c"]["loss"]) / 2) for r in evaluated]
    assert found["validation/mean/loss"] == close(means)
    for name in rows[0]["diagnostics"]:
        expected = [(r["round"], r["diagnostics"][name]) for r in rows if r["diagnostics"].get(name) is not None]
        assert found[f"diagnostics/{name}"] == close(expected)


def test_held_out_figures_are_written_when_the_bench_has_ended_and_not_before(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        ff.bench(
            task(),
            ["fedavg"],
            rounds=4,
            seeds=1,
            held_out=["a", "b"],
            parallel=1,
            out=tmp_path / "b",
            callbacks=[TensorBoard(), StopAfter(6)],
        )
    folder = tmp_path / "b" / "trackers" / "tensorboard" / "fedavg" / "a" / "seed-0"
    assert not [tag for tag in scalars(folder) if "held" in tag]
    assert len(scalars(folder)["loss"]) == 4
    result = ff.bench(
        task(), ["fedavg"], rounds=4, seeds=1, held_out=["a", "b"], out=tmp_path / "b", resume=True,
        callbacks=[TensorBoard()],
    )  # fmt: skip
    chosen = result.rows[0]["selection"]["last"]
    assert scalars(folder)["held_out/last/accuracy"] == close([(chosen["round"], chosen["accuracy"])])


def test_a_resumed_bench_goes_on_in_the_same_log_without_a_step_twice(tmp_path: Path) -> None:
    out = tmp_path / "b"
    small_bench(out, TensorBoard())
    interrupt(out, "fedavg", "b", after=3)
    folder = out / "trackers" / "tensorboard" / "fedavg" / "b" / "seed-0"
    before = {path.name for path in folder.iterdir()}
    whole = scalars(folder)
    small_bench(out, TensorBoard(), resume=True)
    assert scalars(folder) == whole
    assert {path.name for path in folder.iterdir()} == before

    # Of a log that a kill has cut, what is missing is written again.
    file = max(folder.iterdir(), key=lambda path: path.stat().st_size)
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * 0.7)])
    small_bench(out, TensorBoard(), resume=True)
    again = scalars(folder)
    assert {tag: [step for step, _ in sorted(values)] for tag, values in again.items()} == {
        tag: [step for step, _ in sorted(values)] for tag, values in whole.items()
    }
    for tag in set(whole) - {"cost/seconds", "cost/server_seconds", "cost/peak_memory_mb"}:  # the run was made again
        assert sorted(again[tag]) == sorted(whole[tag])


def test_a_tracker_that_comes_late_hears_all_rounds(tmp_path: Path) -> None:
    small_bench(tmp_path / "b", ff.Callback())
    small_bench(tmp_path / "b", TensorBoard(tmp_path / "logs"), resume=True)
    (bench,) = (tmp_path / "logs").iterdir()
    assert bench.name.startswith("toy-")
    found = scalars(bench / "fedavg" / "a" / "seed-0")
    assert [step for step, _ in found["loss"]] == [1, 2, 3, 4]


@pytest.mark.slow
def test_two_benches_in_one_folder_and_a_fresh_one_do_not_mix(tmp_path: Path) -> None:
    for out, more in (("b", {}), ("c", {}), ("b", {"fresh": True})):
        small_bench(tmp_path / out, TensorBoard(tmp_path / "logs"), **more)
    benches = list((tmp_path / "logs").iterdir())
    assert len(benches) == 3
    for bench in benches:
        assert [step for step, _ in scalars(bench / "fedavg" / "a" / "seed-0")["loss"]] == [1, 2, 3, 4]


def test_one_tracker_serves_benches_one_after_the_other(tmp_path: Path) -> None:
    tracker = TensorBoard()
    for out in ("b", "c"):
        small_bench(tmp_path / out, tracker)
        found = scalars(tmp_path / out / "trackers" / "tensorboard" / "fedavg" / "a" / "seed-0")
        assert [step for step, _ in found["loss"]] == [1, 2, 3, 4]


def test_settings_are_in_the_hparams_of_a_run(tmp_path: Path) -> None:
    from tensorboard.plugins.hparams import plugin_data_pb2

    small_bench(tmp_path / "b", TensorBoard(), settings={"fedprox.mu": 0.125})
    folder = tmp_path / "b" / "trackers" / "tensorboard" / "fedprox" / "a" / "seed-0"
    reader: Any = event_accumulator.EventAccumulator(str(folder))
    reader.Reload()
    content = reader.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    data = plugin_data_pb2.HParamsPluginData.FromString(content)
    assert data.session_start_info.hparams["settings.mu"].number_value == 0.125
    assert data.session_start_info.hparams["held_out"].string_value == "a"


def test_a_training_is_tracked_beside_its_records(tmp_path: Path) -> None:
    ff.train(task(), "fedavg", tmp_path / "m", rounds=3, callbacks=[TensorBoard()])
    found = scalars(tmp_path / "m" / "run" / "trackers" / "tensorboard" / "fedavg" / "seed-0")
    assert [step for step, _ in found["loss"]] == [1, 2, 3]
    assert ff.load_model(tmp_path / "m")


def test_domains_held_out_together_have_one_run_and_figures_by_domain(tmp_path: Path) -> None:
    options: dict[str, Any] = {"held_out": ["a+b"], "seeds": 1, "rounds": 2, "out": tmp_path / "b"}
    result = ff.bench(task(4), ["fedavg"], callbacks=[TensorBoard()], **options)
    (run,) = (tmp_path / "b" / "trackers" / "tensorboard" / "fedavg").iterdir()
    found = scalars(run / "seed-0")
    for row in result.rows:
        chosen = row["selection"]["last"]
        assert found[f"held_out/last/{row['held_out']}/accuracy"] == close([(2, chosen["accuracy"])])
    assert len(result.rows) == 2


def test_inner_runs_are_left_out(tmp_path: Path) -> None:
    tracker = TensorBoard()
    small_bench(tmp_path / "b", tracker, rules=["leave-one-domain-out"])
    assert {job.inner for job in tracker._runs} == {None}
    assert Job("fedavg", "a", 0) in tracker._runs
