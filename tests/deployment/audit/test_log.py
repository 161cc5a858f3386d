"""The chain of an audit log: what shows, after a change, a kill, a restart, and with several writers."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import random
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from farfield.deployment.audit.log import AuditError, AuditLog, Head
from farfield.deployment.audit.verify import Verified, find_log, verify


def made(folder: Path, entries: int = 6) -> AuditLog:
    log = AuditLog(folder, side="site", name="amber")
    for number in range(entries):
        log.append({"kind": "sent", "peer": "server", "phase": "train", "round": number, "sha256": "00" * 32})
    return log


def lines_of(folder: Path) -> list[bytes]:
    return (folder / "audit" / "audit.jsonl").read_bytes().splitlines(keepends=True)


def rewrite(folder: Path, lines: list[bytes]) -> Verified:
    (folder / "audit" / "audit.jsonl").write_bytes(b"".join(lines))
    return verify(folder / "audit")


def test_each_entry_has_the_hash_of_the_one_before_by_a_second_reading(tmp_path: Path) -> None:
    made(tmp_path)
    previous = None
    for number, line in enumerate(lines_of(tmp_path), 1):
        entry = json.loads(line)
        assert entry["n"] == number
        if previous is not None:
            assert entry["previous"] == hashlib.sha256(previous).hexdigest()
        previous = line.rstrip(b"\n")
    found = verify(tmp_path / "audit")
    assert (found.intact, found.notes, len(found.entries)) == (True, [], 7)
    assert found.head == Head(7, hashlib.sha256(previous or b"").hexdigest())
    assert (found.side, found.name) == ("site", "amber")


def test_two_logs_of_the_same_entries_have_different_chains(tmp_path: Path) -> None:
    first, second = (made(tmp_path / name).head for name in ("a", "b"))
    assert first is not None
    assert second is not None
    assert first.sha256 != second.sha256


def test_nobody_else_can_read_the_log(tmp_path: Path) -> None:
    made(tmp_path)
    assert stat.S_IMODE((tmp_path / "audit").stat().st_mode) == 0o700
    for file in (tmp_path / "audit").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


@pytest.mark.parametrize("seed", range(40))
def test_one_flipped_bit_anywhere_is_noticed(tmp_path: Path, seed: int) -> None:
    made(tmp_path)
    path, chance = tmp_path / "audit" / "audit.jsonl", random.Random(seed)
    data = bytearray(path.read_bytes())
    place = chance.randrange(len(data))
    data[place] ^= 1 << chance.randrange(8)
    path.write_bytes(bytes(data))
    found = verify(tmp_path / "audit")
    assert not found.intact
    flipped = data[:place].count(b"\n") + 1  # the line in which it lies
    assert len(found.entries) in (flipped - 1, flipped), "the entries before it still stand"


def test_a_changed_entry_is_named(tmp_path: Path) -> None:
    made(tmp_path)
    lines = lines_of(tmp_path)
    lines[3] = lines[3].replace(b'"round":2', b'"round":9')
    found = rewrite(tmp_path, lines)
    assert found.problems == [
        "entry 5 (line 5 of 'audit.jsonl') does not follow entry 4: one of the two was changed, or entries were "
        "removed or inserted"
    ]


@pytest.mark.parametrize(
    ("what", "change", "first_bad"),
    [
        ("removed", lambda lines: lines[:3] + lines[4:], 5),
        ("inserted", lambda lines: [*lines[:3], lines[5], *lines[3:]], 6),
        ("swapped", lambda lines: [*lines[:3], lines[4], lines[3], *lines[5:]], 5),
        ("doubled", lambda lines: [*lines[:4], *lines[3:]], 4),
    ],
)
def test_removed_inserted_swapped_and_doubled_entries_are_named(
    tmp_path: Path, what: str, change: object, first_bad: int
) -> None:
    made(tmp_path)
    found = rewrite(tmp_path, change(lines_of(tmp_path)))  # type: ignore[operator]
    assert found.problems[0].startswith(f"entry {first_bad} "), what


def test_a_cut_at_the_end_shows_by_the_head_file_and_by_a_head_kept_elsewhere(tmp_path: Path) -> None:
    log = made(tmp_path)
    kept = log.head
    assert kept is not None
    found = rewrite(tmp_path, lines_of(tmp_path)[:-2])
    assert found.problems == ["the log ends with entry 5, and its head is entry 7: the end was cut off"]
    last = json.loads(lines_of(tmp_path)[-1])
    assert last["n"] == 5
    forged = Head(5, hashlib.sha256(lines_of(tmp_path)[-1].rstrip(b"\n")).hexdigest())
    (tmp_path / "audit" / "head").write_bytes(forged.to_line())
    assert verify(tmp_path / "audit").intact, "whoever changes both is seen only from elsewhere"
    assert "no entry has the hash" in verify(tmp_path / "audit", kept.sha256).problems[0]


def test_a_log_written_anew_shows_by_a_head_kept_elsewhere(tmp_path: Path) -> None:
    kept = made(tmp_path).head
    assert kept is not None
    assert verify(tmp_path / "audit", kept.sha256.upper()).intact
    made(tmp_path).append({"kind": "sent"})
    assert verify(tmp_path / "audit", kept.sha256).intact, "entries after a head that was kept do no harm"
    for file in (tmp_path / "audit").iterdir():
        file.unlink()
    made(tmp_path)
    assert verify(tmp_path / "audit").intact
    assert not verify(tmp_path / "audit", kept.sha256).intact


def test_the_chain_goes_on_after_a_restart_and_in_a_new_file_after_a_rotation(tmp_path: Path) -> None:
    made(tmp_path)
    made(tmp_path, 2)
    assert len(verify(tmp_path / "audit").entries) == 9
    os.rename(tmp_path / "audit" / "audit.jsonl", tmp_path / "audit" / "audit.jsonl.1")
    made(tmp_path, 2)
    os.rename(tmp_path / "audit" / "audit.jsonl", tmp_path / "audit" / "audit-2026.jsonl")
    made(tmp_path, 1)
    found = verify(tmp_path / "audit")
    assert (found.problems, len(found.entries)) == ([], 14)
    assert [e["kind"] for e in found.entries].count("continued") == 2
    (tmp_path / "audit" / "audit-2026.jsonl").unlink()
    assert "does not follow entry 9" in verify(tmp_path / "audit").problems[0]
    (tmp_path / "audit" / "audit.jsonl.1").unlink()
    assert "the files with the entries before it are missing" in verify(tmp_path / "audit").problems[0]


@pytest.mark.parametrize("cut", [1, 2, 40, 100])
def test_a_line_that_a_kill_has_cut_stays_and_the_next_entry_says_so(tmp_path: Path, cut: int) -> None:
    log = made(tmp_path)
    path = tmp_path / "audit" / "audit.jsonl"
    last = lines_of(tmp_path)[-1]
    os.truncate(path, path.stat().st_size - cut)
    (tmp_path / "audit" / "head").write_bytes(
        Head(6, hashlib.sha256(lines_of(tmp_path)[5].rstrip(b"\n")).hexdigest()).to_line()
    )
    before = verify(tmp_path / "audit")
    assert before.intact
    assert len(before.notes) == (cut > 1), "without the end of the line alone the entry is whole"
    log.append({"kind": "sent", "peer": "server"})
    assert path.read_bytes().count(last[: len(last) - cut]) == 1, "nothing is ever removed"
    found = verify(tmp_path / "audit")
    assert found.intact
    assert [e["kind"] for e in found.entries].count("recovered") == (cut > 1)
    log.append({"kind": "sent", "peer": "server"})
    assert verify(tmp_path / "audit").intact


def test_a_line_of_garbage_that_no_entry_explains_is_broken(tmp_path: Path) -> None:
    made(tmp_path)
    lines = lines_of(tmp_path)
    assert "is no entry, and no entry after it says" in rewrite(tmp_path, [*lines[:3], b"x\n", *lines[3:]]).problems[0]
    assert not rewrite(tmp_path, [*lines[:3], b"\n", *lines[3:]]).intact


def append_many(folder: Path, count: int) -> None:
    log = AuditLog(folder, side="site", name="amber")
    for number in range(count):
        log.append({"kind": "received", "writer": os.getpid(), "i": number}, {"kind": "sent", "writer": os.getpid()})


def test_many_processes_that_append_at_once_make_one_chain(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=append_many, args=(tmp_path, 25)) for _ in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
        assert writer.exitcode == 0
    found = verify(tmp_path / "audit")
    assert (found.problems, len(found.entries)) == ([], 1 + 8 * 25 * 2)
    for writer in writers:
        mine = [e["i"] for e in found.entries if e.get("writer") == writer.pid and e["kind"] == "received"]
        assert mine == list(range(25))


@pytest.mark.slow
def test_writers_that_are_killed_at_random_leave_a_chain_that_holds(tmp_path: Path) -> None:
    chance = random.Random(7)
    script = (
        "import sys; from pathlib import Path; from tests.deployment.audit.test_log import append_many;"
        "print('ready', flush=True); append_many(Path(sys.argv[1]), 10**6)"
    )
    for _ in range(4):
        running = [
            subprocess.Popen(
                [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]
            )
            for _ in range(2)
        ]
        for process in running:
            assert process.stdout is not None
            process.stdout.readline()
        time.sleep(chance.uniform(0.05, 0.3))
        for process in running:
            process.send_signal(signal.SIGKILL)
            process.wait()
            process.stdout.close()  # type: ignore[union-attr]
    AuditLog(tmp_path).append({"kind": "sent"})
    found = verify(tmp_path / "audit")
    assert found.problems == []
    assert len(found.entries) > 4


def test_a_log_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "audit").write_text("a file in the place of the folder")
    with pytest.raises(AuditError, match="cannot be written"):
        AuditLog(tmp_path).append({"kind": "sent"})
    with pytest.raises(AuditError, match="bytes"):
        AuditLog(tmp_path / "other").append({"kind": "x" * 100_000})


def test_random_files_in_the_place_of_a_log_end_in_a_verdict(tmp_path: Path) -> None:
    """Short form of the fuzzing: whatever the bytes are, the answer is a verdict and no traceback."""
    made(tmp_path)
    path, good = tmp_path / "audit" / "audit.jsonl", (tmp_path / "audit" / "audit.jsonl").read_bytes()
    chance = random.Random(3)
    for _ in range(300):
        data = bytearray(good)
        for _ in range(chance.randrange(1, 5)):
            start = chance.randrange(len(data))
            data[start : start + chance.randrange(30)] = chance.randbytes(chance.randrange(30))
        path.write_bytes(bytes(data))
        assert verify(tmp_path / "audit").problems or bytes(data) == good
    for odd in (b"", b"{}\n", b"[" * 100_000, b'{"n": 1}\n', b'{"n": true, "kind": "opened"}\n', b"\xff" * 10):
        path.write_bytes(odd)
        assert not verify(tmp_path / "audit").intact


def test_a_log_is_found_in_the_folders_that_people_know(tmp_path: Path) -> None:
    made(tmp_path / "site" / ".farfield" / "toy-amber")
    for given in ("site", "site/.farfield/toy-amber", "site/.farfield/toy-amber/audit"):
        assert find_log(tmp_path / given).name == "audit"
