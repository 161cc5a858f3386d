"""`diagnose`: how the domains of a task differ, before any training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from farfield.diagnose.concept_shift import concept_shift
from farfield.diagnose.duplicates import near_duplicates
from farfield.diagnose.feature_shift import feature_shift
from farfield.diagnose.finding import Diagnosis, with_fitting_methods
from farfield.diagnose.gradient_conflict import gradient_conflict
from farfield.diagnose.label_shift import label_shift
from farfield.diagnose.leaks import leaks
from farfield.diagnose.shared_features import take_sample
from farfield.reproducibility.threads import one_thread
from farfield.tasks.open_task import open_task

if TYPE_CHECKING:
    from farfield.tasks.task import Task

#: Random draws that chance is known by. With an alarm level of 0.01, 199 leave room for one draw further out.
DRAWS = 199
#: Rows of a domain, and in all.
ROWS, TOTAL = 400, 4000
QUICK_ROWS, QUICK_TOTAL = 150, 1200


def diagnose(
    task: str | Path | Task,
    *,
    features: str | None = None,
    image_size: int | None = None,
    quick: bool = False,
    seed: int = 0,
) -> Diagnosis:
    """Describe the shift between the domains of a task.

    Parameters
    ----------
    task
        A task, its name, or a folder of images.
    features, image_size
        As for `bench`: features of a frozen backbone in the place of pixels, or another size of images.
    quick
        Look at fewer rows. A bench does so.
    seed
        Which rows are drawn, and by which random draws chance is known.

    Returns
    -------
    Diagnosis
        One finding per kind, with its number, verdict, sentence and picture. It looks at all domains and is a
        description: nothing that trains or selects reads it.
    """
    task = open_task(task, features=features, image_size=image_size)
    rows, total = (QUICK_ROWS, QUICK_TOTAL) if quick else (ROWS, TOTAL)
    with one_thread():
        sample = take_sample(task, rows=rows, total=total, seed=seed)
        results = (
            label_shift(task, sample.draw("label shift"), DRAWS),
            feature_shift(sample, DRAWS),
            concept_shift(sample, DRAWS),
            gradient_conflict(sample, DRAWS),
            near_duplicates(task, sample),
            *leaks(sample),
        )
    return Diagnosis(
        task=task.name,
        kind=task.kind,
        data=task.data_hash,
        domains=task.domain_names,
        rows=sum(len(domain) for domain in task.domains),
        features=sample.features,
        results=with_fitting_methods(results, task.kind, task.model, len(task.domains)),
        notes=sample.notes,
        seed=seed,
        quick=quick,
    )
