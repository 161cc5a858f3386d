"""Benchmarks run by hand and seldom; that they still find what they measure is seen here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
def test_benchmarks_find_all_that_they_import() -> None:
    """In one process of their own: each of them imports torch, and they change the path that modules are found by."""
    code = (
        "import pathlib, runpy, sys\n"
        f"for path in sorted(pathlib.Path({str(FOLDER)!r}).glob('*.py')):\n"
        "    print(path.name, flush=True)\n"
        "    runpy.run_path(str(path), run_name='imported')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, f"{done.stdout.splitlines()[-1:]}: {done.stderr}"
    assert done.stdout.split() == sorted(path.name for path in FOLDER.glob("*.py"))
