"""Small inputs that are read in microseconds: files of a deployment, lines of records, and messages of the network."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w

from tests.fuzz.mutation import Seed
from tests.fuzz.target import Consume, target

_FEDERATION: dict[str, Any] = {
    "name": "toy",
    "server": "127.0.0.1:9443",
    "algorithm": "scaffold",
    "rounds": 2,
    "sites": 3,
    "evaluating": 1,
    "seed": 4,
    "quorum": 0.5,
    "deadline": 30.0,
    "cohort": 2,
    "diagnose": True,
    "set": {"lr": 0.1, "model": {"hidden": [8], "featurizer": "mlp"}, "augment": "none"},
}
_SITES: tuple[dict[str, Any], ...] = (
    {"name": "amber", "data": "rows.csv", "label": "died", "drop": ["id"], "categorical": ["ward"], "group": "patient"},
    {"name": "birch", "data": "images", "image_size": 32, "validation": 0.2, "role": "evaluate"},
    {"task": "rotated-digits", "domain": "30", "validation": "official"},
)


@target("site files", share=0.14, short=4000)
def site_files(folder: Path) -> tuple[Sequence[Seed], Consume]:
    from farfield.deployment.site.site_file import read_site

    path = folder / "site.toml"

    def consume(data: bytes) -> None:
        path.write_bytes(data)
        read_site(path)

    return [Seed(tomli_w.dumps(site).encode(), "toml") for site in _SITES], consume


@target("federation files", share=0.08, short=2000)
def federation_files(folder: Path) -> tuple[Sequence[Seed], Consume]:
    from farfield.deployment.federation_file import read_federation

    path = folder / "federation.toml"

    def consume(data: bytes) -> None:
        path.write_bytes(data)
        read_federation(path)

    changed = {**_FEDERATION, "algorithm": "fedprox+fedomg", "set": {"mu": 0.1, "kappa": 0.5}}
    return [Seed(tomli_w.dumps(of).encode(), "toml") for of in (_FEDERATION, changed)], consume


@target("approvals", share=0.1, short=2000)
def approvals(folder: Path) -> tuple[Sequence[Seed], Consume]:
    from farfield.deployment.federation_file import FederationFile
    from farfield.deployment.manifest.approval import APPROVAL, changes, is_approved, load_approval, save_approval
    from farfield.deployment.manifest.manifest import make_manifest, own_spec
    from farfield.deployment.site.data import open_site
    from farfield.deployment.site.site_file import read_site

    _write_site(folder)
    path = folder / "federation.toml"
    path.write_text(tomli_w.dumps(_FEDERATION))
    from farfield.deployment.federation_file import read_federation

    federation: FederationFile = read_federation(path)
    data = open_site(read_site(folder))
    manifest = make_manifest(federation, schema=data.schema, spec=own_spec(federation, data.schema), role="train")
    save_approval(folder, manifest)
    approved = (folder / APPROVAL).read_bytes()

    def consume(given: bytes) -> None:
        (folder / APPROVAL).write_bytes(given)
        is_approved(folder, manifest)
        changes(folder, manifest)
        load_approval(folder)

    return [Seed(approved, "json")], consume


def _write_site(folder: Path) -> None:
    import numpy as np

    rows = np.random.default_rng(1)
    np.savez(folder / "rows.npz", x=rows.normal(size=(30, 4)), y=np.arange(30) % 3)
    (folder / "site.toml").write_text(tomli_w.dumps({"name": "amber", "data": "rows.npz"}))


@target("record lines", share=0.22, short=8000)
def record_lines(folder: Path) -> tuple[Sequence[Seed], Consume]:
    """Rows of rounds, events and commands, read by a resume, by a report and by whoever watches."""
    from farfield.records.atomic import append_row, broken_rows, read_rows, rounds_before_damage
    from farfield.records.follow import RowFollower

    path = folder / "rounds.jsonl"
    figures = {"b": {"loss": 0.5, "accuracy": 0.75}, "c": {"loss": 0.25, "accuracy": None}}
    for number in (1, 2, 3):
        append_row(path, {"round": number, "clients": 2, "loss": 1 / number, "diagnostics": {}, "validation": figures})
    checked = path.read_bytes()
    older = b"".join(json.dumps(row).encode() + b"\n" for row in read_rows(path))

    def consume(data: bytes) -> None:
        path.write_bytes(data)
        rows = list(read_rows(path))
        broken, whole = broken_rows(path), rounds_before_damage(path)
        assert all(isinstance(row, dict) for row in rows)
        assert whole >= 0 or not broken
        RowFollower(path).new_rows()

    return [Seed(checked, "jsonl"), Seed(older, "jsonl")], consume


@target("sealed rows", share=0.1, short=4000)
def sealed_rows(folder: Path) -> tuple[Sequence[Seed], Consume]:
    from farfield.records.sealed import SEALED, append_sealed, open_sealed, open_sites

    for number in (1, 2):
        append_sealed(folder, number, {"loss": 0.5, "accuracy": 0.75, "site": {"rows": 4, "scores": [0.1, 0.9]}}, None)
    checked = (folder / SEALED).read_bytes()

    def consume(data: bytes) -> None:
        (folder / SEALED).write_bytes(data)
        for round, metrics in open_sealed(folder):
            assert isinstance(round, int)
            assert all(value is None or isinstance(value, int | float) for value in metrics.values())
        assert all(isinstance(site, dict) for site in open_sites(folder, {1, 2}).values())

    return [Seed(checked, "jsonl"), Seed(checked.replace(b'"check"', b'"was"'), "jsonl")], consume


@target("json records", share=0.1, short=3000)
def json_records(folder: Path) -> tuple[Sequence[Seed], Consume]:
    """Results, plans and the files of a server, each with its checksum or of an older version without one."""
    from farfield.records import read_config, write_config
    from farfield.records.checked_files import read_checked_json, write_checked_json

    path, plan = folder / "result.json", folder / "config.toml"
    content = {"rounds": 4, "model_sha256": "0" * 64, "settings": {"lr": 0.1, "names": ["a"]}, "unseen": None}
    write_checked_json(path, content)
    write_config(plan, content)

    def consume(data: bytes) -> None:
        (path if data[:1] == b"j" else plan).write_bytes(data[1:])
        read = read_checked_json(path) if data[:1] == b"j" else read_config(plan)
        assert isinstance(read, dict)

    return [
        Seed(path.read_bytes(), "json", b"j"),
        Seed(plan.read_bytes(), "bytes", b"t"),
        Seed(tomli_w.dumps({"a": {"b": [1, 2.5, "x"]}}).encode(), "toml", b"t"),
    ], consume
