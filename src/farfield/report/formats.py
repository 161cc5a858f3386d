"""How numbers and names are written: the same in the terminal, in Markdown and on the page."""

from __future__ import annotations

import math
import re
from typing import Any

from farfield.protocol.metrics import HIGHER_IS_BETTER
from farfield.protocol.selection import RULES

MINUS = "\N{MINUS SIGN}"
MISSING = "–"
NOT_FINITE = "not finite"

_NAMES = {
    "macro_f1": "macro-F1",
    "auroc": "AUROC",
    "average_precision": "average precision",
    "ece": "calibration error",
    "brier": "Brier score",
    "r2": "R²",
    "mae": "mean absolute error",
}
_PERCENT = frozenset({"accuracy", "macro_f1"})

#: An absolute path with at least one folder, on any system; its last part is kept.
_PATH = re.compile(r"(?<![\w.:/\\~])(?:~|[A-Za-z]:)?[/\\](?:[^\s'\"<>|:/\\]+[/\\])+([^\s'\"<>|:/\\]*)")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


def rule_label(rule: str) -> str:
    """A selection rule as tables print it. One that peeks always says so."""
    known = RULES.get(rule)
    return f"{rule} (looks at the held-out domain)" if known is not None and known.is_oracle else rule


def metric_label(metric: str, kind: str) -> str:
    if metric == "loss" and kind == "regression":
        return "mean squared error"
    return _NAMES.get(metric, metric)


def is_percent(metric: str) -> bool:
    """Whether values of this metric are printed in percent, and their differences in percentage points."""
    return metric in _PERCENT


def arrow(metric: str) -> str:
    return "↑" if HIGHER_IS_BETTER[metric] else "↓"


def metric_value(metric: str, value: float | None, *, sign: bool = False) -> str:
    """A metric with one decimal in percent, or with the digits that matter. None is a dash."""
    if value is None:
        return MISSING
    if not math.isfinite(value):
        return NOT_FINITE
    return _signed(f"{100 * value:.1f}", sign) if is_percent(metric) else number(value, sign=sign)


def with_unit(metric: str, value: float | None) -> str:
    """The same, for running text: '71.2 %'."""
    text = metric_value(metric, value)
    return f"{text} %" if is_percent(metric) and value is not None and math.isfinite(value) else text


def interval(metric: str, low: float | None, high: float | None) -> str:
    """'[−0.4, 3.0]', or nothing where there is no interval."""
    if low is None or high is None:
        return ""
    return f"[{metric_value(metric, low)}, {metric_value(metric, high)}]"


def number(value: float | None, digits: int = 3, *, sign: bool = False) -> str:
    """A number with `digits` significant digits, and a power of ten only where the zeros would hide them."""
    if value is None:
        return MISSING
    if not math.isfinite(value):
        return NOT_FINITE
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    if not -5 < size < 9:
        mantissa, _, power = f"{value:.{digits - 1}e}".partition("e")
        return _signed(mantissa, sign) + "e" + _signed(str(int(power)), False)
    return _signed(f"{value:,.{max(0, digits - 1 - size)}f}", sign)


def p_value(p: float | None) -> str:
    if p is None:
        return ""
    if p < 0.001:
        return "p < 0.001"
    return f"p {p:.3f}" if p < 0.1 else f"p {p:.2f}"


def plural(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def listed(names: list[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def setting(value: Any) -> str:
    """A setting as a reader would write it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "not set"
    if isinstance(value, float):
        return f"{value:g}".replace("-", MINUS)
    if isinstance(value, list | tuple):
        return " × ".join(setting(v) for v in value) if value else "none"
    return public(str(value))


def public(text: str) -> str:
    """Text that may leave this machine: absolute paths keep their last part only, control characters go."""
    return _PATH.sub(r"…/\1", printable(text))


def printable(text: str) -> str:
    """Text without the characters that XML and terminals cannot show."""
    return _CONTROL.sub("", text)


def _signed(text: str, sign: bool) -> str:
    """A typographic minus, a plus where asked for, and neither for a zero."""
    if not text.strip("-0.,"):
        return text.lstrip("-")
    if text.startswith("-"):
        return MINUS + text[1:]
    return f"+{text}" if sign else text
