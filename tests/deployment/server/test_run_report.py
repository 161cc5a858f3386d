"""What the operator of a server hears of a run: losses as they happen, who took part, progress, a summary."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from farfield.algorithms import FedAvg
from farfield.deployment.server.run_report import NAMED, RunReport, summary_lines
from farfield.federation import SCALAR, Client, Sends, phase
from farfield.federation.engines.local import LocalFederation
from farfield.federation.federation import Event
from farfield.federation.phase import Named
from farfield.models import Model
from farfield.records import RunFolder
from farfield.records.participation import loss_sentences, participation
from farfield.runs.plan import Job
from farfield.runs.rounds import Rounds, Schedule
from tests.toy import domains, federation, initial, lose


class Heard:
    """The rows of an activity log."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def __call__(self, kind: str, text: str, **facts: Any) -> None:
        self.rows.append({"kind": kind, "text": text, **facts})

    def of(self, kind: str) -> list[str]:
        return [row["text"] for row in self.rows if row["kind"] == kind]


def rounds_of(fed: LocalFederation, folder: Path, report: RunReport, rounds: int, cohort: int | None = None) -> Rounds:
    records = RunFolder(folder)
    records.create({"rounds": rounds})
    return Rounds(
        Job("fedavg", None, 0),
        Schedule(rounds, 1, 1, cohort, "classification"),
        records,
        FedAvg(),
        fed,
        {0: "a", 1: "b", 2: "c"},
        engine="local",
        watch=report.on_progress,
    )


def test_a_run_without_losses_has_one_line_per_round_and_says_that_all_took_part(tmp_path: Path) -> None:
    heard = Heard()
    with federation(FedAvg(), domains(3)) as fed, RunReport(heard, fed, 3) as report:
        rounds = rounds_of(fed, tmp_path, report, 3)
        result = rounds.to_the_end(FedAvg().start(initial().state()))
    assert heard.of("round") == ["round 1 of 3", "round 2 of 3", "round 3 of 3"]
    assert [row["sites"] for row in heard.rows] == ["all 3 sites"] * 3
    assert heard.rows[0]["left"] >= 0
    assert heard.rows[-1]["left"] == 0
    assert heard.of("problem") == []
    assert (result["lost"], result["skipped_rounds"]) == ([], 0)
    assert summary_lines(rounds.participation(everyone=True)) == [
        "took part: a, b, c in all 3 rounds",
        "no reply was dropped",
    ]


def test_a_lost_reply_is_told_with_its_site_and_counted_to_the_end(tmp_path: Path) -> None:
    heard = Heard()
    with federation(FedAvg(), domains(3)) as fed:
        lose(fed, {"train": {1}, "evaluate": {2}})
        with RunReport(heard, fed, 4) as report:
            rounds = rounds_of(fed, tmp_path, report, 4)
            result = rounds.to_the_end(FedAvg().start(initial().state()))
    assert heard.of("problem")[:2] == ["round 1, train: site 'b': lost", "round 1, evaluate: site 'c': lost"]
    assert heard.of("problem")[2:] == [
        "round 4, train: site 'b': lost (the same 3 more times)",
        "round 4, evaluate: site 'c': lost (the same 3 more times)",
    ]
    assert heard.rows[2]["sites"] == "a, c; without b", "what validates is not what trains"
    assert summary_lines(rounds.participation(everyone=True)) == [
        "took part: a, c in all 4 rounds; b in 0 of 4 rounds",
        "dropped replies of b: 4 × lost",
        "dropped replies of c: 4 × no figure for the validation",
    ]
    by_name = {entry["name"]: entry for entry in result["lost"]}
    assert (by_name["b"]["took_part"], by_name["b"]["asked"], by_name["b"]["dropped"]) == (0, 4, {"lost": 4})
    assert loss_sentences(result["lost"]) == [
        "Replies were lost: b took part in 0 of 4 rounds (4 times: lost). "
        "The model is not the one that all would make.",
        "The validation lacks replies of c in some rounds.",
    ]


def test_a_round_without_a_quorum_counts_for_nobody(tmp_path: Path) -> None:
    heard = Heard()
    with federation(FedAvg(), domains(3), quorum=1.0) as fed:
        reach = fed._outcomes

        def outcomes(phase: str, *rest: Any) -> Any:
            for outcome in reach(phase, *rest):
                if phase == "train" and fed._round == 2 and outcome.client == 0:
                    outcome.problem = "lost"
                yield outcome

        fed._outcomes = outcomes  # type: ignore[method-assign]
        with RunReport(heard, fed, 3) as report:
            rounds = rounds_of(fed, tmp_path, report, 3)
            result = rounds.to_the_end(FedAvg().start(initial().state()))
    assert [row["sites"] for row in heard.rows if row["kind"] == "round"] == [
        "all 3 sites",
        "did not count",
        "all 3 sites",
    ]
    assert result["skipped_rounds"] == 1
    assert summary_lines(rounds.participation(everyone=True))[0] == "took part: a, b, c in 2 of 3 rounds"
    assert "1 round did not count" in loss_sentences(result["lost"], result["skipped_rounds"])[-1]


def test_a_part_of_the_sites_is_named_and_counted_by_the_rounds_that_it_was_asked_in(tmp_path: Path) -> None:
    heard = Heard()
    with federation(FedAvg(), domains(3)) as fed, RunReport(heard, fed, 6) as report:
        rounds = rounds_of(fed, tmp_path, report, 6, cohort=2)
        rounds.to_the_end(FedAvg().start(initial().state()))
        counted = rounds.participation(everyone=True)
    named = [row["sites"].split(", ") for row in heard.rows if row["kind"] == "round"]
    assert all(len(names) == 2 for names in named)
    for share in counted.shares.values():
        assert share.asked == share.took_part == sum(share.name in names for names in named)
    assert sum(share.asked for share in counted.shares.values()) == 12


class Waits(FedAvg):
    """Client 1 answers when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.go, self.began = threading.Event(), threading.Event()

    @phase(number=Sends(SCALAR, "the client's number"))
    def answer(self, client: Client, model: Model) -> Named:
        if client.id == 1:
            self.began.set()
            assert self.go.wait(60)
        return {"number": client.id}


def test_within_a_round_it_is_told_who_has_answered_and_who_is_awaited() -> None:
    heard, algorithm = Heard(), Waits()
    now = [0.0]
    with federation(algorithm, domains(3)) as fed:
        report = RunReport(heard, fed, 9, clock=lambda: now[0])
        fed.begin(4, [0, 1, 2])
        asking = threading.Thread(target=fed.map, args=(algorithm.answer, initial().state()))
        asking.start()
        assert algorithm.began.wait(60)
        assert fed.asking is not None
        began = fed.asking.since
        told_after = []
        for second in range(70):
            now[0] = began + second
            report.look()
            told_after += [second] * (len(heard.rows) - len(told_after))
        algorithm.go.set()
        asking.join(60)
        now[0] += 100
        report.look()
    assert told_after == [1, 31, 61], "a phase in which nothing changes is told now and then"
    first = heard.rows[0]
    assert (first["phase"], first["answered"], first["asked"], first["waiting"]) == ("answer", 1, 3, "b, c")
    assert first["text"].startswith("round 4 of 9, answer: 1 of 3 sites have answered after ")
    assert len(heard.rows) == 3, "nothing is told of a phase that is over"


def test_what_the_engine_of_a_deployment_tells_itself_is_not_told_again() -> None:
    heard = Heard()
    with federation(FedAvg(), domains(3)) as fed, RunReport(heard, fed, 9):
        for kind in ("site-left", "site-returned", "site-removed", "site-refused"):
            fed.events.append(Event(kind, 2, f"{kind}: said by the engine"))
        fed.events.append(Event("damaged", 2, "a checkpoint was damaged"))
    assert [row["text"] for row in heard.rows] == ["round 2: a checkpoint was damaged"]


@pytest.mark.parametrize("sites", [11, 200])
def test_the_summary_of_many_sites_stays_short(sites: int) -> None:
    rows = [{"round": 1, "clients": sites}]
    events = [
        {"kind": "reply-dropped", "round": 1, "client": c, "phase": "train", "message": f"problem {c}"}
        for c in range(sites)
    ]
    counted = participation(rows, events, lambda client: f"site-{client}", range(sites))
    lines = summary_lines(counted)
    assert len(lines) <= NAMED + 2
    assert all(len(line) < 400 for line in lines)
    assert lines[-1] == f"dropped replies of {sites - NAMED} more sites: {sites - NAMED} in all"


def test_reasons_that_a_site_invents_are_bounded_in_the_result() -> None:
    events = [
        {"kind": "reply-dropped", "round": 1, "client": 0, "phase": "train", "message": f"{n} {'x' * 5000}"}
        for n in range(1000)
    ]
    (entry,) = participation([{"round": 1}], events, str).to_rows()
    assert len(entry["dropped"]) == 6
    assert sum(entry["dropped"].values()) == 1000
    assert max(map(len, entry["dropped"])) <= 200
