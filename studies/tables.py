"""Real tables with many sites, read from FARFIELD_DATA, and linear models on them: quick enough to fit thousands."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression, Ridge

from farfield.protocol.metrics import classification_metrics, regression_metrics

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Table:
    """Rows of many sites; `metrics` are those that the site's rows can support."""

    name: str
    x: Floats
    y: Floats
    site: NDArray[np.str_]
    kind: str
    metrics: tuple[str, ...]

    @property
    def sites(self) -> list[str]:
        return sorted(set(self.site.tolist()))

    def measure(self, train: Sequence[str], test: str) -> dict[str, float]:
        """Fit a linear model on the rows of some sites and measure it on another one."""
        rows, here = np.isin(self.site, list(train)), self.site == test
        mean, width = np.nanmean(self.x[rows], axis=0), np.nanstd(self.x[rows], axis=0)
        x = np.nan_to_num((self.x - mean) / np.where(width > 0, width, 1.0), nan=0.0).clip(-10, 10)
        if self.kind == "regression":
            line = Ridge(alpha=1.0).fit(x[rows], self.y[rows])
            return regression_metrics(line.predict(x[here]), self.y[here])
        model = LogisticRegression(C=0.1, max_iter=100, tol=1e-3).fit(x[rows], self.y[rows])
        return classification_metrics(model.predict_proba(x[here]), self.y[here].astype(int))


def tables() -> list[Table]:
    """Return the tables that are there; say which are not."""
    folder = os.environ.get("FARFIELD_DATA")
    if folder is None:
        print("FARFIELD_DATA is not set: no real data", file=sys.stderr)
        return []
    found = []
    for file, read in (
        ("eicu_demo_mortality.csv.gz", _eicu),
        ("tcga_brca.csv", _tcga),
        ("beijing_air_6hourly.csv.gz", _beijing),
    ):
        path = Path(folder) / file
        if path.exists():
            found += read(pd.read_csv(path))
        else:
            print(f"no {file} in FARFIELD_DATA", file=sys.stderr)
    return found


def _eicu(data: pd.DataFrame) -> list[Table]:
    """Death in hospital, with the units of one kind in one region as sites: a single hospital has about 12 stays."""
    outcome = data["died_in_hospital"]
    left_out = ["patientunitstayid", "hospitaldischargestatus", "unitdischargestatus", "uniquepid", "hospitalid"]
    plain = data.drop(columns=[*left_out, "died_in_hospital", "region", "unittype"])
    return [_table("eICU units", plain.assign(unit=data["region"] + data["unittype"]), outcome, "unit", 40)]


def _tcga(data: pd.DataFrame) -> list[Table]:
    """The event at the tissue source sites with at least 20 patients."""
    plain = data.drop(columns=["pid", "region", "T", "E"])
    return [_table("TCGA source sites", plain, data["E"], "tss_code", 20)]


def _beijing(data: pd.DataFrame) -> list[Table]:
    """Fine dust at twelve stations, from the weather and the season: a class (over 75) and a number."""
    data = data.dropna(subset=["PM2.5"]).iloc[::7]
    plain = data.drop(columns=["PM2.5", "PM10", "SO2", "NO2", "CO", "O3", "year", "day"])
    season = plain.assign(
        winter=np.cos(2 * np.pi * plain["month"] / 12), spring=np.sin(2 * np.pi * plain["month"] / 12)
    )
    over = (data["PM2.5"] > 75).astype(int)
    both = _table("Beijing stations", season, over, "station", 20)
    number = _table("Beijing stations", season, data["PM2.5"], "station", 20)
    return [
        Table(both.name, both.x, both.y, both.site, "classification", ("accuracy", "auroc")),
        Table(number.name, number.x, number.y, number.site, "regression", ("mae", "r2")),
    ]


def _table(name: str, data: pd.DataFrame, outcome: pd.Series, site: str, least: int) -> Table:
    labelled = outcome.notna() & data[site].notna()
    data, outcome = data[labelled], outcome[labelled]
    sites = data[site].astype(str)
    kept = sites.map(sites.value_counts()) >= least
    x = pd.get_dummies(data.drop(columns=[site]), dtype=float)[kept].to_numpy(dtype=float)
    known = np.isfinite(x).any(axis=0)
    y = outcome[kept].to_numpy(dtype=float)
    return Table(name, x[:, known], y, sites[kept].to_numpy(dtype=str), "classification", ("accuracy", "loss"))
