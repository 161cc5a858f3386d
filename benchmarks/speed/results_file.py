"""benchmarks/results.json: one entry per case, replaced when the case is measured again."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.speed.case import Case, Options, Outcome

RESULTS = Path(__file__).parents[1] / "results.json"
PACKAGES = ("farfield", "torch", "numpy", "flwr", "ray")


def read_results(path: Path) -> dict[str, Any]:
    """Return the entries by case; none where there is no file."""
    return json.loads(path.read_text()) if path.exists() else {}


def write_entry(path: Path, case: Case, entry: Mapping[str, Any]) -> None:
    """Put the entry of one case into the file, beside those of the others."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".json.new")
    fresh.write_text(json.dumps({**read_results(path), case.name: entry}, indent=2, ensure_ascii=False) + "\n")
    fresh.replace(path)


def measured(case: Case, options: Options, outcome: Outcome, minutes: float) -> dict[str, Any]:
    """Return the entry of a case that was measured."""
    return {
        **_about(case, options),
        "status": "measured",
        "minutes": round(minutes, 2),
        "figures": [{**asdict(figure), "met": figure.met} for figure in outcome.figures],
        "checks": [{**asdict(check), "sentence": without_paths(check.sentence)} for check in outcome.checks],
        "seconds": dict(outcome.seconds),
        "notes": list(outcome.notes),
    }


def not_measured(case: Case, options: Options, status: str, why: str) -> dict[str, Any]:
    """Return the entry of a case that was skipped or failed."""
    return {
        **_about(case, options),
        "status": status,
        "why": without_paths(why),
        "figures": [],
        "checks": [],
        "notes": [],
    }


def without_paths(text: str) -> str:
    """Return an error's text without the paths of this machine, which mean nothing to a reader of the results."""
    return re.sub(r"(?<![\w.])(?:/[\w.+-]+){2,}/?", "…", text)


def _about(case: Case, options: Options) -> dict[str, Any]:
    return {
        "case": case.name,
        "title": case.title,
        "command": command(case, options),
        "short": options.short,
        "date": datetime.now(UTC).date().isoformat(),
        "versions": {"python": platform.python_version(), **_versions()},
        "processor": processor(),
        "cores": os.cpu_count(),
    }


def command(case: Case, options: Options) -> str:
    typed = f"python -m benchmarks.speed --cases {case.name}"
    if options.repetitions is not None:
        typed += f" --repetitions {options.repetitions}"
    return typed + (" --short" if options.short else "")


def processor() -> str:
    """Return the processor's model as the system names it."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        found = re.search(r"^model name\s*:\s*(.+)$", information.read_text(), re.MULTILINE)
        if found:
            return found[1].strip()
    return platform.processor() or platform.machine()


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
