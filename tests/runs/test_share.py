"""Shares of a bench: how runs are dealt out, what is refused, and one folder for all."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest

import farfield as ff
from farfield.errors import UserError
from farfield.records import RecordsError
from farfield.runs.dry_run import dry_run
from farfield.runs.job import Job
from farfield.runs.settings import PlanError
from farfield.runs.share import Share, read_share
from tests.kills.random_kills import in_a_fork
from tests.runs.test_together import records
from tests.toy import task

JOBS = [Job(name, held_out, seed) for seed in (0, 1) for held_out in "xyz" for name in ("slow", "quick")]


def bench(out: Path, **options: Any) -> ff.BenchResult:
    return ff.bench(task(), ["fedavg", "scaffold"], **{"seeds": 1, "rounds": 2, "parallel": 1, "out": out, **options})


@pytest.mark.parametrize("text", ["0/3", "4/3", "x", "1", "1/0", "-1/3", "1/3/5", "", "1.5/3"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match=r"is not a share; give K/N with K from 1 to N"):
        read_share(text)


def test_a_share_is_read() -> None:
    assert (read_share("2/3"), read_share(" 1/1 "), read_share(None)) == (Share(2, 3), Share(1, 1), None)


def test_runs_are_dealt_out_by_method_in_the_order_of_the_plan() -> None:
    # Twelve runs, six per method: with every second run of the plan one share would have all of the slow method.
    first, second = Share(1, 2).deal(JOBS), Share(2, 2).deal(JOBS)
    assert [(job.algorithm, job.held_out, job.seed) for job in first] == [
        ("slow", "x", 0), ("quick", "x", 0), ("slow", "z", 0), ("quick", "z", 0), ("slow", "y", 1), ("quick", "y", 1),
    ]  # fmt: skip
    assert sorted(map(str, [*first, *second])) == sorted(map(str, JOBS))


@pytest.mark.parametrize("of", [1, 2, 3, 5, 12, 20])
def test_every_run_is_in_one_share(of: int) -> None:
    dealt = [Share(number, of).deal(JOBS) for number in range(1, of + 1)]
    assert sorted(str(job) for share in dealt for job in share) == sorted(map(str, JOBS))
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1


def test_the_deal_does_not_depend_on_the_order_in_which_methods_are_named() -> None:
    turned = JOBS[::-1]
    for number in (1, 2, 3):
        share = Share(number, 3)
        assert set(share.deal(turned)) == set(share.deal(JOBS))
        assert share.deal(turned) == [job for job in turned if job in share.deal(JOBS)]


def test_shares_with_methods_in_another_order_are_one_bench(tmp_path: Path) -> None:
    assert bench(tmp_path, share="1/2").waiting == 3
    made = ff.bench(task(), ["scaffold", "fedavg"], seeds=1, rounds=2, parallel=1, out=tmp_path, share="2/2")
    assert (made.unmade, made.waiting) == (0, 0)


def test_shares_together_are_one_bench(tmp_path: Path) -> None:
    bench(tmp_path / "whole")
    first = bench(tmp_path / "shared", share="1/2")
    assert (first.unmade, first.waiting) == (0, 3)
    assert not (tmp_path / "shared" / "looks.jsonl").exists()  # nobody has asked for a result of the part
    second = bench(tmp_path / "shared", share="2/2")
    assert (second.unmade, second.waiting) == (0, 0)
    assert records(tmp_path / "shared") == records(tmp_path / "whole")
    assert len(second.rows) == 6


@pytest.mark.parametrize("shares", [2, 5])
def test_shares_that_start_at_once_in_no_folder_make_one_bench(tmp_path: Path, shares: int) -> None:
    bench(tmp_path / "whole")
    out = tmp_path / "new" / "shared"
    started = [in_a_fork(lambda share=f"{number}/{shares}": bench(out, share=share)) for number in range(1, shares + 1)]
    assert [os.waitpid(pid, 0)[1] for pid in started] == [0] * shares
    assert records(out) == records(tmp_path / "whole")


def test_a_share_goes_on_and_any_bench_can_finish_it(tmp_path: Path) -> None:
    bench(tmp_path, share="1/3")
    made = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/**/result.json")}
    assert len(made) == 2
    assert bench(tmp_path, share="1/3").waiting == 4
    assert bench(tmp_path, share="1/3", resume=True).waiting == 4
    assert len(bench(tmp_path, resume=True).rows) == 6
    assert {path: path.stat().st_mtime_ns for path in made} == made


def test_a_share_does_not_join_another_bench(tmp_path: Path) -> None:
    bench(tmp_path, share="1/2")
    with pytest.raises(RecordsError, match=r"holds another bench: quorum is 0.5 there and 0.9 here"):
        bench(tmp_path, share="2/2", quorum=0.9)
    with pytest.raises(RecordsError, match=r"add --resume to add"):
        bench(tmp_path, share="2/2", seeds=2)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"fresh": True}, "omit --fresh"),
        ({"on": "ray"}, "give --on or --share, not both"),
        ({"tune": 3}, "cannot be dealt out"),
        ({"out": None}, "needs --out"),
        ({"callbacks": [ff.Callback()]}, "omit --track"),
    ],
)
def test_what_does_not_go_with_a_share_is_refused(tmp_path: Path, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        bench(**{"out": tmp_path / "out", "share": "1/2", **options})
    assert not (tmp_path / "out").exists()


def test_a_sweep_cannot_be_shared(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a bench of its own"):
        ff.sweep(task(), ["fedavg"], over={"clients": [3, 6]}, share="1/2", out=tmp_path / "out")


@pytest.mark.parametrize(
    ("locked", "share", "sentence"),
    [
        (".share-1-of-2", "1/2", "another process makes share 1/2"),
        (".share-1-of-2", "2/3", "another process makes share 1/2 .* give the same number of shares"),
        (".lock", "2/2", "another process is writing to"),
        (".lock", None, "another process is writing to"),
    ],
)
def test_processes_that_would_make_the_same_runs_are_refused(
    tmp_path: Path, locked: str, share: str | None, sentence: str
) -> None:
    bench(tmp_path, share="1/2")
    with open(tmp_path / locked, "a+") as file:
        # The lock of the folder as a bench has it that is alone, or as a share has it.
        fcntl.flock(file, fcntl.LOCK_EX if share is not None else fcntl.LOCK_SH)
        with pytest.raises(RecordsError, match=sentence):
            bench(tmp_path, share=share, resume=share is None)


def test_a_bench_does_not_grow_while_a_share_is_at_work(tmp_path: Path) -> None:
    bench(tmp_path, share="1/2")
    before = (tmp_path / "bench.toml").read_bytes()
    with open(tmp_path / ".share-1-of-2", "a+") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        with pytest.raises(RecordsError, match=r"makes share 1/2 of the bench in .* let it end before you add seed 1"):
            bench(tmp_path, share="2/2", seeds=2, resume=True)
        assert (tmp_path / "bench.toml").read_bytes() == before
        assert bench(tmp_path, share="2/2", resume=True).waiting == 0  # it adds nothing
    assert bench(tmp_path, share="2/2", seeds=2, resume=True).waiting == 2


def test_shares_that_are_started_at_once_can_add_to_a_bench(tmp_path: Path) -> None:
    bench(tmp_path, share="1/1")
    started = [
        in_a_fork(lambda share=f"{number}/3": bench(tmp_path, share=share, seeds=2, resume=True))
        for number in (1, 2, 3)
    ]
    assert [os.waitpid(pid, 0)[1] for pid in started] == [0] * 3
    assert len(list(tmp_path.glob("runs/**/result.json"))) == 12


@pytest.mark.parametrize("share", ["1/2", None])
def test_a_file_system_without_locks_is_named(
    tmp_path: Path, share: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(file: object, kind: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("fcntl.flock", flock)
    sentence = r"files in '.*' cannot be locked \(Function not implemented\).* use a file system with locks"
    with pytest.raises(RecordsError, match=sentence):
        bench(tmp_path / "out", share=share)


def test_other_shares_may_work_beside_one(tmp_path: Path) -> None:
    bench(tmp_path, share="1/2")
    with open(tmp_path / ".lock", "a+") as folder, open(tmp_path / ".share-1-of-2", "a+") as first:
        fcntl.flock(folder, fcntl.LOCK_SH)
        fcntl.flock(first, fcntl.LOCK_EX)
        assert bench(tmp_path, share="2/2").waiting == 0


def test_a_dry_run_of_a_share_counts_its_own_runs(tmp_path: Path) -> None:
    options = {"algorithms": ["fedavg", "scaffold"], "seeds": 1, "rounds": 2}
    planned = dry_run(task(), options, tmp_path / "new", share=Share(1, 4), probe=False)
    assert (planned.runs, planned.estimate.runs) == (2, 2)
    bench(tmp_path / "new", share="1/4")
    there = dry_run(task(), options, tmp_path / "new", share=Share(1, 4), probe=False)
    assert (there.runs, there.estimate.runs) == (2, 0)


def test_the_runs_of_a_share_are_listed_whole(tmp_path: Path) -> None:
    bench(tmp_path, share="2/2")
    assert len(json.loads((tmp_path / "jobs.json").read_text())) == 6
