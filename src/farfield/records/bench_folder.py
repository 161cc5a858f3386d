"""The names of the files in a bench's folder, for whoever writes them and whoever reads them."""

from __future__ import annotations

#: The plan.
BENCH = "bench.toml"
#: The summary of the data that was read; a bench of an older version has none.
DATA = "data.json"
#: In a run's folder: why the run failed.
FAILURE = "failure.json"
