"""The table of docs/speed.md, made of benchmarks/results.json.

python -m benchmarks.speed.table
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.speed.results_file import RESULTS, read_results

PAGE = Path(__file__).parents[2] / "docs" / "speed.md"
BEGIN, END = "<!-- speed table: begin -->", "<!-- speed table: end -->"


def table(results: Mapping[str, Any]) -> str:
    """Return one line per figure, and below it what was checked, left out, and measured with."""
    lines = ["| case | figure | measured | spread | goal | |", "|---|---|---|---|---|---|"]
    for entry in results.values():
        title = entry["title"] + (" (short)" if entry["short"] else "")
        if not entry["figures"]:
            lines.append(f"| {title} | {entry['status']}: {entry['why']} | | | | |")
        for number, figure in enumerate(entry["figures"]):
            lines.append(f"| {title if number == 0 else ''} | {_figure(figure)} |")
    remarks = [remark for entry in results.values() for remark in _remarks(entry)]
    return "\n".join([*lines, "", *remarks, *([""] if remarks else []), *_measured_with(results)])


def _figure(figure: Mapping[str, Any]) -> str:
    spread = f"{_number(figure['low'])} to {_number(figure['high'])}"
    goal = "" if figure["goal"] is None else f"{figure['sense']} {figure['goal']:g}"
    verdict = {None: "", True: "met", False: "**missed**"}[figure["met"]]
    return f"{figure['name']} | {_number(figure['value'])} {figure['unit']} | {spread} | {goal} | {verdict}"


def _number(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}" if abs(value) < 100 else f"{value:.0f}"


def _remarks(entry: Mapping[str, Any]) -> list[str]:
    broken = [f"- {entry['case']}: **does not hold**: {c['sentence']}" for c in entry["checks"] if not c["holds"]]
    kept = [f"- {entry['case']}: {c['sentence']}." for c in entry["checks"] if c["holds"]]
    return [*broken, *kept, *(f"- {entry['case']}: {note}." for note in entry["notes"])]


def _measured_with(results: Mapping[str, Any]) -> list[str]:
    """Return one sentence per processor, versions and day, with the cases that it holds for."""
    by_setting: dict[str, list[str]] = {}
    for entry in results.values():
        versions = ", ".join(f"{name} {number}" for name, number in entry["versions"].items())
        setting = f"{entry['cores']} cores of {entry['processor']}, {versions}, {entry['date']}"
        by_setting.setdefault(setting, []).append(entry["case"])
    if len(by_setting) == 1:
        return [f"Measured on {next(iter(by_setting))}."]
    return [f"Measured on {setting}: {', '.join(cases)}." for setting, cases in by_setting.items()]


def with_table(page: str, made: str) -> str:
    """Return the page with the table between its two markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no '{BEGIN}' followed by '{END}'")
    return f"{before}{BEGIN}\n{made}\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=RESULTS, help="the results; benchmarks/results.json by default")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page; docs/speed.md by default")
    arguments = parser.parse_args()
    arguments.page.write_text(with_table(arguments.page.read_text(), table(read_results(arguments.json))))
    print(f"wrote the table of {arguments.page}")


if __name__ == "__main__":
    main()
