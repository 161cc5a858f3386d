"""How a command reaches the clients of a run."""

from __future__ import annotations

from typing import Annotated

import typer

EngineOption = Annotated[
    str,
    typer.Option(
        "--engine",
        help="How clients are reached, with the same result to the bit: auto (batched for small models, else local), "
        "local, batched (all runs as one computation) or flower (Flower's simulation); or batched-func, which also "
        "stacks tiny convolutional networks, with other last bits; see 'farfield list engines'.",
    ),
]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        help="What computes: cpu, cuda (of several GPUs, runs take one each in turn), cuda:N, mps, or auto for a GPU "
        "where there is one. The last bits differ from device to device, and results name theirs.",
    ),
]
Precision = Annotated[
    str | None,
    typer.Option(
        "--precision",
        help="float32, or bfloat16 where the hardware has it: how the layers below the head compute. Default: float32.",
        show_default=False,
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
