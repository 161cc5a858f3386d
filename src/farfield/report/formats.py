"""How numbers and names are written: the same in the terminal, in Markdown and on the page."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from farfield.printable import visible
from farfield.protocol.metrics import HIGHER_IS_BETTER, PERCENT
from farfield.protocol.selection import RULES
from farfield.records.setting_text import value_text

MINUS = "\N{MINUS SIGN}"
MISSING = "–"
NOT_FINITE = "not finite"

_NAMES = {
    "macro_f1": "macro-F1",
    "balanced_accuracy": "balanced accuracy",
    "balanced_loss": "class-balanced loss",
    "auroc": "AUROC",
    "average_precision": "average precision",
    "ece": "calibration error",
    "brier": "Brier score",
    "r2": "R²",
    "rmse": "root mean squared error",
    "mae": "mean absolute error",
}
_AROUND_ONE = frozenset({"auroc", "average_precision", "ece", "brier", "r2"})

#: An absolute path with at least one folder, on any system; its last part is kept.
_PATH = re.compile(r"(?<![\w.:/\\~])(?:~|[A-Za-z]:)?[/\\](?:[^\s'\"<>|:/\\]+[/\\])+([^\s'\"<>|:/\\]*)")


def rule_label(rule: str) -> str:
    """A selection rule as tables print it. One that peeks always says so."""
    known = RULES.get(rule)
    return f"{rule} (looks at the held-out domain)" if known is not None and known.is_oracle else rule


def metric_label(metric: str, kind: str) -> str:
    if metric == "loss" and kind == "regression":
        return "mean squared error"
    return _NAMES.get(metric, metric)


def finite(value: Any) -> Any:
    """Return nested dicts and lists with None for every number that is not finite: JSON has no NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(of) for key, of in value.items()}
    if isinstance(value, list):
        return [finite(of) for of in value]
    return value


def is_percent(metric: str) -> bool:
    """Whether values of this metric are printed in percent, and their differences in percentage points."""
    return metric in PERCENT


def arrow(metric: str) -> str:
    return "↑" if HIGHER_IS_BETTER[metric] else "↓"


def metric_value(metric: str, value: float | None, *, sign: bool = False, like: Sequence[float | None] = ()) -> str:
    """A metric: in percent with one decimal, scores around one with three, losses with four digits. None is a dash.

    `like` holds what it stands beside: all of them get the decimals that the largest of them needs.
    """
    if value is None:
        return MISSING
    if not math.isfinite(value):
        return NOT_FINITE
    if is_percent(metric):
        return _signed(f"{100 * value:.1f}", sign)
    if metric in _AROUND_ONE and abs(value) < 1000:
        return _signed(f"{value:.3f}", sign)
    return number(value, 4, sign=sign, like=like)


def with_unit(metric: str, value: float | None) -> str:
    """The same, for running text, with its percent sign."""
    text = metric_value(metric, value)
    return f"{text}\N{NO-BREAK SPACE}%" if is_percent(metric) and value is not None and math.isfinite(value) else text


def interval(metric: str, low: float | None, high: float | None, mean: float) -> str:
    """'[−0.4, 3.0]', or nothing where there is no interval."""
    if low is None or high is None:
        return ""
    beside = (low, high, mean)
    return f"[{metric_value(metric, low, like=beside)}, {metric_value(metric, high, like=beside)}]"


def number(value: float | None, digits: int = 3, *, sign: bool = False, like: Sequence[float | None] = ()) -> str:
    """A number with `digits` significant digits, and a power of ten only where the zeros would hide them.

    With `like`, it has the decimals that the largest of those values has.
    """
    if value is None:
        return MISSING
    if not math.isfinite(value):
        return NOT_FINITE
    largest = max(abs(v) for v in (value, *like) if v is not None and math.isfinite(v))
    if largest == 0:
        return "0"
    size = math.floor(math.log10(largest))
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
    """'a', 'a and b', 'a, b and c'; nothing for no name."""
    return "".join(names) if len(names) < 2 else f"{', '.join(names[:-1])} and {names[-1]}"


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


def settings_text(settings: Mapping[str, Any]) -> str:
    """Settings in one line, as they are typed: 'mu=0.1, optimizer=adam'."""
    return ", ".join(f"{key}={public(value_text(value))}" for key, value in settings.items())


def public(text: str) -> str:
    """Text that may leave this machine: absolute paths keep their last part only, control characters are escapes."""
    return _PATH.sub(r"…/\1", printable(text))


def printable(text: str) -> str:
    """Text in which the characters that XML and terminals cannot show, or would obey, are escapes."""
    return visible(text)


def _signed(text: str, sign: bool) -> str:
    """A typographic minus, a plus where asked for, and neither for a zero."""
    if not text.strip("-0.,"):
        return text.lstrip("-")
    if text.startswith("-"):
        return MINUS + text[1:]
    return f"+{text}" if sign else text
