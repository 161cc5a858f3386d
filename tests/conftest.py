"""Shared by all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

# Tests run in several processes; two threads in each would only get in each other's way.
torch.set_num_threads(1)


@pytest.fixture
def double() -> Iterator[None]:
    """In float64, so that literal numbers can be compared to the last digits."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
