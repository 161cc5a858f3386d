"""`--track` as it is typed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import farfield as ff
from farfield.cli.main import command_line
from farfield.trackers import MLflow, TensorBoard, WandB, packages, tracker_named


@pytest.mark.parametrize(
    ("text", "kind"), [("tensorboard", TensorBoard), ("mlflow:http://h:1", MLflow), ("wandb:p", WandB)]
)
def test_a_name_and_a_place_make_a_tracker(text: str, kind: type[ff.Callback]) -> None:
    assert isinstance(tracker_named(text), kind)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("tensorbord", "unknown tracker 'tensorbord'; did you mean 'tensorboard'?"),
        ("excel:x", "unknown tracker 'excel'; choose from tensorboard, mlflow, wandb"),
        ("tensorboard:", "'tensorboard:' names no place after the colon"),
        ("mlflow:file:runs", "MLflow no longer keeps runs in a folder, as 'file:runs' asks"),
    ],
)
def test_what_cannot_be_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ff.UserError) as error:
        tracker_named(text)
    assert sentence in str(error.value)


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(name: str) -> Any:
        return None if name == "wandb" else find_spec(name)

    monkeypatch.setattr(packages, "find_spec", without)
    with pytest.raises(ff.UserError, match=r"needs wandb, which is not installed; pip install 'farfield\[wandb\]'"):
        tracker_named("wandb")


def test_bench_and_train_write_event_files(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    small = ["--rounds", "2", "--track", "tensorboard"]
    bench = ["bench", "rect-4", "-a", "fedavg", "--seeds", "1", "-q", "--parallel", "1", *small]
    result = CliRunner().invoke(command_line(), [*bench, "--out", str(tmp_path / "b")])
    assert result.exit_code == 0, result.output
    logs = list((tmp_path / "b" / "trackers" / "tensorboard").rglob("*tfevents*"))
    assert {path.relative_to(tmp_path / "b").parts[2] for path in logs} == {"fedavg"}
    result = CliRunner().invoke(command_line(), ["train", "rect-4", *small, "--out", str(tmp_path / "m")])
    assert result.exit_code == 0, result.output
    assert list((tmp_path / "m" / "run" / "trackers" / "tensorboard").rglob("*tfevents*"))


def test_a_tracker_that_cannot_write_is_one_warning_and_the_bench_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")
    (tmp_path / "taken").write_text("a file, not a folder")
    arguments = ["bench", "rect-4", "-a", "fedavg", "--seeds", "1", "--rounds", "1", "-q", "--parallel", "1"]
    said: list[str] = []
    monkeypatch.setattr("farfield.cli.track_options.messages.print", lambda text, **_: said.append(text))
    result = CliRunner().invoke(
        command_line(), [*arguments, "--track", f"tensorboard:{tmp_path / 'taken'}", "--out", str(tmp_path / "b")]
    )
    assert result.exit_code == 0, result.output
    assert len(said) == 1
    assert "TensorBoard failed in on_round and is called no more" in said[0]
    assert (tmp_path / "b" / "report.html").exists()
