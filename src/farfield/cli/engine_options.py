"""How a command reaches the clients of a run."""

from __future__ import annotations

from typing import Annotated

import typer

EngineOption = Annotated[
    str,
    typer.Option(
        "--engine",
        help="How clients are reached, with the same result to the bit: local, batched (all runs as one computation, "
        "for small models) or flower (Flower's simulation); see 'farfield list engines'.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        help="Processes that share the clients of one run. Default: 1; on flower one per core; not on batched.",
        show_default=False,
    ),
]
