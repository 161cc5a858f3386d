"""Values of settings as text: typed, printed, and read back."""

from __future__ import annotations

from typing import Any

import pytest

from farfield.records.setting_text import parse_value, readable, value_text
from farfield.report.formats import settings_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "1"),
        (1.0, "1"),
        (0.001, "0.001"),
        (1e-05, "1e-05"),
        (2e16, "2e+16"),
        (True, "true"),
        ("adam", "adam"),
        ("1+kappa^2", "1+kappa^2"),
        ("1", '"1"'),
        ("true", '"true"'),
        ("a, b", '"a, b"'),
        ("tab\there", '"tab\\there"'),
        ("größe 😀", '"größe 😀"'),
        ("", '""'),
        ([1, 2], "[1,2]"),
    ],
)
def test_a_value_has_a_text_that_reads_back(value: Any, text: str) -> None:
    assert value_text(value) == text
    assert parse_value(text) == value


def test_none_has_a_word_in_texts_and_files() -> None:
    assert value_text(None) == "none"
    assert readable({"clip": None, "lr": 0.5}) == {"clip": "none", "lr": 0.5}


def test_the_report_writes_settings_as_they_are_typed() -> None:
    given = {"mu": 1.0, "clip": None, "optimizer": "adam", "schedule": [1, 2]}
    assert settings_text(given) == "mu=1, clip=none, optimizer=adam, schedule=[1,2]"
