"""Benchmarks run by hand and seldom; that they still find what they measure is seen here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_a_benchmark_finds_all_that_it_imports(path: Path) -> None:
    code = f"import runpy; runpy.run_path({str(path)!r}, run_name='looked_at')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
