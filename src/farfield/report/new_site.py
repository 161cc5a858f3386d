"""How well a method will do at a new site: the estimate of one line of a result table, in words and as numbers."""

from __future__ import annotations

from farfield.protocol.new_site import NewSiteEstimate, Refusal, new_site_estimate
from farfield.report.collect import Sweep
from farfield.report.formats import metric_label, with_unit
from farfield.report.result_table import ResultLine, ResultTable


def estimate(sweep: Sweep, table: ResultTable, line: ResultLine) -> NewSiteEstimate | Refusal:
    """Estimate what a new site will see, from the means over seeds of the held-out domains."""
    values = {domain: of.mean for domain, of in line.domains.items() if of is not None}
    rows = None if sweep.data is None else {domain.name: domain.rows for domain in sweep.data.domains}
    return new_site_estimate(values, rows, table.metric)


def new_site_sentences(sweep: Sweep, table: ResultTable, line: ResultLine) -> list[str]:
    """Say what a new site may expect from this method, and where it did worst."""
    found = estimate(sweep, table, line)
    if isinstance(found, Refusal):
        text = found.sentence[:1].upper() + found.sentence[1:]
        return [text, *_measured(table, line)]
    worst = f"{found.worst_domain}, {with_unit(table.metric, found.worst)}"
    return [f"{line.algorithm}, {found.sentence}", f"Its worst held-out domain is {worst}."]


def _measured(table: ResultTable, line: ResultLine) -> list[str]:
    """Without an estimate, what was measured is all there is to say."""
    means = {domain: of.mean for domain, of in line.domains.items() if of is not None}
    label = metric_label(table.metric, table.kind)
    shown = [f"{with_unit(table.metric, value)} on {domain}" for domain, value in list(means.items())[:4]]
    return [f"Measured for {line.algorithm}: {label} {', '.join(shown)}."] if shown else []
