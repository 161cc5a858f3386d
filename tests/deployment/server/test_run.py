"""A whole run of the server with its sites in this process: what its operator hears, and what the result says."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from farfield.deployment.audit.compare import compare
from farfield.deployment.audit.verify import verify
from farfield.deployment.federation_file import FederationFile
from farfield.deployment.server.run import serve
from tests.deployment.sites_in_process import NAMES, Sites

ROUNDS = 4


class FadingSites(Sites):
    """Sites of which one does not answer any phase from some round on."""

    lost_from = ROUNDS + 1
    lost_node = 3

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        for message in messages:
            header = message.content.config_records["header"]
            if int(header.get("round", 0)) >= self.lost_from:  # type: ignore[arg-type]
                self.silent.add(self.lost_node)
        return super().push_messages(messages)


def run(folder: Path, federation: FederationFile, lost_from: int) -> tuple[FadingSites, Path, list[dict[str, Any]]]:
    asked = federation.model_copy(update={"algorithm": "fedavg", "rounds": ROUNDS, "deadline": 1.5})
    sites = FadingSites(folder, asked)
    sites.lost_from = lost_from
    out = folder / "out"
    (out / "flower").mkdir(parents=True)
    settings = {
        "federation": asked.model_dump(mode="json"),
        "run": "the-run",
        "wait": 10.0,
        "start": "s",
        "pid": os.getpid(),
        "names": dict(enumerate(NAMES, 1)),
    }
    (out / "flower" / "server.json").write_text(json.dumps(settings))
    serve(sites, out)  # type: ignore[arg-type]
    rows = [json.loads(line) for line in (out / "flower" / "activity.jsonl").read_text().splitlines()]
    return sites, out, rows


def of(rows: list[dict[str, Any]], kind: str) -> list[str]:
    return [row["text"] for row in rows if row["kind"] == kind]


@pytest.mark.slow
def test_a_run_in_which_a_site_falls_silent_is_told_recorded_and_written_on_the_card(
    tmp_path: Path, federation: FederationFile
) -> None:
    _, out, rows = run(tmp_path, federation, lost_from=3)
    assert of(rows, "failed") == []
    late = "site 'cedar': no reply within the deadline of 1.5 s"
    assert of(rows, "problem")[:2] == [f"round 3, train: {late}", f"round 3, evaluate: {late}"]
    told, done = (
        next(n for n, row in enumerate(rows) if row["kind"] == kind and row["text"].startswith("round 3"))
        for kind in ("problem", "round")
    )
    assert told < done, "it is told when it happens, not when the round is over"
    assert [row["sites"] for row in rows if row["kind"] == "round"] == [
        "all 3 sites",
        "all 3 sites",
        "amber, birch; without cedar",
        "amber, birch; without cedar",
    ]
    assert of(rows, "summary") == [
        "took part: amber, birch in all 4 rounds; cedar in 2 of 4 rounds",
        "dropped replies of cedar: 2 × no reply within the deadline of 1.5 s, 2 × no figure for the validation",
    ]
    result = json.loads((out / "run" / "result.json").read_text())
    (lost,) = result["lost"]
    assert (lost["name"], lost["asked"], lost["took_part"], lost["lost_rounds"]) == ("cedar", 4, 2, [3, 4])
    card = " ".join((out / "README.md").read_text().split())
    assert "**Read with care.** Replies were lost: cedar took part in 2 of 4 rounds" in card


def test_a_run_that_lost_nothing_says_nothing_of_losses(tmp_path: Path, federation: FederationFile) -> None:
    _, out, rows = run(tmp_path, federation, lost_from=ROUNDS + 1)
    assert of(rows, "problem") == []
    assert of(rows, "summary") == ["took part: amber, birch, cedar in all 4 rounds", "no reply was dropped"]
    assert json.loads((out / "run" / "result.json").read_text())["lost"] == []
    assert "Read with care" not in (out / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("lost_from", [3, ROUNDS + 1])
def test_both_sides_of_a_run_have_the_same_messages_in_their_audit_logs(
    tmp_path: Path, federation: FederationFile, lost_from: int
) -> None:
    _, out, _ = run(tmp_path, federation, lost_from)
    server = verify(out / "audit")
    assert server.intact
    for name in NAMES:
        site = verify(tmp_path / name / "audit")
        assert site.intact
        found = compare(server, site)
        silent = name == "cedar" and lost_from == 3
        rounds = 2 if silent else ROUNDS
        phases = [e for e in site.entries if e["kind"] == "sent" and e.get("phase") == "train"]
        assert [entry["round"] for entry in phases] == list(range(1, rounds + 1))
        assert found.problems == []
        assert found.up == sum(entry["kind"] == "sent" for entry in site.entries)
        assert bool(found.notes) == silent
    answered = {e["message"] for e in server.entries if e["kind"] == "received"}
    assert all(e["message"] in answered or e["peer"] == "cedar" for e in server.entries if e["kind"] == "sent")
