"""The wire manifest: everything that may leave a site, shown to its operator and approved before the site joins.

    manifest = make_manifest(federation, schema=data.schema, spec=own_spec(federation, data.schema), role="train")
    console.print(render(manifest))
    save_approval(folder, manifest)                   # after the operator said yes
    allowed(load_approval(folder), algorithm=…, settings=…, rounds=…, phase=…)      # Refused, if the server wants more

It is made from the site's own copy of the method, because that is what will run: a server sends names, never code. What
was approved is kept with its hash; another manifest, however little it differs, has to be approved again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from farfield.deployment.federation_file import FederationFile
from farfield.deployment.manifest.entries import (
    Entry,
    evaluation_entries,
    phase_entries,
    reply_entries,
    schema_entries,
    statistics_entries,
)
from farfield.deployment.manifest.table import render
from farfield.errors import UserError
from farfield.records import difference
from farfield.records.atomic import write_json

if TYPE_CHECKING:  # for annotations alone: these import torch
    from farfield.algorithms import FedAvg
    from farfield.deployment.schema.site_schema import SiteSchema
    from farfield.models import Layout, ModelSpec

__all__ = [
    "Entry",
    "Manifest",
    "ManifestError",
    "allowed",
    "changes",
    "is_approved",
    "load_approval",
    "make_manifest",
    "matches",
    "offered",
    "own_spec",
    "render",
    "save_approval",
]

APPROVAL = "approval.json"


class ManifestError(UserError):
    """There is no approval that can be used."""


class Manifest(BaseModel):
    """What a site sends in a federation. JSON both ways."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    federation: str
    algorithm: str
    #: At most so many; None if nobody has said.
    rounds: int | None
    #: The method's parameters in full. They tell how much of single rows is in what is sent: a batch of one row, say.
    settings: dict[str, Any] = Field(default_factory=dict)
    #: Which rows train and which validate depends on it: statistics of many splits would tell single rows.
    seed: int = 0
    #: The model, but for sizes that follow from all sites' columns and classes; None where none can be made yet.
    model: dict[str, Any] | None = None
    entries: tuple[Entry, ...]

    @property
    def digest(self) -> str:
        """The sha256 of all but the sizes in numbers, which grow with what other sites know."""
        content = self.model_dump(mode="json", exclude={"entries": {"__all__": {"numbers"}}})
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
        return hashlib.sha256(canonical.encode()).hexdigest()


def make_manifest(federation: FederationFile, *, schema: SiteSchema, spec: ModelSpec | None, role: str) -> Manifest:
    """What a site with this data sends. `spec` is the model for its own columns, for sizes in numbers."""
    client = _method(federation)
    training = role != "evaluate"
    entries = [*schema_entries(schema), *reply_entries(training)]
    if training:
        from farfield.federation.phase import phases_of

        entries += statistics_entries(schema)
        layout, declared = _layout(client, spec), phases_of(client)
        for phase in (*client.phases, "evaluate"):
            entries += phase_entries(phase, declared[phase], layout)
    else:
        entries += evaluation_entries(schema)
    defaults = _defaults(schema)
    return Manifest(
        federation=federation.name,
        algorithm=federation.algorithm,
        rounds=federation.rounds if federation.rounds is not None else _usual_rounds(defaults),
        settings=_settings(federation, defaults),
        seed=federation.seed,
        model=None if spec is None else _without_sizes(spec.model_dump(mode="json")),
        entries=tuple(entries),
    )


def own_spec(federation: FederationFile, schema: SiteSchema) -> ModelSpec | None:
    """The model for this site's columns and classes; None where they alone do not make one."""
    from farfield.deployment.schema.agreement import agree
    from farfield.models import ModelSpec
    from farfield.runs.settings import sort_settings

    settings = {key: value for key, value in federation.settings.items() if key != "augment"}
    try:
        given = sort_settings(settings, [federation.algorithm])[0]
        return ModelSpec(**{**agree({"this site": schema}).model.model_dump(), **given})
    except ValueError:  # one class only, say: other sites have more
        return None


def _method(federation: FederationFile) -> type[FedAvg]:
    from farfield.algorithms import AlgorithmError, parts

    try:
        client, _ = parts(federation.algorithm)
    except AlgorithmError as error:
        raise federation.refusal("algorithm", str(error)) from None
    if client.pooled:
        raise federation.refusal("algorithm", f"'{client.name}' needs the rows of all sites in one place")
    return client


def _layout(client: type[FedAvg], spec: ModelSpec | None) -> Layout | None:
    from farfield.models import build_model

    if spec is None:
        return None
    # For sizes no pretrained weights have to be here.
    return build_model(spec.model_copy(update={"representation": client.representation, "weights": "none"}), 0).layout


def _defaults(schema: SiteSchema) -> Mapping[str, Any]:
    """What suits this form of data, as `agree` says it for all sites together."""
    if schema.form == "task":
        return schema.defaults
    from farfield.tasks.user_data import folder, table

    return folder.DEFAULTS if schema.form == "images" else table.DEFAULTS


def _usual_rounds(defaults: Mapping[str, Any]) -> int:
    from farfield.runs.plan import DEFAULT_ROUNDS

    return int(defaults.get("rounds", DEFAULT_ROUNDS))


def _settings(federation: FederationFile, defaults: Mapping[str, Any]) -> dict[str, Any]:
    from farfield.runs.settings import resolve, sort_settings

    name = federation.algorithm
    given = {key: value for key, value in federation.settings.items() if key != "augment"}
    try:
        return resolve(name, defaults, sort_settings(given, [name])[1][name], by_epochs=False)
    except UserError as error:
        raise federation.refusal("set", str(error)) from None


def allowed(approved: Manifest, *, algorithm: str, settings: Mapping[str, Any], rounds: int, phase: str) -> None:
    """Raise `Refused` unless all that this phase, as this site's code has it, may send was approved."""
    from farfield.federation.flower.node import Refused

    beyond = _beyond_run(approved, algorithm, settings, rounds) or _beyond_phase(approved, algorithm, phase)
    if beyond is not None:
        raise Refused(beyond)


def offered(approved: Manifest, settings: Mapping[str, Any], rounds: int | None) -> None:
    """Raise `Refused` if a federation that is about to begin is not the one that was approved."""
    from farfield.federation.flower.node import Refused

    said = _said(approved)
    if rounds is not None and approved.rounds is not None and rounds > approved.rounds:
        raise Refused(f"{said} {approved.rounds} rounds, and the server asks for {rounds}")
    for key, value in settings.items():
        if key in approved.settings and approved.settings[key] != value:
            raise Refused(
                f"{said} {key} = {json.dumps(approved.settings[key])}, and the server asks for {json.dumps(value)}"
            )


def matches(approved: Manifest, seed: int, model: Mapping[str, Any] | None = None) -> None:
    """Raise `Refused` for another seed or another kind of model than was approved."""
    from farfield.federation.flower.node import Refused

    said = _said(approved)
    if seed != approved.seed:
        raise Refused(f"{said} the seed {approved.seed}, and the server asks for {seed}")
    if model is None or approved.model is None:
        return
    for key, value in _without_sizes(model).items():
        # What 'auto' comes to is the server's to say, as long as it names no file of this machine.
        chosen = key == "weights" and approved.model.get(key) == "auto" and re.fullmatch(r"[A-Za-z0-9_-]+", str(value))
        if approved.model.get(key) != value and not chosen:
            known = json.dumps(approved.model.get(key))
            raise Refused(f"{said} model.{key} = {known}, and the server asks for {json.dumps(value)}")


def _without_sizes(model: Mapping[str, Any]) -> dict[str, Any]:
    """What of a model does not follow from the data, nor from the method."""
    return {key: value for key, value in model.items() if key not in ("input_shape", "outputs", "representation")}


def _beyond_run(approved: Manifest, algorithm: str, settings: Mapping[str, Any], rounds: int) -> str | None:
    """What of a run was not approved, in one sentence."""
    from farfield.algorithms import AlgorithmError, build

    said = _said(approved)
    if algorithm != approved.algorithm:
        return f"{said} '{approved.algorithm}', and the server asks for '{algorithm}'"
    if approved.rounds is not None and rounds > approved.rounds:
        return f"{said} {approved.rounds} rounds, and the server asks for {rounds}"
    try:
        wanted = build(algorithm, settings, rounds).params.model_dump(mode="json")
    except AlgorithmError as error:
        return f"the server asks for what this site's version cannot do: {error}"
    for key, value in wanted.items():
        known = approved.settings.get(key)
        if key not in approved.settings or known != value:
            return f"{said} {key} = {json.dumps(known)}, and the server asks for {json.dumps(value)}"
    return None


def _beyond_phase(approved: Manifest, algorithm: str, phase: str) -> str | None:
    """What of a phase was not approved, in one sentence."""
    from farfield.algorithms import parts
    from farfield.federation.phase import phases_of

    said = _said(approved)
    declared = phases_of(parts(algorithm)[0]).get(phase)
    if declared is None:
        return f"the server asks for a phase '{phase}', which {algorithm} does not have in this site's version"
    agreed = {entry.name: entry.what for entry in approved.entries if entry.exchange == phase}
    if not agreed:
        return f"{said} no phase '{phase}', and the server asks for it"
    for entry in phase_entries(phase, declared, None):
        before = agreed.get(entry.name)
        if before is None:
            return f"{said} no '{entry.name}' in phase '{phase}', which {algorithm} would send"
        if before != entry.what:
            return (
                f"'{entry.name}' in phase '{phase}' is not what this site has approved: {_change(before, entry.what)}"
            )
    return None


def _said(approved: Manifest) -> str:
    return f"in '{approved.federation}' this site has approved"


def _change(before: Entry, after: Entry) -> str:
    old, new = before.model_dump(), after.model_dump()
    return "; ".join(f"{key} was {old[key]!r} and is {new[key]!r}" for key in new if old[key] != new[key])


def save_approval(folder: Path, manifest: Manifest) -> None:
    """Keep what the site's operator has said yes to."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / APPROVAL, {"digest": manifest.digest, "manifest": manifest.model_dump(mode="json")})


def is_approved(folder: Path, manifest: Manifest) -> bool:
    """Whether this manifest is the one that was said yes to."""
    try:
        return load_approval(folder).digest == manifest.digest
    except ManifestError:
        return False


def changes(folder: Path, manifest: Manifest) -> str:
    """What is other than in an earlier approval, in one phrase; empty if there was none."""
    try:
        before = load_approval(folder)
    except ManifestError:
        return ""
    old, new = (each.model_dump(mode="json", exclude={"entries"}) for each in (before, manifest))
    return difference(old, new) or "what is sent has changed"


def load_approval(folder: Path) -> Manifest:
    """What was said yes to. ManifestError if that was nothing, or if the file has changed since."""
    path = folder / APPROVAL
    try:
        content = json.loads(path.read_bytes())
        manifest = Manifest.model_validate(content["manifest"])
        known = content["digest"]
    except FileNotFoundError:
        raise ManifestError(f"nothing is approved in '{folder}'; show the manifest and approve it first") from None
    except (ValueError, KeyError, TypeError, ValidationError):
        raise ManifestError(f"the approval '{path}' cannot be read; approve the manifest again") from None
    if known != manifest.digest:
        raise ManifestError(f"the approval '{path}' was changed after it was given; approve the manifest again")
    return manifest
