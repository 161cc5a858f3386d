"""The mutants themselves: terms are found, a changed one is noticed, an unchanged one is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from farfield.algorithms.worked_examples import Toy, WorkedExample, worked_examples
from tests.battery import mutants
from tests.battery.examples.averaging import averaged
from tests.battery.examples.naive import local_sgd
from tests.battery.mutants import CONTROL, Mutant, Term, terms_of
from tests.battery.worked import COHORTS, built, toy_of


def test_the_terms_of_scaffold_are_its_control_variates_and_what_it_sends() -> None:
    assert [str(term) for term in terms_of("scaffold")] == [
        "adjust",
        "shared control",
        "prepared own_control",
        "sent update",
        "sent loss",
        "sent control_change",
        "client control",
        "kept control",
    ]


@pytest.mark.parametrize("mutation", ["off", "negated", "doubled"])
def test_a_changed_term_fails_the_worked_example(mutation: str) -> None:
    assert Mutant("scaffold", Term("client", "control"), mutation).killer().startswith("control_variates: off by")


def test_an_unchanged_term_passes_the_worked_example() -> None:
    assert [Mutant("scaffold", term, CONTROL).killer() for term in terms_of("scaffold")] == [""] * 8


def test_a_term_without_an_effect_survives_and_is_not_excused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a penalty is silently zero and the example was made to fit."""

    def no_penalty(toy: Toy, p: Any) -> Tensor:
        return averaged(toy, local_sgd(toy, p))

    dead = WorkedExample("fedprox", {"mu": 0.0}, no_penalty, tolerance=1e-9)
    monkeypatch.setattr(mutants, "worked_examples", lambda method: [dead])
    mutant = Mutant("fedprox", Term("adjust", ""), "doubled")
    assert (mutant.killer(), mutant.harmless) == ("", "")


def test_the_toy_has_clients_of_different_sizes_and_steps_of_which_one_sits_out() -> None:
    toy = toy_of(built(worked_examples("fedavg")[0]))
    first, second, third = toy.rounds
    assert [len(client.y) for client in first] == [16, 22, 36]
    assert [len(client.batches) for client in first] == [2, 3, 5]
    assert [[client.id for client in cohort] for cohort in toy.rounds] == [list(cohort) for cohort in COHORTS]
    assert [client.share for client in second] == [16 / 52, 36 / 52]
    # The same client has other batches in another round.
    assert not torch.equal(first[0].batches[0].x, third[0].batches[0].x)


def test_the_toys_gradient_equals_finite_differences() -> None:
    toy = toy_of(built(worked_examples("fedavg")[0]))
    x, y = toy.rounds[0][0].batches[0]
    direction: Tensor = torch.randn(len(toy.start), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    slope = (toy.loss(toy.start + 1e-6 * direction, x, y) - toy.loss(toy.start - 1e-6 * direction, x, y)) / 2e-6
    assert float(slope) == pytest.approx(float(toy.gradient(toy.start, x, y) @ direction), rel=1e-7)
