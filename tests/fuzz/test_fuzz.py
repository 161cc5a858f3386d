"""The fuzzers in short: changed inputs through every target, and Hypothesis on what is written and read back."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from farfield.records.atomic import append_row, read_rows
from farfield.records.checked_files import read_checked_json, write_checked_json
from farfield.records.checksums import DamagedFile
from tests.fuzz.all_targets import TARGETS
from tests.fuzz.mutation import mutate
from tests.fuzz.target import refusals
from tests.fuzz.worker import FIGURES, LARGEST, Counter

FAST = (
    "site files", "federation files", "approvals", "record lines", "sealed rows", "json records", "messages",
    "messages to a server", "pictures", "archives",
)  # fmt: skip


def changed_inputs(name: str, folder: Path, inputs: int, seed: int = 7) -> Counter:
    """Run changed inputs through a target in this process; return what was counted."""
    (folder / "work").mkdir()
    (folder / "figures").write_bytes(b"\0" * (FIGURES.size + LARGEST))
    seeds, consume = TARGETS[name].open(folder / "work")
    counter, chance = Counter(folder, consume, refusals()), random.Random(seed)
    for _ in range(inputs):
        counter.take(mutate(chance.choice(seeds), chance))
    return counter


@pytest.mark.parametrize("name", FAST)
def test_changed_inputs_are_read_or_refused_in_words(tmp_path: Path, name: str) -> None:
    counter = changed_inputs(name, tmp_path, 150)
    assert counter.figures[0] == 150
    assert [path.read_text() for path in tmp_path.glob("*.txt")] == []


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", sorted(set(TARGETS) - set(FAST)))
def test_changed_folders_and_tables_are_read_or_refused_in_words(tmp_path: Path, name: str) -> None:
    counter = changed_inputs(name, tmp_path, min(40, TARGETS[name].short))
    assert counter.figures[0] > 0
    assert [path.read_text() for path in tmp_path.glob("*.txt")] == []


def test_a_target_that_fails_is_counted_and_its_input_is_kept(tmp_path: Path) -> None:
    """A fuzzer that cannot fail would be worth nothing."""
    (tmp_path / "figures").write_bytes(b"\0" * (FIGURES.size + LARGEST))

    def consume(data: bytes) -> None:
        json.loads(data)

    counter = Counter(tmp_path, consume, refusals())
    for data in (b"{}", b"{", b"["):
        counter.take(data)
    assert counter.figures[:3] == [3, 0, 2]
    assert sorted(path.read_bytes() for path in tmp_path.glob("*.bin")) == [b"[", b"{"]
    assert "JSONDecodeError" in next(tmp_path.glob("*.txt")).read_text()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
ROWS = st.dictionaries(st.text().filter(lambda name: name != "check"), VALUES, min_size=1, max_size=5)
QUICK = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.slow
@QUICK
@given(rows=st.lists(ROWS, max_size=4))
def test_rows_are_read_as_they_were_written(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    path = tmp_path / "rows.jsonl"
    path.unlink(missing_ok=True)
    for row in rows:
        append_row(path, row)
    assert list(read_rows(path)) == rows


@QUICK
@given(content=ROWS, place=st.integers(0), bit=st.integers(0, 7))
def test_an_object_is_read_as_it_was_written_or_refused(
    tmp_path: Path, content: dict[str, Any], place: int, bit: int
) -> None:
    path = tmp_path / "result.json"
    write_checked_json(path, content)
    assert read_checked_json(path) == content
    data = bytearray(path.read_bytes())
    data[place % len(data)] ^= 1 << bit
    path.write_bytes(bytes(data))
    try:
        read = read_checked_json(path)
    except DamagedFile:
        return
    assert {name: read[name] for name in content} == content
