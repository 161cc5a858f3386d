"""Methods that are not farfield's, for processes that have to import them by themselves."""

from __future__ import annotations

import sys
from pathlib import Path

from farfield.algorithms import parts
from farfield.runs.plan import Plan
from farfield.runs.settings import PlanError


def own_methods(plan: Plan) -> dict[str, dict[str, str]]:
    """Return where other processes find those methods of a plan that are not farfield's."""
    found = {}
    halves = [parts(variant.method) for variant in plan.variants]
    for method in {method for client, servers in halves for method in (client, *servers)}:
        module = method.__module__
        if module.startswith("farfield."):
            continue
        file = getattr(sys.modules.get(module), "__file__", None)
        if module == "__main__" or file is None:
            raise PlanError(
                f"'{method.name}' is defined in the running program, where the nodes of a simulation or of a cluster "
                "cannot import it; put it into a file of its own and name that with --use, or "
                "farfield.algorithms.use() in Python"
            )
        found[method.name] = {"module": module, "file": str(Path(file).resolve())}
    return found
