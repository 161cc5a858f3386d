"""How well a method will do at a new site: the estimate of one line of a result table, in words and as numbers."""

from __future__ import annotations

from farfield.protocol.new_site import MIN_DOMAINS, NewSiteEstimate, Refusal, new_site_estimate
from farfield.report.collect import Sweep
from farfield.report.formats import listed, metric_label, plural, with_unit
from farfield.report.result_table import ResultLine, ResultTable

#: With fewer rows of a class than this, a domain's ranking metrics are rough.
FEW_EVENTS = 10


def estimate(sweep: Sweep, table: ResultTable, line: ResultLine) -> NewSiteEstimate | Refusal:
    """Estimate what a new site will see, from the means over seeds of the held-out domains."""
    values = {domain: of.mean for domain, of in line.domains.items() if of is not None}
    thin = _thin_domains(sweep, table)
    if thin:
        values = {domain: value for domain, value in values.items() if domain not in thin}
        if len(values) < MIN_DOMAINS:
            return Refusal(
                f"no estimate for a new domain: {listed(thin)} {'has' if len(thin) == 1 else 'have'} fewer than "
                f"{FEW_EVENTS} rows of a class, too few for {metric_label(table.metric, table.kind)}, and the other "
                f"{plural(len(values), 'domain')} would not be enough."
            )
    rows = None if sweep.data is None else {domain.name: domain.rows for domain in sweep.data.domains}
    return new_site_estimate(values, rows, table.metric)


def _thin_domains(sweep: Sweep, table: ResultTable) -> list[str]:
    """Return the domains with too few rows of a class for a ranking metric: they are left out, not averaged."""
    if sweep.data is None or table.metric not in ("auroc", "average_precision") or len(sweep.data.classes) != 2:
        return []
    return [d.name for d in sweep.data.domains if d.name in table.domains and 0 < min(d.counts) < FEW_EVENTS]


def new_site_sentences(sweep: Sweep, table: ResultTable, line: ResultLine) -> list[str]:
    """Say what a new site may expect from this method, and where it did worst."""
    found = estimate(sweep, table, line)
    if isinstance(found, Refusal):
        text = found.sentence[:1].upper() + found.sentence[1:]
        return [text, *_measured(table, line)]
    worst = f"{found.worst_domain}, {with_unit(table.metric, found.worst)}"
    sentences = [f"{line.algorithm}, {found.sentence}", f"Its worst held-out domain is {worst}."]
    thin = _thin_domains(sweep, table)
    if thin:
        sentences.append(f"Left out of the estimate, with fewer than {FEW_EVENTS} rows of a class: {listed(thin)}.")
    return sentences


def _measured(table: ResultTable, line: ResultLine) -> list[str]:
    """Without an estimate, what was measured is all there is to say."""
    means = {domain: of.mean for domain, of in line.domains.items() if of is not None}
    label = metric_label(table.metric, table.kind)
    shown = [f"{with_unit(table.metric, value)} on {domain}" for domain, value in list(means.items())[:4]]
    return [f"Measured for {line.algorithm}: {label} {', '.join(shown)}."] if shown else []
