"""What leaves a site is decided by the approved manifest alone, whatever a server writes into its messages."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")
from flwr.app import Message

from farfield.deployment.federation_file import FederationFile
from farfield.deployment.manifest.manifest import make_manifest
from farfield.deployment.server.joining import JoinedSites
from farfield.deployment.site.data import open_site
from farfield.deployment.site.site_file import read_site
from farfield.federation.engines.flower.packing import pack, unpack
from farfield.federation.engines.flower.run_assignment import Assignment
from farfield.federation.execution import Outcome
from farfield.federation.refusal import readable
from farfield.models import build_model
from tests.deployment.sites_in_process import Sites, ask, context, together


@pytest.fixture
def federation(tmp_path: Path) -> FederationFile:
    given = {"path": tmp_path / "f.toml", "name": "toy", "server": "127.0.0.1:9443", "sites": 3, "rounds": 2}
    return FederationFile.model_validate({**given, "algorithm": "scaffold"})


class Server:
    """A server that writes what it likes into messages to the first of three sites."""

    def __init__(self, folder: Path, federation: FederationFile) -> None:
        self.sites = Sites(folder, federation)
        self.joined: JoinedSites
        self.joined, _ = together(self.sites)
        self.agreed = self.joined.agreed
        schema = self.agreed.model_dump(mode="json")
        told = [ask(self.sites, node, "statistics", {"schema": schema, "seed": 0})[0] for node in (1, 2, 3)]
        assert self.agreed.preparation is not None
        self.data = {"schema": schema, "fitted": self.agreed.preparation.merge(told).to_json(), "augment": "none"}
        self.model = build_model(self.agreed.model, 0)
        data = open_site(read_site(folder / "amber"))
        self.settings = make_manifest(federation, schema=data.schema, spec=None, role="train").settings

    def send(
        self, changes: dict[str, Any] | None = None, groups: dict[str, Any] | None = None, **header: Any
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Send phase 'train' of round 1 with changes of the assignment, the header and the groups."""
        content = {"run": "r", "algorithm": "scaffold", "settings": self.settings, "rounds": 2}
        content |= {"model": self.agreed.model, "seed": 0, "data": self.data}
        assignment = Assignment(**{**content, **(changes or {})})
        told = {
            "run": "r", "round": 1, "attempt": "a", "phase": "train", "client": "amber", "skipped": [],
            "travelling": False, "mark": "m", "accepted": "", "assignment": assignment.model_dump_json(), **header,
        }  # fmt: skip
        state = self.model.state()
        sent = {
            "model": {"parameters": state.parameters, "buffers": state.buffers},
            "shared": {"control": torch.zeros_like(state.parameters)},
            **(groups or {}),
        }
        message = Message(pack(told, sent), 1, "query.farfield")
        message.metadata.__dict__["_message_id"] = str(uuid.uuid4())
        return unpack(self.sites.apps[1](message, context()).content)

    def refusal(self, *args: Any, **kwargs: Any) -> str:
        header, groups = self.send(*args, **kwargs)
        assert groups == {"values": {}, "state": {}}
        assert (header["samples"], header["detail"]) == (0, "")
        return readable(str(header["problem"]))


@pytest.fixture
def server(tmp_path: Path, federation: FederationFile) -> Server:
    return Server(tmp_path, federation)


def test_a_state_never_travels(server: Server) -> None:
    """SCAFFOLD's control variate, of the size of the model, would leave with `travelling`, and one could be put in."""
    assert "never leaves it" in server.refusal(travelling=True, groups={"state": {}})
    variate = {"state": {"control": torch.ones_like(server.model.vector)}}
    assert "never leaves it" in server.refusal(travelling=True, groups=variate)
    assert "never leaves it" in server.refusal(groups=variate)
    header, groups = server.send()
    assert header["problem"] == ""
    assert groups["state"] == {}
    assert set(groups["values"]) == {"update", "loss", "control_change"}


def test_only_what_the_manifest_lists_for_the_phase_leaves(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a phase returns: the last look is at the reply itself."""
    import farfield.federation.engines.flower.node as node

    true = node.run_phase

    def with_more(*args: Any) -> Outcome:
        outcome = true(*args)
        outcome.values = {**outcome.values, "control": torch.ones(3)}
        return outcome

    monkeypatch.setattr(node, "run_phase", with_more)
    assert "made 'control', which is not in what this site has approved" in server.refusal()

    def of_another_size(*args: Any) -> Outcome:
        outcome = true(*args)
        outcome.values = {**outcome.values, "loss": torch.ones(3)}
        return outcome

    monkeypatch.setattr(node, "run_phase", of_another_size)
    assert "not what is declared" in server.refusal()


def test_every_setting_that_changes_what_is_computed_was_approved(server: Server) -> None:
    data = server.data
    assert "another 'augment'" in server.refusal({"data": {**data, "augment": "standard"}})
    assert "'methods' with a run" in server.refusal({"data": {**data, "methods": {}}})
    assert "the seed 0" in server.refusal({"seed": 1})
    assert "2 rounds" in server.refusal({"rounds": 3})
    assert "round 3 of 2" in server.refusal(round=3)
    assert "round 0 of 2" in server.refusal(round=0)
    for key, value in {
        "hidden": (512,), "norm": "average", "dropout": 0.5, "head": "mlp", "head_bias": False, "init": "xavier",
        "head_init": "kaiming", "featurizer": "identity", "test_samples": 4, "representation": "gaussian",
        "weights": "/etc/passwd",
    }.items():  # fmt: skip
        model = server.agreed.model.model_copy(update={key: value})
        assert f"another model.{key}" in server.refusal({"model": model}), key
    for key, value in {
        "lr": 10.0, "batch_size": 1, "local_epochs": 50, "local_steps": 1, "class_weights": "balanced",
        "weight_decay": 0.5, "server_lr": 0.1, "weighting": "samples",
    }.items():  # fmt: skip
        why = server.refusal({"settings": {**server.settings, key: value}})
        assert "approved" in why, key
        assert key in why, key


def test_the_message_is_for_this_site_and_no_other_phase(server: Server) -> None:
    assert "another site" in server.refusal(client="birch")
    assert "does not have" in server.refusal(phase="head_gradient")
    assert "does not have" in server.refusal(phase="before_training")


def test_the_rest_of_a_run_keeps_to_its_first_assignment(server: Server) -> None:
    assert server.send()[0]["problem"] == ""
    other = {**server.data, "schema": {**server.data["schema"], "notes": ["another"]}}
    assert "began with another assignment" in server.refusal({"data": other}, round=2)


def test_statistics_are_told_once_per_run(server: Server) -> None:
    """Two sets of columns, or of rows, would tell of single rows by their difference."""
    schema = server.data["schema"]
    again, problem = ask(server.sites, 1, "statistics", {"schema": schema, "seed": 0})
    assert problem == ""
    assert again["rows"] == 27
    fewer = {**schema, "sites": {**schema["sites"], "amber": 29}}
    told, problem = ask(server.sites, 1, "statistics", {"schema": fewer, "seed": 0})
    assert told is None
    assert "'statistics' 1 times" in problem


def test_limits_are_the_sites_and_part_of_the_approval(tmp_path: Path, federation: FederationFile) -> None:
    from farfield.deployment.site.limits import Limits

    Sites(tmp_path, federation)
    data = open_site(read_site(tmp_path / "amber"))
    plain = make_manifest(federation, schema=data.schema, spec=None, role="train")
    looser = make_manifest(federation, schema=data.schema, spec=None, role="train", limits=Limits(update_rows=1))
    assert plain.digest != looser.digest
    assert plain.limits.sentence != looser.limits.sentence


def test_a_site_with_one_class_has_a_model_to_approve_all_the_same(tmp_path: Path, federation: FederationFile) -> None:
    """Its classes determine no model, and without one a server could choose any."""
    import numpy as np

    home = tmp_path / "amber"
    home.mkdir()
    np.savez(home / "rows.npz", x=np.random.default_rng(0).normal(size=(30, 4)), y=np.zeros(30, dtype=int))
    (home / "site.toml").write_text('name = "amber"\ndata = "rows.npz"\n')
    data = open_site(read_site(home))
    made = make_manifest(federation, schema=data.schema, spec=None, role="train")
    assert made.model is not None
    assert tuple(made.model["hidden"]) == tuple(build_hidden())


def build_hidden() -> tuple[int, ...]:
    from farfield.tasks.user_data.arrays import array_model

    return array_model((4,), 3).hidden
