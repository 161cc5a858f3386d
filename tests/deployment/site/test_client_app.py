"""What a site's app answers, and what it does not."""

from __future__ import annotations

import fcntl
import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message

from farfield.deployment.federation_file import FederationFile
from farfield.deployment.manifest.manifest import make_manifest
from farfield.deployment.server.joining import JoinedSites
from farfield.deployment.site.client_app import ANSWERING, FAILED
from farfield.deployment.site.data import open_site
from farfield.deployment.site.site_file import read_site
from farfield.deployment.site.state_file import load_state
from farfield.federation.engines.flower.packing import pack, unpack
from farfield.federation.engines.flower.run_assignment import Assignment
from farfield.federation.refusal import readable
from farfield.models import ModelSpec, build_model
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


def send(
    sites: Sites,
    given: Assignment,
    phase: str = "train",
    round: int = 1,
    mark: str = "m",
    run: str | None = None,
    **groups: Any,
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Send a phase's message to the first site; return the header and the groups of its reply."""
    header = {
        "run": given.run if run is None else run,
        "round": round,
        "attempt": "a",
        "phase": phase,
        "client": "amber",
        "skipped": [],
        "travelling": False,
        "mark": mark,
        "accepted": "",
        "assignment": given.model_dump_json(),
    }
    message = Message(pack(header, {"model": {}, "shared": {}, **groups}), 1, "query.farfield")
    message.metadata.__dict__["_message_id"] = str(uuid.uuid4())
    return unpack(sites.apps[1](message, context()).content)


def phase(sites: Sites, given: Assignment, phase: str = "train", round: int = 1) -> str:
    """Return the problem that a site answers a phase's message with."""
    reply, _ = send(sites, given, phase, round)
    assert reply["detail"] == ""
    return readable(str(reply["problem"]))


def test_a_message_is_of_one_run_alone(tmp_path: Path, federation: FederationFile) -> None:
    """Otherwise a server could have the same question answered with the state of another run, or of none, each time."""
    sites = Sites(tmp_path, federation)
    made, _ = together(sites)
    given = assignment(sites, made)
    reply, _ = send(sites, given, run="other")
    assert readable(str(reply["problem"])) == "the message is of one run, and asks for the state of another"


def test_one_message_is_answered_at_a_time(tmp_path: Path, federation: FederationFile) -> None:
    sites = Sites(tmp_path, federation)
    made, _ = together(sites)
    given = assignment(sites, made)
    with ThreadPoolExecutor(1) as other, open(tmp_path / "amber" / ANSWERING, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        answer = other.submit(send, sites, given)
        with pytest.raises(TimeoutError):
            answer.result(timeout=2)
        fcntl.flock(held, fcntl.LOCK_UN)
        answer.result(timeout=60)


def test_a_site_does_nothing_that_was_not_approved(tmp_path: Path, federation: FederationFile) -> None:
    sites = Sites(tmp_path, federation)
    made, _ = together(sites)
    fine = assignment(sites, made)
    assert "another method" in phase(sites, fine.model_copy(update={"algorithm": "fedavg"}))
    assert "the seed 0, and the server asks for 7" in phase(sites, fine.model_copy(update={"seed": 7}))
    assert "asks for 3" in phase(sites, fine.model_copy(update={"rounds": 3}))
    assert "round 5 of 2" in phase(sites, fine, round=5)
    assert "a phase that scaffold does not have" in phase(sites, fine, phase="head_gradient")
    huge = ModelSpec(**{**made.agreed.model.model_dump(), "hidden": (4096, 4096)})
    assert "model.hidden" in phase(sites, fine.model_copy(update={"model": huge}))
    assert "batch_size" in phase(sites, fine.model_copy(update={"settings": {**fine.settings, "batch_size": 1}}))
    _, problem = ask(sites, 1, "statistics", {"schema": fine.data["schema"], "seed": 5})
    assert "the seed 0, and the server asks for 5" in problem
    _, problem = ask(sites, 1, "measure", {"assignment": fine.model_dump(mode="json")})
    assert "trains, and does not measure" in problem


def test_what_a_method_keeps_is_on_the_sites_disk_before_the_reply_and_not_in_it(
    tmp_path: Path, federation: FederationFile
) -> None:
    """SCAFFOLD keeps one control variate per client, which has the size of the model."""
    sites = Sites(tmp_path, federation)
    made, _ = together(sites)
    model = build_model(made.agreed.model, 0)
    statistics = [
        ask(sites, node, "statistics", {"schema": made.agreed.model_dump(mode="json"), "seed": 0})[0]
        for node in (1, 2, 3)
    ]
    assert made.agreed.preparation is not None
    fitted = made.agreed.preparation.merge(statistics)
    given = assignment(sites, made, data={"schema": made.agreed.model_dump(mode="json"), "fitted": fitted.to_json()})
    state = model.state()
    broadcast = {"parameters": state.parameters, "buffers": state.buffers}
    shared = {"control": torch.zeros_like(state.parameters)}
    header, groups = send(sites, given, mark="m1", model=broadcast, shared=shared)
    assert (header["problem"], header["samples"]) == ("", 27), "30 rows, of which a tenth validate"
    assert groups["state"] == {}
    (path,) = (tmp_path / "amber").glob("state-*.safetensors")
    held = load_state(path)
    assert (held.kept, held.round, held.attempt, held.mark) == ({}, 1, "a", "m1")
    (variate,) = (held.staged or {}).values()
    assert torch.equal(variate, groups["values"]["control_change"]), "the first change, from zero"
    assert variate.abs().max() > 0
    (row,) = [row for row in _rows(tmp_path / "amber") if row["kind"] == "phase"]
    tensors = [value for value in groups["values"].values() if isinstance(value, torch.Tensor)]
    assert row["bytes"] == sum(value.nbytes for value in tensors) + 8 * (len(groups["values"]) - len(tensors))


def test_what_goes_wrong_at_a_site_says_nothing_of_its_rows(tmp_path: Path, federation: FederationFile) -> None:
    """A schema that does not fit makes the reader complain of cells and paths; the server hears neither."""
    sites = Sites(tmp_path, federation)
    made, _ = together(sites)
    strange = {**made.agreed.model_dump(mode="json"), "classes": ["0", "1"]}
    value, problem = ask(sites, 1, "statistics", {"schema": strange, "seed": 0})
    assert (value, problem) == (None, readable(FAILED))
    two = made.agreed.model.model_copy(update={"outputs": 2})
    assert phase(sites, assignment(sites, made, model=two, data={"schema": strange, "fitted": None})) == readable(
        FAILED
    )
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
