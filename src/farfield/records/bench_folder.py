"""The files in a bench's folder, for whoever writes them and whoever reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from farfield.records.errors import RecordsError

#: The plan.
BENCH = "bench.toml"
#: The format of the plan's file, which it names. Format 1 has no number and no variants: methods go by name alone.
#: Format 2 has no baseline and no metric.
FORMAT = 3
#: The summary of the data that was read; a bench of an older version has none.
DATA = "data.json"
#: What the domains look like: small pictures, or the columns that shift most.
EXAMPLES = "examples.json"
#: The runs of the plan in their order, with their folders and rounds, for whoever watches.
JOBS = "jobs.json"
#: The commands that made the bench, one row per command: the first began it, the others went on with it.
COMMANDS = "commands.jsonl"
#: How the domains differ; a short bench has none.
DIAGNOSIS = "diagnosis.json"
#: In a run's folder: the numbers by which its rows were prepared.
PREPARATION = "preparation.json"
#: A folder: what trackers keep with the bench.
TRACKERS = "trackers"
#: In a run's folder: why the run failed.
FAILURE = "failure.json"


def format_of(plan: Mapping[str, Any], folder: Path) -> int:
    """Return the format of a plan that was read back; one of a later version is refused."""
    number = plan.get("format", 1)
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        shown = json.dumps(number, default=str)
        raise RecordsError(f"'{folder / BENCH}' is damaged: its format is {shown}, and not a number from 1 on")
    if number > FORMAT:
        raise RecordsError(
            f"'{folder}' holds a bench in format {number}, of a later version; farfield {version('farfield')} reads "
            f"formats 1 to {FORMAT}, so install a newer one"
        )
    return number
