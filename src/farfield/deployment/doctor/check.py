"""One check of the doctor: its name, how it went, and one sentence."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

Status = Literal["ok", "warning", "failed"]


@dataclass(frozen=True)
class Check:
    """The outcome of a check. The text of a warning or a failure names the way out."""

    name: str
    status: Status
    text: str

    def to_json(self) -> dict[str, str]:
        return asdict(self)


def ok(name: str, text: str) -> Check:
    return Check(name, "ok", text)


def warning(name: str, text: str) -> Check:
    return Check(name, "warning", text)


def failed(name: str, text: str) -> Check:
    return Check(name, "failed", text)
