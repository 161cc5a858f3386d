"""What a reader must know to read a result table, one sentence per note."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from farfield.protocol.comparison_units import MIN_UNITS
from farfield.protocol.selection import RULES
from farfield.protocol.statistics import SHARED_TRAINING_NOTE
from farfield.report.formats import (
    listed,
    plural,
)

if TYPE_CHECKING:
    from farfield.report.result_table import ResultTable


def result_notes(table: ResultTable) -> tuple[str, ...]:
    """Return the notes in their order: remarks, what a mean is over, sources, differences, gaps, settings."""
    notes = (*_unit_notes(table), *_source_notes(table), *_difference_notes(table), *_gap_notes(table))
    left_out = (f"{label} is left out: {why}." for label, why in table.left_out.items())
    return (*table.remarks, *left_out, *notes, *_settings_notes(table))


def _unit_notes(table: ResultTable) -> list[str]:
    notes = []
    if RULES[table.rule].is_oracle:
        notes.append("The oracle chose by looking at the held-out domain: a ceiling, not a result.")
    seeds, domains = plural(len(table.seeds), "seed"), plural(len(table.domains), "held-out domain")
    whole = all(line.complete for line in table.lines)
    have = [sum(s is not None for s in line.domains.values()) for line in table.lines]
    if table.unit == "domains" and not whole:
        notes.append(
            f"mean: over the held-out domains that have a result ({_span(have)} of {len(table.domains)}), each "
            "averaged over the seeds that have one; means over different domains do not compare."
        )
    if table.unit == "domains":
        spread = "± is a 95 % interval over domains" if len(table.domains) > 2 else "two domains give no interval"
        if whole:
            notes.append(f"mean: over {domains}, each averaged over {seeds}; {spread}.")
        columns = f"{table.domains[0]} … {table.domains[-1]}: a column per held-out domain"
        if table.many_domains:
            one = "; one seed: how a rerun varies is not known" if len(table.seeds) == 1 else ""
            notes.append(f"Quartiles are over the domains' means{one}. to_dicts() and JSON have every domain.")
        elif len(table.seeds) == 1:
            notes.append(f"{columns}; one seed: no interval within a domain, so how a rerun varies is not known.")
        else:
            notes.append(f"{columns}, ± its standard deviation over seeds.")
    elif len(table.seeds) == 1:
        notes.append(f"one seed: no interval. One held-out domain ({table.domains[0]}), run once.")
    else:
        notes.append(
            f"mean: over {seeds} on one held-out domain ({table.domains[0]}); ± is a 95 % interval over seeds, "
            "which says how a rerun varies and not how another domain would do."
        )
    return notes


def _source_notes(table: ResultTable) -> list[str]:
    meanings = {
        "source validation": "every source domain with the same weight",
        "participating": "every row with the same weight",
    }
    shown = [f"{heading}: {meanings[heading]}" for heading in table.source_columns]
    if not shown:
        return []
    return [f"On validation rows of the domains that took part, in the same rounds: {'; '.join(shown)}."]


def _difference_notes(table: ResultTable) -> list[str]:
    of = [line.difference for line in table.lines if line.difference is not None]
    if table.baseline is None:
        return ["fedavg was not run, so no differences are shown."]
    if not of:
        return []
    notes = []
    enough = [d.n for d in of if d.n >= MIN_UNITS]
    what = f"vs {table.baseline}: {table.noun} minus {table.baseline} on the same (held-out domain, seed) pairs"
    if enough:
        notes.append(f"{what}; interval and p over {_range(enough, 'domain')}.")
    else:
        notes.append(f"{what}; an interval and a verdict need {MIN_UNITS} shared domains.")
    corrected = [d for d in of if d.p_holm is not None]
    if len(corrected) > 1:
        families = [
            sum(line.difference is not None and line.reference is reference for line in table.lines)
            for reference in (False, True)
        ]
        counts = " and ".join(
            f"{n} {what}" for n, what in zip(families, (f"{table.noun}s", "references"), strict=True) if n > 1
        )
        notes.append(f"interval, p and verdict are Holm-corrected over {counts or 'one comparison each'}.")
    if any(d.verdict == "no difference beyond chance" and d.detectable is not None for d in of):
        notes.append("could find: the smallest true difference that this bench finds in 4 of 5 cases (80 % power).")
    notes += _needed_notes(table)
    if any(d.verdict in ("better", "worse") for d in of):
        notes.append(SHARED_TRAINING_NOTE)
    return notes


def _needed_notes(table: ResultTable) -> list[str]:
    """What would be needed to say more of the method that looks best and is within chance."""
    open_ = [
        line
        for line in table.lines
        if line.difference is not None and line.difference.needed and not line.reference and line.finite
    ]
    if not open_:
        return []
    sign = 1 if table.higher_is_better else -1
    first = max(open_, key=lambda line: sign * line.difference.mean if line.difference is not None else 0.0)
    return [f"{first.algorithm}: {first.difference.needed}"] if first.difference is not None else []


def _settings_notes(table: ResultTable) -> list[str]:
    """Return one sentence on whether a verdict is about tuned settings or about defaults."""
    if any(line.chosen.startswith("tuned") for line in table.lines):
        rest = [line.algorithm for line in table.lines if not line.chosen.startswith("tuned")]
        untuned = f"; not tuned: {listed(rest)}" if rest else ""
        return [f"settings: tuned for each held-out domain on its sources alone{untuned}."]
    if table.baseline is not None and len(table.lines) > 1:
        return ["settings: defaults or as given, never tuned; a verdict is about these settings."]
    return []


def _gap_notes(table: ResultTable) -> list[str]:
    notes: dict[str, list[str]] = {}
    diverged = []
    for line in table.lines:
        gaps = [f"{line.failed} failed"] * bool(line.failed) + [f"{line.missing} missing"] * bool(line.missing)
        have = sum(s is not None for s in line.domains.values())
        if gaps:
            text = f"of {plural(line.runs + line.failed + line.missing, 'run')} {listed(gaps)}"
            if have < len(table.domains):
                text += f"; results on {have} of {len(table.domains)} domains, so its mean does not compare"
            notes.setdefault(f"{text}.", []).append(line.algorithm)
        if line.overall is not None and not line.finite:
            bad = [d for d, s in line.domains.items() if s is not None and not math.isfinite(s.mean)]
            diverged.append(f"{line.algorithm} diverged on {_some(bad)}: its {table.metric} is not a finite number.")
    return [*(f"{listed(of)}: {text}" for text, of in notes.items()), *diverged]


def _span(counts: list[int]) -> str:
    return str(counts[0]) if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}"


def _some(names: list[str]) -> str:
    return listed(names) if len(names) <= 6 else f"{', '.join(names[:5])} and {len(names) - 5} more"


def _range(counts: list[int], noun: str) -> str:
    return plural(counts[0], noun) if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)} {noun}s"
