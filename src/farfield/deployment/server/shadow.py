"""What a server knows of the task that sites train on: everything but the rows."""

from __future__ import annotations

import hashlib
import json

import torch

from farfield.deployment.federation_file import FederationFile
from farfield.deployment.schema.site_schema import AgreedSchema
from farfield.deployment.server.joining import JoinedSites
from farfield.tasks.task import Domain, Fitted, Task


def shadow_task(federation: FederationFile, federated: JoinedSites, fitted: Fitted | None) -> Task:
    """All that the server knows of the task: the sites' names, sizes and schema. Its rows are none."""
    agreed = federated.agreed
    seen = json.dumps([agreed.model_dump(mode="json"), None if fitted is None else fitted.to_json()], sort_keys=True)
    return Task(
        name=agreed.task or federation.name,
        kind=agreed.kind,
        domains=tuple(_shadow(agreed, member.name) for member in federated.training),
        classes=agreed.classes,
        model=agreed.model,
        defaults=agreed.defaults,
        description=f"the federation '{federation.name}'",
        preparation=agreed.preparation,
        notes=agreed.notes,
        fingerprint=hashlib.sha256(seen.encode()).hexdigest()[:16],
    )


def _shadow(agreed: AgreedSchema, name: str) -> Domain:
    """As many rows as the site has, all of them the same zeros, which take no memory."""
    rows = agreed.sites[name]
    x = torch.zeros((1,) * (1 + len(agreed.shape)), dtype=getattr(torch, agreed.dtype)).expand(rows, *agreed.shape)
    if agreed.kind == "regression":
        return Domain(name, x, torch.zeros(rows))
    return Domain(name, x, torch.arange(rows) % len(agreed.classes))
