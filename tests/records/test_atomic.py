"""Writes that are there or not, and lines that a kill may cut."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
from pathlib import Path
from typing import Any, NoReturn

import pytest

from farfield.records.atomic import append_row, broken_rows, keep_rows_until, read_rows, write_atomic, write_json


def refuse(*_: object, **__: object) -> NoReturn:
    raise OSError("no space left on device")


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


@pytest.mark.parametrize("step", ["replace", "fsync"])
def test_a_write_that_dies_leaves_the_old_content_and_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "result.json"
    write_atomic(path, b"old")
    with monkeypatch.context() as broken:
        broken.setattr(os, step, refuse)
        with pytest.raises(OSError, match="no space left"):
            write_atomic(path, b"new and longer")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["result.json"]
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["result.json"]


def test_a_first_write_that_dies_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="no space left"):
        write_atomic(tmp_path / "config.toml", b"new")
    assert names(tmp_path) == []


def test_an_interrupt_cleans_up_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(tmp_path / "config.toml", b"new")
    assert names(tmp_path) == []


def _die_before_replacing(path: Path) -> None:
    os.replace = lambda *_: os._exit(9)  # type: ignore[assignment,misc,return-value]
    write_atomic(path, b"new and longer")


def test_a_writer_that_is_killed_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_atomic(path, b"old")
    child = multiprocessing.get_context("fork").Process(target=_die_before_replacing, args=(path,))
    child.start()
    child.join()
    assert child.exitcode == 9
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.glob("*") if not p.name.startswith(".")] == ["result.json"]


def test_a_number_that_json_cannot_hold_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_json(path, {"accuracy": 0.5})
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, {"accuracy": float("nan")})
    with pytest.raises(ValueError, match="JSON"):
        append_row(tmp_path / "rounds.jsonl", {"round": 1, "loss": float("inf")})
    assert json.loads(path.read_text()) == {"accuracy": 0.5}
    assert names(tmp_path) == ["result.json"]


ROWS: list[dict[str, Any]] = [{"round": n, "loss": 1 / n, "note": "δ\n"} for n in range(1, 6)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rounds.jsonl"
    for row in ROWS:
        append_row(path, row)
    return path


def test_rows_come_back_exactly_and_in_order(file: Path) -> None:
    assert list(read_rows(file)) == ROWS
    assert file.read_bytes().count(b"\n") == 5


def test_a_file_that_is_not_there_has_no_rows(tmp_path: Path) -> None:
    assert list(read_rows(tmp_path / "rounds.jsonl")) == []


def test_a_whole_last_line_counts_even_without_its_line_end(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])
    assert list(read_rows(file)) == ROWS


@pytest.mark.parametrize("cut", [2, 10, 30])
def test_a_file_whose_last_line_is_cut_is_read_up_to_there(file: Path, cut: int) -> None:
    file.write_bytes(file.read_bytes()[:-cut])
    assert list(read_rows(file)) == ROWS[:4]


def test_rewinding_drops_later_rows_and_a_cut_line(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-3])
    keep_rows_until(file, 3)
    assert list(read_rows(file)) == ROWS[:3]
    append_row(file, {"round": 4, "loss": 0.0})
    assert list(read_rows(file)) == [*ROWS[:3], {"round": 4, "loss": 0.0}]


def test_rewinding_to_where_the_file_ends_keeps_every_row(file: Path) -> None:
    keep_rows_until(file, 5)
    assert list(read_rows(file)) == ROWS
    keep_rows_until(file, 0)
    assert list(read_rows(file)) == []
    assert file.exists()


def test_rewinding_that_dies_loses_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="no space left"):
        keep_rows_until(file, 2)
    assert list(read_rows(file)) == ROWS


def test_what_had_no_room_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    rows = tmp_path / "rounds.jsonl"
    append_row(rows, {"round": 1})
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError) as caught:
        write_atomic(tmp_path / "result.json", b"{}")
    assert caught.value.filename == str(tmp_path / "result.json")
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError) as caught:
        append_row(rows, {"round": 2})
    assert caught.value.filename == str(rows)


def test_a_link_stays_a_link_and_a_pipe_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "real.csv").write_bytes(b"old")
    (tmp_path / "link.csv").symlink_to("real.csv")
    write_atomic(tmp_path / "link.csv", b"new")
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "real.csv").read_bytes() == b"new"
    os.mkfifo(tmp_path / "pipe")
    with open(os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK), "rb") as reader:
        write_atomic(tmp_path / "pipe", b"through")
        assert reader.read() == b"through"
    assert (tmp_path / "pipe").is_fifo()


def test_a_name_may_be_as_long_as_names_may_be_and_no_other_is_told_of(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 250 + ".csv")
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    with pytest.raises(FileNotFoundError) as caught:
        write_atomic(tmp_path / "no" / "where.csv", b"new")
    assert (caught.value.filename, caught.value.filename2) == (str(tmp_path / "no" / "where.csv"), None)


def test_a_row_that_the_disk_takes_in_parts_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))
    append_row(tmp_path / "rounds.jsonl", {"round": 1, "loss": 0.25})
    assert list(read_rows(tmp_path / "rounds.jsonl")) == [{"round": 1, "loss": 0.25}]


def test_broken_lines_are_counted_but_for_a_last_one_that_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert broken_rows(path) == 0
    path.write_text('{"round": 1}\n{"round": 2\n{"round": 3}\n{"rou')
    assert broken_rows(path) == 1
    path.write_text('garbage\n{"round": 2}\nmore garbage\n')
    assert broken_rows(path) == 2
