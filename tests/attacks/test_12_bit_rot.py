"""Attack 12: one flipped byte in anything that is read back. It is noticed, or it changes nothing; it is never used.

Every bit that is flipped here is flipped in a real folder, and the folder is then used as a user would use it. The
short form takes a spread of positions in each file, the long form (`-m long`) every byte.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import farfield as ff
from farfield.errors import UserError
from farfield.federation.client_state import SiteState
from farfield.records import RunFolder
from farfield.records.atomic import append_row, broken_rows, read_rows
from farfield.records.checked_files import read_checked_json, write_checked_json
from farfield.records.checksums import DamagedFile
from farfield.runs.plan import Job, make_plan
from farfield.runs.rounds import Progress
from farfield.runs.single_run import run_job
from farfield.tasks.images import cache
from tests.older_records import without_checksums
from tests.toy import task

JOB = Job("scaffold", "c", 0)
ROUNDS = 6


class Stopped(Exception):
    """Stands for a kill."""


def run(folder: Path, until: int = ROUNDS) -> dict[str, Any]:
    """Run or resume SCAFFOLD, whose checkpoints hold the server's and the clients' states; stop after a round."""

    def watch(progress: Progress) -> None:
        if progress.round == until < ROUNDS:
            raise Stopped

    problem = task(3)
    plan = make_plan(problem, algorithms=["scaffold"], held_out=["c"], seeds=1, rounds=ROUNDS, evaluate_every=1)
    return run_job(plan, problem, JOB, folder, checkpoint_every=2, watch=watch)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(folder)
    return folder


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after round 5, with checkpoints of rounds 2 and 4, and with an event."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(Stopped):
        run(folder, until=5)
    append_row(folder / "events.jsonl", {"kind": "note", "round": 1, "message": "an event of round 1"})
    append_row(folder / "events.jsonl", {"kind": "note", "round": 3, "message": "an event of round 3"})
    return folder


def positions(size: int, every: bool, count: int = 25) -> Iterator[tuple[int, int]]:
    """Positions with the bit to flip there: all, or some that are spread, the first and the last among them."""
    chance = random.Random(12)
    chosen = range(size) if every else sorted({0, size - 1, *(chance.randrange(size) for _ in range(count))})
    return ((position, 1 << chance.randrange(8)) for position in chosen)


def flip(path: Path, position: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= bit
    path.write_bytes(bytes(data))


def figures(folder: Path) -> list[dict[str, Any]]:
    """What a run has recorded of its rounds and of the held-out domain."""
    rows = [*read_rows(folder / "rounds.jsonl"), *read_rows(folder / "target.sealed.jsonl")]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def check_resumes(whole: Path, stopped: Path, place: Path, name: str, every: bool) -> list[str]:
    """Flip bytes of one file, resume each time, and return what the runs that refused have said."""
    expected = RunFolder(whole).result
    assert expected is not None
    refused = []
    for position, bit in positions((stopped / name).stat().st_size, every):
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(stopped, place)
        flip(place / name, position, bit)
        try:
            result = run(place)
        except UserError as error:
            refused.append(str(error))
            continue
        assert result["model_sha256"] == expected["model_sha256"], f"byte {position} of {name}"
        assert result["local_steps"] == expected["local_steps"]
        assert figures(place) == figures(whole), f"byte {position} of {name}"
    return refused


FILES = ("checkpoint-000004.safetensors", "checkpoint-000002.safetensors", "rounds.jsonl", "target.sealed.jsonl")


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FILES, "events.jsonl"])
def test_a_flipped_byte_in_a_record_resumes_to_the_same_model(
    whole: Path, stopped: Path, tmp_path: Path, name: str
) -> None:
    assert check_resumes(whole, stopped, tmp_path / "run", name, every=False) == []


def test_a_flipped_byte_in_the_configuration_is_refused_or_changes_nothing(
    whole: Path, stopped: Path, tmp_path: Path
) -> None:
    refused = check_resumes(whole, stopped, tmp_path / "run", "config.toml", every=False)
    assert refused
    assert all("config.toml' is damaged" in said for said in refused)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", [*FILES, "events.jsonl", "config.toml"])
def test_every_byte_of_every_record(whole: Path, stopped: Path, tmp_path: Path, name: str) -> None:
    refused = check_resumes(whole, stopped, tmp_path / "run", name, every=True)
    assert name == "config.toml" or refused == []


def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_says_so(
    whole: Path, stopped: Path, tmp_path: Path
) -> None:
    place = tmp_path / "run"
    shutil.copytree(stopped, place)
    path = place / "checkpoint-000004.safetensors"
    flip(path, path.stat().st_size - 3, 1)  # in the numbers themselves, which safetensors reads without a word
    records = RunFolder(place)
    resumed = records.resumable()
    assert resumed is not None
    assert resumed.round == 2
    run(place)
    damaged = [event for event in RunFolder(place).events() if event["kind"] == "damaged"]
    assert [(event["round"], event["message"]) for event in damaged] == [
        (2, "'checkpoint-000004.safetensors' was damaged; the run goes on after round 2")
    ]
    assert RunFolder(place).result["model_sha256"] == RunFolder(whole).result["model_sha256"]  # type: ignore[index]


def test_a_run_whose_checkpoints_are_all_damaged_starts_again(whole: Path, stopped: Path, tmp_path: Path) -> None:
    place = tmp_path / "run"
    shutil.copytree(stopped, place)
    for path in place.glob("checkpoint-*.safetensors"):
        flip(path, path.stat().st_size - 3, 1)
    run(place)
    assert RunFolder(place).result["model_sha256"] == RunFolder(whole).result["model_sha256"]  # type: ignore[index]


def test_a_finished_run_with_a_damaged_result_ends_again_with_the_same_model(whole: Path, tmp_path: Path) -> None:
    place, expected = tmp_path / "run", RunFolder(whole).result
    assert expected is not None
    for position, bit in positions((whole / "result.json").stat().st_size, every=False):
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(whole, place)
        flip(place / "result.json", position, bit)
        assert run(place)["model_sha256"] == expected["model_sha256"]


def test_a_folder_of_an_older_version_without_checksums_resumes_to_the_same_model(
    whole: Path, stopped: Path, tmp_path: Path
) -> None:
    place = tmp_path / "run"
    shutil.copytree(stopped, place)
    without_checksums(place)
    assert b"check" not in (place / "rounds.jsonl").read_bytes()
    resumed = RunFolder(place).resumable()
    assert resumed is not None
    assert resumed.round == 4
    assert run(place)["model_sha256"] == RunFolder(whole).result["model_sha256"]  # type: ignore[index]
    assert figures(place) == figures(whole)


# A bench.


def test_a_flipped_byte_in_a_plan_is_refused_or_gives_the_same_results(tmp_path: Path) -> None:
    options: dict[str, Any] = {"algorithms": ["fedavg"], "held_out": ["c"], "seeds": 1, "rounds": 2}
    expected = ff.bench(task(3), out=tmp_path / "b", **options).rows[0]["model_sha256"]
    (next((tmp_path / "b").rglob("result.json"))).unlink()
    text = (tmp_path / "b/bench.toml").read_bytes()
    refused = []
    for position, bit in positions(len(text), every=False, count=40):
        flip(tmp_path / "b/bench.toml", position, bit)
        try:
            rows = ff.bench(task(3), out=tmp_path / "b", resume=True).rows
            assert [row["model_sha256"] for row in rows] == [expected]
        except UserError as error:
            refused.append(str(error))
        (tmp_path / "b/bench.toml").write_bytes(text)
    assert len(refused) > 20
    assert all("bench.toml' is damaged" in said for said in refused)


# A model folder.


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model of a table, with its preparation, and rows to predict."""
    folder = tmp_path_factory.mktemp("model")
    chance = random.Random(1)
    rows = [
        f"{chance.gauss(50, 9):.2f},{chance.choice('abc')},{site},{int(chance.random() < 0.4)}"
        for site in ("north", "south", "east")
        for _ in range(30)
    ]
    (folder / "rows.csv").write_text("\n".join(["age,ward,site,died", *rows]) + "\n")
    data = ff.read_table(folder / "rows.csv", label="died", domain="site")
    ff.train(data, "fedavg", folder / "m", rounds=2)
    return folder / "m", folder / "rows.csv"


def predictions(folder: Path, rows: Path) -> torch.Tensor:
    trained = ff.load_model(folder)
    return trained.outputs(trained.read(rows).x)


@pytest.mark.parametrize("name", ["model.safetensors", "preparation.json"])
def test_a_flipped_byte_in_a_model_is_refused_or_changes_no_prediction(
    model: tuple[Path, Path], tmp_path: Path, name: str
) -> None:
    folder, rows = model
    expected = predictions(folder, rows)
    shutil.copytree(folder, tmp_path / "m")
    data, refused = (folder / name).read_bytes(), []
    for position, bit in positions(len(data), every=False, count=150):
        flip(tmp_path / "m" / name, position, bit)
        try:
            assert torch.equal(predictions(tmp_path / "m", rows), expected), f"byte {position}"
        except UserError as error:
            refused.append(str(error))
        (tmp_path / "m" / name).write_bytes(data)
    assert len(refused) > 100
    assert all(name in said for said in refused)


def test_weights_of_an_older_version_are_compared_with_the_hash_on_the_card(
    model: tuple[Path, Path], tmp_path: Path
) -> None:
    folder, rows = model
    shutil.copytree(folder, tmp_path / "m")
    without_checksums(tmp_path / "m")
    assert torch.equal(predictions(tmp_path / "m", rows), predictions(folder, rows))
    path = tmp_path / "m/model.safetensors"
    flip(path, path.stat().st_size - 2, 1)
    with pytest.raises(UserError, match="do not have the sha256 that the model's card names"):
        ff.load_model(tmp_path / "m")


# Caches.


def test_a_flipped_byte_in_a_cache_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARFIELD_CACHE", str(tmp_path))
    pixels = np.arange(5 * 3 * 8 * 8, dtype=np.uint8).reshape(5, 3, 8, 8)

    def stored() -> torch.Tensor:
        return cache.cached_array("pixels", "key", shape=pixels.shape, dtype="uint8", make=lambda: [pixels])

    assert torch.equal(stored(), torch.from_numpy(pixels))
    path = next(tmp_path.rglob("key.npy"))
    data = path.read_bytes()
    for position, bit in positions(len(data), every=True):
        cache._whole.clear()
        flip(path, position, bit)
        with pytest.raises(UserError, match=r"damaged|holds something else"):
            stored()
        path.write_bytes(data)
    cache._whole.clear()
    path.write_bytes(data[: -cache._END])  # as an older version wrote it
    assert torch.equal(stored(), torch.from_numpy(pixels))


def test_a_flipped_byte_in_cached_hashes_means_that_files_are_hashed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARFIELD_CACHE", str(tmp_path))
    hashes = np.arange(64, dtype=np.uint8).reshape(2, 32)
    cache.write_small("hashes", "key", hashes)
    path = next(tmp_path.rglob("key.npy"))
    for position in range(0, path.stat().st_size, 3):
        cache._whole.clear()
        data = path.read_bytes()
        flip(path, position, 4)
        read = cache.read_small("hashes", "key")
        assert read is None or np.array_equal(read, hashes)
        path.write_bytes(data)


# A deployment's files.


def test_a_flipped_byte_in_a_sites_state_is_refused(tmp_path: Path) -> None:
    state_file = pytest.importorskip("farfield.deployment.site.state_file")
    control = torch.arange(20.0)
    path = tmp_path / "state.safetensors"
    state_file.save_state(path, SiteState(kept={"control": control}, round=3, attempt="x", mark="m", kept_round=2))
    data, refused = path.read_bytes(), 0
    for position, bit in positions(len(data), every=True):
        flip(path, position, bit)
        try:
            read = state_file.load_state(path)
            assert torch.equal(read.kept["control"], control)
            assert (read.round, read.attempt, read.mark, read.kept_round) == (3, "x", "m", 2)
        except UserError:
            refused += 1
        path.write_bytes(data)
    assert refused > 0.8 * len(data)


def test_a_flipped_byte_in_a_checked_json_file_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    """Agreement, settings and registered nodes of a server, results and preparations are all such files."""
    content = {"run": "f3", "wait": 1.5, "federation": {"rounds": 7, "name": "café"}, "names": {"12": "north"}}
    path = tmp_path / "server.json"
    write_checked_json(path, content)
    data = path.read_bytes()
    for position, bit in positions(len(data), every=True):
        flip(path, position, bit)
        try:
            read = read_checked_json(path)
        except DamagedFile:
            read = content
        assert read == content or _same_but_for_the_check(read, content)
        path.write_bytes(data)


def _same_but_for_the_check(read: dict[str, Any], content: dict[str, Any]) -> bool:
    """A flip in the name of the field leaves one more field, and all others as they were."""
    return {name: read[name] for name in content} == content and len(read) == len(content) + 1


def test_a_flipped_byte_in_json_lines_loses_at_most_the_rows_it_touches(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    rows = [{"round": number, "loss": 1 / number, "of": {"a": [1, "x"]}} for number in range(1, 6)]
    for row in rows:
        append_row(path, row)
    data = path.read_bytes()
    for position, bit in positions(len(data), every=True):
        flip(path, position, bit)
        read = list(read_rows(path))
        assert all(row in rows for row in read), f"byte {position}"
        assert len(read) >= 3
        assert len(read) == 5 or broken_rows(path) >= (position < len(data) - 1)
        path.write_bytes(data)


def test_json_with_deep_nesting_is_refused_and_not_a_crash(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text("[" * 200_000)
    with pytest.raises(DamagedFile, match="nested too deeply"):
        read_checked_json(tmp_path / "result.json")
    (tmp_path / "rounds.jsonl").write_text("[" * 200_000 + "\n" + json.dumps({"round": 1}) + "\n")
    assert list(read_rows(tmp_path / "rounds.jsonl")) == [{"round": 1}]
