"""Is it any good? Every method against `prior`, as a table."""

from __future__ import annotations

from farfield.report.formats import MISSING, is_percent, metric_label, metric_value, p_value, with_unit
from farfield.report.grid import Cell, Column, Grid, Tone
from farfield.report.result_table import ResultTable

_WORDS: dict[str, tuple[str, Tone]] = {
    "better than prior": ("better", "better"),
    "not better than prior beyond chance": ("not better beyond chance", "worse"),
    "too few to say": ("too few to say", "missing"),
}


def prior_grid(table: ResultTable) -> Grid | None:
    """One line per method: its mean, what it has over `prior`, and whether that is beyond chance."""
    lines = [line for line in table.lines if line.over_prior is not None]
    if table.prior is None or not lines:
        return None
    rows = []
    for line in lines:
        of = line.over_prior
        assert of is not None
        word, tone = _WORDS[of.verdict]
        mean = line.overall.mean if line.overall is not None else None
        rows.append(
            (
                Cell(line.algorithm, "reference" if line.reference else ""),
                Cell(metric_value(table.metric, mean), value=mean),
                Cell(metric_value(table.metric, of.mean, sign=True), value=of.mean),
                Cell(word, p_value(of.p_holm if of.p_holm is not None else of.p_value), tone),
            )
        )
    unit = "points" if is_percent(table.metric) else ""
    columns = (
        Column(table.noun, text=True),
        Column("mean", "%" if unit else ""),
        Column("over prior", unit, term="prior"),
        Column("verdict", text=True, term="beyond-chance"),
    )
    label = metric_label(table.metric, table.kind)
    spread = {line.over_prior.unit for line in lines if line.over_prior is not None}
    over = " and ".join(sorted(spread)) or MISSING
    apart = ", references apart" if len({line.reference for line in lines}) > 1 else ""
    notes = (
        f"prior: {with_unit(table.metric, table.prior)} {label} on average. One-sided test over {over}, Holm-corrected "
        f"over the {table.noun}s{apart}.",
    )
    return Grid(f"{label} against prior", columns, tuple(rows), notes)
