"""What each finding means in plain words, and the family of methods it speaks for.

These are hints. A method that fits a finding can still lose to FedAvg on held-out domains; only a bench can tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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

REMEDY = {
    "label shift": "judge methods by a metric that class shares do not move (AUROC, balanced accuracy), weight the "
    "classes, and compare with fedprox or scaffold, which hold local training near the shared model",
    "feature shift": "compare with fedcir, which makes representations alike across domains given the class",
    "concept shift": "compare with fediir, fedloe-erm or fedilc-fishr, which look for what holds in every domain",
    "gradient conflict": "compare with fedomg (or fedilc-geometric), whose server looks for a direction that serves "
    "every domain",
    "near-duplicates": "remove the copies, or keep rows that belong together in one domain, before any comparison",
    "domain leak": "look at the column; leave it out if it is an id, bring it to one unit if it is a measurement",
    "label leak": "look at the column; leave it out if it would not be known when the model is used",
}
_SHIFTS = ("label shift", "feature shift", "concept shift", "gradient conflict")
_DEFECTS = ("near-duplicates", "domain leak", "label leak")


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
            "Only the class shares differ: FedAvg is likely enough, judged by AUROC or balanced accuracy; class "
            "weights, fedprox and scaffold are worth a comparison."
        )
    elif shifts:
        verb = "speaks" if len(shifts) == 1 else "speak"
        parts.append(f"{_list(shifts).capitalize()} {verb} for comparing FedAvg with {_list(named)}.")
        if "feature shift" in shifts and "concept shift" not in shifts and verdicts.get("concept shift") == "silent":
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
