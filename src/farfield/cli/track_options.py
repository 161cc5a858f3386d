"""`--track`, for the commands that make rounds."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from farfield.cli.console import messages
from farfield.runs.callbacks import Callback, CallbackWarning

if TYPE_CHECKING:
    from typing import Any

Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        help="Send each round to a tracker: tensorboard[:DIR], mlflow[:URI], wandb[:PROJECT]; several with several "
        "--track. Held-out figures are sent when the bench has ended.",
        show_default=False,
    ),
]


def make_trackers(texts: Sequence[str] | None) -> list[Callback]:
    """Make the trackers that --track names, or say in one sentence why that cannot be."""
    if not texts:
        return []
    from farfield.trackers import tracker_named

    return [tracker_named(text) for text in texts]


@contextmanager
def callback_warnings() -> Iterator[None]:
    """Print the warning about a callback that failed as one line, in the place of Python's file and line number."""
    with warnings.catch_warnings():
        before = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if issubclass(category, CallbackWarning):
                messages.print(f"[yellow]warning:[/] {escape(str(message))}", highlight=False, soft_wrap=True)
            else:
                before(message, category, *place, **more)

        warnings.showwarning = show
        warnings.simplefilter("always", CallbackWarning)
        yield
