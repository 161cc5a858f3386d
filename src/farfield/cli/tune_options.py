"""Options of commands that tune settings."""

from __future__ import annotations

from typing import Annotated

import typer

Tune = Annotated[
    int | None,
    typer.Option(
        "--tune",
        help="Try so many settings of every method before the runs, for each held-out domain on its sources alone.",
        show_default=False,
    ),
]
TuneBy = Annotated[
    str | None,
    typer.Option(
        "--tune-by",
        help="What compares the trials: source-validation, or leave-one-domain-out (nested: one more run per source). "
        "Default: source-validation.",
        show_default=False,
    ),
]
TuneOnly = Annotated[
    str | None,
    typer.Option(
        "--tune-only",
        help="The parameters to tune, with commas, or 'all' that declare a range. Default: lr, and what a method "
        "declares on a continuous range.",
        show_default=False,
    ),
]
