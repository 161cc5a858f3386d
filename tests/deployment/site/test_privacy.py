"""A site that approved differential privacy: noise of its own, a price before it joins, and an end."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from farfield.deployment.federation_file import FederationFile
from farfield.deployment.manifest import privacy_budget
from farfield.deployment.manifest.manifest import Manifest, make_manifest
from farfield.deployment.manifest.privacy_budget import SPENT, Spent
from farfield.deployment.manifest.table import render
from farfield.deployment.site.data import open_site
from farfield.deployment.site.deployed_site import DeployedSite
from farfield.deployment.site.limits import Limits
from farfield.deployment.site.site_file import read_site
from farfield.federation.engines.flower.run_assignment import Assignment
from farfield.federation.refusal import Refused, readable
from farfield.models import build_model
from farfield.records.checked_files import read_checked_json
from tests.deployment.hospitals_in_process import Hospitals
from tests.deployment.site.test_client_app import send
from tests.deployment.sites_in_process import Sites, ask, together
from tests.privacy.references import epsilon_from, gaussian_delta

pytest.importorskip("dp_accounting")

RECORD = {"privacy": "record", "clip": 1.0, "noise": 2.0, "batch_size": 0, "local_steps": 3}
CLIENT = {"privacy": "client", "clip": 1.0, "noise": 2.0, "weighting": "uniform"}


def private(federation: FederationFile, algorithm: str = "fedavg", **settings: Any) -> FederationFile:
    return federation.model_copy(update={"algorithm": algorithm, "rounds": 2, "settings": settings or RECORD})


def manifest_of(sites: Sites) -> Manifest:
    data = open_site(read_site(sites.folder / "amber"))
    return make_manifest(sites.federation, schema=data.schema, spec=None, role="train")


def prepared(sites: Sites) -> tuple[Assignment, dict[str, Any]]:
    made, _ = together(sites)
    schema = made.agreed.model_dump(mode="json")
    statistics = [ask(sites, node, "statistics", {"schema": schema, "seed": 0})[0] for node in (1, 2, 3)]
    assert made.agreed.preparation is not None
    given = Assignment(
        run="r",
        algorithm=sites.federation.algorithm,
        settings=manifest_of(sites).settings,
        rounds=2,
        model=made.agreed.model,
        seed=0,
        data={"schema": schema, "fitted": made.agreed.preparation.merge(statistics).to_json()},
    )
    state = build_model(made.agreed.model, 0).state()
    return given, {"model": {"parameters": state.parameters, "buffers": state.buffers}}


@pytest.mark.parametrize("settings", [RECORD, CLIENT], ids=["record", "client"])
def test_the_noise_is_not_the_seeds_and_nothing_else_leaves(
    tmp_path: Path, federation: FederationFile, settings: dict[str, Any]
) -> None:
    """With a seed that the server knows, a question would have the same answer twice, and the noise could be redone."""
    sites = Sites(tmp_path, private(federation, **settings))
    given, groups = prepared(sites)
    replies = [send(sites, given, **groups) for _ in range(2)]
    assert [header["problem"] for header, _ in replies] == ["", ""]
    first, second = (of["values"] for _, of in replies)
    assert set(first) == {"update"}
    assert not torch.equal(first["update"], second["update"])
    assert float((first["update"] - second["update"]).norm()) > 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("fedavg", {"privacy": "client", "noise": 6.0, "clip": 1.0, "weighting": "uniform"}),
        ("fediir", {"privacy": "client", "noise": 8.5, "clip": 1.0}),
        ("fedavg", {"privacy": "record", "noise": 5.1, "clip": 1.0, "batch_size": 16}),
        ("fedavg", {"privacy": "record", "noise": 1.08, "clip": 1.0, "batch_size": 16, "secure_sums": True}),
        ("scaffold", {"privacy": "record", "noise": 1.08, "clip": 1.0, "batch_size": 16}),
        ("fedsgd", {"privacy": "record", "noise": 2.0, "clip": 1.0}),
    ],
    ids=lambda of: of if isinstance(of, str) else "-".join(map(str, of.values())),
)
def test_an_honest_private_run_is_refused_nothing(tmp_path: Path, algorithm: str, settings: dict[str, Any]) -> None:
    """Noise is most of what changes the model: sites that expect plain training refuse it, and the server waits."""
    hospitals = Hospitals(tmp_path, algorithm, rounds=3, **settings)
    result = hospitals.run()
    assert hospitals.refusals() == []
    assert (result["events"], result["rounds"]) == (0, 3)


@pytest.mark.parametrize("settings", [RECORD, CLIENT], ids=["record", "client"])
def test_a_model_that_is_refused_tells_nothing_of_the_rows(
    tmp_path: Path, federation: FederationFile, settings: dict[str, Any]
) -> None:
    """What is accepted is told with a refusal, so under privacy it must not be measured on the rows."""
    told = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        sites = Sites(folder, private(federation, **settings))
        if number:
            draw = np.random.default_rng(99)
            rows = {"x": draw.exponential(size=(30, 4)) ** 2, "y": draw.permutation(np.arange(30) % 3)}
            np.savez(folder / "amber" / "rows.npz", **rows)
            sites.start_with_rows(1, "amber", folder / "amber")
        given, groups = prepared(sites)
        far = {**groups["model"], "parameters": groups["model"]["parameters"] + 1e6}
        told.append(send(sites, given, round=2, model=far)[0]["problem"])
    assert "model-change" in told[0]
    assert told[0] == told[1]


def test_a_site_stops_when_what_was_approved_is_used_up(tmp_path: Path, federation: FederationFile) -> None:
    sites = Sites(tmp_path, private(federation))
    given, groups = prepared(sites)
    assert [send(sites, given, round=number, **groups)[0]["problem"] for number in (1, 2)] == ["", ""]
    header, left = send(sites, given, round=2, **groups)
    assert "used up: 6 of 6 noised steps" in readable(header["problem"])
    assert left["values"] == {}
    other, _ = send(sites, given.model_copy(update={"run": "another"}), round=1, **groups)
    assert "used up" in readable(other["problem"]), "another run with the same approval spends from the same budget"
    sites.start(1, "amber")
    again, _ = send(sites, given, round=1, **groups)
    assert "used up" in readable(again["problem"]), "the count is on the disk"


def test_questions_at_the_same_time_are_counted_one_by_one(
    tmp_path: Path, federation: FederationFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each message has a process of its own at a site; two that read the same count would both be answered."""
    manifest, write = manifest_of(Sites(tmp_path, private(federation))), privacy_budget.write_checked_json

    def slowly(path: Path, content: Any) -> None:
        time.sleep(0.2)
        write(path, content)

    monkeypatch.setattr(privacy_budget, "write_checked_json", slowly)

    def is_allowed(_: int) -> bool:
        try:
            Spent(tmp_path).spend(manifest, "train", 1, 27)
        except Refused:
            return False
        return True

    with ThreadPoolExecutor(6) as several:
        assert sum(several.map(is_allowed, range(6))) == 2
    assert list(read_checked_json(tmp_path / SPENT).values()) == [{"train": 6}]


def test_another_approval_of_the_same_settings_goes_on_with_the_count(
    tmp_path: Path, federation: FederationFile
) -> None:
    """An operator raises a limit or approves more rounds: what was spent before is in the ε that the manifest tells."""
    manifest, spent = manifest_of(Sites(tmp_path, private(federation))), Spent(tmp_path)
    for number in (1, 2):
        spent.spend(manifest, "train", number, 24)
    wider = manifest.model_copy(update={"limits": Limits(model_change=11.0)})
    assert wider.digest != manifest.digest
    with pytest.raises(Refused, match="6 of 6 noised steps"):
        spent.spend(wider, "train", 2, 24)
    longer = wider.model_copy(update={"rounds": 3})
    spent.spend(longer, "train", 3, 24)
    with pytest.raises(Refused, match="9 of 9 noised steps"):
        spent.spend(longer, "train", 3, 24)
    assert spent.note(longer) == ""
    other = longer.model_copy(update={"settings": {**longer.settings, "noise": 5.0}})
    assert "has made 9 noised steps with other approved settings" in spent.note(other)
    spent.spend(other, "train", 1, 24)


def test_a_question_that_fails_is_counted_before_it_is_answered(tmp_path: Path, federation: FederationFile) -> None:
    sites = Sites(tmp_path, private(federation))
    given, groups = prepared(sites)
    bad = {"model": {**groups["model"], "parameters": groups["model"]["parameters"][:3]}}
    assert send(sites, given, **bad)[0]["problem"] != ""
    counted = read_checked_json(tmp_path / "amber" / SPENT)
    assert list(counted.values()) == [{"train": 3}]


def test_validation_is_refused_and_a_damaged_count_stops_everything(tmp_path: Path, federation: FederationFile) -> None:
    sites = Sites(tmp_path, private(federation))
    given, groups = prepared(sites)
    assert "no phase 'evaluate'" in readable(send(sites, given, "evaluate", **groups)[0]["problem"])
    assert send(sites, given, **groups)[0]["problem"] == ""
    path = tmp_path / "amber" / SPENT
    path.write_text(path.read_text().replace('"train": 3', '"train": 0'))
    assert "cannot be read" in readable(send(sites, given, **groups)[0]["problem"]), "a changed digit is damage, too"
    path.write_text("{")
    assert "cannot be read" in readable(send(sites, given, **groups)[0]["problem"])


def test_without_a_place_to_count_nothing_private_is_answered(tmp_path: Path, federation: FederationFile) -> None:
    sites = Sites(tmp_path, private(federation))
    given, _ = prepared(sites)
    alone = DeployedSite(open_site(read_site(tmp_path / "amber")), manifest_of(sites))
    with pytest.raises(Refused, match="nothing more is sent"):
        alone.client(given, "amber", round=1, phase="train", state={})


@pytest.mark.parametrize(("settings", "times"), [(RECORD, 6), (CLIENT, 2)], ids=["record", "client"])
def test_the_manifest_tells_the_price_before_a_site_joins(
    tmp_path: Path, federation: FederationFile, settings: dict[str, Any], times: int
) -> None:
    sites = Sites(tmp_path, private(federation, **settings))
    manifest = manifest_of(sites)
    exact = epsilon_from(lambda e: gaussian_delta(e, 2.0, times), 1e-5)
    told = float(manifest.privacy.split("ε = ")[1].split(" ")[0])
    assert exact <= told <= exact + 0.01
    assert "if all 2 rounds are made" in manifest.privacy
    assert "not covered: " in manifest.privacy
    console = Console(width=300, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(render(manifest))
    assert manifest.privacy[:60] in console.export_text()
    exchanges = {entry.exchange for entry in manifest.entries}
    assert "evaluate" not in exchanges
    assert [entry.name for entry in manifest.entries if entry.exchange == "train"] == ["update"]


def test_without_privacy_nothing_is_counted_and_the_digest_is_as_before(
    tmp_path: Path, federation: FederationFile
) -> None:
    sites = Sites(tmp_path, federation.model_copy(update={"algorithm": "fedavg", "settings": {"clip": 1.0}}))
    manifest = manifest_of(sites)
    assert manifest.privacy == ""
    assert "privacy" not in json.dumps([entry.meaning for entry in manifest.entries])
    assert manifest.digest != manifest.model_copy(update={"privacy": "x"}).digest
    given, groups = prepared(sites)
    assert send(sites, given, **groups)[0]["problem"] == ""
    assert not (tmp_path / "amber" / SPENT).exists()
