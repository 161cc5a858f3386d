"""The answer of a bench on the console: the same sentences as at the head of the page."""

from __future__ import annotations

from farfield.cli.console import output
from farfield.printable import one_line
from farfield.report.findings import QUESTIONS
from farfield.runs.result import BenchResult


def print_answer(result: BenchResult, rule: str | None = None) -> None:
    """Print both answers and the reasons for doubt."""
    found = result.answer(rule)
    parts = ((QUESTIONS[0], found.method), (QUESTIONS[1], found.new_site), ("Read with care:", found.doubts))
    for heading, sentences in parts:
        if sentences:
            output.print(f"\n[bold]{heading}[/]", highlight=False)
            for sentence in sentences:
                output.print(one_line(sentence), highlight=False, markup=False)
    output.print()
