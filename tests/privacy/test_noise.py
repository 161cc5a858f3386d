"""The noise is Gaussian with the promised spread, and rows are drawn for themselves with the promised rate."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from scipy import stats

from farfield.privacy.noise import SecureSource, SeededSource, Source, source_of
from farfield.privacy.record_level import with_noise
from tests.toy import domains, population

DRAWS = 20_000
#: A test that is right fails once in a million draws of the secure source; the seeded ones are always the same.
LEVEL = 1e-6


def sources() -> list[Source]:
    return [SeededSource(torch.Generator().manual_seed(11)), SecureSource()]


@pytest.mark.parametrize("source", sources(), ids=["seeded", "secure"])
def test_draws_are_standard_normal_and_independent(source: Source) -> None:
    draws = source.normal((DRAWS,)).double().numpy()
    assert stats.kstest(draws, "norm").pvalue > LEVEL
    again = source.normal((DRAWS,)).double().numpy()
    assert stats.pearsonr(draws, again).pvalue > LEVEL
    assert stats.pearsonr(draws[:-1], draws[1:]).pvalue > LEVEL
    # The variance of n draws is σ² χ²(n) / n.
    assert stats.chi2.ppf(LEVEL, DRAWS) < (draws**2).sum() < stats.chi2.ppf(1 - LEVEL, DRAWS)


@pytest.mark.parametrize("source", sources(), ids=["seeded", "secure"])
def test_the_spread_is_the_multiplier_times_the_limit(source: Source) -> None:
    total = torch.full((DRAWS,), 5.0)
    noise = (with_noise(total, clip=0.5, noise=3.0, source=source) - 5.0).double().numpy()
    assert stats.kstest(noise / 1.5, "norm").pvalue > LEVEL


def share_that_rounded_noise_makes(numbers: torch.Tensor, spread: float) -> float:
    """The share of the numbers that are the float32 product of the spread with any float32 number."""
    factor = (numbers.double() / spread).float().numpy()
    made = np.zeros(len(factor), dtype=bool)
    for _ in range(3):
        factor = np.nextafter(factor, np.float32(-np.inf))
    for _ in range(7):
        made |= (torch.from_numpy(factor) * spread).eq(numbers).numpy()
        factor = np.nextafter(factor, np.float32(np.inf))
    return float(made.mean())


@pytest.mark.parametrize("spread", [1.08, 1.5, 6.0])
def test_the_last_bits_do_not_tell_a_contribution_from_none(spread: float) -> None:
    """Mironov 2012: noise in float32 leaves out numbers, and only a sum that is not zero can give one of these."""
    source = SecureSource()
    of_nothing, of_something = (
        share_that_rounded_noise_makes(with_noise(torch.full((DRAWS,), total), 1.0, spread, source), spread)
        for total in (0.0, 0.3)
    )
    assert of_nothing < 0.97
    assert abs(of_nothing - of_something) < 0.02  # six standard deviations


def test_no_draw_of_a_site_is_infinite(monkeypatch: pytest.MonkeyPatch) -> None:
    for byte in (b"\x00", b"\xff"):
        monkeypatch.setattr(os, "urandom", lambda count, byte=byte: byte * count)
        assert bool(torch.isfinite(SecureSource().normal((2,))).all())


def test_a_multiplier_of_zero_changes_no_bit() -> None:
    total = torch.randn(9)
    assert torch.equal(with_noise(total, 1.0, 0.0, SecureSource()), total)


@pytest.mark.parametrize("source", sources(), ids=["seeded", "secure"])
def test_each_row_is_drawn_for_itself_with_the_rate(source: Source) -> None:
    rows, times, rate = 12, 4_000, 0.15
    counts = torch.zeros(rows)
    sizes = torch.zeros(rows + 1)
    for _ in range(times):
        chosen = source.chosen(rows, rate)
        counts[chosen] += 1
        sizes[len(chosen)] += 1
    for count in counts.tolist():
        assert stats.binomtest(int(count), times, rate).pvalue > LEVEL
    # The size of a batch is binomial: empty batches occur as often as the accountant assumes.
    assert sizes[0] > 0
    expected = stats.binom.pmf(range(5), rows, rate)
    seen = sizes[:5].tolist()
    assert (
        stats.chisquare([*seen, times - sum(seen)], [*(times * expected), times * (1 - expected.sum())]).pvalue > LEVEL
    )
    assert source.chosen(rows, 1.0).tolist() == list(range(rows))


def test_the_seed_decides_the_noise_on_one_machine_and_nothing_does_at_a_site() -> None:
    people = population(domains(1))

    def client(round: int = 1, phase: str = "train") -> object:
        return people.client(0, seed=4, round=round, phase=phase, state={})

    def draws(of: object) -> list[float]:
        return source_of(of, "privacy").normal((4,)).tolist()  # type: ignore[arg-type, no-any-return]

    assert draws(client()) == draws(client())
    assert draws(client()) != draws(client(round=2))
    assert draws(client()) != draws(client(phase="head_gradient"))
    site = client()
    site.secure_noise = True  # type: ignore[attr-defined]
    assert draws(site) != draws(site)
    assert draws(site) != draws(client())
