"""How a command reaches the clients of a run."""

from __future__ import annotations

from typing import Annotated

import typer

EngineOption = Annotated[
    str,
    typer.Option(
        "--engine",
        help="How clients are reached, with the same result to the bit: local, or flower (Flower's simulation); see "
        "'farfield list engines'.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        help="Processes that share the clients of one run. Default: 1; on flower one per core.",
        show_default=False,
    ),
]
