"""Item 8 under differential privacy: without its guard, a site's noise alone leaves no row to the attack.

The same attack without noise gets rows, so what stops it is the noise. The noise is for an ε of 8, the weakest promise
that the documentation speaks of, and comes from the operating system's generator: it differs from run to run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
pytest.importorskip("dp_accounting")
from studies.reconstruction import Victim, attack, write_hospitals

ROUNDS = 10
#: Noise for ε = 8 over 10 rounds, by level: `farfield privacy --epsilon 8 --rounds 10`, for rows with `--rows 54
#: --batch-size 64`, for clients with `--level client -a fediir`.
NOISE = {"record": 1.899, "client": 2.686}
#: FedIIR's penalty has no privacy of rows; FedAvg has one phase where FedIIR has two.
METHOD = {"record": "fedavg", "client": "fediir"}


def private_victim(folder: Path, level: str, noise: float, **given: Any) -> Victim:
    write_hospitals(folder, made_up=True)
    settings = {"privacy": level, "noise": noise, "clip": 1.0, "weighting": "uniform"}
    return Victim(folder, settings=settings, algorithm=METHOD[level], **given)


@pytest.mark.parametrize("way", ["rounds", "average"])
@pytest.mark.parametrize("level", ["record", "client"])
def test_noise_alone_leaves_no_row_and_without_it_the_same_attack_gets_rows(
    tmp_path: Path, level: str, way: str
) -> None:
    noised = private_victim(tmp_path / "noised", level, NOISE[level], guarded=False)
    loot = attack(noised, way, ROUNDS)
    assert noised.epsilon == {"record": "ε = 7.996 for each record", "client": "ε = 7.994 for each client"}[level]
    assert (loot.questions, noised.refused) == (ROUNDS, []), "nothing but the noise is in the way"
    assert int(loot.found.sum()) == 0

    cut = private_victim(tmp_path / "cut", level, 0.0, guarded=False)
    found = int(attack(cut, way, ROUNDS).found.sum())
    assert found > {"rounds": 40, "average": 7}[way], "of 54"


@pytest.mark.parametrize("level", ["record", "client"])
def test_little_noise_does_not_stop_a_server_that_averages(tmp_path: Path, level: str) -> None:
    """Ten answers to one model: a hundredth of the noise above and less is no protection."""
    little = private_victim(tmp_path, level, {"record": 0.01, "client": 0.002}[level], guarded=False, accounted=False)
    assert int(attack(little, "average", ROUNDS).found.sum()) > 3


def test_a_private_site_stops_after_the_approved_steps_even_without_its_guard(tmp_path: Path) -> None:
    """Repeats would average the noise away; each of them is a noised step, and these are counted."""
    victim = private_victim(tmp_path, "record", NOISE["record"], guarded=False)
    loot = attack(victim, "repeats", ROUNDS + 2)
    assert loot.questions == ROUNDS
    assert (
        victim.refused
        == ["the privacy that was approved for phase 'train' is used up: 10 of 10 noised steps are made"] * 2
    )


@pytest.mark.parametrize("level", ["record", "client"])
def test_with_guard_and_noise_no_row_comes_back_either(tmp_path: Path, level: str) -> None:
    """The bound on the model is wide here, because honest models have noise as well."""
    loot = attack(private_victim(tmp_path, level, NOISE[level]), "average", ROUNDS)
    assert loot.questions == ROUNDS, "the guard lets this attack pass"
    assert int(loot.found.sum()) == 0
