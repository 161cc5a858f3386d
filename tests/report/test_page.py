from __future__ import annotations

import re
from dataclasses import replace
from datetime import date
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from farfield.errors import UserError
from farfield.models import NORM_POLICIES
from farfield.report.collect import Sweep
from farfield.report.findings import findings, main_rule
from farfield.report.page import render_report, write_report
from farfield.report.tables import result_table
from tests.report.sweeps import plan, sweep
from tests.report.test_tables import THREE_DOMAINS

DAY = date(2026, 3, 4)
NASTY = "<script>alert('x')</script>"


class Reader(HTMLParser):
    """What a browser would make of the page: elements, and the text of each section."""

    VOID = frozenset({"meta", "link"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.sections: dict[str, str] = {}
        self.open: list[str] = []
        self.section = "header"
        self.feed(page)
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "section":
            self.section = dict(attrs)["id"] or ""
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            before = self.sections.get(self.section, "")
            self.sections[self.section] = " ".join(f"{before} {data}".split())


def page(of: Sweep) -> Reader:
    return Reader(render_report(of, DAY))


def headline(of: Sweep) -> str:
    return " ".join(findings(of, result_table(of, main_rule(of.plan)))).replace("\N{NO-BREAK SPACE}", " ")


def test_the_page_is_one_file_that_asks_for_nothing(tmp_path: Path) -> None:
    path = write_report(sweep(THREE_DOMAINS), tmp_path / "new folder" / "report.html", today=DAY)
    text = path.read_text(encoding="utf-8")
    assert path == tmp_path / "new folder" / "report.html"
    assert [f.name for f in path.parent.iterdir()] == ["report.html"]
    read = Reader(text)
    assert not [tag for tag, _ in read.tags if tag in {"script", "img", "iframe", "object", "base"}]
    links = [(tag, attrs) for tag, attrs in read.tags if attrs.get("src") or attrs.get("href")]
    assert links == [("link", {"rel": "icon", "href": "data:,"})]
    assert not re.search(r"url\((?!#)|@import", text)


def test_a_folder_is_refused_as_a_place_for_the_page(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a folder; name a file"):
        write_report(sweep(THREE_DOMAINS), tmp_path)


def test_the_same_sweep_gives_the_same_page() -> None:
    assert render_report(sweep(THREE_DOMAINS), DAY) == render_report(sweep(THREE_DOMAINS), DAY)


def test_sections_come_in_order() -> None:
    read = page(sweep(THREE_DOMAINS))
    assert list(read.sections)[1:] == [
        *("results", "curves", "differences", "rules", "metrics", "fairness", "cost"),
        *("configuration", "events", "honesty"),
    ]
    assert read.sections["header"].startswith("toy: results on unseen domains toy: results on unseen domains")
    assert "2026-03-04" in read.sections["header"]


def test_the_headline_follows_the_numbers() -> None:
    assert headline(sweep(THREE_DOMAINS)) == (
        "On domains it never saw, fedprox reaches 72.0 % accuracy on average (FedAvg: 70.0 %); "
        "scaffold is worse than FedAvg beyond chance (by 11.0 points). "
        "fedprox does not differ from FedAvg beyond chance."
    )


def test_the_headline_claims_nothing_that_chance_could_do() -> None:
    scores = {a: dict(of) for a, of in THREE_DOMAINS.items()}
    scores["scaffold"] = {"art": [0.61, 0.65], "photo": [0.60, 0.74], "sketch": [0.85, 0.85]}
    assert headline(sweep(scores)) == (
        "On domains it never saw, fedprox reaches 72.0 % accuracy on average (FedAvg: 70.0 %); "
        "no method differs from FedAvg beyond chance."
    )


def test_a_reference_is_never_the_headline() -> None:
    scores: dict[str, Any] = {"erm": {d: [0.99, 0.99] for d in THREE_DOMAINS["fedavg"]}, **THREE_DOMAINS}
    text = headline(sweep(scores))
    assert text.startswith("On domains it never saw, fedprox reaches 72.0 %")
    assert "For reference, not federated: erm 99.0 %." in text


def test_a_regression_is_best_where_its_loss_is_lowest() -> None:
    of = sweep(
        {"fedavg": {"a": [2.0], "b": [3.0], "c": [4.0]}, "fedprox": {"a": [1.0], "b": [1.9], "c": [2.8]}}, "regression"
    )
    assert headline(of) == (
        "On domains it never saw, fedprox has a mean squared error of 1.900 on average "
        "(lower is better; FedAvg: 3.000); "
        "fedprox is better than FedAvg beyond chance (by 1.100). One seed: how much a rerun would vary is not known."
    )
    assert "Left of zero is better than FedAvg." in page(of).sections["differences"]


def test_one_domain_and_one_seed_are_too_few_to_say() -> None:
    of = sweep({"fedavg": {"art": [0.5]}, "fedprox": {"art": [0.75]}})
    assert headline(of) == (
        "On art, which it never saw, fedprox reaches 75.0 % accuracy in its one run (FedAvg: 50.0 %); "
        "there are too few results to say whether any method differs from FedAvg. "
        "One seed: how much a rerun would vary is not known."
    )
    read = page(of)
    assert "one seed: no interval" in read.sections["results"]
    assert "one seed: no band" in read.sections["curves"]
    assert "nothing to be even over" in read.sections["fairness"]


def test_two_domains_are_too_few_for_a_verdict() -> None:
    of = sweep({"fedavg": {"x": [0.5, 0.6], "y": [0.5, 0.6]}, "fedprox": {"x": [0.6, 0.71], "y": [0.6, 0.73]}})
    assert "too few results to say whether any method differs from FedAvg" in headline(of)


def test_without_fedavg_nothing_is_compared() -> None:
    of = sweep({"fedprox": {"x": [0.5, 0.6], "y": [0.5, 0.6]}})
    assert headline(of).endswith("FedAvg was not run, so nothing is compared with it.")
    assert "FedAvg was not run" in page(of).sections["differences"]


def test_fedavg_alone_says_that_it_is_alone() -> None:
    of = sweep({"fedavg": {"x": [0.5, 0.6], "y": [0.5, 0.6]}})
    assert headline(of).endswith("no other federated method was run.")
    assert "there is none to show" in page(of).sections["differences"]


def test_a_diverged_baseline_is_named_as_the_reason() -> None:
    of = sweep({"fedavg": {"x": [None], "y": [1.0]}, "fedprox": {"x": [2.0], "y": [1.0]}}, "regression")
    assert "FedAvg diverged on a held-out domain, so nothing can be compared with it" in headline(of)
    assert "not finite" in page(of).sections["results"]


def test_a_diverged_method_is_not_called_too_few() -> None:
    of = sweep({"fedavg": {"x": [2.0], "y": [1.0]}, "fedprox": {"x": [None], "y": [1.0]}}, "regression")
    assert "fedprox diverged on a held-out domain and cannot be compared." in headline(of)


def test_failed_missing_and_dropped_things_are_named() -> None:
    of = sweep(
        {"fedavg": {"x": [0.5, 0.6], "y": [0.5, 0.6]}, "fedprox": {"x": [0.7, 0.7], "y": []}},
        failures=[
            {"algorithm": "fedprox", "held_out": "y", "seed": 0, "error": "OSError: /home/user/data/x.npy <b>gone</b>"}
        ],
        events=[
            {"algorithm": "fedprox", "held_out": "x", "seed": 0, "kind": "reply-dropped", "round": r}
            | {"message": "'update' is not finite", "phase": "train", "client": 1}
            for r in (3, 5)
        ],
        missing=1,
        looks=7,
    )
    read = page(of)
    assert "2 of 8 runs have no result: read this as provisional." in read.sections["header"]
    assert "OSError: …/x.npy <b>gone</b>" in read.sections["events"]
    assert "1 run not started: fedprox, y held out, seed 1." in read.sections["events"]
    assert "reply-dropped train 'update' is not finite 2 3 to 5" in read.sections["events"]
    assert "7 times, this one included." in read.sections["honesty"]
    assert "6 of 8 have a result; 1 failed or did not finish; 1 missing." in read.sections["honesty"]
    assert "/home/user" not in render_report(of, DAY)
    assert str(of.folder) not in render_report(of, DAY)


def test_a_quiet_bench_says_that_nothing_happened() -> None:
    events = page(sweep(THREE_DOMAINS)).sections["events"]
    assert "No run failed." in events
    assert "No reply was dropped and no round was skipped." in events


def test_a_sweep_without_results_is_a_page_that_says_so() -> None:
    read = page(replace(sweep(THREE_DOMAINS), rows=[], curves=[], missing=18))
    assert "No run has finished, so there is nothing to report yet." in read.sections["header"]
    assert "there is no curve" in read.sections["curves"]
    assert "18 runs not started" in read.sections["events"]


def test_names_are_shown_and_never_run() -> None:
    of = sweep({"fedavg": {NASTY: [0.5], "y": [0.6]}, NASTY: {NASTY: [0.5], "y": [0.7]}}, task=NASTY)
    read = page(of)
    assert not [tag for tag, _ in read.tags if tag == "script"]
    for section in ("header", "results", "curves", "differences", "configuration"):
        assert "<script>alert" in read.sections[section]


def test_the_oracle_is_labelled_wherever_it_is_named() -> None:
    read = page(sweep(THREE_DOMAINS))
    assert "oracle (looks at the held-out domain) Best on the held-out domain itself" in read.sections["rules"]
    assert "a ceiling, not a result" in read.sections["rules"]
    for name, text in read.sections.items():
        named = re.findall(r"(?<!The )oracle(?! \(looks at the held-out domain\))", text)
        assert not named, name


def test_a_bench_with_the_oracle_alone_is_not_reported_as_honest() -> None:
    of = sweep(THREE_DOMAINS, rules=["oracle"])
    assert main_rule(of.plan) == "oracle"
    assert "chosen by looking at the held-out domain: a ceiling, not a result" in headline(of)
    assert "This bench chose by one rule only." in page(of).sections["rules"]


def test_the_main_rule_does_not_peek_when_another_is_there() -> None:
    assert main_rule(plan(["fedavg"], ["x"], [0], rules=["oracle", "last"])) == "last"
    assert main_rule(plan(["fedavg"], ["x"], [0], rules=["oracle", "last", "source-validation"])) == "source-validation"


def test_the_configuration_says_what_an_unseen_client_uses() -> None:
    text = page(sweep(THREE_DOMAINS)).sections["configuration"]
    assert f"Norm policy average : {NORM_POLICIES['average']}" in text
    assert "lr 0.1 batch_size 32" in text
    assert "method mu fedavg – fedprox 0.01 scaffold –" in text
    assert "clients in a round all" in text


def test_versions_are_given_and_the_machine_is_not() -> None:
    text = page(sweep(THREE_DOMAINS)).sections["honesty"]
    assert re.search(r"Page written by farfield \S+, torch \S+, Python 3\.\d+\.\d+$", text)


def test_every_plot_is_labelled_and_ids_are_unique() -> None:
    read = page(sweep(THREE_DOMAINS))
    ids = [attrs["id"] for _, attrs in read.tags if attrs.get("id")]
    assert len(ids) == len(set(ids))
    plots = [attrs for tag, attrs in read.tags if tag == "svg"]
    assert len(plots) == 3
    for attrs in plots:
        assert attrs["role"] == "img"
        assert set((attrs["aria-labelledby"] or "").split()) <= set(ids)
