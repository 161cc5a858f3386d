from __future__ import annotations

import math

import pytest

from farfield.report.formats import interval, metric_value, number, p_value, public, rule_label, setting, with_unit


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.7123, "71.2"), (1.0, "100.0"), (-0.0312, "−3.1"), (-0.0001, "0.0"), (None, "–"), (math.nan, "not finite")],
)
def test_accuracy_has_one_decimal_in_percent(value: float | None, text: str) -> None:
    assert metric_value("accuracy", value) == text


def test_a_sign_is_shown_where_asked_for_and_never_on_zero() -> None:
    assert metric_value("accuracy", 0.0123, sign=True) == "+1.2"
    assert metric_value("accuracy", 0.0001, sign=True) == "0.0"
    assert metric_value("loss", -0.5, sign=True) == "−0.5000"


def test_an_interval_has_the_decimals_of_its_largest_end() -> None:
    assert interval("loss", -0.0123, 12.5, 6.0) == "[−0.01, 12.50]"
    assert interval("accuracy", -0.004, 0.03, 0.013) == "[−0.4, 3.0]"
    assert interval("loss", None, None, 1.0) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234567.0, "1,234,567"),
        (0.012345, "0.0123"),
        (1.2e-7, "1.20e−7"),
        (3e12, "3.00e12"),
        (0.0, "0"),
        (-2.5, "−2.50"),
    ],
)
def test_numbers_keep_the_digits_that_matter(value: float, text: str) -> None:
    assert number(value) == text


def test_small_p_values_are_not_printed_as_zero() -> None:
    assert (p_value(1e-9), p_value(0.0123), p_value(0.456), p_value(None)) == ("p < 0.001", "p 0.012", "p 0.46", "")


def test_text_that_leaves_the_machine_has_no_paths() -> None:
    assert public("cannot read /home/user/study/visits.csv: no") == "cannot read …/visits.csv: no"
    assert public("'/mnt/x/y' holds another bench") == "'…/y' holds another bench"
    assert public(r"C:\Users\user\data.csv") == "…/data.csv"
    assert public("~/secret/thing") == "…/thing"
    assert public("at 3/4 of rounds and/or 1 / 2") == "at 3/4 of rounds and/or 1 / 2"


def test_the_oracle_is_labelled_and_honest_rules_are_not() -> None:
    assert rule_label("oracle") == "oracle (looks at the held-out domain)"
    assert rule_label("source-validation") == "source-validation"


def test_settings_read_as_people_write_them() -> None:
    assert [setting(v) for v in (True, None, 0.1, 1e-3, [1, 8, 8], [], "sgd")] == [
        "yes", "not set", "0.1", "0.001", "1 × 8 × 8", "none", "sgd",
    ]  # fmt: skip


def test_running_text_keeps_the_percent_sign_with_its_number() -> None:
    assert with_unit("accuracy", 0.712) == "71.2\N{NO-BREAK SPACE}%"
    assert with_unit("loss", 0.712) == "0.7120"
