"""Values that users type: lists with commas, and `key=value` settings with TOML values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from farfield.errors import UserError
from farfield.records.setting_text import parse_value

Metric = Annotated[
    str | None,
    typer.Option(
        "--metric",
        help="The metric that leads selection, tables and report: accuracy, balanced_accuracy, macro_f1 (or f1), auroc "
        "(or auc), average_precision, loss, balanced_loss, ece, brier; of a regression rmse, mae, r2, loss. Default: "
        "auto, which is accuracy where classes are balanced, else auroc for two classes and balanced_accuracy for "
        "more; rmse for a regression.",
        show_default=False,
    ),
]


def comma_list(text: str | None) -> list[str] | None:
    """'a, b' as ['a', 'b']; None stays None."""
    if text is None:
        return None
    return [part.strip() for part in text.split(",") if part.strip()]


def seed_list(text: str) -> int | list[int]:
    """'3' means the seeds 0, 1, 2; '0,7' means those two."""
    try:
        numbers = [int(part) for part in comma_list(text) or []]
    except ValueError:
        raise UserError(f"--seeds takes a number, or seeds with commas, not '{text}'") from None
    return numbers if "," in text else numbers[0] if numbers else 0


def communication_list(text: str | None) -> int | list[int] | None:
    """'4' means four synchronisations; '8,16,64' means after these epochs. None stays None."""
    if text is None:
        return None
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"--communications takes a number, or epochs with commas, not '{text}'") from None
    return numbers if "," in text else numbers[0]


def parse_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """`["lr=0.05", "model.hidden=[32,32]", "weighting=uniform"]` as a dict. Values are TOML, or else plain text."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise UserError(f"--set takes key=value, not '{pair}'")
        settings[key.strip()] = parse_value(value.strip())
    return settings
