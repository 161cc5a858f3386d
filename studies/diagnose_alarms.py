"""Which alarms of `farfield diagnose` ring on made tasks whose shift is known, over several seeds.

    python studies/diagnose_alarms.py --seeds 50
    python studies/diagnose_alarms.py --seeds 20 --shuffled heart-disease,tcga-brca
    python studies/diagnose_alarms.py --seeds 12 --graded "label shift"

Every task has four domains of 200 rows, two classes and eight numbers, and one kind of shift or none. Printed is how
often each alarm rang, in percent; a star marks the alarms that should. With `--shuffled`, the rows of real tasks are
dealt out to their domains at random: no alarm about shift should ring. With `--graded`, one kind of shift grows from
hardly any on.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

import farfield as ff
from farfield.diagnose.diagnosis import diagnose
from farfield.diagnose.finding import KINDS
from farfield.tasks.open_task import open_task
from farfield.tasks.task import Domain, Task

Floats = NDArray[np.float64]
DOMAINS, ROWS, FEATURES = 4, 200, 8
#: How clearly the inputs tell the classes.
SLOPE = 2.0


def direction(angle: float) -> Floats:
    """A unit vector in the plane of the first two features."""
    found = np.zeros(FEATURES)
    found[:2] = np.cos(np.radians(angle)), np.sin(np.radians(angle))
    return found


def domain(
    draw: np.random.Generator,
    rows: int,
    mean: Floats | float = 0.0,
    angle: float = 0.0,
    share: float | None = None,
) -> tuple[Floats, NDArray[np.int64]]:
    """Gaussian inputs and a logistic concept; with `share`, that share of class 1 and inputs that depend on the class.

    The two ways agree: classes that are Gaussian with a common covariance have a logistic concept.
    """
    head = direction(angle)
    if share is not None:
        y = (draw.random(rows) < share).astype(np.int64)
        return draw.standard_normal((rows, FEATURES)) + SLOPE / 2 * np.outer(2 * y - 1, head), y
    x = mean + draw.standard_normal((rows, FEATURES))
    y = (draw.random(rows) < 1 / (1 + np.exp(-SLOPE * (x @ head)))).astype(np.int64)
    return x, y


def _named(name: str, parts: list[tuple[Floats, NDArray[np.int64]]]) -> Task:
    pairs = {f"site-{number}": part for number, part in enumerate(parts)}
    return ff.task_from_arrays(name, pairs, classes=("no", "yes"))


def none(seed: int, domains: int = DOMAINS, rows: int = ROWS) -> Task:
    """Every domain is drawn alike."""
    draw = np.random.default_rng([seed, 0])
    return _named("none", [domain(draw, rows) for _ in range(domains)])


def label_shift(seed: int) -> Task:
    """Class shares from 20 to 80 %; inputs of a class are alike everywhere."""
    draw = np.random.default_rng([seed, 1])
    return _named("label shift", [domain(draw, ROWS, share=share) for share in (0.2, 0.4, 0.6, 0.8)])


def feature_shift(seed: int) -> Task:
    """Inputs move along features that do not tell the class; the concept and the class shares stay."""
    draw = np.random.default_rng([seed, 2])
    means = [np.concatenate([[0, 0], 0.7 * draw.standard_normal(FEATURES - 2)]) for _ in range(DOMAINS)]
    return _named("feature shift", [domain(draw, ROWS, mean=mean) for mean in means])


def concept_shift(seed: int) -> Task:
    """The same inputs everywhere; the direction that tells the classes turns from domain to domain, up to 120°."""
    draw = np.random.default_rng([seed, 3])
    return _named("concept shift", [domain(draw, ROWS, angle=angle) for angle in (-60, -20, 20, 60)])


def gradient_conflict(seed: int) -> Task:
    """The same inputs everywhere; one domain has the classes exchanged."""
    draw = np.random.default_rng([seed, 4])
    return _named("gradient conflict", [domain(draw, ROWS, angle=angle) for angle in (0, 0, 0, 180)])


def near_duplicates(seed: int) -> Task:
    """Every domain alike, and 5 % of the rows of each are rows of the next, a little blurred."""
    draw = np.random.default_rng([seed, 5])
    parts = [domain(draw, ROWS) for _ in range(DOMAINS)]
    copied = ROWS // 20
    made = []
    for number, (x, y) in enumerate(parts):
        x, y = x.copy(), y.copy()
        other_x, other_y = parts[(number + 1) % DOMAINS]
        x[:copied] = other_x[-copied:] + 1e-3 * draw.standard_normal((copied, FEATURES))
        y[:copied] = other_y[-copied:]
        made.append((x, y))
    return _named("near-duplicates", made)


def domain_leak(seed: int) -> Task:
    """Every domain alike, but for a column of running numbers, as a register of each site in turn would have."""
    draw = np.random.default_rng([seed, 6])
    parts = [domain(draw, ROWS) for _ in range(DOMAINS)]
    numbers = np.arange(DOMAINS * ROWS, dtype=np.float64).reshape(DOMAINS, ROWS, 1)
    return _named("domain leak", [(np.hstack([x, n]), y) for (x, y), n in zip(parts, numbers, strict=True)])


def label_leak(seed: int) -> Task:
    """Every domain alike, with a column that is written after the label is known."""
    draw = np.random.default_rng([seed, 7])
    parts = [domain(draw, ROWS) for _ in range(DOMAINS)]
    return _named("label leak", [(np.hstack([x, y[:, None] + 0.2 * draw.random((ROWS, 1))]), y) for x, y in parts])


#: Each made task with the alarms that should ring. Opposite concepts are conflict and concept shift at once, and a
#: column that tells the domain is a feature that shifts.
MADE: dict[str, tuple[Callable[[int], Task], tuple[str, ...]]] = {
    "none": (none, ()),
    "label shift": (label_shift, ("label shift",)),
    "feature shift": (feature_shift, ("feature shift",)),
    "concept shift": (concept_shift, ("concept shift",)),
    "gradient conflict": (gradient_conflict, ("gradient conflict", "concept shift")),
    "near-duplicates": (near_duplicates, ("near-duplicates",)),
    "domain leak": (domain_leak, ("domain leak", "feature shift")),
    "label leak": (label_leak, ("label leak",)),
}


#: Where the domains stand between the two ends of a graded shift.
PLACES = (-1.0, -1 / 3, 1 / 3, 1.0)


def graded_label(seed: int, strength: float) -> Task:
    """Class shares from 0.5 − strength to 0.5 + strength."""
    draw = np.random.default_rng([seed, 1])
    return _named("label shift", [domain(draw, ROWS, share=0.5 + strength * place) for place in PLACES])


def graded_features(seed: int, strength: float) -> Task:
    """Means of the features that do not tell the class, with this standard deviation between the domains."""
    draw = np.random.default_rng([seed, 2])
    means = [np.concatenate([[0, 0], strength * draw.standard_normal(FEATURES - 2)]) for _ in range(DOMAINS)]
    return _named("feature shift", [domain(draw, ROWS, mean=mean) for mean in means])


def graded_concept(seed: int, strength: float) -> Task:
    """Directions that tell the classes, up to so many degrees to either side."""
    draw = np.random.default_rng([seed, 3])
    return _named("concept shift", [domain(draw, ROWS, angle=strength * place) for place in PLACES])


GRADED: dict[str, tuple[Callable[[int, float], Task], tuple[float, ...]]] = {
    "label shift": (graded_label, (0.05, 0.1, 0.15, 0.2)),
    "feature shift": (graded_features, (0.1, 0.2, 0.3)),
    "concept shift": (graded_concept, (10.0, 20.0, 30.0, 45.0)),
}


def shuffled(name: str) -> Callable[[int], Task]:
    """A task whose rows are dealt out at random to domains of the same sizes; rows of a group stay independent rows."""
    task = open_task(name)
    x = torch.cat([domain.x for domain in task.domains])
    y = torch.cat([domain.y for domain in task.domains])
    groups = [domain.groups for domain in task.domains]
    if all(group is not None for group in groups):  # one row of each, or copies of a patient would be in two domains
        number = np.concatenate([np.asarray(group) for group in groups])
        first = torch.from_numpy(np.unique(number, return_index=True)[1])
        x, y = x[first], y[first]

    def make(seed: int) -> Task:
        order = torch.from_numpy(np.random.default_rng([seed, 8]).permutation(len(y)))
        ends = (np.cumsum([len(domain) for domain in task.domains]) * len(y) // sum(map(len, task.domains))).tolist()
        parts = [order[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        dealt = tuple(Domain(d.name, x[part], y[part]) for d, part in zip(task.domains, parts, strict=True))
        return replace(task, domains=dealt, fingerprint="")

    return make


def rates(make: Callable[[int], Task], seeds: int, quick: bool = False) -> dict[str, float]:
    """How often each alarm rings."""
    rung = [diagnose(make(seed), seed=seed, quick=quick).alarms for seed in range(seeds)]
    return {kind: sum(kind in alarms for alarms in rung) / seeds for kind in KINDS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20, help="made tasks of each kind")
    parser.add_argument("--quick", action="store_true", help="fewer rows, as a bench does")
    parser.add_argument("--only", help="one kind of made task")
    parser.add_argument("--shuffled", help="real tasks, with commas, whose rows are dealt out at random")
    parser.add_argument("--graded", choices=GRADED, help="one kind of shift, from hardly any on")
    given = parser.parse_args()
    if given.graded is not None:
        graded, strengths = GRADED[given.graded]
        for strength in strengths:
            rate = rates(lambda seed, strength=strength: graded(seed, strength), given.seeds)[given.graded]
            print(f"{given.graded}, strength {strength:g}: rang in {100 * rate:.0f} of 100", flush=True)
        return
    made = MADE if given.shuffled is None else {name: (shuffled(name), ()) for name in given.shuffled.split(",")}
    print("| made task | " + " | ".join(KINDS) + " |")
    print("|---|" + "---:|" * len(KINDS))
    for name, (make, expected) in made.items():
        if given.only in (None, name):
            found = rates(make, given.seeds, given.quick)
            cells = [f"{100 * found[kind]:.0f}{' *' if kind in expected else ''}" for kind in KINDS]
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
