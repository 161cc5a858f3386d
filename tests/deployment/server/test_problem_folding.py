"""The server's operator reads each problem once, and how often it came again, at a bounded rate."""

from __future__ import annotations

from farfield.deployment.server.problem_folding import MOST_LINES, WINDOW, ProblemFolding


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_first_of_many_equal_problems_is_told_at_once_and_the_rest_counted() -> None:
    clock = Clock()
    folding = ProblemFolding(clock)
    assert folding.hear("late", "round 1: cedar is late") == ["round 1: cedar is late"]
    for number in range(2, 30):
        clock.now += 1
        assert folding.hear("late", f"round {number}: cedar is late") == []
    assert folding.due() == []
    clock.now = WINDOW
    assert folding.due() == ["round 29: cedar is late (the same 28 more times)"]
    assert folding.due() == []
    clock.now += WINDOW  # nothing came again, so the next one is news
    assert folding.due() == []
    assert folding.hear("late", "round 99: cedar is late") == ["round 99: cedar is late"]


def test_another_problem_is_told_although_one_is_being_counted() -> None:
    folding = ProblemFolding(Clock())
    folding.hear("late", "late")
    assert folding.hear("nan", "nan") == ["nan"]


def test_a_site_that_invents_problems_gets_a_bounded_number_of_lines() -> None:
    clock = Clock()
    folding = ProblemFolding(clock)
    told = []
    for number in range(10_000):
        clock.now += 0.06  # ten windows in all
        told += folding.hear(number, f"problem {number}")
    told += folding.due(last=True)
    assert len(told) <= 11 * MOST_LINES
    unsaid = sum(int(line.split()[0]) for line in told if "more problems" in line)
    assert unsaid + sum(line.startswith("problem ") for line in told) == 10_000, "none is lost from the count"
    assert len(folding._told) <= 2 * MOST_LINES, "and what is remembered is bounded too"


def test_at_the_end_everything_that_was_only_counted_is_told() -> None:
    folding = ProblemFolding(Clock())
    folding.hear("late", "late")
    folding.hear("late", "late")
    assert folding.due(last=True) == ["late (the same 1 more times)"]
