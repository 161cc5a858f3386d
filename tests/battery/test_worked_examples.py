"""Every method brings a worked example, and agrees with it; every server half brings one in a composition."""

from __future__ import annotations

import pytest

from farfield.algorithms.worked_examples import WorkedExample, worked_examples
from tests.battery.methods import server_halves, single
from tests.battery.worked import built, difference


@pytest.mark.parametrize("name", single())
def test_the_method_brings_a_worked_example(name: str) -> None:
    assert worked_examples(name), (
        f"'{name}' has no worked example, so nothing shows that it computes what its paper says; write its rounds once "
        f"more in plain torch, in a function marked with @worked_example('{name}') (see docs/add-a-method.md)"
    )


@pytest.mark.parametrize("name", server_halves())
def test_the_server_half_brings_a_worked_example_of_a_composition(name: str) -> None:
    assert [each for each in worked_examples() if each.method.endswith(f"+{name}")], (
        f"'{name}' can stand after a '+' and has no worked example there; write one, as for a method alone, in a "
        f"function marked with @worked_example('fedprox+{name}') (see docs/add-a-method.md)"
    )


@pytest.mark.parametrize("example", worked_examples(), ids=str)
def test_the_method_agrees_with_its_worked_example(example: WorkedExample) -> None:
    off = difference(example, built(example))
    assert off <= example.tolerance, (
        f"'{example.method}' is off by {off:.1e} from its worked example '{example.function.__name__}' "
        f"in {example.function.__module__}: one of the two is wrong"
    )


def test_a_method_without_a_worked_example_is_told_how_to_add_one() -> None:
    with pytest.raises(AssertionError, match=r"'fedmine' has no worked example.*@worked_example\('fedmine'\)"):
        test_the_method_brings_a_worked_example("fedmine")
