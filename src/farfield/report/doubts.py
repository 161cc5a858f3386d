"""Why a result may be doubtful: what the headline itself must say, one sentence per reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farfield.diagnose.data_summary import together
from farfield.protocol.selection import RULES
from farfield.report.collect import Sweep
from farfield.report.diagnosis_section import diagnosis_doubts
from farfield.report.formats import listed, metric_label, plural, public
from farfield.report.lost_replies import loss_doubts
from farfield.report.result_table import ResultTable
from farfield.tasks.note_prefixes import QUICK_LOOK, is_leak

#: From this share of one class on, accuracy says little.
COMMON = 0.75
#: From this share on, one class has nearly all rows of a domain.
ALMOST_ALL = 0.9
#: With fewer rows of the rarer class (or fewer rows at all), a domain's figures are rough.
FEW_EVENTS = 10
FEW_ROWS = 30
FEW_DOMAINS = 4
FEW_SEEDS = 3
#: Names in one sentence.
_NAMED = 4


def doubts(sweep: Sweep, table: ResultTable) -> list[str]:
    """Return the reasons to read the answer with care: gaps, leaks, imbalance, too few rows, domains or seeds."""
    found = [*gaps(sweep), *loss_doubts(sweep)]
    if RULES[table.rule].is_oracle:
        found.append("Rounds were chosen by looking at the held-out domain: a ceiling, not a result.")
    notes = sweep.plan.get("notes", ())
    found += [f"{public(note[:1].upper() + note[1:])}." for note in notes if note.startswith(QUICK_LOOK)]
    found += [public(note) for note in sweep.plan.get("notes", ()) if is_leak(note)]
    found += diagnosis_doubts(sweep)
    found += _imbalance(sweep, table)
    found += _one_answer(sweep, table)
    found += _few_rows(sweep, table)
    found += _lacking_classes(sweep, table)
    if 1 < len(table.domains) < FEW_DOMAINS:
        found.append(
            f"{len(table.domains)} held-out domains say little about a new one; from {FEW_DOMAINS} on a range is given."
        )
    if len(table.seeds) == 1:
        found.append("One seed: how much a rerun would vary is not known.")
    elif len(table.seeds) < FEW_SEEDS:
        found.append(f"{len(table.seeds)} seeds: how much a rerun would vary is hardly known.")
    return found


def gaps(sweep: Sweep) -> list[str]:
    """Say how much of an unfinished bench is there."""
    sentence = sweep.completeness.sentence
    return [sentence] if sentence else []


def _imbalance(sweep: Sweep, table: ResultTable) -> list[str]:
    if sweep.data is None or not sweep.data.classes or table.metric not in ("accuracy", "loss"):
        return []
    whole = together(sweep.data.domains, "all")
    most = max(whole.counts)
    if most < COMMON * whole.rows:
        return _unlike_domains(sweep, table)
    name = public(sweep.data.classes[whole.counts.index(most)])
    other = "auroc" if len(sweep.data.classes) == 2 else "balanced_accuracy"
    label = metric_label(table.metric, table.kind)
    return [
        f"{100 * most / whole.rows:.0f} % of the rows are of class '{name}', so {label} "
        f"says little: read {metric_label(other, table.kind)} too (--metric {other})."
    ]


def _unlike_domains(sweep: Sweep, table: ResultTable) -> list[str]:
    """Name the held-out domains in which one class has nearly all rows, though all domains together are balanced."""
    assert sweep.data is not None
    there = [domain for domain in sweep.data.domains if domain.name in table.domains]
    alone = {d.name: max(d.counts) / d.rows for d in there if max(d.counts) >= ALMOST_ALL * d.rows}
    if not alone:
        return []
    named = [f"{public(name)} ({100 * share:.0f} %)" for name, share in list(alone.items())[:_NAMED]]
    other = "auroc" if len(sweep.data.classes) == 2 else "balanced_accuracy"
    return [
        f"One class has nearly all rows of {listed(named)}: {metric_label(table.metric, table.kind)} there says "
        f"little, so read {metric_label(other, table.kind)} too (--metric {other})."
    ]


def _one_answer(sweep: Sweep, table: ResultTable) -> list[str]:
    """Name the methods that give every row of every held-out domain the same one of two classes."""
    if sweep.data is None or len(sweep.data.classes) != 2:
        return []
    found = []
    for line in table.lines:
        chosen = [row["selection"].get(table.rule, {}) for row in sweep.rows if row["algorithm"] == line.algorithm]
        values = [of.get("balanced_accuracy") for of in chosen]
        both = [value for value, of in zip(values, chosen, strict=True) if "auroc" in of]
        if both and all(value == 0.5 for value in both) and not line.reference:
            found.append(line.algorithm)
    if not found:
        return []
    verb = "calls" if len(found) == 1 else "call"
    return [
        f"At the usual threshold of one half {listed(found)} {verb} every row the same class: choose a threshold by "
        "the decision curves (predict --threshold), or train with class_weights=balanced."
    ]


def _few_rows(sweep: Sweep, table: ResultTable) -> list[str]:
    """Name the held-out domains whose own figures rest on few rows."""
    if sweep.data is None:
        return []
    thin: dict[str, str] = {}
    for domain in sweep.data.domains:
        if domain.name not in table.domains:
            continue
        rarer = min(domain.counts) if len(domain.counts) == 2 else None
        if domain.rows < FEW_ROWS:
            thin[domain.name] = plural(domain.rows, "row")
        elif rarer == 0:
            absent = sweep.data.classes[domain.counts.index(0)]
            thin[domain.name] = f"no row of class '{public(absent)}'"
        elif rarer is not None and rarer < FEW_EVENTS:
            thin[domain.name] = f"{plural(rarer, 'row')} of the rarer class"
    if not thin:
        return []
    named = [f"{name} ({why})" for name, why in list(thin.items())[:_NAMED]]
    more = [f"{len(thin) - _NAMED} more"] if len(thin) > _NAMED else []
    return [f"The figures of {listed([*named, *more])} rest on few rows and are rough."]


def _lacking_classes(sweep: Sweep, table: ResultTable) -> list[str]:
    """Name the held-out domains that lack classes, where the metric is a mean over the classes that are there."""
    if sweep.data is None or table.metric not in ("balanced_accuracy", "macro_f1", "auroc", "average_precision"):
        return []
    there = [domain for domain in sweep.data.domains if domain.name in table.domains and len(domain.counts) > 2]
    lacking = {d.name: sum(count > 0 for count in d.counts) for d in there if 0 in d.counts}
    if not lacking:
        return []
    named = [f"{public(name)} ({have} of {len(sweep.data.classes)})" for name, have in list(lacking.items())[:_NAMED]]
    more = [f"{len(lacking) - _NAMED} more"] if len(lacking) > _NAMED else []
    return [
        f"Only some of the classes are in {listed([*named, *more])}: {metric_label(table.metric, table.kind)} is "
        "easier there than where all classes are."
    ]


def tuned_text(plan: Mapping[str, Any], labels: list[str]) -> str:
    """Say whether the settings behind a verdict were tuned, and by how many trials."""
    tuned = plan.get("tuned") or {}
    having = [label for label in labels if label in tuned]
    if not having:
        return "All settings are defaults or were given by hand: none was tuned, so a tuned method can rank elsewhere."
    trials = sorted({int(tuned[label].get("trials", 0)) for label in having})
    count = plural(trials[0], "trial") if len(trials) == 1 else f"{trials[0]} to {trials[-1]} trials"
    if len(having) == len(labels):
        return f"Settings were tuned with {count} per method, by source data alone."
    rest = [label for label in labels if label not in tuned]
    return f"Tuned with {count}: {listed(having)}; not tuned: {listed(rest)}. The comparison is uneven."
