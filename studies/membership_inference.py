"""Can an attacker tell whether a row was trained on, and how much does ε change that?

    FARFIELD_DATA=… python -m studies.membership_inference [--short] [--to FOLDER]

The task is heart-disease: four hospitals, one client each, FedAvg with record-level privacy. Many federations are
trained, each on a random half of every hospital's rows. The attacker has the final model, the other federations' models
as shadow models, and knows the rows. For each row and each model the attacker says how likely the row was trained on.
The attack is LiRA (Carlini et al., Membership Inference Attacks From First Principles, S&P 2022): the logit of the true
class is compared with two Gaussians, fitted to the shadow models with the row and to those without it.

Two set-ups: `usual` is the task as a bench trains it; `over-trained` has 20 rows per hospital, a wider network and no
thrift, so that a model without privacy remembers its rows and the attack must succeed.

Printed for each ε: area under the attack's ROC curve, true positives at 1 % false positives, an empirical lower bound
of ε (from true and false positives with 95 % Clopper-Pearson intervals, as if guesses were independent), and what the
model is worth: accuracy on rows that it was not trained on. With --to the table goes to a CSV and the figure to an SVG.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import beta, norm
from torch import Tensor

from farfield.algorithms import FedAvg, build
from farfield.federation.client import Client, Rows
from farfield.federation.engines.local import LocalFederation
from farfield.models import ModelSpec, build_model, probabilities
from farfield.privacy.accountant import largest_epsilon, noise_for
from farfield.privacy.release import Release, releases_of
from farfield.report.svg import Scale, add, canvas, nice_ticks, serialise, text
from farfield.reproducibility.devices import CPU
from farfield.reproducibility.threads import one_thread
from farfield.tasks import load
from farfield.tasks.task import Domain

EPSILONS = (math.inf, 8.0, 4.0, 2.0, 1.0, 0.5)
DELTA = 1e-5
FALSE_POSITIVES = 0.01
#: The figure: width of a panel; what each shows, from where to where, and what guessing gives.
PANEL = 270
PANELS = (
    ("auc", "area under the attack's ROC", 0.4, 1.0, 0.5),
    ("tpr_at_1pct_fpr", "true positives at 1 % false", 0.0, 0.4, FALSE_POSITIVES),
    ("accuracy_on_others", "accuracy on rows not trained on", 0.4, 1.0, None),
)
COLOURS = ("#b3446c", "#0067a5")


@dataclass(frozen=True)
class Setup:
    """How the federations are trained."""

    name: str
    #: Rows that are drawn from each hospital before half of them are trained on; None for all.
    rows: int | None
    hidden: tuple[int, ...]
    rounds: int
    settings: Mapping[str, Any]
    #: Settings of private training that differ: a limit needs another step size.
    private: Mapping[str, Any]


USUAL = Setup("usual", None, (32,), 30, {"lr": 0.2, "batch_size": 64, "local_epochs": 1}, {"clip": 1.0, "lr": 0.5})
OVER_TRAINED = Setup(
    "over-trained", 40, (128,), 30, {"lr": 0.5, "batch_size": 0, "local_steps": 10}, {"clip": 1.0, "lr": 0.2}
)


SETUPS = (OVER_TRAINED, USUAL)


class Members:
    """The clients of one federation: of each domain the rows that are trained on."""

    device = CPU

    def __init__(self, domains: Sequence[Domain], chosen: Sequence[Tensor]) -> None:
        self._domains, self._chosen = list(domains), list(chosen)

    def __len__(self) -> int:
        return len(self._domains)

    def client(self, number: int, *, seed: int, round: int, phase: str, state: dict[str, Tensor]) -> Client:
        domain = self._domains[number]
        rows = Rows({domain.name: domain}, [(domain.name, self._chosen[number])])
        return Client(number, domain.name, domain.name, rows, Rows({}, ()), seed, round, phase, state)


def prepared_domains(rows: int | None, seed: int = 0) -> list[Domain]:
    """The hospitals with prepared columns, cut to so many rows. The preparation is fitted to all rows, as is public."""
    task = load("heart-disease")
    assert task.preparation is not None
    fitted: Any = task.preparation.fit([(domain, torch.arange(len(domain))) for domain in task.domains])
    generator = torch.Generator().manual_seed(seed)
    found = []
    for domain in task.domains:
        kept = torch.randperm(len(domain), generator=generator)[: rows or len(domain)].sort().values
        found.append(Domain(domain.name, fitted.apply(domain.x)[kept], domain.y[kept]))
    return found


def method_of(setup: Setup, noise: float | None) -> FedAvg:
    private = {} if noise is None else {**setup.private, "privacy": "record", "noise": noise, "delta": DELTA}
    return build("fedavg", {**setup.settings, **private}, setup.rounds)


def noise_of(setup: Setup, epsilon: float, rows: Sequence[int]) -> float | None:
    """The noise multiplier with which the worst client's rows have this ε."""
    if math.isinf(epsilon):
        return None

    def largest(noise: float) -> Mapping[Release, int]:
        # The smallest hospital has the highest rate and so the largest ε here; `trained_epsilon` checks all.
        return releases_of(method_of(setup, noise), setup.rounds, min(rows))

    return noise_for(epsilon, DELTA, largest)


def trained(setup: Setup, domains: Sequence[Domain], chosen: Sequence[Tensor], noise: float | None, seed: int) -> Any:
    """The model of one federation."""
    algorithm = method_of(setup, noise)
    spec = ModelSpec(input_shape=tuple(domains[0].x.shape[1:]), outputs=2, hidden=setup.hidden)
    model = build_model(spec, seed)
    with one_thread(), LocalFederation(algorithm, model, Members(domains, chosen), seed=seed) as fed:  # type: ignore[arg-type]
        state = algorithm.start(model.state())
        for number in range(1, setup.rounds + 1):
            fed.begin(number, range(len(domains)))
            state = algorithm.round(fed, state)
    model.load(state.model)
    return model.eval()


def observed(
    setup: Setup, epsilon: float, models: int
) -> tuple[NDArray[np.float64], NDArray[np.bool_], float, float, float | None]:
    """Logits of the true class [model, row], who was trained on what [model, row], accuracies in and out, the noise."""
    domains = prepared_domains(setup.rows)
    halves = [len(domain) // 2 for domain in domains]
    noise = noise_of(setup, epsilon, halves)
    x, y = torch.cat([domain.x for domain in domains]), torch.cat([domain.y for domain in domains])
    starts = np.cumsum([0, *(len(domain) for domain in domains)])
    scores, inside, right = [], [], []
    for number in range(models):
        generator = torch.Generator().manual_seed(1000 + number)
        chosen = [
            torch.randperm(len(domain), generator=generator)[:half].sort().values
            for domain, half in zip(domains, halves, strict=True)
        ]
        model = trained(setup, domains, chosen, noise, seed=number)
        with torch.no_grad():
            p = probabilities(model(x)).double()
        of_true = p.gather(1, y.unsqueeze(1)).squeeze(1).clamp(1e-12, 1 - 1e-12)
        scores.append((of_true.log() - (1 - of_true).log()).numpy())
        member = np.zeros(len(y), dtype=bool)
        for start, rows in zip(starts, chosen, strict=False):
            member[start + rows.numpy()] = True
        inside.append(member)
        right.append((p.argmax(1) == y).numpy())
    members, hits = np.array(inside), np.array(right)
    return np.array(scores), members, float(hits[members].mean()), float(hits[~members].mean()), noise


def attack(scores: NDArray[np.float64], members: NDArray[np.bool_]) -> NDArray[np.float64]:
    """LiRA's score of each row in each model: how much likelier its logit is with the row than without.

    The model under attack takes no part in the fit. Spreads are shared by all rows, because shadow models are few.
    """
    models = len(scores)
    found = np.empty_like(scores)
    for target in range(models):
        others = np.arange(models) != target
        logits, inside = scores[others], members[others]
        means = [_mean(logits, where) for where in (inside, ~inside)]
        spreads = [
            np.sqrt(((logits - mean)[where] ** 2).mean() * models / max(models - 4, 1))
            for mean, where in zip(means, (inside, ~inside), strict=True)
        ]
        likely = [norm.logpdf(scores[target], mean, spread) for mean, spread in zip(means, spreads, strict=True)]
        found[target] = likely[0] - likely[1]
    return found


def _mean(logits: NDArray[np.float64], where: NDArray[np.bool_]) -> NDArray[np.float64]:
    return np.asarray((logits * where).sum(0) / np.maximum(where.sum(0), 1))


@dataclass(frozen=True)
class Success:
    """How well an attack tells members from the rest."""

    area: float
    #: True positives where at most 1 % of the rest are called members.
    caught: float
    #: With 95 % confidence in each of the two rates, ε is at least this.
    epsilon: float


def success(found: NDArray[np.float64], members: NDArray[np.bool_], delta: float = DELTA) -> Success:
    """Return how well scores tell members from the rest, over all rows and models."""
    score, inside = found.ravel(), members.ravel()
    order = np.argsort(-score, kind="stable")
    score, inside = score[order], inside[order]
    hits, alarms = np.cumsum(inside), np.cumsum(~inside)
    ends = np.append(score[1:] < score[:-1], True)  # equal scores are called alike
    hits, alarms = hits[ends], alarms[ends]
    members_in_all, rest = int(inside.sum()), int((~inside).sum())
    rates = np.concatenate([[0.0], hits / members_in_all]), np.concatenate([[0.0], alarms / rest])
    area = float(np.trapezoid(*rates))
    caught = float(hits[alarms <= FALSE_POSITIVES * rest].max(initial=0) / members_in_all)
    return Success(area, caught, _lower_bound(hits, alarms, members_in_all, rest, delta))


def _lower_bound(hits: Any, alarms: Any, members: int, rest: int, delta: float) -> float:
    """The largest ε that the rates refute: (TPR − δ) / FPR > e^ε, or the same of saying no.

    The threshold is chosen on the same guesses among fifty, so each is tested at 5 % / 100.
    """
    level = 0.05 / 100
    picked = np.unique(np.linspace(0, len(hits) - 1, 50).astype(int))
    best = 0.0
    for yes, false in zip(hits[picked], alarms[picked], strict=True):
        for true_positives, n, false_positives, m in (
            (yes, members, false, rest),
            (rest - false, rest, members - yes, members),
        ):
            low = beta.ppf(level, true_positives, n - true_positives + 1) if true_positives else 0.0
            high = beta.ppf(1 - level, false_positives + 1, m - false_positives) if false_positives < m else 1.0
            if low > delta and high > 0:
                best = max(best, math.log((low - delta) / high))
    return best


def run(setup: Setup, models: int, epsilons: Sequence[float] = EPSILONS) -> list[dict[str, Any]]:
    """Attack federations of one set-up at each ε, and print a line for each."""
    rows = []
    for epsilon in epsilons:
        scores, members, inside, outside, noise = observed(setup, epsilon, models)
        # Every hospital, not only the smallest: none may have spent more.
        sizes = [len(domain) // 2 for domain in prepared_domains(setup.rows)]
        spent = math.inf if noise is None else _spent(setup, noise, sizes)
        assert spent <= epsilon
        of = success(attack(scores, members), members)
        rows.append(
            {
                "setup": setup.name,
                "epsilon": epsilon,
                "spent": spent,
                "noise": noise,
                "auc": of.area,
                "tpr_at_1pct_fpr": of.caught,
                "epsilon_lower_bound": of.epsilon,
                "accuracy_on_members": inside,
                "accuracy_on_others": outside,
                "models": models,
                "guesses": members.size,
            }
        )
        shown = "none" if noise is None else f"{noise:.2f}"
        print(
            f"{setup.name:13} {epsilon:7g} {shown:>7} {of.area:8.3f} {100 * of.caught:9.1f} % {of.epsilon:11.2f} "
            f"{100 * inside:9.1f} % {100 * outside:9.1f} %",
            flush=True,
        )
    return rows


def _spent(setup: Setup, noise: float, sizes: Sequence[int]) -> float:
    algorithm = method_of(setup, noise)
    return largest_epsilon([releases_of(algorithm, setup.rounds, rows) for rows in sizes], DELTA)


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw attack and accuracy against ε as an SVG of three panels."""
    names = list(dict.fromkeys(row["setup"] for row in rows))
    title = "Membership inference on heart-disease against ε"
    root = canvas(3 * PANEL + 20, 270, title, "Three panels with one line per set-up; the table has the values.", "mia")
    root.set("font-family", "sans-serif")
    add(root, "rect", x=0, y=0, width=3 * PANEL + 20, height=270, fill="white")
    for number, (key, heading, low, high, chance) in enumerate(PANELS):
        left = number * PANEL + 50
        y = Scale(low, high, 210, 40)
        text(root, left - 30, 22, heading, font_size="12")
        for tick in nice_ticks(low, high, 5):
            if low - 1e-9 <= tick <= high + 1e-9:
                add(root, "line", x1=left, x2=left + PANEL - 70, y1=y(tick), y2=y(tick), stroke="#ddd")
                text(root, left - 6, y(tick) + 4, f"{tick:g}", "end", font_size="11")
        if chance is not None:
            add(
                root,
                "line",
                x1=left,
                x2=left + PANEL - 70,
                y1=y(chance),
                y2=y(chance),
                stroke="#888",
                stroke_dasharray="4 3",
            )
        for name, colour in zip(names, COLOURS, strict=False):
            of = [row for row in rows if row["setup"] == name]
            x = Scale(0, max(len(of) - 1, 1), left + 14, left + PANEL - 84)
            points = [(x(place), y(min(max(row[key], low), high))) for place, row in enumerate(of)]
            joined = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
            add(root, "polyline", points=joined, fill="none", stroke=colour, stroke_width="2")
            for (px, py), row in zip(points, of, strict=True):
                add(root, "circle", cx=px, cy=py, r=3.5, fill=colour)
                shown = "none" if math.isinf(row["epsilon"]) else f"{row['epsilon']:g}"
                text(root, px, 228, shown, "middle", font_size="11")
        text(root, left + (PANEL - 70) / 2, 246, "ε", "middle", font_size="12")
    for place, (name, colour) in enumerate(zip(names, COLOURS, strict=False)):
        add(root, "rect", x=50 + 140 * place, y=254, width=12, height=4, fill=colour)
        text(root, 68 + 140 * place, 260, name, font_size="11")
    path.write_text(serialise(root), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="fewer models and two ε: a minute or two")
    parser.add_argument("--models", type=int, help="federations to train for each ε (default 40, short 12)")
    parser.add_argument("--setup", choices=[setup.name for setup in SETUPS], help="this set-up alone")
    parser.add_argument("--epsilon", type=float, help="this ε alone; inf for no privacy")
    parser.add_argument("--to", type=Path, help="a folder for the table (CSV, to which parts are added) and the figure")
    given = parser.parse_args()
    models = given.models or (12 if given.short else 40)
    epsilons = (math.inf, 2.0) if given.short else EPSILONS
    epsilons = epsilons if given.epsilon is None else (given.epsilon,)
    print(f"{models} federations for each ε, δ = {DELTA:g}; attacked with the final model and shadow models (LiRA)\n")
    print("set-up              ε   noise      AUC  TPR at 1 %  ε at least   accuracy: members    others", flush=True)
    setups = [setup for setup in SETUPS if given.setup in (None, setup.name)]
    rows = [row for setup in setups for row in run(setup, models, epsilons)]
    if given.to is not None:
        given.to.mkdir(parents=True, exist_ok=True)
        draw(added(rows, given.to / "membership-inference.csv"), given.to / "membership-inference.svg")


def added(rows: Sequence[Mapping[str, Any]], path: Path) -> list[dict[str, Any]]:
    """Put rows into a table on disk, in place of those of the same set-up and ε; return all rows in order."""
    there: list[Mapping[str, Any]] = []
    if path.exists():
        with open(path, newline="") as file:
            there = [{key: _number(value) for key, value in row.items()} for row in csv.DictReader(file)]
    merged = {(row["setup"], row["epsilon"]): dict(row) for row in (*there, *rows)}
    order = {setup.name: number for number, setup in enumerate(SETUPS)}
    found = [merged[key] for key in sorted(merged, key=lambda key: (order[key[0]], -key[1]))]
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(found[0]))
        writer.writeheader()
        writer.writerows(found)
    return found


def _number(value: str) -> Any:
    try:
        return float(value)
    except ValueError:
        return value


if __name__ == "__main__":
    main()
