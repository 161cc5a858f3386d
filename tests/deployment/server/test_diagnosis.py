"""The diagnosis of a federation: opt-in, declared in the manifest, and without rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from rich.console import Console

from farfield.deployment.activity_log import ActivityLog
from farfield.deployment.federation_file import FederationFile, read_federation
from farfield.deployment.manifest.manifest import make_manifest
from farfield.deployment.manifest.table import render
from farfield.deployment.server.ask_sites import Network
from farfield.deployment.server.diagnosis import diagnose_federation
from farfield.deployment.server.run import _fit, _outline
from farfield.deployment.site.data import open_site
from farfield.deployment.site.site_file import read_site
from farfield.diagnose.site_moments import SENDS
from farfield.records.diagnosis_file import read_diagnosis
from tests.deployment.sites_in_process import Sites, ask, together


@pytest.fixture
def diagnosed(tmp_path: Path) -> FederationFile:
    path = tmp_path / "federation.toml"
    content = {"name": "toy", "server": "127.0.0.1:9443", "algorithm": "fedavg", "rounds": 2, "sites": 3}
    path.write_text(tomli_w.dumps({**content, "diagnose": True}))
    return read_federation(path)


def run(sites: Sites, out: Path) -> list[str]:
    """Diagnose the federation, and return what the server reports."""
    out.mkdir(exist_ok=True)
    made, _ = together(sites)
    network, activity = Network(sites), ActivityLog(out)  # type: ignore[arg-type]
    fitted = _fit(network, sites.federation, made, activity)
    task = _outline(sites.federation, made, fitted)
    diagnose_federation(network, sites.federation, made, fitted, task, out, activity)
    rows = [json.loads(line) for line in (out / "activity.jsonl").read_text().splitlines()]
    return [row["text"] for row in rows if row["kind"] == "diagnosed"]


def test_sites_tell_moments_and_the_server_writes_a_diagnosis(tmp_path: Path, diagnosed: FederationFile) -> None:
    sites = Sites(tmp_path, diagnosed)
    (sentence,) = run(sites, tmp_path / "out")
    assert "diagnosis of 3 sites" in sentence
    found = read_diagnosis(tmp_path / "out")
    assert found is not None
    assert found.domains == ("amber", "birch", "cedar")
    assert found.rows == 3 * 27  # 30 rows each, of which a tenth validate
    counts = np.array(found["label shift"].details["counts"])
    assert counts.sum(axis=1).tolist() == [27, 27, 27]
    assert found["gradient conflict"].value is not None
    assert found["near-duplicates"].sentence == "This needs rows, which stay at the sites."
    assert "<svg" in (tmp_path / "out" / "diagnosis.html").read_text()
    assert len(run(sites, tmp_path / "out")) == 1  # a resumed run has it already


def test_a_site_that_has_not_approved_it_says_so_and_is_left_out(
    tmp_path: Path, federation: FederationFile, diagnosed: FederationFile
) -> None:
    sites = Sites(tmp_path, diagnosed)
    plain = Sites(tmp_path, diagnosed.model_copy(update={"diagnose": False}), ())
    plain.start(3, "cedar")
    sites.apps[3] = plain.apps[3]
    told = run(sites, tmp_path / "out")
    assert "'cedar' is not in the diagnosis" in told[0]
    assert "has not approved the exchange 'diagnosis'" in told[0]
    assert "diagnosis of 2 sites" in told[1]


def test_a_site_refuses_another_seed_and_too_many_features(tmp_path: Path, diagnosed: FederationFile) -> None:
    sites = Sites(tmp_path, diagnosed)
    made, _ = together(sites)
    given = {"schema": made.agreed.model_dump(mode="json"), "fitted": None, "seed": 0, "width": 4}
    assert "the seed 0, and the server asks for 5" in ask(sites, 1, "moments", {**given, "seed": 5})[1]
    assert "1 to 40 features" in ask(sites, 1, "moments", {**given, "width": 41})[1]


def test_the_manifest_has_it_only_where_the_federation_file_asks(tmp_path: Path, diagnosed: FederationFile) -> None:
    Sites(tmp_path, diagnosed, ("amber",))
    schema = open_site(read_site(tmp_path / "amber")).schema
    manifest = make_manifest(diagnosed, schema=schema, spec=None, role="train")
    entries = {entry.name: entry for entry in manifest.entries if entry.exchange == "diagnosis"}
    assert {name: entry.meaning for name, entry in entries.items()} == {n: s.meaning for n, s in SENDS.items()}
    assert entries["scatter"].size == "features × features"
    without = diagnosed.model_copy(update={"diagnose": False})
    plain = make_manifest(without, schema=schema, spec=None, role="train")
    assert plain.digest != manifest.digest
    assert not [entry for entry in plain.entries if entry.exchange == "diagnosis"]
    evaluating = make_manifest(diagnosed, schema=schema, spec=None, role="evaluate")
    assert not [entry for entry in evaluating.entries if entry.exchange == "diagnosis"]
    console = Console(width=160)
    with console.capture() as shown:
        console.print(render(manifest))
    assert "covariance of the features inside the classes" in shown.get()
    assert "once, before training" in shown.get()


def test_moments_that_cannot_be_leave_a_site_out(
    tmp_path: Path, diagnosed: FederationFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    from farfield.deployment.site import deployed_site

    honest, asked = deployed_site.site_moments, []

    def first_is_strange(z: np.ndarray, y: np.ndarray, classes: int) -> dict[str, object]:
        asked.append(len(z))
        told = honest(z, y, classes)
        return {**told, "counts": [9, 9]} if len(asked) == 1 else told

    monkeypatch.setattr(deployed_site, "site_moments", first_is_strange)
    told = run(Sites(tmp_path, diagnosed), tmp_path / "out")
    assert told[0] == "site 'amber' is not in the diagnosis: 'counts' has the shape (2,), and not (3,)"
    assert "diagnosis of 2 sites" in told[1]
