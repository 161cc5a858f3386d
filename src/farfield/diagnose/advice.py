"""The meaning of each finding in plain words, and the family of methods that it speaks for.

These are hints. A method that fits a finding can still lose to FedAvg on held-out domains; only a bench can tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from farfield.models import ModelSpec

MEANING = {
    "label shift": "The classes (or the values to predict) are not equally frequent in all domains. A model learns the "
    "shares of the domains it trained on and predicts them at a new one.",
    "feature shift": "Rows of the same class look different from domain to domain: other devices, other people, other "
    "units. A model can meet inputs at a new domain that it never trained on.",
    "concept shift": "On these features, the same input means different labels in different domains: a linear model of "
    "one domain disagrees with that of another on the same rows. No single linear model is best for all.",
    "gradient conflict": "In the first steps of training, at least one domain pulls the model against the mean of the "
    "others: a step that helps them makes it worse there.",
    "near-duplicates": "The same rows, or almost the same, occur in several domains. A held-out domain is then not "
    "unseen, and its figures are too good.",
    "domain leak": "One column alone tells a domain from all the others: an id, a unit, a gap, a device. A model can "
    "recognise the domain by it, and it means something else, or nothing, at a new one.",
    "label leak": "One column alone tells the label. If it was recorded after the label was known, every figure is too "
    "good.",
}

#: Methods of this package by the finding that speaks for them.
METHODS: dict[str, tuple[str, ...]] = {
    "label shift": ("fedprox", "scaffold"),
    "feature shift": ("fedcir",),
    "concept shift": ("fediir", "fedloe-erm", "fedilc-fishr"),
    "gradient conflict": ("fedomg", "fedilc-geometric"),
    "near-duplicates": (),
    "domain leak": (),
    "label leak": (),
}

_REMEDY = {
    "label shift": "judge methods by a metric that class shares do not move (AUROC, balanced accuracy), weight the "
    "classes",
    "feature shift": "bring columns to common units where they differ in these",
    "concept shift": "look for columns that mean something else from domain to domain",
    "gradient conflict": "compare a model per domain (local-only) with the common one",
    "near-duplicates": "remove the copies, or keep rows that belong together in one domain, before any comparison",
    "domain leak": "look at the column; leave it out if it is an id, bring it to one unit if it is a measurement",
    "label leak": "look at the column; leave it out if it would not be known when the model is used",
}
_WHY = {
    "fedprox": "hold local training near the shared model",
    "fedcir": "makes representations alike across domains given the class",
    "fediir": "look for what holds in every domain",
    "fedomg": "look for a direction that serves every domain",
}


_SHIFTS = ("label shift", "feature shift", "concept shift", "gradient conflict")
_DEFECTS = ("near-duplicates", "domain leak", "label leak")


def fitting(kind: str, task: str, spec: ModelSpec | None = None, domains: int = 2) -> tuple[str, ...]:
    """The methods that a finding speaks for and that can work with this kind of task and model."""
    from farfield.algorithms.registry import method

    found = []
    for name in METHODS[kind]:
        supports = method(name).supports
        refused = getattr(supports, task) is not True if spec is None else supports.of_task(task, spec, domains, None)
        found += [] if refused else [name]
    return tuple(found)


def remedy(kind: str, methods: Sequence[str]) -> str:
    """Return what to do about a finding, with the methods to compare with."""
    if not methods:
        return _REMEDY[kind]
    why = _WHY.get(methods[0])
    named = methods[0] if len(methods) == 1 else f"{', '.join(methods[:-1])} or {methods[-1]}"
    return f"{_REMEDY[kind]}, and compare with {named}{f', which {why}' if why else ''}"


def conclusion(verdicts: Mapping[str, str], methods: Mapping[str, Sequence[str]]) -> str:
    """One paragraph: what to mend first, what to compare, or that FedAvg is enough."""
    rings = [kind for kind, verdict in verdicts.items() if verdict == "alarm"]
    unknown = [kind for kind in _SHIFTS if verdicts.get(kind) == "cannot say"]
    parts = []
    defects = [kind for kind in _DEFECTS if kind in rings]
    if defects:
        parts.append(f"First look at the data ({', '.join(defects)}): a comparison on it may mean nothing.")
    shifts = [kind for kind in _SHIFTS if kind in rings]
    named = list(dict.fromkeys(name for kind in shifts for name in methods.get(kind, ())))
    if shifts == ["label shift"]:
        parts.append(
            "Only the labels' shares differ: FedAvg is likely enough, judged by a metric that they do not move; class "
            "weights, fedprox and scaffold are worth a comparison."
        )
    elif shifts and not named:
        verb = "rings" if len(shifts) == 1 else "ring"
        parts.append(f"{_list(shifts).capitalize()} {verb}, and no method here is made for that on this kind of task.")
    elif shifts:
        verb = "speaks" if len(shifts) == 1 else "speak"
        parts.append(f"{_list(shifts).capitalize()} {verb} for comparing FedAvg with {_list(named)}.")
        if "fedcir" in named and "concept shift" not in shifts and verdicts.get("concept shift") == "silent":
            parts.append("The features move and the concept does not: aligning representations (fedcir) fits best.")
    elif len(unknown) == len(_SHIFTS):
        parts.append("Nothing can be said of the shift between these domains.")
    else:
        seen = " in what could be measured" if unknown else ""
        parts.append(f"The domains look alike{seen}: FedAvg is likely enough.")
    parts.append("These are hints from the data, not proofs: a bench on held-out domains decides.")
    return " ".join(parts)


def _list(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
