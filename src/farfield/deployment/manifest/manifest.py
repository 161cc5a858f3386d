"""The wire manifest: everything that may leave a site, shown to its operator and approved before the site joins.

    manifest = make_manifest(federation, schema=data.schema, spec=own_spec(federation, data.schema), role="train")
    console.print(render(manifest))                   # see `table`
    save_approval(folder, manifest)                   # see `approval`, after the operator agreed
    check_phase(load_approval(folder), …)             # see `enforce`: Refused, if the server asks for more

It is made from the site's own copy of the method, because that is what runs: a server sends names, never code. The
approval is kept with the hash of the manifest; any other manifest, however little it differs, must be approved again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from farfield.deployment.federation_file import FederationFile
from farfield.deployment.manifest.entries import (
    Entry,
    diagnosis_entries,
    evaluation_entries,
    phase_entries,
    reply_entries,
    schema_entries,
    secure_sum_entries,
    statistics_entries,
)
from farfield.deployment.manifest.privacy_budget import privacy_text
from farfield.deployment.site.limits import Limits
from farfield.errors import UserError

if TYPE_CHECKING:  # for annotations alone: these import torch
    from farfield.algorithms import FedAvg
    from farfield.deployment.schema.site_schema import SiteSchema
    from farfield.models import Layout, ModelSpec


class Manifest(BaseModel):
    """The list of everything that a site sends in a federation. It can be written to JSON and read back."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    federation: str
    algorithm: str
    #: The largest number of rounds; None if there is no limit.
    rounds: int | None
    #: All parameters of the method. Some decide how much what is sent reveals of single rows: a batch of one row, say.
    settings: dict[str, Any] = Field(default_factory=dict)
    #: It decides which rows train and which validate: statistics of many splits would reveal single rows.
    seed: int = 0
    #: The model, but for sizes that follow from all sites' columns and classes.
    model: dict[str, Any] | None = None
    #: What differential privacy costs and protects in all approved rounds, in words; empty without it.
    privacy: str = ""
    #: What is done to training batches, by name.
    augment: str = "none"
    #: The limits of the site file; a server cannot change them.
    limits: Limits = Limits()
    entries: tuple[Entry, ...]

    @property
    def digest(self) -> str:
        """The sha256 of all but the sizes in numbers, which grow with what other sites know."""
        content = self.model_dump(mode="json", exclude={"entries": {"__all__": {"numbers"}}})
        if not self.privacy:  # as in approvals from before there was any
            del content["privacy"]
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
        return hashlib.sha256(canonical.encode()).hexdigest()


def make_manifest(
    federation: FederationFile,
    *,
    schema: SiteSchema,
    spec: ModelSpec | None,
    role: str,
    validation: float | Literal["official"] = 0.1,
    limits: Limits | None = None,
) -> Manifest:
    """Return what a site with this data sends. `spec` is the model for its own columns, for sizes in numbers.

    `validation` is the share of rows that do not train, for what privacy costs.
    """
    client = _method(federation)
    training = role != "evaluate"
    entries = [*schema_entries(schema), *reply_entries(training)]
    defaults = _defaults(schema)
    settings = _settings(federation, defaults)
    rounds = _rounds(federation, defaults) if client.trains else 1
    privacy = ""
    if training:
        from farfield.algorithms import build
        from farfield.federation.phase import declared_phases

        entries += statistics_entries(schema)
        entries += diagnosis_entries() if federation.diagnose else []
        algorithm = build(federation.algorithm, settings)
        layout, declared = _layout(client, spec), declared_phases(algorithm)
        privacy = privacy_text(algorithm, rounds, schema.rows, validation)
        for phase in (*client.phases, "evaluate"):
            entries += phase_entries(phase, declared[phase], layout)
        entries += secure_sum_entries() if settings.get("secure_sums") else []
    else:
        entries += evaluation_entries(schema)
    return Manifest(
        federation=federation.name,
        algorithm=federation.algorithm,
        rounds=rounds,
        settings=settings,
        seed=federation.seed,
        model=without_sizes(
            _named(client.model_for(spec or _kind_of_model(federation, schema))).model_dump(mode="json")
        ),
        augment=_augment(federation, defaults),
        limits=limits or Limits(),
        privacy=privacy,
        entries=tuple(entries),
    )


def _named(spec: ModelSpec) -> ModelSpec:
    """Return the model with the name that a record has: of a model of timm, the version of timm here is part of it."""
    from farfield.models import resolved_name

    return spec.model_copy(update={"featurizer": resolved_name(spec.featurizer)})


def own_spec(federation: FederationFile, schema: SiteSchema) -> ModelSpec | None:
    """Return the model for this site's columns and classes; None if they alone do not determine one."""
    from farfield.deployment.schema.agreement import agree
    from farfield.models import ModelSpec
    from farfield.runs.settings import sort_settings

    settings = {key: value for key, value in federation.settings.items() if key != "augment"}
    try:
        given = sort_settings(settings, [federation.algorithm]).model
        return ModelSpec(**{**agree({"this site": schema}).model.model_dump(), **given})
    except ValueError:  # one class only, say: other sites have more
        return None


def _kind_of_model(federation: FederationFile, schema: SiteSchema) -> ModelSpec:
    """Return the model of this form of data where the site's own columns and classes do not determine its sizes."""
    from farfield.models import ModelSpec
    from farfield.runs.settings import sort_settings
    from farfield.tasks.user_data import folder
    from farfield.tasks.user_data.arrays import array_model

    settings = {key: value for key, value in federation.settings.items() if key != "augment"}
    if schema.form == "table":
        spec = array_model((1,), 2)
    elif schema.model is not None:
        spec = schema.model
    else:
        spec = folder.image_model(schema.shape[-1], 2) if schema.form == "images" else array_model(schema.shape, 2)
    try:
        return ModelSpec(**{**spec.model_dump(), **sort_settings(settings, [federation.algorithm]).model})
    except UserError as error:
        raise federation.refusal("set", str(error)) from None


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
    return build_model(client.model_for(spec).model_copy(update={"weights": "none"}), 0).layout


def _defaults(schema: SiteSchema) -> Mapping[str, Any]:
    """Return the defaults for this form of data, the same as `agree` chooses for all sites together."""
    if schema.form == "task":
        return schema.defaults
    from farfield.tasks.user_data import folder, table

    return folder.DEFAULTS if schema.form == "images" else table.DEFAULTS


def _rounds(federation: FederationFile, defaults: Mapping[str, Any]) -> int:
    from farfield.runs.plan import DEFAULT_ROUNDS

    return federation.rounds if federation.rounds is not None else int(defaults.get("rounds", DEFAULT_ROUNDS))


def _settings(federation: FederationFile, defaults: Mapping[str, Any]) -> dict[str, Any]:
    from farfield.runs.settings import resolve, sort_settings

    name = federation.algorithm
    given = {key: value for key, value in federation.settings.items() if key != "augment"}
    try:
        return resolve(name, defaults, sort_settings(given, [name]).given[name], by_epochs=False)
    except UserError as error:
        raise federation.refusal("set", str(error)) from None


def _augment(federation: FederationFile, defaults: Mapping[str, Any]) -> str:
    """Return what is done to training batches, as the server resolves it."""
    return str(federation.settings.get("augment") or defaults.get("augment", "none"))


def without_sizes(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a model that follow neither from the data nor from the method."""
    return {key: value for key, value in model.items() if key not in ("input_shape", "outputs", "representation")}
