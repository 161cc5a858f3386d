"""Secure sums between sites' own apps and a server's engine: files, manifests, restarts and known peers."""

from __future__ import annotations

import contextlib
import json
import stat
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from rich.console import Console

from farfield.algorithms import build
from farfield.deployment.credentials.create import make_node_key
from farfield.deployment.federation_file import FederationFile, FederationFileError, read_federation
from farfield.deployment.manifest.manifest import make_manifest, own_spec
from farfield.deployment.manifest.table import render
from farfield.deployment.server.engine import SitesFederation
from farfield.deployment.server.joining import JoinedSites, proposal
from farfield.deployment.site.client_app import make_app
from farfield.deployment.site.data import open_site
from farfield.deployment.site.deployed_site import DeployedSite
from farfield.deployment.site.peer_keys import load_identity
from farfield.deployment.site.site_file import SiteFileError, read_site
from farfield.federation.engines.flower.packing import unpack
from farfield.federation.engines.flower.run_assignment import Assignment
from farfield.federation.federation import QuorumMissed
from farfield.models import ModelState, build_model
from tests.deployment.sites_in_process import Sites, ask, together

NAMES = ("amber", "birch", "cedar", "dune")


def written(folder: Path, **content: Any) -> FederationFile:
    path = folder / "federation.toml"
    given = {"name": "toy", "server": "127.0.0.1:9443", "algorithm": "scaffold", "rounds": 5, "sites": 4, **content}
    path.write_text(tomli_w.dumps({"set": {"secure_sums": True, "lr": 0.05}, **given}))
    return read_federation(path)


class Heard(Sites):
    """Sites whose replies are kept as they leave."""

    replies: list[tuple[dict[str, Any], dict[str, dict[str, Any]]]]

    def pull_messages(self, message_ids: Any) -> Any:
        for reply in super().pull_messages(message_ids):
            self.__dict__.setdefault("replies", []).append(unpack(reply.content))
            yield reply


def engine(sites: Sites, made: JoinedSites, run: str = "r") -> tuple[SitesFederation, Any, ModelState]:
    data = {"schema": made.agreed.model_dump(mode="json"), "seed": 0}
    assert made.agreed.preparation is not None
    fitted = made.agreed.preparation.merge([ask(sites, m.node, "statistics", data)[0] for m in made.training])
    federation = sites.federation
    data_of_site = open_site(read_site(sites.folder / "amber"))
    settings = make_manifest(federation, schema=data_of_site.schema, spec=None, role="train").settings
    given = Assignment(
        run="r",
        algorithm=federation.algorithm,
        settings=settings,
        rounds=5,
        model=made.agreed.model,
        seed=0,
        data={"schema": made.agreed.model_dump(mode="json"), "fitted": fitted.to_json()},
    ).model_copy(update={"run": run})  # unchecked, as a hostile server would name it
    model = build_model(made.agreed.model, 0)
    fed = SitesFederation(
        sites,  # type: ignore[arg-type]
        made.training,
        model.layout,
        given,
        proposal=proposal(federation),
        quorum=0.5,
        deadline=60.0,
    )
    return fed, build(federation.algorithm, settings), model.state()


@pytest.fixture
def four(tmp_path: Path) -> Heard:
    return Heard(tmp_path, written(tmp_path), NAMES)


def test_rounds_of_sites_give_sums_and_send_only_what_the_manifest_lists(four: Heard, tmp_path: Path) -> None:
    made, _ = together(four)
    fed, algorithm, model = engine(four, made)
    four.__dict__["replies"] = []
    state = algorithm.start(model)
    for number in (1, 2):
        fed.begin(number, range(4))
        state = algorithm.round(fed, state)
    validated = fed.map_over(range(4), algorithm.evaluate, state.model)
    assert fed.events == []
    assert float(validated.sum("rows")) == 4 * 3  # 30 rows at each site, of which a tenth validates
    assert not torch.equal(state.model.parameters, model.parameters)
    data = open_site(read_site(tmp_path / "amber"))
    spec = own_spec(four.federation, data.schema)
    manifest = make_manifest(four.federation, schema=data.schema, spec=spec, role="train")
    listed = {entry.name for entry in manifest.entries if entry.exchange == "secure sums"}
    left = {name for _, groups in four.replies for name in groups["values"]}
    assert left == {"keys", "signature", "sealed", "masked", "shares"}
    assert left == listed
    rows = [json.loads(line) for line in (tmp_path / "amber" / "activity.jsonl").read_text().splitlines()]
    assert [row["text"] for row in rows if row["kind"] == "phase"][:4] == [
        f"train, secure sum: {exchange}" for exchange in ("advertise", "share", "mask", "unmask")
    ]


def test_the_manifest_says_that_the_server_obtains_only_the_sum(four: Heard, tmp_path: Path) -> None:
    data = open_site(read_site(tmp_path / "amber"))
    spec = own_spec(four.federation, data.schema)
    manifest = make_manifest(four.federation, schema=data.schema, spec=spec, role="train")
    phases = [entry for entry in manifest.entries if entry.exchange in ("train", "evaluate")]
    assert {entry.server_sees for entry in phases} == {"sum"}
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(render(manifest))
    text = " ".join(console.export_text().split())
    assert "the server obtains only the sum over the sites" in text
    assert "still receives each site's numbers" not in text
    plain = make_manifest(written(tmp_path, set={}), schema=data.schema, spec=spec, role="train")
    assert manifest.digest != plain.digest


def test_two_long_names_of_one_run_do_not_give_the_sums_of_two_groups(four: Heard) -> None:
    """One name for the ledger and two for the secure sums would give a site's update as the difference of two sums."""
    made, _ = together(four)
    sums = []
    for run, among in (("r" * 100 + "a", [0, 1, 2, 3]), ("r" * 100 + "b", [1, 2, 3])):
        fed, algorithm, model = engine(four, made, run)
        fed.begin(1, range(4))
        with contextlib.suppress(QuorumMissed):
            replies = fed.map(algorithm.train, model, among=among, control=torch.zeros_like(model.parameters))
            sums.append(replies.sum("update"))
    assert len(sums) < 2


def test_what_a_site_remembers_is_its_users_alone_and_outlives_its_process(four: Heard, tmp_path: Path) -> None:
    made, _ = together(four)
    fed, algorithm, model = engine(four, made)
    fed.begin(1, range(4))
    first = algorithm.round(fed, algorithm.start(model))
    (path,) = (tmp_path / "amber").glob("sums-*.json")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    record = json.loads(path.read_text())
    assert record["open"] is None
    assert list(record["answered"]) == ["1/train"]
    for node, name in enumerate(NAMES, 1):  # all sites are started again
        data = open_site(read_site(tmp_path / name))
        spec = own_spec(four.federation, data.schema)
        manifest = make_manifest(four.federation, schema=data.schema, spec=spec, role="train")
        four.apps[node] = make_app(DeployedSite(data, manifest), tmp_path / name)
    fed.begin(1, range(4))
    with pytest.raises(QuorumMissed):
        fed.map(algorithm.train, model, among=[0, 1, 2], control=torch.zeros_like(model.parameters))
    assert "or one for other sites" in fed.events[-1].message
    fed.begin(2, range(4))
    algorithm.round(fed, first)


@pytest.mark.parametrize("damage", [lambda text: text[:-5], lambda text: text.replace('"1/train"', '"7/train"')])
def test_a_damaged_memory_stops_the_site_and_not_its_secrets(four: Heard, tmp_path: Path, damage: Any) -> None:
    made, _ = together(four)
    fed, algorithm, model = engine(four, made)
    fed.begin(1, range(4))
    state = algorithm.round(fed, algorithm.start(model))
    (path,) = (tmp_path / "amber").glob("sums-*.json")
    path.write_text(damage(path.read_text()))
    fed.begin(2, range(4))
    algorithm.round(fed, state)  # by the three others
    assert [event.client for event in fed.events] == [0]
    refused = [json.loads(line) for line in (tmp_path / "amber" / "activity.jsonl").read_text().splitlines()]
    assert any("remembers of its secure sums" in row["text"] for row in refused)


@pytest.mark.usefixtures("clock_of_sleeps")
def test_a_site_that_is_gone_is_left_out_of_the_sum(four: Heard) -> None:
    made, _ = together(four)
    fed, algorithm, model = engine(four, made)
    four.here.discard(2)
    fed.begin(1, range(4))
    replies = fed.map(algorithm.train, model, control=torch.zeros_like(model.parameters))
    assert replies.clients == (0, 2, 3)
    four.here.discard(3)
    fed.begin(2, range(4))
    with pytest.raises(QuorumMissed, match="a secure sum is over 3"):
        fed.map(algorithm.train, model, control=torch.zeros_like(model.parameters))


def test_settings_that_a_site_has_not_approved_do_not_turn_secure_sums_off(four: Heard) -> None:
    made, _ = together(four)
    fed, algorithm, model = engine(four, made)
    plain = build("scaffold", {**algorithm.params.model_dump(), "secure_sums": None})
    fed._assignment = fed._assignment.model_copy(update={"settings": plain.params.model_dump(mode="json")})
    fed.begin(1, range(4))
    with pytest.raises(QuorumMissed):
        plain.round(fed, plain.start(model))
    assert all("secure_sums = true, and the server asks for null" in event.message for event in fed.events)


def test_a_federation_of_two_sites_or_of_a_method_that_needs_single_updates_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FederationFileError, match="needs 3 to 2047 clients in a cohort, not 2"):
        written(tmp_path, sites=2)
    with pytest.raises(FederationFileError, match="not 2"):
        written(tmp_path, cohort=2)
    with pytest.raises(FederationFileError, match="trains its generator on each client's head"):
        written(tmp_path, algorithm="fedcir")


def known_to_one_another(folder: Path, sites: Sites, strange: str | None = None) -> None:
    """Give each site a key and the public keys of the others; of a strange site a wrong one."""
    keys = folder / "keys"
    keys.mkdir()
    for name in NAMES:
        make_node_key(keys, name)
        peers = folder / name / "peers"
        peers.mkdir()
    for name in NAMES:
        for other in NAMES:
            if other != name:
                wrong = strange == other
                shown = keys / f"{NAMES[0] if wrong else other}.pub"
                (folder / name / "peers" / f"{other}.pub").write_bytes(shown.read_bytes())
    for node, name in enumerate(NAMES, 1):
        path = folder / name / "site.toml"
        path.write_text(path.read_text() + 'peers = "peers"\n')
        data = open_site(read_site(folder / name))
        spec = own_spec(sites.federation, data.schema)
        manifest = make_manifest(sites.federation, schema=data.schema, spec=spec, role="train")
        identity = load_identity(data.site, keys / f"{name}.key")
        sites.apps[node] = make_app(DeployedSite(data, manifest), folder / name, identity)


def test_sites_that_know_one_anothers_keys_sign_theirs(four: Heard, tmp_path: Path) -> None:
    known_to_one_another(tmp_path, four)
    made, _ = together(four)
    fed, algorithm, model = engine(four, made)
    four.__dict__["replies"] = []
    fed.begin(1, range(4))
    algorithm.round(fed, algorithm.start(model))
    assert fed.events == []
    signatures = [groups["values"]["signature"] for _, groups in four.replies if "signature" in groups["values"]]
    assert len(signatures) == 4 + 4  # of the keys, and of the list of sites that have stayed
    assert all(len(signature) > 60 for signature in signatures)


def test_a_key_that_is_not_the_peers_is_refused_by_the_sites(four: Heard, tmp_path: Path) -> None:
    known_to_one_another(tmp_path, four, strange="dune")
    made, _ = together(four)
    fed, algorithm, model = engine(four, made)
    fed.begin(1, range(4))
    with pytest.raises(QuorumMissed):
        algorithm.round(fed, algorithm.start(model))
    assert any("as those of 'dune' are not signed by it" in event.message for event in fed.events)


def test_peers_without_a_folder_or_a_key_are_named(four: Heard, tmp_path: Path) -> None:
    site = read_site(tmp_path / "amber").model_copy(update={"peers": "nowhere"})
    with pytest.raises(SiteFileError, match="there is no folder"):
        load_identity(site, None)
    (tmp_path / "amber" / "nowhere").mkdir()
    with pytest.raises(SiteFileError, match="give --key"):
        load_identity(site, None)
    assert load_identity(read_site(tmp_path / "amber"), None) is None
