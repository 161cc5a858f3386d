"""The folder of a sweep over settings: `sweep.toml`, a bench per point in `points/`, and the combined `report.html`.

`sweep.toml` has the `axes` (name, values, whether it is an option of the bench or a parameter of methods), the `points`
(folder and values of the options), and the `variants` by label: what each was made from, and its swept values.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farfield.records.errors import RecordsError
from farfield.records.run import read_config, write_config

SWEEP = "sweep.toml"
POINTS = "points"


def is_sweep(folder: Path) -> bool:
    return (folder / SWEEP).exists()


def read_sweep(folder: Path) -> dict[str, Any]:
    """Return what a sweep's file says."""
    content = read_config(folder / SWEEP)
    missing = [name for name in ("axes", "points", "variants") if name not in content]
    if missing:
        raise RecordsError(f"'{folder / SWEEP}' is damaged: it has no {' and no '.join(missing)}")
    return content


def write_sweep(folder: Path, content: Mapping[str, Any]) -> None:
    write_config(folder / SWEEP, content)
