from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from datetime import date
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from farfield.diagnose.data_summary import DataSummary, DomainSummary
from farfield.errors import UserError
from farfield.models import NORM_POLICIES
from farfield.report.collect import Sweep
from farfield.report.findings import findings, main_rule
from farfield.report.page import render_report, write_report
from farfield.report.tables import result_table
from tests.report.sweeps import Scores, plan, sweep
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
        if not {"style", "script"} & set(self.open):
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
    assert not [tag for tag, _ in read.tags if tag in {"img", "iframe", "object", "base"}]
    links = [attrs.get("src") or attrs.get("href") or "" for _, attrs in read.tags]
    assert {link for link in links if link and not link.startswith("#")} == {"data:,"}
    ids = {attrs.get("id") for _, attrs in read.tags}
    assert {link[1:] for link in links if link.startswith("#")} <= ids
    assert not re.search(r"url\((?!#)|@import", text)


def test_a_folder_is_refused_as_a_place_for_the_page(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a folder; name a file"):
        write_report(sweep(THREE_DOMAINS), tmp_path)


def test_the_same_sweep_gives_the_same_page() -> None:
    assert render_report(sweep(THREE_DOMAINS), DAY) == render_report(sweep(THREE_DOMAINS), DAY)


def test_the_policy_allows_the_one_script_by_its_hash_and_nothing_else() -> None:
    text = render_report(sweep(THREE_DOMAINS), DAY)
    policy = next(a["content"] for t, a in Reader(text).tags if a.get("http-equiv") == "Content-Security-Policy")
    script = text[text.rindex("<script>") + len("<script>") : text.rindex("</script>")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in str(policy)
    assert str(policy).startswith("default-src 'none';")
    assert "unsafe-eval" not in str(policy)
    # The data beside it is no script to a browser, and cannot end its element.
    assert text.count("<script") == 2
    assert '<script type="application/json"' in text


def test_sections_come_in_order() -> None:
    read = page(sweep(THREE_DOMAINS))
    assert list(read.sections)[1:] == [
        *("results", "differences", "curves", "metrics", "fairness", "cost"),
        *("configuration", "events", "honesty", "glossary"),
    ]
    assert read.sections["header"].startswith("toy: results on unseen domains Skip to the results toy: results on")
    assert "2026-03-04" in read.sections["header"]


NOT_TUNED = "All settings are defaults or were given by hand: none was tuned, so a tuned method can rank elsewhere."


def test_the_headline_crowns_no_maximum_that_is_within_chance() -> None:
    text = headline(sweep(THREE_DOMAINS))
    assert text.startswith(
        "No method is better than FedAvg beyond chance; FedAvg is the simplest choice, with 70.0 % accuracy on average "
        "on domains it never saw. fedprox has the best mean (72.0 %), 2.0 points better, and chance alone can make "
        "such a difference. This bench finds a true difference of "
    )
    assert "scaffold is worse than FedAvg beyond chance (by 11.0 points)." in text
    assert NOT_TUNED in text
    assert "3 held-out domains are too few to say how a new one will do" in text


def test_a_method_that_is_better_beyond_chance_is_named_with_the_baseline() -> None:
    better = {"art": [0.59, 0.81], "photo": [0.81, 0.81], "sketch": [0.80, 1.0]}
    of = sweep({"fedavg": THREE_DOMAINS["fedavg"], "fedprox": better})
    assert headline(of).startswith(
        "Use fedprox: it reaches 80.3 % accuracy on average on domains it never saw, 10.3 points better than FedAvg "
        "(70.0 %) beyond chance."
    )


def test_four_domains_give_an_estimate_for_a_new_site() -> None:
    of = sweep({"fedavg": {d: [0.6 + 0.05 * i] * 3 for i, d in enumerate("abcd")}})
    text = headline(of)
    assert "FedAvg is the only federated method that was run: 67.5 % accuracy on average" in text
    assert "fedavg, 4 domains: 68 % accuracy on average; a new one is likely to lie between" in text
    assert "Its worst held-out domain is a, 60.0 %." in text
    assert "each dot is a held-out domain" in page(of).sections["header"]


def counted(scores: Scores, counts: dict[str, tuple[int, int]]) -> Sweep:
    """A sweep whose data has so many rows of each class."""
    domains = tuple(DomainSummary(name=d, rows=sum(c), counts=c) for d, c in counts.items())
    data = DataSummary(task="toy", kind="classification", classes=("no", "yes"), domains=domains, shape=(8,))
    return replace(sweep(scores), data=data)


def test_a_method_that_only_knows_the_commonest_class_is_labelled_and_not_recommended() -> None:
    # What always answering 'no' gives on each domain, and what these two methods give.
    counts = {"a": (90, 10), "b": (85, 15), "c": (92, 8), "d": (88, 12)}
    shares = {d: no / (no + yes) for d, (no, yes) in counts.items()}
    scores = {m: {d: [share + step, share - step] for d, share in shares.items()} for m, step in METHOD_STEPS.items()}
    of = counted(scores, counts)
    text = headline(of)
    assert "fedavg is not better than always answering the training domains' commonest class (prior: 88.8 %)" in text
    assert "beyond chance: do not rely on it." in text
    assert "89 % of the rows are of class 'no', so accuracy says little: read AUROC too (--metric auroc)." in text
    table = result_table(of, "last")
    assert table.prior == pytest.approx(sum(shares.values()) / 4)
    assert "fedavg not better than prior beyond chance" in table.markdown()
    assert "not better beyond chance" in page(of).sections["good"]


METHOD_STEPS = {"fedavg": 0.01, "fedprox": 0.02}


def test_a_method_that_beats_the_commonest_class_is_said_to() -> None:
    counts = dict.fromkeys("abcd", (50, 50))
    of = counted({"fedavg": {d: [0.8 + 0.01 * i, 0.82] for i, d in enumerate("abcd")}}, counts)
    expected = "fedavg beats always answering the training domains' commonest class (prior: 50.0 %) beyond chance."
    assert expected in headline(of)


def test_domains_with_few_rows_are_named_in_the_headline() -> None:
    counts = {"a": (95, 5), "b": (10, 12), "c": (50, 50), "d": (60, 40)}
    of = counted({"fedavg": {d: [0.8, 0.82] for d in counts}}, counts)
    expected = "The figures of a (5 rows of the rarer class) and b (22 rows) rest on few rows and are rough."
    assert expected in headline(of)


def test_a_domain_of_one_class_is_named_in_the_headline() -> None:
    counts = {"a": (100, 0), "b": (60, 40), "c": (50, 50), "d": (60, 40)}
    of = counted({"fedavg": {d: [0.8, 0.82] for d in counts}}, counts)
    assert "The figures of a (no row of class 'yes') rest on few rows and are rough." in headline(of)


def test_a_leak_that_was_noted_stands_in_the_headline() -> None:
    notes = [
        "leak? column 'died_at' has values almost only in rows of 'yes'",
        "leakage: 2 files in more than one domain with the same content",
        "domain 'Leake' has 12 rows (one is 8.3 points)",
    ]
    text = headline(sweep(THREE_DOMAINS, notes=notes))
    assert "column 'died_at' has values almost only in rows of 'yes'" in text
    assert "2 files in more than one domain" in text
    assert "Leake" not in text


def test_a_reference_is_never_recommended() -> None:
    scores: dict[str, Any] = {"erm": {d: [0.99, 0.99] for d in THREE_DOMAINS["fedavg"]}, **THREE_DOMAINS}
    text = headline(sweep(scores))
    assert text.startswith("No method is better than FedAvg beyond chance")
    assert "For reference, not federated: erm 99.0 %." in text


def test_a_regression_is_best_where_its_error_is_lowest() -> None:
    of = sweep(
        {"fedavg": {"a": [2.0], "b": [3.0], "c": [4.0]}, "fedprox": {"a": [1.0], "b": [1.9], "c": [2.8]}}, "regression"
    )
    text = headline(of)
    assert text.startswith(
        "Use fedprox: it reaches a root mean squared error of 1.900 on average on domains it never saw, 1.100 better "
        "than FedAvg (3.000) beyond chance."
    )
    assert "One seed: how much a rerun would vary is not known." in text
    assert "Left of zero is better than FedAvg." in page(of).sections["differences"]


def test_one_domain_and_one_seed_are_too_few_to_say() -> None:
    of = sweep({"fedavg": {"art": [0.5]}, "fedprox": {"art": [0.75]}})
    assert headline(of).startswith(
        "There are too few results to say whether any method is better than FedAvg; until there are more, FedAvg is "
        "the simplest choice, with 50.0 % accuracy in its one run on art, which it never saw."
    )
    read = page(of)
    assert "one seed : no interval" in read.sections["results"]
    assert "one seed : no band" in read.sections["curves"]
    assert "nothing to be even over" in read.sections["fairness"]


def test_two_domains_are_too_few_for_a_verdict() -> None:
    of = sweep({"fedavg": {"x": [0.5, 0.6], "y": [0.5, 0.6]}, "fedprox": {"x": [0.6, 0.71], "y": [0.6, 0.73]}})
    assert "too few results to say whether any method is better than FedAvg" in headline(of)
    assert "±" not in page(of).sections["results"].split("mean")[1]


def test_without_fedavg_nothing_is_compared() -> None:
    of = sweep({"fedprox": {"x": [0.5, 0.6], "y": [0.5, 0.6]}})
    assert "FedAvg was not run, so nothing says whether it is better than the simplest method." in headline(of)
    assert "FedAvg was not run" in page(of).sections["differences"]


def test_fedavg_alone_says_that_it_is_alone() -> None:
    of = sweep({"fedavg": {"x": [0.5, 0.6], "y": [0.5, 0.6]}})
    assert headline(of).startswith("FedAvg is the only federated method that was run: 55.0 % accuracy")
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
    assert "6 of 8 runs are done, 1 failed or stopped halfway; 1 of 2" in read.sections["header"]
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
    assert len([tag for tag, _ in read.tags if tag == "script"]) == 2
    for section in ("header", "results", "curves", "differences", "configuration"):
        assert "<script>alert" in read.sections[section]


def test_the_oracle_is_labelled_wherever_it_is_named() -> None:
    read = page(sweep(THREE_DOMAINS))
    assert "oracle (looks at the held-out domain)" in read.sections["results"]
    del read.sections["glossary"]  # and there it is explained
    for name, text in read.sections.items():
        # In the command that repeats the bench it is the name to type.
        named = re.findall(r"(?<!The )(?<!last,)oracle(?! ?\( ?looks at the held-out domain ?\))", text)
        assert not named, name


def test_a_bench_with_the_oracle_alone_is_not_reported_as_honest() -> None:
    of = sweep(THREE_DOMAINS, rules=["oracle"])
    assert main_rule(of.plan) == "oracle"
    assert "chosen by looking at the held-out domain: a ceiling, not a result" in headline(of)


def test_the_main_rule_does_not_peek_when_another_is_there() -> None:
    assert main_rule(plan(["fedavg"], ["x"], [0], rules=["oracle", "last"])) == "last"
    assert main_rule(plan(["fedavg"], ["x"], [0], rules=["oracle", "source-validation", "last"])) == "source-validation"


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
    # two curves per metric (the source domains measured accuracy alone), two against cost, differences
    assert len(plots) == 5
    for attrs in plots:
        assert attrs["role"] == "img"
        assert set((attrs["aria-labelledby"] or "").split()) <= set(ids)


def test_the_command_names_the_task_or_says_what_stands_for_own_data() -> None:
    known = page(sweep(THREE_DOMAINS, task="heart-disease")).sections["configuration"]
    assert (
        "farfield bench heart-disease --algorithms fedavg,fedprox,scaffold --held-out art,photo,sketch --seeds 0,1 "
        "--rounds 20"
    ) in known
    own = page(sweep(THREE_DOMAINS, task="visits")).sections["configuration"]
    assert "farfield bench --data FILE --label COLUMN --domain COLUMN --algorithms fedavg" in own
    assert "FILE and COLUMN stand for your own data" in own


def test_a_domain_of_nearly_one_class_is_named_where_accuracy_leads() -> None:
    counts = {"a": (50, 50), "b": (60, 40), "c": (5, 95), "d": (60, 40)}
    of = counted({"fedavg": {d: [0.8, 0.82, 0.81] for d in counts}}, counts)
    assert "One class has nearly all rows of c (95 %): accuracy there says little, so read AUROC too" in headline(of)


def test_methods_that_call_every_row_the_same_class_are_named() -> None:
    counts = dict.fromkeys("abcd", (90, 10))
    of = counted({m: {d: [0.9, 0.9, 0.9] for d in counts} for m in ("fedavg", "fedprox")}, counts)
    for row in of.rows:
        for chosen in row["selection"].values():
            chosen["balanced_accuracy"] = 0.5 if row["algorithm"] == "fedavg" else 0.6
    expected = "At the usual threshold of one half fedavg calls every row the same class: choose a threshold"
    assert expected in headline(of)


def test_a_part_of_the_rows_stands_in_the_headline() -> None:
    of = sweep(THREE_DOMAINS, notes=["this is a quick look at 200 of 920 rows, drawn by domain and class"])
    assert "This is a quick look at 200 of 920 rows, drawn by domain and class." in headline(of)


def test_domains_that_lack_classes_are_named_where_classes_count_the_same() -> None:
    counts = {"a": (40, 30, 30), "b": (50, 50, 0), "c": (40, 40, 20)}
    domains = tuple(DomainSummary(name=d, rows=sum(c), counts=c) for d, c in counts.items())
    data = DataSummary(task="toy", kind="classification", classes=("x", "y", "z"), domains=domains, shape=(8,))
    made = sweep({"fedavg": {d: [0.8, 0.82, 0.81] for d in counts}}, metric="macro_f1")
    assert "Only some of the classes are in b (2 of 3): macro-F1 is easier there" in headline(replace(made, data=data))
