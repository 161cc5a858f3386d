"""Folders that Farfield wrote and reads back: a bench for its report and for a resume, a run, a model.

One file of a real folder is changed at a time. The first byte of an input says which one; the rest is its content. Half
of the files stand with their checksums, half as an older version wrote them, so that the checks behind are reached.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.fuzz.mutation import Seed
from tests.fuzz.target import Consume, command, target
from tests.fuzz.targets_tables import rows_of_a_table
from tests.older_records import without_checksums

FORMATS = {".json": "json", ".jsonl": "jsonl", ".toml": "toml"}


def _bench(folder: Path, *options: str) -> list[str]:
    """Make a bench of a small table; return the arguments that resume it."""
    os.environ["FARFIELD_CACHE"] = str(folder / "cache")
    (folder / "rows.csv").write_text(rows_of_a_table(90))
    arguments = [
        "bench", "--data", str(folder / "rows.csv"), "--label", "died", "--domain", "hospital", "--seeds", "1",
        "--algorithms", "fedavg,fedprox", "--rounds", "3", "--held-out", "north,south", "--out", str(folder / "bench"),
        "--set", "batch_size=64", "--engine", "local", *options,
    ]  # fmt: skip
    code = command(*arguments)
    assert code == 0, f"the bench ended with {code}"
    return [*arguments, "--resume"]


def _changing(base: Path, place: Path, use: Callable[[], object]) -> tuple[list[Seed], Consume]:
    """Change one file of `base` at a time, in a copy at `place`, and `use` the copy."""
    old = without_checksums(Path(shutil.copytree(base, base.with_name("old"))))
    seeds, files = [], []
    for origin in (base, old):
        for path in sorted(origin.rglob("*")):
            if path.is_file() and path.suffix in (".json", ".jsonl", ".toml", ".safetensors") and len(files) < 255:
                kind = FORMATS.get(path.suffix, "bytes")
                kind = "bytes" if origin is base and kind != "jsonl" else kind
                seeds.append(Seed(path.read_bytes(), kind, bytes([len(files)])))
                files.append((origin, path.relative_to(origin)))

    def consume(data: bytes) -> None:
        origin, name = files[(data[0] if data else 0) % len(files)]
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(origin, place)
        (place / name).write_bytes(data[1:])
        use()

    return seeds, consume


def _small(base: Path) -> None:
    """Keep the files of one run of each method: every further run has the same kinds of files."""
    for run in sorted((base / "runs").glob("*/*/seed-*")):
        if run.parent.name != "north" or run.name != "seed-0":
            for checkpoint in run.glob("checkpoint-*"):
                checkpoint.unlink()


@target("report of a bench folder", share=0.002, short=50)
def report_of_a_bench_folder(folder: Path) -> tuple[Sequence[Seed], Consume]:
    _bench(folder)
    base = folder / "bench"
    for path in base.rglob("checkpoint-*"):
        path.unlink()
    (base / "report.html").unlink(missing_ok=True)
    used, out = folder / "used", folder / "out"
    out.mkdir()
    return _changing(
        base, used, lambda: command("report", str(used), "--to", str(out / "r.html"), "--json", str(out / "r.json"))
    )


@target("resume of a bench", share=0.0012, short=25)
def resume_of_a_bench(folder: Path) -> tuple[Sequence[Seed], Consume]:
    """`bench --resume` of a bench of which one run was stopped."""
    arguments = _bench(folder)
    base, used = folder / "bench", folder / "used"
    _small(base)
    for run in (base / "runs").glob("fedavg/north/seed-0"):
        (run / "result.json").unlink()
    resumed = [str(used) if argument == str(base) else argument for argument in arguments]
    return _changing(base, used, lambda: command(*resumed))


@target("training from a bench folder", share=0.001, short=20)
def training_from_a_bench_folder(folder: Path) -> tuple[Sequence[Seed], Consume]:
    """The choice that `train --from-bench` makes: settings, method, and what goes into the card."""
    from farfield.trained.from_bench import bench_choice

    _bench(folder)
    base, used = folder / "bench", folder / "used"
    for path in base.rglob("checkpoint-*"):
        path.unlink()
    return _changing(base, used, lambda: bench_choice(used))


@target("watching a bench folder", share=0.004, short=60)
def watching_a_bench_folder(folder: Path) -> tuple[Sequence[Seed], Consume]:
    """What `farfield watch` shows of a folder."""
    import json

    from farfield.watch.folder_view import FolderView

    _bench(folder)
    base, used = folder / "bench", folder / "used"
    for path in base.rglob("checkpoint-*"):
        path.unlink()

    def watch() -> None:
        json.loads(FolderView(used).state())

    return _changing(base, used, watch)


@target("resume of a run", share=0.006, short=100)
def resume_of_a_run(folder: Path) -> tuple[Sequence[Seed], Consume]:
    """A run with client states, stopped and resumed: it ends with the model of the undamaged run, or refuses.

    Only folders with checksums promise that, so only with these is the hash compared.
    """
    from farfield.records import RunFolder
    from farfield.runs.plan import Job, make_plan
    from farfield.runs.rounds import Progress
    from farfield.runs.single_run import run_job
    from tests.toy import task

    class Stopped(Exception):
        pass

    def run(place: Path, until: int = 6) -> None:
        def watch(progress: Progress) -> None:
            if progress.round == until < 6:
                raise Stopped

        problem = task(3)
        plan = make_plan(problem, algorithms=["scaffold"], held_out=["c"], seeds=1, rounds=6, evaluate_every=2)
        run_job(plan, problem, Job("scaffold", "c", 0), place, checkpoint_every=2, watch=watch)

    base, used = folder / "run", folder / "used"
    run(folder / "whole")
    expected = RunFolder(folder / "whole").result
    assert expected is not None
    with contextlib.suppress(Stopped):
        run(base, until=5)

    checked = [path.name for path in sorted(base.rglob("*")) if path.suffix in (*FORMATS, ".safetensors")]

    def resume() -> None:
        run(used)
        result = RunFolder(used).result
        assert result is not None
        same = result["model_sha256"] == expected["model_sha256"]
        assert same or not resume_of_a_run_is_checked[0], "another model than that of the undamaged run"

    resume_of_a_run_is_checked = [False]
    seeds, consume = _changing(base, used, resume)

    def choose(data: bytes) -> None:
        number = (data[0] if data else 0) % len(seeds)
        # A structured change to a file with a checksum takes the checksum away, as an older version would have it.
        resume_of_a_run_is_checked[0] = number < len(checked) and b"check" in data[-64:]
        consume(data)

    return seeds, choose


@target("model folders", share=0.02, short=300)
def model_folders(folder: Path) -> tuple[Sequence[Seed], Consume]:
    """Load a model and predict with it."""
    import farfield as ff

    (folder / "rows.csv").write_text(rows_of_a_table(60))
    data = ff.read_table(folder / "rows.csv", label="died", domain="hospital")
    ff.train(data, "fedavg", folder / "model", rounds=1)
    shutil.rmtree(folder / "model" / "run")
    used = folder / "used"

    def predict() -> None:
        model = ff.load_model(used)
        outputs = model.outputs(model.read(folder / "rows.csv").x)
        assert len(outputs) == 60

    return _changing(folder / "model", used, predict)
