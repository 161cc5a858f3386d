"""The references that stand in every table: what a result is worth is seen beside them.

`prior` looks at no column, `erm` has all rows in one place, `local-only` shares nothing, FedAvg is the plain
federation.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from farfield.algorithms import FedAvg, method
from farfield.runs.settings import PlanError
from farfield.runs.variants import Variant, read_variants

REFERENCES = ("prior", "erm", "local-only", "fedavg")
#: Whether a new bench has them where nobody says.
BY_DEFAULT = True
Wanted = bool | str | Iterable[str]


def wanted(references: Wanted | None, new: bool) -> Wanted:
    """Return which references a bench gets where the user says so, or says nothing: one that grows has its own."""
    return (new and BY_DEFAULT) if references is None else references


def with_references(asked: Sequence[Variant], references: Wanted) -> tuple[Variant, ...]:
    """Return what was asked for and, after it, the references that are not among it.

    `references` is True for all, False for none, or the names of some.
    """
    names: Iterable[str] = REFERENCES if references is True else references or ()
    names = [names] if isinstance(names, str) else list(names)
    for name in names:
        if name not in REFERENCES:
            near = difflib.get_close_matches(name, REFERENCES, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"they are {', '.join(REFERENCES)}"
            raise PlanError(f"'{name}' is not a reference; {hint}")
    there = {variant.method for variant in asked} | {variant.label for variant in asked}
    missing = [name for name in dict.fromkeys(names) if name not in there]
    return (*asked, *(read_variants(missing) if missing else ()))


def is_reference(name: str) -> bool:
    """Whether a method stands in a table to be compared with, not to be chosen."""
    return "+" not in name and (name == FedAvg.name or method(name).family == "reference")
