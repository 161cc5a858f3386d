"""The diagnosis of a federation: its training sites tell moments and heads, and the server describes their shift.

It is opt-in (`diagnose = true` in the federation file), comes before the training, and changes nothing in it. A site
that does not answer is left out.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from farfield.deployment.activity_log import ActivityLog
from farfield.deployment.federation_file import FederationFile
from farfield.deployment.server.ask_sites import Network
from farfield.deployment.server.joining import JoinedSites
from farfield.diagnose.from_moments import diagnose_sites
from farfield.diagnose.page import page
from farfield.diagnose.site_moments import MOST_CLASSES, SiteMoments, feature_width, reduced_size
from farfield.errors import UserError
from farfield.records.atomic import write_atomic
from farfield.records.bench_folder import DIAGNOSIS
from farfield.records.diagnosis_file import write_diagnosis
from farfield.tasks.outline import TaskOutline
from farfield.tasks.task import Fitted

PAGE = "diagnosis.html"


def diagnose_federation(
    network: Network,
    federation: FederationFile,
    joined: JoinedSites,
    fitted: Fitted | None,
    task: TaskOutline,
    out: Path,
    activity: ActivityLog,
) -> None:
    """Ask the training sites, and write `diagnosis.json` and its page; a resumed run has them already."""
    if (out / DIAGNOSIS).exists():
        return
    agreed, classes = joined.agreed, len(task.classes)
    if classes > MOST_CLASSES:
        activity.add(
            "diagnosed", f"no diagnosis: {classes} classes are more than the {MOST_CLASSES} that heads are sent for"
        )
        return
    size = reduced_size(tuple(task.shape))
    width = feature_width(size, classes, min(task.rows.values()))
    given = {
        "schema": agreed.model_dump(mode="json"),
        "fitted": None if fitted is None else fitted.to_json(),
        "seed": federation.seed,
        "width": width,
    }
    nodes = {member.node: member.name for member in joined.training}
    told = {}
    for node, answer in network.ask(nodes, "moments", given, seconds=federation.deadline).items():
        try:
            if answer.problem:
                raise UserError(answer.problem)
            moments = SiteMoments.model_validate(answer.value)
            moments.check(classes, min(size, width), task.rows[nodes[node]])
            told[nodes[node]] = moments
        except (ValidationError, UserError) as error:
            why = "its moments cannot be read" if isinstance(error, ValidationError) else str(error)
            activity.add("diagnosed", f"site '{nodes[node]}' is not in the diagnosis: {why}")
    what = f"{width} random projections of {size} inputs" if size > width else f"{size} prepared columns"
    try:
        found = diagnose_sites(
            {name: told[name] for name in nodes.values() if name in told},
            task=task.name,
            classes=task.classes,
            data=task.data,
            features=f"{what}, by their moments at each site",
            seed=federation.seed,
        )
    except (ValueError, ArithmeticError) as error:  # what sites told must not end a run
        activity.add("diagnosed", f"no diagnosis: the moments lead to no result ({error})")
        return
    write_diagnosis(out, found)
    write_atomic(out / PAGE, page(found).encode())
    rings = ", ".join(found.alarms) or "no alarm"
    activity.add("diagnosed", f"diagnosis of {len(told)} sites ({rings}): {found.conclusion}")
