"""A site in a federation: what it answers, and what it does not.

Code never comes over the wire: a server names a method, and the site runs its own copy of it on its own rows, if what
that sends was approved. Rows, and what the method keeps between rounds, stay here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from farfield import __version__
from farfield.deployment.manifest.manifest import Manifest, allowed, matches, offered
from farfield.deployment.schema.site_schema import AgreedSchema, read_agreed_schema
from farfield.deployment.site.data import SiteData
from farfield.errors import UserError
from farfield.federation.client import Client, Rows
from farfield.federation.flower.assignment import Assignment
from farfield.federation.flower.node import Refused
from farfield.models import ModelState
from farfield.protocol.measurement import HeldOut
from farfield.tasks.task import Domain, Fitted
from farfield.tasks.user_data.fitted_preparation import read_fitted


class DeployedSite:
    """One site's rows behind what its operator has approved."""

    def __init__(self, data: SiteData, approved: Manifest) -> None:
        self.data, self.approved = data, approved

    @property
    def name(self) -> str:
        return self.data.site.name

    # What the server learns before any training.

    def describe(self, algorithm: str, settings: Mapping[str, Any], rounds: int | None) -> dict[str, Any]:
        """The site and its schema, for a server that wants to run what was approved."""
        self._agree_to(algorithm)
        offered(self.approved, settings, rounds)
        return {
            "site": self.name,
            "role": self.data.site.role,
            "validation": self.data.site.validation,
            "schema": self.data.schema.model_dump(mode="json"),
            "version": __version__,
        }

    def statistics(self, agreed: AgreedSchema, seed: int) -> dict[str, Any]:
        """What the preparation is merged from: this site's training rows, as sums and counts."""
        self._must_train()
        self._must_have_approved("statistics")
        matches(self.approved, seed)
        preparation = agreed.preparation
        if preparation is None:
            raise Refused(f"site '{self.name}': this data needs no statistics")
        domain = self.data.domain(agreed)
        preparation.check(domain)
        training, _ = self.data.split(agreed, seed)
        return preparation.statistics(domain.x[training], domain.y[training])

    # The rounds: `Site` of federation.flower.node.

    def client(self, assignment: Assignment, name: str, *, round: int, phase: str, state: dict[str, Tensor]) -> Client:
        if name != self.name:
            raise Refused(f"this is site '{self.name}', and the message is for '{name}'")
        agreed, domain, _ = self._prepared(assignment)
        training, validation = self.data.split(agreed, assignment.seed)
        rows = {domain.name: domain}
        return Client(
            id=0,
            name=self.name,
            domain=self.name,
            training=Rows(rows, [(domain.name, training)]),
            validation=Rows(rows, [(domain.name, validation)]),
            seed=assignment.seed,
            round=round,
            phase=phase,
            state=state,
            augment=str(assignment.data.get("augment", "none")),
        )

    def allow(self, assignment: Assignment, phase: str, round: int) -> None:
        self._must_train()
        self._must_fit(assignment)
        if not 1 <= round <= assignment.rounds:
            raise Refused(f"the server asks for round {round} of {assignment.rounds}")
        allowed(
            self.approved,
            algorithm=assignment.algorithm,
            settings=assignment.settings,
            rounds=assignment.rounds,
            phase=phase,
        )

    # A site that only evaluates.

    def measure(self, assignment: Assignment, models: list[ModelState]) -> dict[str, float]:
        """The metrics of a model on all rows, at a site that never trains."""
        self._agree_to(assignment.algorithm)
        self._must_fit(assignment)
        if self.data.site.role != "evaluate":
            raise Refused(f"site '{self.name}' trains, and does not measure on all of its rows")
        self._must_have_approved("evaluation")
        agreed, domain, fitted = self._prepared(assignment, measured=True)
        outputs = (lambda given: given) if fitted is None else fitted.outputs
        return HeldOut(domain, agreed.kind, assignment.model, outputs).measure(models)

    def _prepared(self, assignment: Assignment, measured: bool = False) -> tuple[AgreedSchema, Domain, Fitted | None]:
        agreed = read_agreed_schema(assignment.data.get("schema"))
        domain = self.data.domain(agreed)
        if agreed.preparation is None:
            return agreed, domain, None
        fitted: Fitted = read_fitted(assignment.data.get("fitted"))
        # Measured in the units of the labels; trained in those that the preparation makes of them.
        y = domain.y if measured else fitted.targets(domain.y)
        return agreed, replace(domain, x=fitted.apply(domain.x), y=y), fitted

    def _agree_to(self, algorithm: str) -> None:
        if algorithm != self.approved.algorithm:
            raise Refused(
                f"site '{self.name}' has approved '{self.approved.algorithm}', and the server asks for '{algorithm}'"
            )

    def _must_fit(self, assignment: Assignment) -> None:
        """The seed decides which rows train, and the model what is computed: neither is the server's to change."""
        matches(self.approved, assignment.seed, assignment.model.model_dump(mode="json"))

    def _must_have_approved(self, exchange: str) -> None:
        if not any(entry.exchange == exchange for entry in self.approved.entries):
            raise Refused(f"site '{self.name}' has not approved the exchange '{exchange}'")

    def _must_train(self) -> None:
        if self.data.site.role == "evaluate":
            raise Refused(f"site '{self.name}' only evaluates and takes part in no training")


def open_deployed(site_file: Path, approved: Manifest) -> DeployedSite:
    from farfield.deployment.site.data import open_site
    from farfield.deployment.site.site_file import read_site

    return DeployedSite(open_site(read_site(site_file)), approved)


def problem_of(error: UserError) -> str:
    """An error as the sentence that both sides read."""
    return " ".join(str(error).split())
