"""What a site's app answers, and what it does not."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

from flwr.app import Message

from farfield.deployment.federation_file import FederationFile
from farfield.deployment.manifest.manifest import make_manifest
from farfield.deployment.server.joining import JoinedSites
from farfield.deployment.site.client_app import FAILED
from farfield.deployment.site.data import open_site
from farfield.deployment.site.site_file import read_site
from farfield.federation.flower.assignment import Assignment
from farfield.federation.flower.packing import pack, unpack
from farfield.models import ModelSpec
from tests.deployment.sites_in_process import Sites, ask, context, together


def assignment(sites: Sites, made: JoinedSites, **changes: Any) -> Assignment:
    content = {
        "run": "r",
        "algorithm": "scaffold",
        "settings": make_settings(sites),
        "rounds": 2,
        "model": made.agreed.model,
        "seed": 0,
        "data": {"schema": made.agreed.model_dump(mode="json"), "fitted": None},
    }
    return Assignment(**{**content, **changes})


def make_settings(sites: Sites) -> dict[str, Any]:
    data = open_site(read_site(sites.folder / "amber"))
    return make_manifest(sites.federation, schema=data.schema, spec=None, role="train").settings


def phase(sites: Sites, given: Assignment, phase: str = "train", round: int = 1) -> str:
    """The problem that a site answers a phase's message with."""
    header = {
        "run": given.run,
        "round": round,
        "attempt": "a",
        "phase": phase,
        "client": "amber",
        "skipped": [],
        "travelling": False,
        "mark": "m",
        "accepted": "",
        "assignment": given.model_dump_json(),
    }
    message = Message(pack(header, {"model": {}, "shared": {}}), 1, "query.farfield")
    message.metadata.__dict__["_message_id"] = str(uuid.uuid4())
    reply, _ = unpack(sites.apps[1](message, context()).content)
    assert reply["detail"] == ""
    return str(reply["problem"])


def test_a_site_does_nothing_that_was_not_approved(tmp_path: Path, federation: FederationFile) -> None:
    sites = Sites(tmp_path, federation)
    made, _ = together(sites)
    fine = assignment(sites, made)
    assert "'fedavg'" in phase(sites, fine.model_copy(update={"algorithm": "fedavg"}))
    assert "the seed 0, and the server asks for 7" in phase(sites, fine.model_copy(update={"seed": 7}))
    assert "asks for 3" in phase(sites, fine.model_copy(update={"rounds": 3}))
    assert "round 5 of 2" in phase(sites, fine, round=5)
    assert "head_gradient" in phase(sites, fine, phase="head_gradient")
    huge = ModelSpec(**{**made.agreed.model.model_dump(), "hidden": (4096, 4096)})
    assert "model.hidden" in phase(sites, fine.model_copy(update={"model": huge}))
    assert "batch_size" in phase(sites, fine.model_copy(update={"settings": {**fine.settings, "batch_size": 1}}))
    _, problem = ask(sites, 1, "statistics", {"schema": fine.data["schema"], "seed": 5})
    assert "the seed 0, and the server asks for 5" in problem
    _, problem = ask(sites, 1, "measure", {"assignment": fine.model_dump(mode="json")})
    assert "trains, and does not measure" in problem


def test_what_goes_wrong_at_a_site_says_nothing_of_its_rows(tmp_path: Path, federation: FederationFile) -> None:
    """A schema that does not fit makes the reader complain of cells and paths; the server hears neither."""
    sites = Sites(tmp_path, federation)
    made, _ = together(sites)
    strange = {**made.agreed.model_dump(mode="json"), "classes": ["0", "1"]}
    value, problem = ask(sites, 1, "statistics", {"schema": strange, "seed": 0})
    assert (value, problem) == (None, FAILED)
    assert phase(sites, assignment(sites, made, data={"schema": strange, "fitted": None})) == FAILED
    told = [row["text"] for row in _rows(tmp_path / "amber") if row["kind"] == "refused"]
    assert any("class '2'" in text for text in told), "its operator reads it all"


def _rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "activity.jsonl").read_text().splitlines()]


def test_a_site_hears_only_notices_that_it_knows(tmp_path: Path, federation: FederationFile) -> None:
    sites = Sites(tmp_path, federation)
    assert ask(sites, 1, "notice", {"kind": "finished", "text": "done"}) == (True, "")
    _, problem = ask(sites, 1, "notice", {"kind": "phase", "text": "\x1b[2J"})
    assert "does not know that kind of notice" in problem
    assert sites.notices("amber") == ["done"]
