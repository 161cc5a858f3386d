"""Whom does a robust server rule protect, and whom does it silence?

    python -m studies.robust_rules [--short] [--lengths]

A federation has one honest client of a rare domain and one client that may attack. Printed for each server rule and
each attack: the balanced accuracy on rows of the rare domain and of the others (a made task), and on a hospital that
took no part (`heart-disease`, if FARFIELD_DATA has it). `--lengths` prints instead how much longer the longest honest
update is than the median's: how often `bound=median` touches honest clients.

The attacks on the update Δ of one client: `reversed` sends −1000 Δ, `flipped` −Δ, and `small` the mean of the others'
minus 1.5 of their standard deviations in each coordinate, which no distance tells from an honest one (Baruch, Baruch,
Goldberg. A Little Is Enough. NeurIPS 2019).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from farfield.algorithms import build
from farfield.federation.bounding import euclidean
from farfield.federation.engines.local import LocalFederation
from farfield.federation.execution import Outcome
from farfield.federation.federation import QuorumMissed
from farfield.federation.population import Population
from farfield.models import ModelSpec, ModelState, build_model
from farfield.protocol.metrics import logit_metrics
from farfield.reproducibility.threads import one_thread
from farfield.runs.plan import Job, make_plan
from farfield.runs.run_data import run_data, run_sources
from farfield.runs.source_schema import source_schema
from farfield.tasks.clients.partition import Partition, make_clients
from farfield.tasks.registry import load as load_task
from farfield.tasks.task import Domain

#: The rules that are compared, by label: the method and its settings.
RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "mean": ("fedavg", {}),
    "mean, bound=median": ("fedavg", {"bound": "median"}),
    "mean, bound_factor=1": ("fedavg", {"bound": "median", "bound_factor": 1.0}),
    "median": ("median", {}),
    "trimmed-mean": ("trimmed-mean", {}),
    "krum": ("krum", {}),
    "multi-krum": ("multi-krum", {}),
    "geometric-median": ("geometric-median", {}),
}
ATTACKS = ("none", "reversed", "flipped", "small")
RARE, EXTRA = "rare", "extra"


def attack_with(kind: str, own: Tensor, others: Tensor) -> Tensor:
    """Return what the attacker sends instead of its update `own`, with a look at the others'."""
    if kind == "reversed":
        return -1000 * own
    if kind == "flipped":
        return -own
    return others.mean(dim=0) - 1.5 * others.std(dim=0, unbiased=False)


class Attacked(LocalFederation):
    """A federation whose last client attacks."""

    attack = "none"

    def _outcomes(self, phase: str, *rest: Any) -> Iterator[Outcome]:
        outcomes = sorted(super()._outcomes(phase, *rest), key=lambda outcome: outcome.client)
        if phase == "train" and self.attack != "none" and all(outcome.problem is None for outcome in outcomes):
            rows = torch.stack([torch.as_tensor(outcome.values["update"]) for outcome in outcomes])
            last = outcomes[-1]
            last.values = {**last.values, "update": attack_with(self.attack, rows[-1], rows[:-1])}
        yield from outcomes


@dataclass(frozen=True)
class Problem:
    """Domains that train, the last of which may attack, and rows to measure on by name."""

    training: Sequence[Domain]
    measured: dict[str, Domain]
    spec: ModelSpec
    settings: dict[str, Any]
    rounds: int


def made_task(seed: int) -> Problem:
    """Five domains in which the first column tells the class, and a rare one, elsewhere, in which the second does."""

    def domain(name: str, rows: int, draw: int) -> Domain:
        generator = torch.Generator().manual_seed(1000 * seed + draw)
        x = torch.randn(rows, 6, generator=generator)
        x[:, 5] = 3.0 if name == RARE else -3.0  # where it lies; a model can tell
        told_by = 1 if name == RARE else 0
        y = (x[:, told_by] + 0.3 * torch.randn(rows, generator=generator) > 0).long()
        return Domain(name, x, y)

    names = ["a", "b", "c", "d", "e", RARE, EXTRA]
    training = [domain(name, 80, number) for number, name in enumerate(names)]
    measured = {RARE: domain(RARE, 1000, 50), "others": domain("a", 1000, 51)}
    spec = ModelSpec(featurizer="mlp", input_shape=(6,), outputs=2, hidden=(16,))
    return Problem(training, measured, spec, {"lr": 0.4, "batch_size": 40, "weighting": "uniform"}, 30)


def hospitals(held_out: str, seed: int) -> Problem:
    """Three hospitals and a fourth client with a copy of the first one's rows, measured on the hospital left out."""
    task = load_task("heart-disease")
    plan = make_plan(task, algorithms=["fedavg"], held_out=[held_out], seeds=[seed])
    job = Job("fedavg", held_out, seed)
    schema = source_schema(task, run_sources(plan, task, job))
    data = run_data(plan, task, job, schema)
    sources = list(data.sources)
    training = [*sources, Domain(EXTRA, sources[0].x.clone(), sources[0].y.clone())]
    settings = {**plan.settings["fedavg"], "weighting": "uniform"}
    spec = plan.spec_for(plan.algorithm("fedavg"), schema)
    return Problem(training, {domain.name: domain for domain in data.targets}, spec, settings, 20)


def trained(problem: Problem, method: str, settings: dict[str, Any], attack: str, seed: int) -> ModelState:
    """Return the model after all rounds under a rule and an attack."""
    known = {key: value for key, value in problem.settings.items() if key != "weighting"}
    algorithm = build(method, {**known, "weighting": "uniform", **settings}, problem.rounds)
    made = make_clients(
        problem.training, partition=Partition(kind="domain"), clients=None, validation=0.1, seed=seed,
        kind="classification",
    )  # fmt: skip
    model = build_model(problem.spec, seed)
    state = algorithm.start(model.state())
    with one_thread(), Attacked(algorithm, model, Population(problem.training, made), seed=seed) as fed:
        fed.attack = attack
        for number in range(1, problem.rounds + 1):
            fed.begin(number, range(fed.clients))
            try:
                state = algorithm.round(fed, state)
            except QuorumMissed:  # the model is of no use to anybody
                break
    return state.model


def balanced_accuracy(problem: Problem, state: ModelState, domain: Domain) -> float:
    """Return the mean over the classes of the share of their rows that are right."""
    model = build_model(problem.spec, 0)
    model.load(state)
    model.eval()
    with torch.no_grad():
        outputs = model.predict(domain.x)
    if not bool(torch.isfinite(outputs).all()):
        return 0.5  # a model that predicts nothing
    return logit_metrics(outputs.numpy(), domain.y.numpy())["balanced_accuracy"]


def measured(
    problems: Sequence[tuple[int, Problem]], rules: Sequence[str], attacks: Sequence[str] = ATTACKS
) -> dict[tuple[str, str, str], float]:
    """Return the mean balanced accuracy by (rule, attack, what it was measured on)."""
    found: dict[tuple[str, str, str], list[float]] = {}
    for seed, problem in problems:
        for rule in rules:
            for attack in attacks:
                state = trained(problem, *RULES[rule], attack, seed)
                for name, domain in problem.measured.items():
                    found.setdefault((rule, attack, name), []).append(balanced_accuracy(problem, state, domain))
    return {key: mean(values) for key, values in found.items()}


def table(found: dict[tuple[str, str, str], float], name: str, title: str) -> None:
    print(f"\n{title}\n")
    print(f"| rule | {' | '.join(ATTACKS)} |")
    print(f"|---|{'---|' * len(ATTACKS)}")
    for rule in RULES:
        print(f"| {rule} | {' | '.join(f'{100 * found[rule, attack, name]:.1f}' for attack in ATTACKS)} |")


def length_ratios(task: str, method: str, rounds: int) -> list[tuple[str, int, float]]:
    """Return, of each bounded output, in how many cohorts it was sent and how many times the median the longest was.

    The root is taken of what grows with a power of a gradient, as the bound takes that power of its factor.
    """
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from farfield.runs.bench import bench

    ratios: dict[str, list[float]] = {}
    kept: Callable[..., None] = LocalFederation._bound

    def look(self: Any, phase: Any, accepted: Sequence[Outcome]) -> None:
        for name, sends in self._sends.items():
            if sends.power and len(accepted) >= 3:
                lengths = sorted(euclidean(torch.as_tensor(o.values[name])) for o in accepted if name in o.values)
                median = lengths[(len(lengths) - 1) // 2] if lengths else 0.0
                if median > 0:
                    ratio = (lengths[-1] / median) ** (1 / sends.power)
                    ratios.setdefault(f"{phase.__name__} {name}", []).append(ratio)

    LocalFederation._bound = look  # type: ignore[method-assign]
    try:
        with TemporaryDirectory() as folder:
            bench(task, [method], seeds=1, rounds=rounds, out=Path(folder) / "bench", parallel=1, references=False)
    finally:
        LocalFederation._bound = kept  # type: ignore[method-assign]
    return [(name, len(found), max(found)) for name, found in ratios.items()]


def print_lengths(short: bool) -> None:
    print("| task | method | output | cohorts | longest, in medians |\n|---|---|---|---|---|")
    tasks = ("rect-4",) if short else ("heart-disease", "rect-4", "rotated-digits", "tcga-brca")
    methods = ("fedavg", "fediir", "scaffold", "fedsgd", "fedilc-inter-geo", "fedloe-irm")
    for task in tasks:
        first = task == "heart-disease"
        for method in methods[: 2 if short else 6 if first else 4]:
            for name, cohorts, longest in length_ratios(task, method, 5 if short else 20 if first else 10):
                print(f"| {task} | {method} | {name} | {cohorts} | {longest:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="one seed, one hospital: about a minute on one core")
    parser.add_argument("--lengths", action="store_true", help="print the lengths of honest updates instead")
    options = parser.parse_args()
    if options.lengths:
        print_lengths(options.short)
        return
    seeds = range(1 if options.short else 3)
    found = measured([(seed, made_task(seed)) for seed in seeds], list(RULES))
    table(found, RARE, f"made task, rows of the rare domain: balanced accuracy in %, {len(seeds)} seeds")
    table(found, "others", "made task, rows of the other domains")
    try:
        names = load_task("heart-disease").domain_names
    except Exception as error:
        print(f"\nheart-disease is left out: {error}")
        return
    folds = names[:1] if options.short else names
    runs = [(0, hospitals(name, 0)) for name in folds]
    of_hospitals = measured(runs, list(RULES))
    for name in folds:
        table(of_hospitals, name, f"heart-disease, '{name}' took no part: balanced accuracy in %, one seed")
    over = {
        (rule, attack, "mean"): mean(of_hospitals[rule, attack, name] for name in folds)
        for rule in RULES
        for attack in ATTACKS
    }
    table(over, "mean", f"heart-disease, mean over {len(folds)} hospitals")


if __name__ == "__main__":
    main()
