"""Which methods of a comparison fit the task, the model, the clients and the settings.

A method that does not fit is left out of a comparison, with the reason, and the others run. A method that was asked for
alone is refused with the way out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from farfield.algorithms import AlgorithmError, FedAvg, Misfit
from farfield.runs.references import is_reference
from farfield.runs.settings import PlanError
from farfield.runs.variants import Variant

if TYPE_CHECKING:  # a plan is checked while it is made
    from farfield.runs.plan import Plan


@dataclass
class Fit:
    """What of a comparison is left out, and why, while its plan is made."""

    #: The variants that the user asked for.
    asked: tuple[Variant, ...]
    left_out: dict[str, str] = field(default_factory=dict)

    def resolved(self, variants: Iterable[Variant], resolve: Callable[[Variant], dict[str, Any]]) -> dict[str, Any]:
        """Return each variant's settings in full by label, without the variants that cannot take what was set."""
        settings: dict[str, Any] = {}
        for variant in variants:
            try:
                settings[variant.label] = resolve(variant)
            except Misfit as why:
                self._leave_out(variant.label, why)
        self._check_what_is_left([v for v in variants if v.label in settings])
        return settings

    def without_misfits(self, plan: Plan, clients: Iterable[int], model: Mapping[str, Any]) -> Plan:
        """Return the plan without the variants that cannot work with its task, its model or so many clients.

        `clients` are the numbers of clients that its runs have, `model` what was set of the model.
        """
        if plan.kind == "regression" and any(of["class_weights"] != "none" for of in plan.settings.values()):
            raise PlanError("a regression task has no classes to weigh; set class_weights=none")
        for variant in plan.variants:
            algorithm = plan.algorithm(variant.label)
            try:
                _check_representation(algorithm, model)
                for number in sorted(clients):
                    cohort = 1 if algorithm.pooled else plan.cohort or number
                    algorithm.check(plan.spec_for(algorithm), plan.kind, cohort)
                    if algorithm.server is not None:
                        algorithm.server.check_server(cohort)
            except AlgorithmError as why:
                self._leave_out(variant.label, why)
        kept = tuple(v for v in plan.variants if v.label not in self.left_out)
        self._check_what_is_left(kept)
        labels = {v.label for v in kept}
        return plan.model_copy(
            update={
                "variants": kept,
                "settings": {label: of for label, of in plan.settings.items() if label in labels},
                "rounds_of": {label: of for label, of in plan.rounds_of.items() if label in labels},
                "left_out": dict(self.left_out),
            }
        )

    def _leave_out(self, label: str, why: AlgorithmError) -> None:
        if [variant.label for variant in self.asked] == [label]:
            raise PlanError(str(why)) from why
        self.left_out[label] = str(why)

    def _check_what_is_left(self, kept: Sequence[Variant]) -> None:
        if self.left_out and all(is_reference(variant.method) for variant in kept):
            reasons = ". ".join(self.left_out.values())
            raise PlanError(f"no method is left to compare, beside references. {reasons}")


def _check_representation(algorithm: FedAvg, given: Mapping[str, Any]) -> None:
    needed = algorithm.representation
    if given.get("representation") == "plain" and needed != "plain":
        raise Misfit(
            f"{algorithm.name} needs a {needed} representation and gets one by itself; omit model.representation=plain"
        )
