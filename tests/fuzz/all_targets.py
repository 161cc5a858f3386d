"""Every target, by name."""

from __future__ import annotations

from tests.fuzz import (
    targets_archives,
    targets_folders,
    targets_images,
    targets_messages,
    targets_small,
    targets_tables,
)
from tests.fuzz.target import TARGETS

__all__ = [
    "TARGETS",
    "targets_archives",
    "targets_folders",
    "targets_images",
    "targets_messages",
    "targets_small",
    "targets_tables",
]
