"""What a bench found, for Python: rows, tables, the report, JSON."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from farfield.protocol.leading_metric import metric_named
from farfield.records.atomic import write_json
from farfield.report.collect import Sweep
from farfield.report.figure_files import write_figures
from farfield.report.findings import Answer, answer, main_rule
from farfield.report.folded_notes import folded
from farfield.report.grid import as_markdown
from farfield.report.page import write_report
from farfield.report.table_files import write_table
from farfield.report.tables import ResultTable, result_table


class BenchResult:
    """What a bench found: `rows` (one per run), `table()`, `report(path)`, `json(path)`.

    Of a share, `unmade` is the number of its runs that failed and `waiting` that of the runs that other shares still
    have to make. Its results are read, and the reading is counted, when somebody asks for them.
    """

    def __init__(self, sweep: Sweep | Callable[[], Sweep], *, unmade: int = 0, waiting: int = 0) -> None:
        self._sweep = sweep
        self.unmade, self.waiting = unmade, waiting

    @property
    def sweep(self) -> Sweep:
        if not isinstance(self._sweep, Sweep):
            self._sweep = self._sweep()
        return self._sweep

    @property
    def metric(self) -> str:
        """The metric that leads the tables and the report."""
        return str(self.sweep.plan["metric"])

    @property
    def folder(self) -> Path:
        return self.sweep.folder

    @property
    def rows(self) -> list[dict[str, Any]]:
        return self.sweep.rows

    @property
    def failures(self) -> list[dict[str, Any]]:
        return self.sweep.failures

    def table(self, rule: str | None = None, metric: str | None = None) -> list[dict[str, Any]]:
        """One flat dict per variant, ready for `pandas.DataFrame`. `rule` is the first selection rule by default."""
        return self.results(rule, metric).to_dicts()

    def results(self, rule: str | None = None, metric: str | None = None) -> ResultTable:
        return result_table(self.sweep, rule or self.sweep.plan["rules"][0], self._metric(metric))

    def report(self, path: str | Path | None = None, metric: str | None = None) -> Path:
        """Write the page; by default `report.html` in the bench's folder."""
        to = Path(path) if path is not None else self.folder / "report.html"
        return write_report(self.sweep, to, metric=self._metric(metric))

    def answer(self, rule: str | None = None, metric: str | None = None) -> Answer:
        """Which method to use, how well it will do at a new site, and what makes both doubtful."""
        return answer(self.sweep, result_table(self.sweep, rule or main_rule(self.sweep.plan), self._metric(metric)))

    def write_table(self, path: str | Path, name: str | None = None, rule: str | None = None) -> Path:
        """Write a table as Markdown, LaTeX, CSV or JSON, by the suffix of `path`; the results if none is named."""
        return write_table(self.sweep, Path(path), name, rule, self.metric)

    def figures(self, folder: str | Path, rule: str | None = None) -> list[Path]:
        """Write every figure of the report as SVG and PNG into a folder."""
        return write_figures(self.sweep, Path(folder), rule, self.metric)

    def _metric(self, name: str | None) -> str:
        return self.metric if name is None else metric_named(self.sweep.plan["kind"], name)

    def json(self, path: str | Path) -> Path:
        write_json(Path(path), self.rows)
        return Path(path)

    def __str__(self) -> str:
        notes = "".join(f"note: {as_markdown(note)}  \n" for note in folded(self.sweep.plan.get("notes", ())))
        return self.results().markdown() + (f"\n{notes}" if notes else "")
