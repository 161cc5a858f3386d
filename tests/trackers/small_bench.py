"""The bench that tracker tests watch, and what its records say by a reader of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import farfield as ff
from farfield.records.atomic import keep_rows_until
from tests.toy import task


def small_bench(out: Path, callback: ff.Callback, **more: Any) -> ff.BenchResult:
    options: dict[str, Any] = {"rounds": 4, "seeds": 1, "evaluate_every": 2, "held_out": ["a", "b"], "parallel": 2}
    return ff.bench(task(), ["fedavg", "fedprox"], out=out, callbacks=[callback], **options | more)


def recorded(out: Path, method: str, held_out: str) -> list[dict[str, Any]]:
    path = out / "runs" / method / held_out / "seed-0" / "rounds.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def interrupt(out: Path, method: str, held_out: str, after: int) -> None:
    """Put a run back to where a kill after so many rounds, before any checkpoint, would have left it."""
    run = out / "runs" / method / held_out / "seed-0"
    (run / "result.json").unlink()
    for checkpoint in run.glob("checkpoint-*"):
        checkpoint.unlink()
    for name in ("rounds.jsonl", "target.sealed.jsonl"):
        keep_rows_until(run / name, after)


class StopAfter(ff.Callback):
    """Ends the bench, as Ctrl-C would, after so many rounds in all."""

    def __init__(self, rounds: int) -> None:
        self.left = rounds

    def on_round(self, job: Any, row: Any) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
