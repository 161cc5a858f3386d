"""Shared by all tests."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
import torch

from farfield.runs import references

# Tests run in several processes; two threads in each would only get in each other's way.
torch.set_num_threads(1)
# A shell's background job starts with Ctrl-C ignored, and so would every command that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def only_what_is_asked_for() -> None:
    """Let a bench have the methods that a test names: references beside them would take most of the time."""
    references.BY_DEFAULT = False


@pytest.fixture(autouse=True)
def references_where_marked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "with_references" in request.keywords:
        monkeypatch.setattr(references, "BY_DEFAULT", True)


@pytest.fixture
def double() -> Iterator[None]:
    """In float64, so that literal numbers can be compared to the last digits."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
