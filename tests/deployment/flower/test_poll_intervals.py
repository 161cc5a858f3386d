"""Flower's waits, shortened: what is changed of its private parts, and that nothing else is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.supercore.inflatable import inflatable_utils as objects
from flwr.supernode import start_client_internal as loop

from farfield.deployment.flower.poll_intervals import (
    FIRST_INTERVAL,
    INSIDE_INTERVAL,
    LONGEST_ACROSS,
    LONGEST_HERE,
    shorten_object_polling,
    shorten_supernode_polling,
)


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    pulls = (objects.pull_objects, objects.pull_and_inflate_object_from_tree)
    before = [dict(pull.__kwdefaults__ or {}) for pull in pulls]
    monkeypatch.setattr(loop, "time", time)
    yield
    for pull, defaults in zip(pulls, before, strict=True):
        pull.__kwdefaults__ = defaults


def waits_until_it_is_there(monkeypatch: pytest.MonkeyPatch, looks: int) -> list[float]:
    """Pull an object that is there at the last of so many looks, and note how long was waited between them."""
    waited: list[float] = []
    made = objects.threading

    class Event(made.Event):  # type: ignore[name-defined, misc]
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout or 0.0)
            return False

    fake = SimpleNamespace(Event=Event, Lock=made.Lock)
    monkeypatch.setattr(objects, "threading", fake)
    left = [looks]

    def pull(name: str) -> bytes:
        left[0] -= 1
        if left[0]:
            raise objects.ObjectUnavailableError(name)
        return b"content"

    assert objects.pull_objects(["a"], pull) == {"a": b"content"}
    return waited


def test_flower_waits_a_second_for_content_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, Flower has changed, and our own waits may not be needed any more."""
    (first,) = waits_until_it_is_there(monkeypatch, 2)
    assert first == pytest.approx(1.0, rel=0.21)


@pytest.mark.parametrize("longest", [LONGEST_ACROSS, LONGEST_HERE])
def test_content_is_looked_for_soon_and_as_long_as_before(monkeypatch: pytest.MonkeyPatch, longest: float) -> None:
    shorten_object_polling(longest)
    waited = waits_until_it_is_there(monkeypatch, 700)
    assert waited[0] == pytest.approx(FIRST_INTERVAL, rel=0.21)
    assert waited[1] == pytest.approx(2 * FIRST_INTERVAL, rel=0.21)
    assert max(waited) <= 1.21 * longest
    assert len(waited) == 699, "Flower's own limit of 500 looks would be reached within seconds"


def test_a_supernode_sleeps_shorter_and_has_the_clock_besides(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    shorten_supernode_polling(0.2)
    clock: Any = loop.time
    monkeypatch.setattr(time, "sleep", slept.append)
    for asked in (3, 0.5, 0.001):
        clock.sleep(asked)
    assert slept == [0.2, INSIDE_INTERVAL, 0.001]
    assert clock.monotonic is time.monotonic
