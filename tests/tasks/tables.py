"""Small tables for tests: hospitals with numbers, true/false, categories and gaps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd


def visits(rows: int = 60, seed: int = 0) -> pd.DataFrame:
    """Visits to three hospitals; age and ward tell who died, and hospitals differ in how they measure."""
    draw = np.random.default_rng(seed)
    hospital = np.array(["north", "south", "west"])[np.arange(rows) % 3]
    age = draw.normal(60, 15, rows).round(1) + 5 * (hospital == "west")
    ward = draw.choice(["icu", "surgery", "general"], rows)
    risk = (age - 60) / 15 + 1.5 * (ward == "icu") + draw.normal(0, 0.4, rows)
    frame = pd.DataFrame(
        {
            "hospital": hospital,
            "age": age,
            "smokes": draw.random(rows) < 0.4,
            "ward": ward,
            "pressure": draw.normal(120, 20, rows).round(0),
            "died": np.where(risk > 0.3, "yes", "no"),
        }
    )
    frame.loc[draw.random(rows) < 0.2, "pressure"] = np.nan
    frame.loc[draw.random(rows) < 0.1, "ward"] = None
    return frame


def write(frame: pd.DataFrame, path: Path, **options: object) -> Path:
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, **options)  # type: ignore[call-overload]
    return path
