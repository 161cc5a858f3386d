"""The files with settings, as whoever watches needs them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farfield.records.checked_files import read_checked_toml


def read_toml(path: Path) -> tuple[dict[str, Any], str | None]:
    """Return what a file says, and what is wrong with it."""
    try:
        return read_checked_toml(path), None
    except (OSError, ValueError) as error:
        return {}, f"'{path.name}' cannot be read: {error}"


def metric_of(plan: Mapping[str, Any]) -> tuple[str, str]:
    """Return the metric that leads, and the one that every run has."""
    fallback = "loss" if plan.get("kind") == "regression" else "accuracy"
    metric = plan.get("metric")
    return (metric if isinstance(metric, str) else fallback), fallback
