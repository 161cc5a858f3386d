"""Say on the console that a model lacks replies: the same words after a training and after a deployment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.markup import escape

from farfield.cli.console import output
from farfield.printable import one_line
from farfield.records.participation import loss_sentences


def print_losses(result: Mapping[str, Any]) -> None:
    """Print which replies a result lacks and why; nothing if it lacks none."""
    for sentence in loss_sentences(result.get("lost"), result.get("skipped_rounds")):
        output.print(f"[bold yellow]lost:[/] {escape(one_line(sentence))}", highlight=False, soft_wrap=True)
