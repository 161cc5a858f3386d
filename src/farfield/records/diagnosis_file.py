"""The diagnosis in a bench's folder: written before the runs, read by the report, used by nothing that selects."""

from __future__ import annotations

from pathlib import Path

from farfield.diagnose.finding import Diagnosis
from farfield.errors import UserError
from farfield.records.bench_folder import DIAGNOSIS
from farfield.records.checked_files import read_checked_json, write_checked_json


def write_diagnosis(folder: Path, diagnosis: Diagnosis) -> None:
    """Put a diagnosis into a bench's folder."""
    write_checked_json(folder / DIAGNOSIS, diagnosis.to_json())


def read_diagnosis(folder: Path) -> Diagnosis | None:
    """Return the diagnosis in a bench's folder; None where there is none, or where it cannot be read."""
    try:
        return Diagnosis.from_json(read_checked_json(folder / DIAGNOSIS))
    except (OSError, UserError):
        return None
