"""`farfield privacy` on the command line."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from farfield.cli.main import command_line
from farfield.errors import UserError
from tests.privacy.references import epsilon_from, gaussian_delta

pytest.importorskip("dp_accounting")


def answer(*arguments: str) -> str:
    result = CliRunner().invoke(command_line(), ["privacy", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return str(result.output)


def number_after(text: str, mark: str) -> float:
    return float(text.split(mark)[1].split()[0].rstrip(":,"))


def test_the_epsilon_of_a_noise_multiplier_is_that_of_the_closed_form() -> None:
    told = answer("--level", "client", "--noise", "4", "--rounds", "10")
    exact = epsilon_from(lambda e: gaussian_delta(e, 4.0, 10), 1e-5)
    assert exact <= number_after(told, "ε = ") <= exact + 2e-3
    assert "1 upload each (train)" in told
    assert "not covered: who takes part" in told


@pytest.mark.slow
def test_the_noise_multiplier_that_is_printed_suffices() -> None:
    told = answer("--level", "client", "--epsilon", "2", "--rounds", "10", "-a", "fediir")
    noise = number_after(told, "noise multiplier ")
    assert epsilon_from(lambda e: gaussian_delta(e, noise, 20), 1e-5) <= 2.0
    assert epsilon_from(lambda e: gaussian_delta(e, 0.99 * noise, 20), 1e-5) > 2.0
    assert "2 uploads each (head_gradient, train)" in told


def test_rows_and_batches_decide_the_rate() -> None:
    told = answer("--noise", "2", "--rows", "320", "--batch-size", "32", "--rounds", "3")
    assert "3 rounds of 10 steps, each row drawn with probability 0.1" in told


@pytest.mark.slow
def test_a_delta_that_is_too_large_for_the_rows_is_a_warning() -> None:
    few = ["--noise", "2", "--rounds", "1", "--delta", "1e-3"]
    assert "warning: delta = 0.001 is not far below 1 / 100 rows" in answer(*few, "--rows", "100")
    assert "warning" not in answer(*few, "--rows", "99")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--epsilon", "1", "--noise", "1"], "either --epsilon"),
        ([], "either --epsilon"),
        (["--noise", "1", "--delta", "2"], "delta = 2"),
        (["--noise", "-1"], "noise = -1"),
        (["--level", "row", "--noise", "1"], "'row' is no level of privacy"),
        (["--noise", "1", "-a", "fedcir"], "one row has no bounded part"),
    ],
)
def test_mistakes_are_one_sentence(arguments: list[str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        CliRunner().invoke(command_line(), ["privacy", *arguments], catch_exceptions=False)
