"""The same rounds on Flower: a federation over its Grid, and what a node does with a message.

Needs `pip install 'farfield[flower]'`. Nothing else in farfield imports this package before it is asked for.
"""

import os

# Neither Flower nor Ray tells its makers anything, unless the user says so. Flower reads this when it is imported.
for _name in ("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED"):
    os.environ.setdefault(_name, "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
