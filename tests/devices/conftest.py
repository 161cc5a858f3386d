"""Which files of this folder are read at all."""

from __future__ import annotations

from pathlib import Path

import pytest

#: They register a device that is not there, after which autograd works in no fork of their process.
OWN_PROCESS = {"test_kernels_on_a_gpu.py", "test_real_gpu.py", "test_rounds_on_a_gpu.py"}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    alone = config.option.markexpr in ("gpu", "pretended_gpu")
    return True if collection_path.name in OWN_PROCESS and not alone else None
