"""The files in a run's folder, for whoever writes them and whoever reads them."""

from __future__ import annotations

CONFIG, ROUNDS, EVENTS, RESULT = "config.toml", "rounds.jsonl", "events.jsonl", "result.json"
#: In the folder of a run or a bench: locked by the process that writes there.
LOCK = ".lock"
