"""Options of tasks that are made of images."""

from __future__ import annotations

from typing import Annotated

import typer

Features = Annotated[
    str | None,
    typer.Option(
        help="'cached': images become features of a frozen pretrained backbone, computed once; 'cached:BACKBONE' names "
        "it, 'timm:NAME' takes any model of timm, 'cached:FILE.npz' takes ready ones.",
        show_default=False,
    ),
]
ImageSize = Annotated[
    int | None,
    typer.Option(help="Pixels along each side of an image; a preset's, else 64 by default.", show_default=False),
]
