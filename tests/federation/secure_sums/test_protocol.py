"""The sum is exact whoever leaves when, or there is none; what a server sees of single sites is noise."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
import pytest
from scipy.stats import chi2, chisquare

from farfield.federation.refusal import Refused
from farfield.federation.secure_sums.members import threshold
from farfield.federation.secure_sums.server_session import SumFailed
from tests.federation.secure_sums.in_process import (
    INTEGERS,
    KEYS,
    NOTHING,
    SHARES,
    STAGES,
    STAYS,
    Site,
    expected,
    integers,
    names,
    run_sum,
)


def _check(leave: Mapping[str, str]) -> bool:
    """Run a sum from which sites leave, and compare it with the naive one. Returns whether there was a sum."""
    wanted = expected(leave)
    sites = {name: Site(name) for name in leave}
    if wanted is None:
        with pytest.raises((SumFailed, Refused)):
            run_sum(sites, leave)
        return False
    found = run_sum(sites, leave).total
    assert found is not None
    assert np.array_equal(found, wanted), leave
    return True


@pytest.mark.parametrize("count", [3, 4, 5])
def test_every_subset_may_leave_at_every_stage(count: int) -> None:
    outcomes = []
    for stage in (NOTHING, KEYS, SHARES, INTEGERS):
        for leaving in itertools.product([False, True], repeat=count):
            leave = {n: stage if gone else STAYS for n, gone in zip(names(count), leaving, strict=True)}
            outcomes.append(_check(leave))
    # Of 4 and of 5 sites one may leave after it has sent keys, of 3 one after it has sent its integers; before keys any
    # may, as long as 3 are left.
    possible = {3: 3 * 1 + 4, 4: 4 * 5, 5: 3 * 6 + 16}
    assert sum(outcomes) == possible[count]


@pytest.mark.slow
def test_three_sites_may_leave_each_at_another_stage() -> None:
    for stages in itertools.product(STAGES, repeat=3):
        leave = dict(zip(names(3), stages, strict=True)) | {f"more-{number}": STAYS for number in range(4)}
        _check(leave)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", [4, 5])
def test_every_site_may_leave_at_its_own_stage(count: int) -> None:
    for stages in itertools.product(STAGES, repeat=count):
        _check(dict(zip(names(count), stages, strict=True)))


def test_the_threshold_is_two_thirds_and_more_than_half() -> None:
    assert [threshold(count) for count in (3, 4, 5, 6, 7, 9, 10, 100)] == [2, 3, 4, 4, 5, 6, 7, 67]
    assert all(3 * threshold(n) >= 2 * n and 2 * threshold(n) > n for n in range(3, 2000))


def test_more_sites_can_be_asked_for() -> None:
    sites = {name: Site(name, least=5) for name in names(5)}
    leave = dict.fromkeys(sites, STAYS) | {"site-4": SHARES}
    with pytest.raises(SumFailed, match="4 of 5 sites are left, and a secure sum needs 5"):
        run_sum(sites, leave, least=5)


def test_what_the_server_sees_of_one_site_is_uniform() -> None:
    """By bytes, over many integers of which all are 0: χ² with 255 degrees of freedom, both too large and too small."""
    sites = {name: Site(name) for name in names(3)}
    keys = {name: site.act("advertise", "sum", "1/train") for name, site in sites.items()}
    sealed = {name: site.act("share", "sum", keys) for name, site in sites.items()}
    for name, site in sites.items():
        site.act("accept", "sum", "q", {other: of[name] for other, of in sealed.items() if other != name})
        masked = site.act("mask", "sum", np.zeros(200_000, dtype=np.uint64))
        for part in (masked, masked - integers("another", 200_000)):
            counts = np.bincount(part.view(np.uint8), minlength=256)
            statistic = chisquare(counts).statistic
            assert chi2.ppf(1e-9, 255) < statistic < chi2.isf(1e-9, 255)
        ones = np.unpackbits(masked.view(np.uint8)).mean()
        assert abs(ones - 0.5) < 6 * 0.5 / np.sqrt(200_000 * 64)


def test_the_same_integers_look_different_in_every_sum() -> None:
    sites = {name: Site(name) for name in names(4)}
    seen = [run_sum(sites, sum_id=f"sum-{number}", key=f"{number}/train") for number in range(3)]
    for one, other in itertools.combinations(seen, 2):
        assert np.array_equal(one.total, other.total)  # type: ignore[arg-type]
        for name in sites:
            assert not np.any(one.masked[name] == other.masked[name])
            assert one.keys[name] != other.keys[name]


def test_masked_integers_without_the_answers_add_up_to_noise() -> None:
    sites = {name: Site(name) for name in names(4)}
    seen = run_sum(sites)
    partial = sum(seen.masked.values())
    assert not np.any(partial == seen.total)


def test_a_wrong_share_of_a_key_is_noticed() -> None:
    sites = {name: Site(name) for name in names(4)}
    seen = run_sum(sites, {"site-3": SHARES})
    assert seen.server is not None
    first = dict(seen.answers["site-0"])
    first["site-3"] = first["site-3"][:-1] + bytes([first["site-3"][-1] ^ 1])
    with pytest.raises(SumFailed, match="site-3"):
        seen.server.total(seen.masked, {**seen.answers, "site-0": first})
