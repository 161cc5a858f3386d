"""The estimate for a new site leaves out what is too thin, and a gain over prior is told from nothing learned."""

from __future__ import annotations

from dataclasses import replace

from farfield.diagnose.data_summary import DataSummary, DomainSummary
from farfield.protocol.new_site import NewSiteEstimate, Refusal
from farfield.report.collect import Sweep
from farfield.report.findings import answer
from farfield.report.new_site import estimate, new_site_sentences
from farfield.report.tables import result_table
from tests.report.sweeps import sweep

RULE = "source-validation"


def ranked(events: dict[str, int]) -> Sweep:
    """A bench of FedAvg led by AUROC, with so many events in each site of 100 rows."""
    made = sweep({"fedavg": {site: [0.9] for site in events}}, metric="auroc")
    for number, row in enumerate(made.rows):
        for chosen in row["selection"].values():
            chosen["auroc"] = 0.6 + 0.05 * number
    domains = tuple(DomainSummary(name=site, rows=100, counts=(100 - n, n)) for site, n in events.items())
    data = DataSummary(
        task="toy", kind="classification", classes=("no", "yes"), domains=domains, shape=(8,), columns=None, held_out=()
    )
    return replace(made, data=data)


def test_sites_with_few_events_are_left_out_of_the_estimate_of_auroc_and_named() -> None:
    made = ranked({"a": 20, "b": 20, "c": 20, "d": 20, "thin": 3})
    table = result_table(made, RULE)
    found = estimate(made, table, table.lines[0])
    assert isinstance(found, NewSiteEstimate)
    assert found.domains == 4
    assert abs(found.mean - (0.6 + 0.65 + 0.7 + 0.75) / 4) < 1e-12
    assert new_site_sentences(made, table, table.lines[0])[-1] == (
        "Left out of the estimate, with fewer than 10 rows of a class: thin."
    )


def test_too_many_thin_sites_are_refused_and_not_averaged() -> None:
    made = ranked({"a": 20, "b": 20, "c": 20, "d": 9, "thin": 3})
    table = result_table(made, RULE)
    found = estimate(made, table, table.lines[0])
    assert isinstance(found, Refusal)
    assert "d and thin have fewer than 10 rows of a class, too few for AUROC" in found.sentence


def test_a_gain_over_prior_that_few_domains_cannot_show_is_told_from_nothing_learned() -> None:
    gain = sweep({"fedavg": {"a": [0.80], "b": [0.75], "c": [0.60]}, "prior": {"a": [0.3], "b": [0.7], "c": [0.05]}})
    text = " ".join(answer(gain, result_table(gain, RULE)).method)
    assert "on average it is 36.7 points better, but 3 domains that differ so much cannot show it" in text
    nothing = sweep({"fedavg": {"a": [0.5], "b": [0.5], "c": [0.4]}, "prior": {"a": [0.5], "b": [0.6], "c": [0.5]}})
    text = " ".join(answer(nothing, result_table(nothing, RULE)).method)
    assert "beyond chance: do not rely on it." in text
