"""One site's rows, behind what its operator has approved.

Code never comes over the wire: a server names a method, and the site runs its own copy of that method on its own rows,
if what the method sends was approved. The rows, and what the method keeps between rounds, stay at the site.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from farfield import __version__
from farfield.algorithms import parts
from farfield.deployment.manifest.enforce import check_data, check_phase, check_proposal, check_seed_and_model
from farfield.deployment.manifest.entries import DIAGNOSIS
from farfield.deployment.manifest.manifest import Manifest
from farfield.deployment.manifest.privacy_budget import Spent
from farfield.deployment.schema.site_schema import AgreedSchema, read_agreed_schema
from farfield.deployment.site.data import SiteData, open_site
from farfield.deployment.site.limits import Limits
from farfield.deployment.site.plausible_model import check_sound
from farfield.deployment.site.plausible_preparation import check_preparation
from farfield.deployment.site.site_file import read_site
from farfield.deployment.site.sizes import check_model_size, check_schema_size
from farfield.diagnose.site_moments import MOST_CLASSES, MOST_FEATURES, shared_projection, site_moments
from farfield.errors import UserError
from farfield.federation.client import Client, Rows
from farfield.federation.engines.flower.run_assignment import Assignment
from farfield.federation.refusal import Refused
from farfield.models import ModelState, build_model
from farfield.protocol.measurement import HeldOut
from farfield.reproducibility.devices import computing_on, device_named
from farfield.tasks.task import Domain, Fitted
from farfield.tasks.user_data.fitted_preparation import read_fitted

#: The phase of a client that only measures for the site itself: nothing of it leaves.
REFERENCE = "reference"


class DeployedSite:
    """One site's rows, behind what its operator has approved. Every method raises `Refused` for anything else."""

    def __init__(self, data: SiteData, approved: Manifest) -> None:
        self.data, self.approved = data, approved
        #: The count of noised steps on this site's disk; without one nothing private is answered.
        self.spent: Spent | None = None

    @property
    def name(self) -> str:
        return self.data.site.name

    @property
    def device(self) -> torch.device:
        """What computes here, as the site file says."""
        return device_named(self.data.site.device)

    @property
    def limits(self) -> Limits:
        """The limits that were approved."""
        return self.approved.limits

    # Questions before any training.

    def describe(self, algorithm: str, settings: Mapping[str, Any], rounds: int | None) -> dict[str, Any]:
        """Return the site and its schema, for a server that proposes to run what was approved."""
        self._need_approved_algorithm(algorithm)
        check_proposal(self.approved, settings, rounds)
        return {
            "site": self.name,
            "role": self.data.site.role,
            "validation": self.data.site.validation,
            "schema": self.data.schema.model_dump(mode="json"),
            "version": __version__,
        }

    def statistics(self, agreed: AgreedSchema, seed: int) -> dict[str, Any]:
        """Return sums and counts of this site's training rows, from which the preparation is merged."""
        self._need_training_role()
        self._need_approved_exchange("statistics")
        check_seed_and_model(self.approved, seed)
        preparation = agreed.preparation
        if preparation is None:
            raise Refused("no-statistics")
        check_schema_size(agreed)
        domain = self.data.domain(agreed)
        preparation.check(domain)
        training, _ = self.data.split(agreed, seed)
        self._need_rows(len(training))
        return preparation.statistics(domain.x[training], domain.y[training])

    def moments(self, agreed: AgreedSchema, fitted: Any, seed: int, width: int) -> dict[str, Any]:
        """Return moments of this site's training rows and a linear head, from which a diagnosis is made."""
        self._need_training_role()
        self._need_approved_exchange(DIAGNOSIS)
        check_seed_and_model(self.approved, seed)
        if not 1 <= width <= MOST_FEATURES or len(agreed.classes) > MOST_CLASSES:
            raise Refused(
                "diagnosis-size",
                most=MOST_FEATURES,
                most_classes=MOST_CLASSES,
                features=width,
                classes=len(agreed.classes),
            )
        check_schema_size(agreed)
        domain = self.data.domain(agreed)
        training, _ = self.data.split(agreed, seed)
        self._need_rows(len(training))
        x, y = domain.x[training], domain.y[training]
        if agreed.preparation is not None:
            numbers: Fitted = read_fitted(fitted)
            check_preparation(agreed, numbers, x, y)
            x, y = numbers.apply(x), numbers.targets(y)
        try:
            return site_moments(shared_projection(x, width, seed), y.numpy(), len(agreed.classes))
        except UserError as error:  # it counts rows, and quotes none
            raise Refused("diagnosis") from error

    # The rounds: the protocol `Site` of federation.flower.node.

    def client(self, assignment: Assignment, name: str, *, round: int, phase: str, state: dict[str, Tensor]) -> Client:
        if name != self.name:
            raise Refused("another-site")
        agreed, domain, _ = self._prepared(assignment)
        training, validation = self.data.split(agreed, assignment.seed)
        if phase == "evaluate":
            self._need_validation_rows(len(validation))
        else:
            self._need_rows(len(training))
        private = self.approved.settings.get("privacy", "none") != "none"
        if private and phase != REFERENCE:
            self._spend(phase, round, len(training))
        rows = {domain.name: domain}
        return Client(
            id=0,
            name=self.name,
            domain=self.name,
            training=Rows(rows, [(domain.name, training)], self.device),
            validation=Rows(rows, [(domain.name, validation)], self.device),
            seed=assignment.seed,
            round=round,
            phase=phase,
            state=state,
            augment=self.approved.augment,
            secure_noise=private,
        )

    def _spend(self, phase: str, round: int, rows: int) -> None:
        if self.spent is None:
            raise Refused("privacy-count")
        self.spent.spend(self.approved, phase, round, rows)

    def allow(self, assignment: Assignment, phase: str, round: int) -> None:
        self._need_training_role()
        self._need_approved_seed_and_model(assignment)
        check_data(self.approved, assignment.data)
        if not 1 <= round <= assignment.rounds:
            raise Refused("round", asked=round, rounds=assignment.rounds)
        self._need_sizes(assignment)
        check_phase(
            self.approved,
            algorithm=assignment.algorithm,
            settings=assignment.settings,
            rounds=assignment.rounds,
            phase=phase,
        )

    # Questions to a site that only evaluates.

    def evaluate(self, assignment: Assignment, models: list[ModelState]) -> dict[str, float]:
        """Return the metrics of a model on all rows of a site that never trains."""
        self._need_approved_algorithm(assignment.algorithm)
        self._need_approved_seed_and_model(assignment)
        if self.data.site.role != "evaluate":
            raise Refused("does-not-measure")
        self._need_approved_exchange("evaluation")
        if len(models) != 1:
            raise Refused("cannot-do")
        check_data(self.approved, assignment.data)
        self._need_sizes(assignment)
        self._need_validation_rows(self.data.n)
        layout = build_model(assignment.model, assignment.seed).layout
        for model in models:
            check_sound(model, layout)
        agreed, domain, fitted = self._prepared(assignment, scale_label=False)
        outputs = (lambda given: given) if fitted is None else fitted.outputs
        with computing_on(self.device):
            return HeldOut(domain, agreed.kind, assignment.model, outputs, device=self.device).measure(models)

    def _prepared(self, assignment: Assignment, scale_label: bool = True) -> tuple[AgreedSchema, Domain, Fitted | None]:
        agreed = read_agreed_schema(assignment.data.get("schema"))
        domain = self.data.domain(agreed)
        if agreed.preparation is None:
            return agreed, domain, None
        fitted: Fitted = read_fitted(assignment.data.get("fitted"))
        if self.data.site.role != "evaluate":
            training, _ = self.data.split(agreed, assignment.seed)
            check_preparation(agreed, fitted, domain.x[training], domain.y[training])
        # Training uses the scaled labels; metrics are in the labels' own units.
        y = fitted.targets(domain.y) if scale_label else domain.y
        return agreed, replace(domain, x=fitted.apply(domain.x), y=y), fitted

    def _need_sizes(self, assignment: Assignment) -> None:
        """Refuse sizes that the approval and the agreed schema do not give, before anything of that size is made."""
        agreed = read_agreed_schema(assignment.data.get("schema"))
        check_schema_size(agreed)
        check_model_size(assignment.model, agreed, self.data.schema, self.approved, self.limits)

    def _need_rows(self, rows: int) -> None:
        if rows < self.limits.rows:
            raise Refused("few-rows", rows=rows, least=self.limits.rows)

    def _need_validation_rows(self, rows: int) -> None:
        if rows < self.limits.validation_rows:
            raise Refused("few-validation-rows", rows=rows, least=self.limits.validation_rows)

    def _need_approved_algorithm(self, algorithm: str) -> None:
        if algorithm != self.approved.algorithm:
            raise Refused("algorithm", approved=self.approved.algorithm)

    def _need_approved_seed_and_model(self, assignment: Assignment) -> None:
        """Refuse another seed, which decides which rows train, and another model, which decides what is computed."""
        check_seed_and_model(self.approved, assignment.seed, assignment.model.model_dump(mode="json"))
        method, _ = parts(self.approved.algorithm)
        if assignment.model.representation != method.model_for(assignment.model).representation:
            raise Refused("model", key="representation")

    def _need_approved_exchange(self, exchange: str) -> None:
        if not any(entry.exchange == exchange for entry in self.approved.entries):
            raise Refused("exchange", exchange=exchange)

    def _need_training_role(self) -> None:
        if self.data.site.role == "evaluate":
            raise Refused("only-evaluates")


def open_deployed_site(site_file: Path, approved: Manifest) -> DeployedSite:
    """Read the rows that a site file names, to answer within what was approved."""
    return DeployedSite(open_site(read_site(site_file)), approved)
