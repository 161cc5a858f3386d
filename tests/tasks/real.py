"""Tests on real files run where the files are: FARFIELD_DATA names the folder."""

from __future__ import annotations

import pytest

from farfield.tasks.data_folder.store import locate


def needs_data(*names: str) -> pytest.MarkDecorator:
    """Skip a test unless one of these files or folders is in a data folder."""
    return pytest.mark.skipif(locate(*names) is None, reason=f"no {' or '.join(names)} in the data folder")
