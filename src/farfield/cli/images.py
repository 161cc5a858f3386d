"""Options of tasks that are made of images, and a task opened with them."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from farfield.cli.console import messages
from farfield.tasks import Task
from farfield.tasks.features import open_task

Features = Annotated[
    str | None,
    typer.Option(
        help="'cached': images become features of a frozen pretrained backbone, computed once; 'cached:BACKBONE' names "
        "it, 'cached:FILE.npz' takes ready ones.",
        show_default=False,
    ),
]
ImageSize = Annotated[
    int | None, typer.Option(help="Pixels along each side of an image; 64 by default.", show_default=False)
]


def opened(task: str | Task, features: str | None, image_size: int | None) -> Task:
    """The task with its inputs as asked for; its notes are printed before anything runs."""
    made = open_task(task, features=features, image_size=image_size)
    for note in made.notes:
        messages.print(f"[yellow]note:[/] {escape(note)}", highlight=False, soft_wrap=True)
    return made
