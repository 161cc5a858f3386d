"""A run folder: configuration, rows, checkpoints, and one writer at a time."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest
import torch

from farfield.errors import UserError
from farfield.records import Checkpoint, RecordsError, RunFolder, difference, read_config, write_config


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.create({"seed": 0})
    return folder


def checkpoint(round: int) -> Checkpoint:
    tensors = {
        "model/parameters": torch.full((50,), float(round)),
        "model/buffers": torch.zeros(0),
        "slot/count": torch.tensor(round),
        "slot/v": torch.tensor([0.1, float("inf")], dtype=torch.float64),
    }
    return Checkpoint(round, tensors, {"seconds": 0.1 + 0.2, "traffic": {"bytes_up": {"train": 3}}})


def test_a_configuration_comes_back_as_it_was_without_what_is_not_set(tmp_path: Path) -> None:
    config = {"task": "toy", "lr": 0.1, "steps": None, "model": {"hidden": (6, 5), "norm": None}, "names": ["ä", "b"]}
    write_config(tmp_path / "config.toml", config)
    assert read_config(tmp_path / "config.toml") == {
        "task": "toy",
        "lr": 0.1,
        "model": {"hidden": [6, 5]},
        "names": ["ä", "b"],
    }
    assert difference(read_config(tmp_path / "config.toml"), config) is None


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 2}, None),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, None),
        ({"a": (1, 2)}, {"a": [1, 2]}, None),
        ({"a": None}, {}, None),
        ({"b": 1, "c": 1}, {"b": 2, "c": 2}, "b is 1 there and 2 here"),
        ({"seed": 0, "lr": 0.1}, {"seed": 0, "lr": 0.01}, "lr is 0.1 there and 0.01 here"),
        ({"m": {"x": {"y": "p"}}}, {"m": {"x": {"y": "q"}}}, 'm.x.y is "p" there and "q" here'),
        ({"a": 1}, {"a": 1, "deadline": 2.0}, "deadline is not set there and 2.0 here"),
        ({"a": 1, "deadline": 2.0}, {"a": 1}, "deadline is 2.0 there and not set here"),
        ({"m": {"x": 1}}, {"m": 3}, 'm is {"x": 1} there and 3 here'),
        ({"domains": ["a", "b"]}, {"domains": ["b", "a"]}, 'domains is ["a", "b"] there and ["b", "a"] here'),
    ],
)
def test_the_first_difference_is_named_with_both_values(
    old: dict[str, Any], new: dict[str, Any], said: str | None
) -> None:
    assert difference(old, new) == said


def test_a_folder_exists_as_a_run_once_it_is_configured(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "deep" / "run")
    assert not folder.exists
    folder.create({"seed": 3})
    assert folder.exists
    assert folder.config == {"seed": 3}
    assert folder.result is None
    assert folder.rounds() == folder.events() == []
    folder.finish({"rounds": 2, "held_out": None})
    assert folder.result == {"rounds": 2, "held_out": None}


def test_rewinding_drops_what_was_written_after_a_round_in_every_file(run: RunFolder) -> None:
    for number in range(1, 6):
        run.add_round({"round": number, "loss": 1.0 / number})
        run.add_target(number, {"accuracy": number / 10})
        if number != 2:
            run.add_event({"round": number, "kind": "reply-dropped"})
    run.rewind(3)
    assert [r["round"] for r in run.rounds()] == [1, 2, 3]
    assert [r["round"] for r in run.events()] == [1, 3]
    assert len((run.path / "target.sealed.jsonl").read_text().splitlines()) == 3
    run.add_round({"round": 4, "loss": 9.0})
    assert run.rounds()[-1] == {"round": 4, "loss": 9.0}
    assert run.rounds()[2] == {"round": 3, "loss": 1.0 / 3}


def test_rewinding_makes_no_file_that_was_not_there(run: RunFolder) -> None:
    run.rewind(3)
    assert sorted(p.name for p in run.path.iterdir()) == ["config.toml"]


def test_two_checkpoints_are_kept_and_the_latest_wins(run: RunFolder) -> None:
    assert run.latest_checkpoint() is None
    for number in (1, 9, 10, 11):
        run.save_checkpoint(checkpoint(number))
        latest = run.latest_checkpoint()
        assert latest is not None
        assert latest.round == number
    assert sorted(p.name for p in run.path.glob("*.safetensors")) == [
        "checkpoint-000010.safetensors",
        "checkpoint-000011.safetensors",
    ]


def test_a_checkpoint_comes_back_bit_for_bit(run: RunFolder) -> None:
    saved = checkpoint(7)
    run.save_checkpoint(saved)
    loaded = run.latest_checkpoint()
    assert loaded is not None
    assert (loaded.round, loaded.meta) == (7, saved.meta)
    assert set(loaded.tensors) == set(saved.tensors)
    for name, tensor in saved.tensors.items():
        assert loaded.tensors[name].dtype == tensor.dtype
        assert torch.equal(loaded.tensors[name], tensor), name


def test_one_tensor_under_two_names_and_views_can_be_saved(run: RunFolder) -> None:
    one = torch.arange(12.0).view(3, 4)
    run.save_checkpoint(Checkpoint(1, {"a": one, "b": one, "c": one.T, "d": one[1]}, {}))
    loaded = run.latest_checkpoint()
    assert loaded is not None
    assert torch.equal(loaded.tensors["b"], one)
    assert torch.equal(loaded.tensors["c"], one.T)
    assert torch.equal(loaded.tensors["d"], one[1])


@pytest.mark.parametrize(
    "damage",
    [lambda b: b[:-10], lambda b: b[:20], lambda b: b"", lambda b: bytes(len(b)), lambda b: b"\xff" * len(b)],
    ids=["cut at the end", "cut in the header", "empty", "zeros", "ones"],
)
def test_a_damaged_checkpoint_falls_back_to_the_one_before(run: RunFolder, damage: Callable[[bytes], bytes]) -> None:
    for number in (10, 20):
        run.save_checkpoint(checkpoint(number))
    newest = run.path / "checkpoint-000020.safetensors"
    newest.write_bytes(damage(newest.read_bytes()))
    latest = run.latest_checkpoint()
    assert latest is not None
    assert latest.round == 10
    assert latest.tensors["model/parameters"].tolist() == [10.0] * 50
    run.save_checkpoint(checkpoint(20))
    latest = run.latest_checkpoint()
    assert latest is not None
    assert latest.round == 20


def test_what_a_killed_writer_leaves_is_not_taken_for_a_checkpoint(run: RunFolder) -> None:
    run.save_checkpoint(checkpoint(10))
    (run.path / ".checkpoint-000020.safetensors.123.partial").write_bytes(b"half")
    run.save_checkpoint(checkpoint(11))
    latest = run.latest_checkpoint()
    assert latest is not None
    assert latest.round == 11
    assert (run.path / "checkpoint-000010.safetensors").exists()


def test_a_second_writer_is_refused_while_the_first_is_there_and_gets_in_afterwards(run: RunFolder) -> None:
    second = RunFolder(run.path)
    with run.writing():
        sentence = f"another process is writing to '{run.path}'; let it end first"
        with pytest.raises(RecordsError, match=sentence) as caught, second.writing(patience=0.05):
            pytest.fail("two writers at once")
        assert isinstance(caught.value, UserError)
    with second.writing(patience=0.05):
        run.add_round({"round": 1})
    assert run.rounds() == [{"round": 1}]


def test_the_lock_is_free_again_after_an_error(run: RunFolder) -> None:
    with pytest.raises(ZeroDivisionError), run.writing():
        raise ZeroDivisionError
    with run.writing(patience=0.05):
        pass


def _hold(path: Path, held: Event, stay: Event) -> None:
    with RunFolder(path).writing():
        held.set()
        stay.wait(60)


def test_a_writer_that_is_killed_lets_go_of_the_lock(run: RunFolder) -> None:
    context = multiprocessing.get_context("fork")
    held, stay = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(run.path, held, stay), daemon=True)
    other.start()
    try:
        assert held.wait(30)
        with pytest.raises(RecordsError, match="another process is writing"), run.writing(patience=0.05):
            pytest.fail("two writers at once")
    finally:
        other.kill()
        other.join()
    with run.writing(patience=5):
        run.add_round({"round": 1})
    assert run.rounds() == [{"round": 1}]


def test_runs_in_different_folders_do_not_wait_for_each_other(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "a").writing(), RunFolder(tmp_path / "b").writing(patience=0.05):
        assert (tmp_path / "b").is_dir()


def test_settings_that_are_newer_than_a_record_have_the_values_it_was_made_with(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('algorithm = "fedavg"\n[settings]\nlr = 0.1\n')
    assert read_config(path)["settings"] == {"lr": 0.1, "privacy": "none", "delta": 1e-5}
    path.write_text('[settings.fedavg]\nlr = 0.1\n[settings.private]\nlr = 0.1\nprivacy = "record"\ndelta = 1e-6\n')
    assert read_config(path)["settings"] == {
        "fedavg": {"lr": 0.1, "privacy": "none", "delta": 1e-5},
        "private": {"lr": 0.1, "privacy": "record", "delta": 1e-6},
    }
