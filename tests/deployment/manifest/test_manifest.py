"""A site's operator sees all that may leave before anything does, and a server gets nothing beyond it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from farfield.algorithms import FedAvg, method, names
from farfield.deployment.federation_file import FederationFile, FederationFileError
from farfield.deployment.manifest.approval import ApprovalError, is_approved, load_approval, save_approval
from farfield.deployment.manifest.enforce import check_phase, check_proposal, check_seed_and_model
from farfield.deployment.manifest.entries import CLASSIFICATION, REGRESSION
from farfield.deployment.manifest.manifest import Manifest, make_manifest, own_spec
from farfield.deployment.manifest.table import render, size_of
from farfield.deployment.schema.agreement import agree
from farfield.deployment.schema.site_schema import ArraySite, SiteSchema, describe, describe_examples, describe_task
from farfield.federation.phase import SCALAR, Sends, phases_of
from farfield.models import ModelSpec, build_model
from farfield.protocol.metrics import classification_metrics, regression_metrics
from farfield.tasks import load
from farfield.tasks.task import Domain
from tests.tasks.tables import visits

pytest.importorskip("flwr")
from farfield.federation.refusal import Refused

COMPOSED = ["fediir+fedomg", "fedprox+fedadam", "fedloe-irm+fedomg", "scaffold+fedavgm"]
SPEC = ModelSpec(input_shape=(6,), hidden=(4,), outputs=3)


def federation(algorithm: str = "fediir", **content: Any) -> FederationFile:
    given = {"path": Path("heart.toml"), "name": "heart", "server": "127.0.0.1:9443", "sites": 3, "rounds": 20}
    return FederationFile.model_validate({**given, "algorithm": algorithm, **content})


def table() -> SiteSchema:
    return describe(visits(), label="died", drop=["hospital"])


def manifest(algorithm: str = "fediir", spec: ModelSpec | None = None, role: str = "train", **content: Any) -> Manifest:
    return make_manifest(federation(algorithm, **content), schema=table(), spec=spec, role=role)


def ask(approved: Manifest, phase: str = "train", **content: Any) -> None:
    given = {"algorithm": approved.algorithm, "settings": approved.settings, "rounds": approved.rounds or 1}
    check_phase(approved, phase=phase, **{**given, **content})


def refused(approved: Manifest, phase: str = "train", **content: Any) -> str:
    with pytest.raises(Refused) as caught:
        ask(approved, phase, **content)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def printed(shown: Manifest) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(render(shown))
    return " ".join(console.export_text().split())


def federated() -> list[str]:
    return [name for name in names() if not method(name).pooled]


@pytest.mark.parametrize("algorithm", [*federated(), *COMPOSED])
def test_every_method_has_a_manifest_of_what_it_declares_and_may_do_that(algorithm: str) -> None:
    made = manifest(algorithm, SPEC)
    client = method(algorithm.split("+")[0])
    declared = phases_of(client)
    for phase in (*client.phases, "evaluate"):
        entries = {entry.name: entry for entry in made.entries if entry.exchange == phase}
        assert set(entries) == set(declared[phase])
        for name, sends in declared[phase].items():
            assert (entries[name].meaning, entries[name].warning) == (sends.meaning, sends.warning)
        ask(made, phase)
    assert algorithm in printed(made)


def test_what_needs_everybodys_rows_has_none() -> None:
    with pytest.raises(FederationFileError, match=r"'heart\.toml', key 'algorithm': 'erm' needs the rows of all sites"):
        manifest("erm")


def test_sizes_are_those_of_the_model() -> None:
    sizes = {(entry.exchange, entry.name): entry.numbers for entry in manifest("fediir", SPEC).entries}
    assert sizes["train", "update"] == (6 * 4 + 4) + (4 * 3 + 3)
    assert sizes["head_gradient", "gradient"] == 4 * 3 + 3
    assert sizes["head_gradient", "square"] == sizes["train", "loss"] == 1
    assert sizes["train", "buffers"] == 0
    unknown = {(entry.exchange, entry.name): entry.numbers for entry in manifest("fediir").entries}
    assert unknown["train", "update"] is None
    assert unknown["train", "loss"] == 1


def test_a_method_that_needs_another_representation_gets_its_sizes() -> None:
    sizes = {(entry.exchange, entry.name): entry.numbers for entry in manifest("fedcir", SPEC).entries}
    plain, gaussian = (build_model(SPEC.model_copy(update={"representation": r}), 0) for r in ("plain", "gaussian"))
    assert sizes["train", "update"] == gaussian.layout.parameters > plain.layout.parameters


def test_the_sites_own_columns_make_the_model_for_its_sizes() -> None:
    spec = own_spec(federation(set={"model.hidden": [8], "lr": 0.5}), table())
    agreed = agree({"north": table()})
    assert spec is not None
    assert spec == agreed.model.model_copy(update={"hidden": (8,)})
    one_class = describe(visits().query("died == 'yes'"), label="died")
    assert own_spec(federation(), one_class) is None


def test_only_the_rows_tell_how_many_of_them_fedloe_sends() -> None:
    made = manifest("fedloe-irm", SPEC)
    told = {entry.name: entry for entry in made.entries if entry.exchange == "predict_tuning"}
    assert (told["labels"].size, told["labels"].numbers) == ("tuning rows", None)
    assert told["predictions"].size == "tuning rows × clients × outputs"
    warning = "predictions and labels of the tuning rows leave the client"
    assert warning in told["labels"].warning
    shown = printed(made)
    assert shown.count(warning) == 2
    assert "Never sent: the rows of your data; what is told of single rows has a warning above." in shown
    assert "warning" not in printed(manifest("fedavg"))


def test_a_table_tells_its_schema_and_statistics() -> None:
    made = {(entry.exchange, entry.name): entry for entry in manifest().entries}
    assert "age, smokes, ward, pressure" in made["schema", "columns"].meaning
    assert made["schema", "levels"].meaning.endswith("of the columns smokes, ward")
    assert made["schema", "label"].meaning == "the label's name, 'died', and its classes"
    assert made["schema", "counts"].numbers == 3 * 4
    # age and pressure are numbers, smokes is true or false, ward has three levels and gaps
    assert [made["statistics", name].numbers for name in ("numbers", "booleans", "levels")] == [10, 2, 4]
    assert ("statistics", "label") not in made


def count(told: object) -> int:
    if isinstance(told, dict):
        return sum(count(value) for value in told.values())
    if isinstance(told, list):
        return sum(count(value) for value in told)
    return int(isinstance(told, int | float))


@pytest.mark.parametrize("label", ["died", "pressure"])
def test_statistics_are_as_many_numbers_as_it_says(label: str) -> None:
    frame = visits().dropna(subset=["pressure"])
    schema = describe(frame, label=label, drop=["hospital"])
    agreed = agree({"north": schema})
    preparation = agreed.preparation
    assert preparation is not None
    x = torch.zeros(len(frame), len(agreed.columns), dtype=torch.float64)
    told = preparation.statistics(x, torch.zeros(len(frame)))
    told.pop("format")
    made = make_manifest(federation(), schema=schema, spec=None, role="train")
    said = sum(entry.numbers or 0 for entry in made.entries if entry.exchange == "statistics")
    assert count(told) == said


def test_a_site_that_only_evaluates_sends_its_schema_and_metrics() -> None:
    made = manifest("fedloe-irm", SPEC, role="evaluate")
    assert {entry.exchange for entry in made.entries} == {"schema", "evaluation", "every reply"}
    assert not any("training" in entry.meaning for entry in made.entries if entry.exchange == "every reply")
    assert "no phase 'train', and the server asks for it" in refused(made)
    assert "evaluation once a round, at most 20 rounds; the same answer again" in printed(made)


@pytest.mark.slow
def test_the_settings_are_printed_for_every_site_that_trains() -> None:
    """Private training withholds validation figures, so 'train' is its only phase."""
    pytest.importorskip("dp_accounting")
    private = {"privacy": "record", "noise": 1.5, "clip": 1.0, "batch_size": 4}
    shown = printed(manifest("fedavg", rounds=3, set=private))
    assert "batch_size = 4" in shown.partition("Settings: ")[2]
    assert "another one with new noise, which counts as well" in shown
    assert "Settings: " in printed(manifest("fedavg"))
    assert "the same answer again where the server lost it" in printed(manifest("fedavg"))
    assert "Settings: " not in printed(manifest("fedavg", role="evaluate"))


def test_the_metrics_are_those_that_are_measured() -> None:
    scores, labels = np.array([[0.1, 0.9], [0.7, 0.3], [0.6, 0.4]]), np.array([1, 0, 1])
    assert set(classification_metrics(scores, labels)) == set(CLASSIFICATION)
    assert set(regression_metrics(np.array([1.0, 2.0]), np.array([1.5, 2.5]))) == set(REGRESSION)


def test_images_and_registered_tasks_tell_less() -> None:
    pictures = Domain("a", torch.zeros(6, 3, 8, 8, dtype=torch.uint8), torch.arange(6) % 2)
    images = describe_examples(pictures, "classification", "images", ["cat", "dog"])
    made = make_manifest(federation("fedavg"), schema=images, spec=None, role="train")
    assert "statistics" not in {entry.exchange for entry in made.entries}
    task = load("rotated-digits")
    digits = describe_task(task, task.domains[0])
    made = make_manifest(federation("fedavg"), schema=digits, spec=None, role="train")
    assert any("the task 'rotated-digits'" in entry.meaning for entry in made.entries)
    words = ArraySite(
        form="task", rows=9, shape=(3,), dtype="uint8", kind="classification", classes=("a", "b"), task="reviews",
        words=("good", "bad", "so"), model=SPEC,
    )  # fmt: skip
    made = make_manifest(federation("fedavg"), schema=words, spec=None, role="train")
    assert [(e.name, e.numbers) for e in made.entries if e.exchange == "statistics"] == [("words", 3)]


@pytest.mark.parametrize("form", ["table", "arrays", "images", "task"])
def test_rounds_and_settings_are_those_that_the_server_will_resolve(form: str) -> None:
    task = load("rotated-digits")
    rows = Domain("a", torch.zeros(6, 4, dtype=torch.float64), torch.arange(6) % 2)
    pixels = Domain("a", torch.zeros(6, 3, 8, 8, dtype=torch.uint8), torch.arange(6) % 2)
    schemas: dict[str, SiteSchema] = {
        "table": table(),
        "arrays": describe_examples(rows, "classification", "arrays", ["0", "1"]),
        "images": describe_examples(pixels, "classification", "images", ["cat", "dog"]),
        "task": describe_task(task, task.domains[0]),
    }
    from farfield.runs.settings import resolve

    agreed = agree({"a": schemas[form]})
    asked = federation("fediir", rounds=None, set={"gamma": 0.3})
    made = make_manifest(asked, schema=schemas[form], spec=None, role="train")
    assert made.rounds == agreed.defaults["rounds"]
    assert made.settings == resolve("fediir", agreed.defaults, {"gamma": 0.3, "bound": "median"}, by_epochs=False)


def test_json_both_ways_keeps_the_digest() -> None:
    made = manifest("fedloe-irm", SPEC, set={"lr": 0.05, "model.hidden": [4]})
    again = Manifest.model_validate_json(made.model_dump_json())
    assert again == made
    assert again.digest == made.digest == Manifest.model_validate(json.loads(json.dumps(made.model_dump()))).digest


def test_the_digest_is_of_what_leaves_and_not_of_how_large_other_sites_make_it() -> None:
    wider = SPEC.model_copy(update={"input_shape": (99,), "outputs": 7})
    digests = {manifest(spec=SPEC).digest, manifest(spec=wider).digest}
    assert len(digests) == 1
    for other in (
        manifest(spec=SPEC.model_copy(update={"hidden": (1000,)})),
        manifest("fedavg"),
        manifest(rounds=21),
        manifest(name="lung"),
        manifest(set={"batch_size": 1}),
        manifest(role="evaluate"),
        make_manifest(federation(), schema=describe(visits(), label="died"), spec=None, role="train"),
    ):
        digests.add(other.digest)
    assert len(digests) == 8


def test_nothing_but_what_was_approved_is_done() -> None:
    made = manifest("fediir")
    ask(made, "head_gradient")
    ask(made, "evaluate")
    ask(made, rounds=3)
    assert refused(made, algorithm="fedavg") == (
        "this site has approved another method than the server asks for: 'fediir'"
    )
    assert "approved 20 rounds, and the server asks for 21" in refused(made, rounds=21)
    assert "approved batch_size = 64, and the server asks for 1" in refused(
        made, settings={**made.settings, "batch_size": 1}
    )
    assert "what this site's version cannot do" in refused(made, settings={**made.settings, "zeta": 1})
    assert "a phase that fediir does not have" in refused(made, "rows")
    assert "a phase that fediir does not have" in refused(made, "params")


def test_a_phase_that_a_class_inherits_and_its_round_does_not_use_is_not_approved() -> None:
    client = method("fedilc-inter-geo")
    assert "train" in phases_of(client)
    assert "train" not in client.phases
    assert "no phase 'train'" in refused(manifest("fedilc-inter-geo"))


def test_a_changed_declaration_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made = manifest("fedavg")
    before = dict(FedAvg.train.__sends__)  # type: ignore[attr-defined]
    monkeypatch.setattr(FedAvg.train, "__sends__", {**before, "mean": Sends("features", "mean of the features")})
    assert "approved no 'mean' in phase 'train', which fedavg would send" in refused(made)
    monkeypatch.setattr(FedAvg.train, "__sends__", {**before, "loss": Sends("features", before["loss"].meaning)})
    assert refused(made) == "'loss' in phase 'train' is not what this site has approved: its size has changed"
    fewer = {name: sends for name, sends in before.items() if name != "buffers"}
    monkeypatch.setattr(FedAvg.train, "__sends__", fewer)
    ask(made)
    monkeypatch.setattr(FedAvg.train, "__sends__", {**before, "loss": Sends(SCALAR, "the loss of the worst row")})
    assert "its meaning has changed" in refused(made)


def test_update_steps_are_part_of_what_is_approved() -> None:
    plain, clipped = manifest("fedprox"), manifest("fedprox", set={"clip": 0.5})
    meanings = {entry.name: entry.meaning for entry in clipped.entries if entry.exchange == "train"}
    assert meanings["update"] == "local parameters minus the broadcast ones; at most 0.5 long"
    assert "at most" not in meanings["loss"]
    assert plain.digest != clipped.digest
    ask(clipped)
    assert "clip = 0.5, and the server asks for null" in refused(clipped, settings=plain.settings)


def test_an_approval_is_for_one_manifest(tmp_path: Path) -> None:
    made, folder = manifest(spec=SPEC), tmp_path / "state" / "heart"
    assert not is_approved(folder, made)
    with pytest.raises(ApprovalError, match="nothing is approved in"):
        load_approval(folder)
    save_approval(folder, made)
    assert is_approved(folder, made)
    assert is_approved(folder, manifest(spec=SPEC.model_copy(update={"outputs": 7})))
    assert not is_approved(folder, manifest(spec=SPEC, rounds=21))
    assert load_approval(folder) == made
    assert [path.name for path in folder.iterdir()] == ["approval.json"]


def test_seed_and_model_are_not_the_servers_to_change() -> None:
    made = manifest(spec=SPEC)
    check_seed_and_model(made, made.seed, SPEC.model_copy(update={"input_shape": (99,)}).model_dump(mode="json"))
    with pytest.raises(Refused, match="has approved the seed 0, and the server asks for 5"):
        check_seed_and_model(made, 5)
    for change in ({"hidden": (4096, 4096)}, {"weights": "/etc/passwd"}):
        with pytest.raises(Refused, match=r"has approved another model\."):
            check_seed_and_model(made, made.seed, SPEC.model_copy(update=change).model_dump(mode="json"))


def test_where_auto_was_approved_the_server_names_weights_by_name_and_hash_and_never_by_a_path() -> None:
    made = manifest(spec=SPEC)
    assert made.model is not None
    assert made.model["weights"] == "auto"
    digest = "@sha256:" + "0" * 64

    def ask_for(weights: str) -> None:
        check_seed_and_model(made, made.seed, SPEC.model_copy(update={"weights": weights}).model_dump(mode="json"))

    for allowed in ("none", f"resnet18.pth{digest}", f"timm-resnet18.a1_in1k.safetensors{digest}"):
        ask_for(allowed)
    for path in (
        "resnet18.pth",
        f"/etc/passwd{digest}",
        f"../x.pth{digest}",
        f"..{digest}",
        f"x.pth{digest}0",
        f"a/b{digest}",
    ):
        with pytest.raises(Refused, match=r"has approved another model\.weights"):
            ask_for(path)


def test_a_proposal_that_differs_from_what_was_approved_is_refused_before_anything_is_reported() -> None:
    made = manifest(rounds=20)
    check_proposal(made, {"batch_size": made.settings["batch_size"]}, 20)
    with pytest.raises(Refused, match="approved 20 rounds, and the server asks for 21"):
        check_proposal(made, {}, 21)
    with pytest.raises(Refused, match="batch_size"):
        check_proposal(made, {"batch_size": 1}, 20)


def test_an_approval_that_was_changed_is_none(tmp_path: Path) -> None:
    made = manifest()
    save_approval(tmp_path, made)
    path = tmp_path / "approval.json"
    content = json.loads(path.read_text())
    content["manifest"]["rounds"] = 1000
    path.write_text(json.dumps(content))
    assert not is_approved(tmp_path, made)
    with pytest.raises(ApprovalError, match="was changed after it was given"):
        load_approval(tmp_path)
    for damaged in ("", "[]", "{}", '{"manifest": {}, "digest": ""}'):
        path.write_text(damaged)
        assert not is_approved(tmp_path, made)
        with pytest.raises(ApprovalError, match="cannot be read"):
            load_approval(tmp_path)


def test_the_table_says_how_much_how_often_and_what_stays() -> None:
    shown = printed(manifest("fediir", SPEC))
    assert "parameters: 43 numbers, 172 B" in shown
    assert "Never sent: the rows of your data." in shown
    assert (
        "How often: each of head_gradient, train, evaluate once a round, at most 20 rounds; the same answer again"
        in shown
    )
    assert "Where the server needs the sum it still receives each site's numbers" in shown
    assert "batch_size = 64" in shown


def test_sizes_for_people() -> None:
    entries = {entry.name: entry for entry in manifest("fedavg", SPEC).entries if entry.exchange == "train"}
    sizes = {n: size_of(entries["update"].model_copy(update={"numbers": n})) for n in (None, 1_000, 25_000_000)}
    assert sizes == {
        None: "parameters",
        1_000: "parameters: 1,000 numbers, 4.0 kB",
        25_000_000: "parameters: 25,000,000 numbers, 100.0 MB",
    }
    assert size_of(entries["loss"]) == "1 number"
    assert size_of(entries["buffers"]) == "buffers: none here"


def test_a_column_name_cannot_paint_the_table() -> None:
    frame = visits().rename(columns={"age": "[red]age[/]"})
    made = make_manifest(federation(), schema=describe(frame, label="died"), spec=None, role="train")
    assert "[red]age[/]" in printed(made)
