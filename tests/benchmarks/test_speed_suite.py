"""The speed suite measures by hand; here are its arithmetic, its results file and its table."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.interleaved import Spread, Timings, interleaved
from benchmarks.speed.__main__ import measure
from benchmarks.speed.case import Case, Check, Figure, Options, Outcome, Skipped
from benchmarks.speed.results_file import RESULTS, measured, not_measured, read_results, without_paths, write_entry
from benchmarks.speed.table import BEGIN, END, PAGE, table, with_table

ROOT = Path(__file__).parents[2]


class FakeClock:
    """A clock that only moves when a contender works."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def contender(self, seconds: list[float], preparation: float = 0.0) -> Callable[[int], Callable[[], Any]]:
        def turn(number: int) -> Callable[[], Any]:
            self.now += preparation

            def work() -> None:
                self.now += seconds[number]

            return work

        return turn


def test_the_ratio_is_the_median_of_the_ratios_within_each_turn() -> None:
    """Medians of 2 and 4 seconds would give 0.5; the machine was slow in the third turn, for both."""
    clock = FakeClock()
    contenders = {"ours": clock.contender([9.0, 1.0, 2.0, 12.0]), "bare": clock.contender([1.0, 4.0, 4.0, 16.0])}
    timings = interleaved(contenders, turns=3, warm_up=1, clock=clock)
    assert timings.seconds == {"ours": [1.0, 2.0, 12.0], "bare": [4.0, 4.0, 16.0]}
    assert timings.ratio("ours", "bare") == Spread(0.5, 0.25, 0.75)
    assert timings.medians() == {"ours": 2.0, "bare": 4.0}


def test_preparing_a_turn_is_not_timed() -> None:
    clock = FakeClock()
    timings = interleaved({"ours": clock.contender([3.0], preparation=100.0)}, turns=1, warm_up=0, clock=clock)
    assert timings.seconds == {"ours": [3.0]}


def test_every_contender_has_every_turn_in_changing_order() -> None:
    made: list[tuple[int, str]] = []

    def contender(name: str) -> Callable[[int], Callable[[], Any]]:
        return lambda turn: lambda: made.append((turn, name))

    interleaved({name: contender(name) for name in "abc"}, turns=8, warm_up=2)
    orders = {"".join(name for turn, name in made if turn == number) for number in range(10)}
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)
    assert len(orders) > 3


def test_the_spread_is_the_quartiles_from_five_values_on() -> None:
    assert Spread.of([4.0, 1.0, 2.0, 3.0]) == Spread(2.5, 1.0, 4.0)
    assert Spread.of([1.0, 2.0, 3.0, 4.0, 100.0]) == Spread(3.0, 2.0, 4.0)
    with pytest.raises(ValueError, match="no value"):
        Spread.of([])


def test_turns_of_unequal_number_are_refused() -> None:
    with pytest.raises(ValueError):
        Timings({"ours": [1.0], "bare": [1.0, 2.0]}).ratio("ours", "bare")


@pytest.mark.parametrize(
    ("value", "goal", "sense", "met"),
    [
        (0.1, 0.12, "at most", True),
        (0.13, 0.12, "at most", False),
        (7.0, 6.0, "at least", True),
        (1.0, None, "at most", None),
    ],
)
def test_a_goal_is_met_by_the_median(value: float, goal: float | None, sense: Any, met: bool | None) -> None:
    assert Figure("f", value, 0.0, 9.0, goal, sense).met is met


def _case(name: str, title: str) -> Case:
    return Case(name, title, lambda options: Outcome(()))


def test_the_table_is_made_of_the_results(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    tiny, silo = _case("tiny", "A tiny"), _case("silo", "C silo")
    outcome = Outcome(
        (Figure("batched / bare loop", 0.104, 0.1, 0.11, 0.12), Figure("pfl / bare loop", 21.04, 20.0, 150.2)),
        (Check("the same bits", True), Check("the same model", False)),
        {"batched": 0.01},
        ("Flower was not measured",),
    )
    write_entry(path, tiny, measured(tiny, Options(), outcome, 1.5))
    write_entry(path, silo, not_measured(silo, Options(), "skipped", "mnist.npz is missing"))
    lines = table(read_results(path)).splitlines()
    assert lines[2:5] == [
        "| A tiny | batched / bare loop | 0.10 × | 0.10 to 0.11 | at most 0.12 | met |",
        "|  | pfl / bare loop | 21.0 × | 20.0 to 150 |  |  |",
        "| C silo | skipped: mnist.npz is missing | | | | |",
    ]
    assert lines[6:9] == [
        "- tiny: **does not hold**: the same model",
        "- tiny: the same bits.",
        "- tiny: Flower was not measured.",
    ]
    assert lines[-1].startswith("Measured on ")


def test_a_case_that_is_measured_again_replaces_its_own_entry_alone(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    first, second = _case("first", "1"), _case("second", "2")
    for case, value in ((first, 1.0), (second, 2.0), (first, 3.0)):
        write_entry(path, case, measured(case, Options(5), Outcome((Figure("f", value, 0.0, 9.0, 2.5),)), 0.1))
    entries = json.loads(path.read_text())
    assert list(entries) == ["first", "second"]
    assert [entry["figures"][0]["value"] for entry in entries.values()] == [3.0, 2.0]
    assert [entry["figures"][0]["met"] for entry in entries.values()] == [False, True]
    assert entries["first"]["command"] == "python -m benchmarks.speed --cases first --repetitions 5"
    assert {"python", "torch", "farfield"} <= set(entries["first"]["versions"])


def test_a_skipped_or_failing_case_is_told_and_a_skipped_one_keeps_what_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def skip(options: Options) -> Outcome:
        raise Skipped("no data here")

    def fail(options: Options) -> Outcome:
        raise RuntimeError("broken")

    path = tmp_path / "results.json"
    skipped, failing = Case("skipped", "1", skip), Case("failing", "2", fail)
    assert measure(skipped, Options(), path)
    assert not measure(failing, Options(), path)
    assert {name: entry["status"] for name, entry in read_results(path).items()} == {
        "skipped": "skipped",
        "failing": "failed",
    }
    write_entry(path, skipped, measured(skipped, Options(), Outcome(()), 0.1))
    assert measure(skipped, Options(), path)
    assert read_results(path)["skipped"]["status"] == "measured"
    assert "skipped: no data here" in capsys.readouterr().out


def test_results_name_no_path_of_the_machine() -> None:
    assert without_paths("no file '/home/me/data/mnist.npz' at 3/4 of A/B") == "no file '…' at 3/4 of A/B"


def test_only_what_is_between_the_markers_is_replaced() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter {END}\n"
    assert with_table(page, "new") == f"before\n{BEGIN}\nnew\n{END}\nafter {END}\n"
    with pytest.raises(ValueError, match="the page has no"):
        with_table("a page without markers", "new")


def test_the_page_has_the_table_of_the_results() -> None:
    if not PAGE.exists() or not RESULTS.exists():
        pytest.skip("no results yet, or an installed package without documentation")
    assert PAGE.read_text() == with_table(PAGE.read_text(), table(read_results(RESULTS)))


@pytest.mark.slow
def test_every_case_is_found() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.speed", "--list"], cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert {"tiny", "silo", "default-bench"} <= set(done.stdout.split())
