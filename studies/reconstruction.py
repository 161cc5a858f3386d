"""How many rows of a site does a malicious server get back, with messages that the site has approved?

    python -m studies.reconstruction [--data made-up|heart-disease] [--way WAY] [--rounds 100 --questions 100]
    python -m studies.reconstruction --guard off
    python -m studies.reconstruction --guard off --privacy record --noise 1.899 --clip 1

The attacker is the server of `examples/hospitals`. It sends models of its own choice in place of the federation's: all
units of the first layer look along one direction and differ in their thresholds, so that the gradients of two
neighbours differ by the rows between their thresholds alone (Fowl et al., Robbing the Fed, ICLR 2022). Where one row
lies there, it comes back exactly. The shared target of FedIIR is set to the gradient that the site has just sent, which
switches the penalty off. The site's own app answers in this process, as it would behind Flower.

    repeats   other models for round 1, again and again
    runs      the same, each under the name of a new run
    rounds    one model of the attacker's choice in each approved round
    patient   from the federation's own first model, in each round as far towards such a model as the site accepts
    few-units the federation's own first model, with the biases of a few units lowered as far as the site accepts, so
              that each of them is active for the rows alone that lie furthest out
    few-rows  as `patient`, towards models in which four units alone are active, each for the outermost row or two along
              a direction of its own, and others in each round: few rows at a time
    average   as `patient`, towards one such model with all units active. The mean of the answers to it has less noise
              than each of them. Of one row's part of an answer privacy limits the length; here that part is in the
              weights of few units

All but the first two end with the approved rounds.

With `--guard off` the site answers all that its approval covers, as it did before there was a guard. With `--privacy`
its answers have noise. The noise is drawn from the operating system's generator, so figures can differ from run to run.
A private site counts its noised steps, with and without a guard, and stops when those of the approved rounds are made:
no way can ask more often than that.

A row counts as recovered if a guess is within 0.05 of it in every prepared feature. Only guesses that a server can
tell from noise are counted: every output of a category must be within 0.05 of 0 or 1. The way `average` rounds these
outputs to 0 or 1 instead, and all of its guesses are counted.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import tomli_w
import torch
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor

from farfield.algorithms import build
from farfield.deployment.federation_file import FederationFile, read_federation
from farfield.deployment.manifest import manifest as manifest_module
from farfield.deployment.manifest.manifest import make_manifest, own_spec
from farfield.deployment.schema.agreement import agree
from farfield.deployment.schema.site_schema import AgreedSchema
from farfield.deployment.site import plausible_model
from farfield.deployment.site.client_app import make_app
from farfield.deployment.site.data import SiteData, open_site
from farfield.deployment.site.deployed_site import DeployedSite
from farfield.deployment.site.guard import SiteGuard
from farfield.deployment.site.site_file import read_site
from farfield.federation.engines.flower.node import Guard
from farfield.federation.engines.flower.packing import pack, unpack
from farfield.federation.engines.flower.run_assignment import Assignment
from farfield.federation.refusal import readable
from farfield.models import build_model
from farfield.privacy.accountant import epsilon_of
from farfield.privacy.release import releases_of
from farfield.privacy.statement import epsilon_text
from farfield.tasks.task import Fitted

HOSPITALS = Path(__file__).parents[1] / "examples" / "hospitals"
TRAINING = ("cleveland", "hungarian", "switzerland")
WAYS = ("repeats", "runs", "rounds", "patient", "few-units", "few-rows", "average")
#: Two scales by the privacy of a site.
Scales = dict[str, tuple[float, float]]
#: How near a guess must come in every feature.
NEAR = 0.05
#: The scales of the first layer and of the head, by the privacy of the site. So small that several local steps all see
#: nearly the same model, and not so small that an update drowns in the rounding of the weights; with privacy so large
#: that a row's gradient, or an update, is at least as long as `clip`.
SCALES: Scales = {"none": (0.1, 0.1), "record": (0.1, 1.0), "client": (1e-3, 30.0)}
#: The same for models with few rows per unit, which show these rows at any scale: small, to be reached in fewer rounds.
SCALES_APART: Scales = {**SCALES, "none": (1e-2, 1e-3)}


def write_hospitals(folder: Path, made_up: bool) -> None:
    """Write the training hospitals' rows and site files into a folder, as `prepare.py` does."""
    module = importlib.util.spec_from_file_location("prepare", HOSPITALS / "prepare.py")
    assert module is not None
    assert module.loader is not None
    prepare = importlib.util.module_from_spec(module)
    module.loader.exec_module(prepare)
    tables = prepare.invent() if made_up else prepare.read(prepare.data_folder())
    for name in TRAINING:
        (folder / name).mkdir(parents=True, exist_ok=True)
        prepare.write(folder / name / "rows.csv", tables[name])
        (folder / name / "site.toml").write_text((HOSPITALS / name / "site.toml").read_text())


@contextlib.contextmanager
def guard_off() -> Iterator[None]:
    """Let every site in this process answer what its approval covers, without a look at the question or the answer.

    The approval, the preparation of the columns, the number of rows and the count of noised steps are still checked.
    """
    with (
        mock.patch.object(SiteGuard, "before", Guard.before),
        mock.patch.object(SiteGuard, "after", Guard.after),
    ):
        yield


@contextlib.contextmanager
def no_privacy_text() -> Iterator[None]:
    """Let manifests say nothing of what privacy costs: the accountant takes minutes where there is hardly any noise."""
    with mock.patch.object(manifest_module, "privacy_text", return_value=""):
        yield


class Victim:
    """One site behind its own app, and what its server may know: the schema and the preparation of all sites.

    `settings` are added to those of the example's federation file. With `guarded=False` the site answers without its
    guard (`guard_off`), and with `accounted=False` its manifest does not tell ε (`no_privacy_text`).
    """

    def __init__(
        self,
        folder: Path,
        name: str = "cleveland",
        limits: dict[str, Any] | None = None,
        rounds: int | None = None,
        settings: dict[str, Any] | None = None,
        algorithm: str | None = None,
        guarded: bool = True,
        accounted: bool = True,
    ) -> None:
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
        self.name, self.folder, self.guarded, self.accounted = name, folder, guarded, accounted
        self.federation: FederationFile = read_federation(HOSPITALS / "federation.toml")
        changed = {
            "algorithm": algorithm or self.federation.algorithm,
            "rounds": rounds or self.federation.rounds,
            "settings": {**self.federation.settings, **(settings or {})},
        }
        self.federation = self.federation.model_copy(update=changed)
        if limits:
            path = folder / name / "site.toml"
            path.write_text(path.read_text() + "\n" + tomli_w.dumps(limits))
        opened = {other: open_site(read_site(folder / other)) for other in TRAINING}
        self.data: SiteData = opened[name]
        spec = own_spec(self.federation, self.data.schema)
        with contextlib.nullcontext() if accounted else no_privacy_text():
            manifest = make_manifest(
                self.federation, schema=self.data.schema, spec=spec, role="train", limits=self.data.site.limits
            )
        self.agreed: AgreedSchema = agree({other: data.schema for other, data in opened.items()})
        self.site = DeployedSite(self.data, manifest)
        self.state = folder / name / "state"
        self.state.mkdir(exist_ok=True)
        self.app = make_app(self.site, self.state)
        self.fitted = self._fit(list(opened.values()))
        self.model = build_model(self.agreed.model, self.federation.seed)
        self.settings = manifest.settings
        self.algorithm = build(self.federation.algorithm, self.settings, self.federation.rounds)
        #: Reasons of refusals, as the server reads them.
        self.refused: list[str] = []

    def _fit(self, opened: list[SiteData]) -> Fitted:
        preparation = self.agreed.preparation
        assert preparation is not None
        told = []
        for data in opened:
            domain = data.domain(self.agreed)
            training, _ = data.split(self.agreed, self.federation.seed)
            told.append(preparation.statistics(domain.x[training], domain.y[training]))
        return preparation.merge(told)

    @property
    def epsilon(self) -> str:
        """What all approved rounds cost, in words; empty without privacy, or where nobody has computed it."""
        params = self.algorithm.params
        if params.privacy == "none" or not self.accounted:
            return ""
        releases = releases_of(self.algorithm, self.federation.rounds or 1, len(self.rows))
        return f"{epsilon_text(epsilon_of(releases, params.delta))} for each {params.privacy}"

    @property
    def rows(self) -> Tensor:
        """The site's prepared training rows: what the attacker is after."""
        training, _ = self.data.split(self.agreed, self.federation.seed)
        return self.fitted.apply(self.data.domain(self.agreed).x[training])

    @property
    def zero_or_one(self) -> Tensor:
        """Which prepared features are 0 or 1 in every row, as the agreed schema tells."""
        marks = []
        for column in self.agreed.columns:
            numbers = 1 if column.kind == "number" else 0
            marks += [False] * numbers + [True] * (column.width - numbers)
        return torch.tensor(marks)

    def assignment(self, run: str) -> Assignment:
        """Return the approved run under a name."""
        return Assignment(
            run=run,
            algorithm=self.federation.algorithm,
            settings=self.settings,
            rounds=self.federation.rounds or 1,
            model=self.agreed.model,
            seed=self.federation.seed,
            data={"schema": self.agreed.model_dump(mode="json"), "fitted": self.fitted.to_json(), "augment": "none"},
        )

    def ask(self, phase: str, parameters: Tensor, round: int = 1, run: str = "run", **shared: Tensor) -> dict[str, Any]:
        """Return what the site sends in a phase; nothing if it refuses."""
        header: dict[str, Any] = {
            "run": run,
            "round": round,
            "attempt": uuid.uuid4().hex,
            "phase": phase,
            "client": self.name,
            "skipped": [],
            "travelling": False,
            "mark": uuid.uuid4().hex,
            "accepted": "",
            "assignment": self.assignment(run).model_dump_json(),
        }
        model = {"parameters": parameters, "buffers": torch.zeros(0)}
        message = Message(pack(header, {"model": model, "shared": shared}), 1, "query.farfield")
        message.metadata.__dict__["_message_id"] = str(uuid.uuid4())
        context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
        with contextlib.nullcontext() if self.guarded else guard_off():
            reply = self.app(message, context)
        if reply.has_error():
            self.refused.append(str(reply.error.reason))
            return {}
        told, groups = unpack(reply.content)
        if told["problem"]:
            self.refused.append(readable(str(told["problem"])))
        return groups["values"]


@dataclass
class Loot:
    """The rows that came back."""

    rows: Tensor
    zero_or_one: Tensor
    questions: int = 0
    found: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.found = torch.zeros(len(self.rows), dtype=torch.bool)

    def add(self, guesses: Tensor) -> None:
        marks = guesses[:, self.zero_or_one]
        sound = (torch.minimum(marks.abs(), (marks - 1).abs()) < NEAR).all(dim=1) & guesses.isfinite().all(dim=1)
        for guess in guesses[sound]:
            self.found |= ((self.rows - guess).abs() < NEAR).all(dim=1)


def crafted(victim: Victim, number: int) -> Tensor:
    """Return parameters whose first layer sorts rows along a random direction of the numbers, one threshold a unit.

    Where a site has more rows than the layer has units, several questions share the rows along a direction.
    """
    windows = -(-victim.data.n // 60)
    draw = torch.Generator().manual_seed(number // windows)
    units, inputs = next(iter(victim.model.layout.shapes.values()))
    along = torch.randn(inputs, generator=draw) * ~victim.zero_or_one
    along /= along.norm()
    # Prepared numbers have mean 0 and deviation 1 over all sites, and so has their sum along a unit vector.
    part = number % windows
    shares = 0.004 + 0.992 * torch.linspace(part / windows, (part + 1) / windows, units)
    at = torch.distributions.Normal(0.0, 1.2).icdf(shares)
    return with_units(victim, SCALES, along.repeat(units, 1), at, torch.ones(units))


def apart(victim: Victim, number: int, live: int | None = None) -> Tensor:
    """Return parameters whose units look along directions of their own, each active for the outermost row or two.

    With `live` units so many are active, and the others for no row.
    """
    draw = torch.Generator().manual_seed(number)
    units, inputs = next(iter(victim.model.layout.shapes.values()))
    along = torch.randn(units, inputs, generator=draw)
    along /= along.norm(dim=1, keepdim=True)
    # Means, deviations and the number of rows: a site has told all three before training, as its statistics.
    rows = victim.rows
    middle, spread = along @ rows.mean(dim=0), (along * rows.std(dim=0)).norm(dim=1)
    at = middle + spread * torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor(1 - 1 / len(rows)))
    if live is not None:
        at[live:] = (middle + 8 * spread)[live:]
    # Signs in turn: a row in two units leads to no sure prediction, which would have no gradient.
    return with_units(victim, SCALES_APART, along, at, torch.tensor([1.0, -1.0]).repeat(units)[:units])


def with_units(victim: Victim, scales: Scales, along: Tensor, at: Tensor, signs: Tensor) -> Tensor:
    """Return parameters whose units look along directions from a threshold on, with a sign for each unit."""
    layout, (width, head_scale) = victim.model.layout, scales[victim.algorithm.params.privacy]
    first, bias, head = (name for name in layout.slices if name != "head.0.bias")
    parameters = torch.zeros_like(victim.model.vector)
    parameters[layout.slices[first]] = (width * along).reshape(-1)
    parameters[layout.slices[bias]] = -width * at
    by_class = torch.tensor([1.0, -1.0])[: layout.shapes[head][0]]
    parameters[layout.slices[head]] = (head_scale * by_class[:, None] * signs).reshape(-1)
    return parameters


def first_layer(victim: Victim, update: Tensor) -> tuple[Tensor, Tensor]:
    """Return what an update has for the weights of the first layer, [unit, feature], and for its biases."""
    layout = victim.model.layout
    first, bias = list(layout.slices)[:2]
    return update[layout.slices[first]].view(layout.shapes[first]).double(), update[layout.slices[bias]].double()


def guesses(victim: Victim, parameters: Tensor, update: Tensor) -> Tensor:
    """Return the rows that an update tells: of each unit, and of each two units that are neighbours."""
    weights, biases = first_layer(victim, update)
    order = first_layer(victim, parameters)[1].argsort(descending=True)
    weights, biases = weights[order], biases[order]
    weights, biases = torch.cat([weights, weights.diff(dim=0)]), torch.cat([biases, biases.diff()])
    told = biases.abs() > 1e-3 * biases.abs().max().clamp(min=1e-30)
    return (weights[told] / biases[told, None]).float()


def guesses_in_noise(victim: Victim, update: Tensor) -> Tensor:
    """Return one row per unit, with 0 or 1 where every row has one of the two.

    A unit's bias and its weights of features that are 1 all tell the same number, so their mean has less noise.
    """
    weights, biases = first_layer(victim, update)
    ones = victim.zero_or_one & (weights / biases[:, None] > 0.5)
    scale = (biases + (weights * ones).sum(dim=1)) / (1 + ones.sum(dim=1))
    return torch.where(victim.zero_or_one, ones.double(), weights / scale[:, None]).float()


def attack(victim: Victim, way: str, questions: int) -> Loot:
    """Ask questions in one of the ways, and collect the rows that come back."""
    loot = Loot(victim.rows, victim.zero_or_one)
    parameters, rounds = victim.model.vector.clone(), victim.federation.rounds or 1
    in_turn, allowed = way in WAYS[2:], Allowed(victim)
    same: list[Tensor] = []  # updates of one model
    for number in range(min(questions, rounds) if in_turn else questions):
        round, run = number + 1 if in_turn else 1, f"run-{number}" if way == "runs" else "run"
        before = parameters
        if way == "few-units":
            parameters = lowered(victim, allowed.budget(round), round)
        elif way == "patient":
            parameters = allowed.nearest(parameters, crafted(victim, max(0, number - allowed.under_way)), round)
        elif way == "few-rows":
            parameters = allowed.nearest(parameters, apart(victim, number, live=4), round)
        elif way == "average":
            parameters = allowed.nearest(parameters, apart(victim, 0), round)
        else:
            parameters = crafted(victim, number)
        update = ask_for_update(victim, parameters, round, run)
        if update is None:
            continue
        loot.questions += 1
        if way == "average":
            same = [*(same if torch.equal(before, parameters) else []), update]
            loot.add(guesses_in_noise(victim, torch.stack(same).mean(dim=0)))
        else:
            loot.add(guesses(victim, parameters, update))
    return loot


def ask_for_update(victim: Victim, parameters: Tensor, round: int, run: str) -> Tensor | None:
    """Ask for all phases of a round, and return the update; None if the site refuses one of them.

    FedIIR's penalty is switched off by the site's own gradient as the shared target.
    """
    shared = {}
    if "head_gradient" in victim.algorithm.phases:
        told = victim.ask("head_gradient", parameters, round, run)
        if "gradient" not in told:
            return None
        shared = {"target": told["gradient"]}
    update: Tensor | None = victim.ask("train", parameters, round, run, **shared).get("update")
    return update


def lowered(victim: Victim, budget: float, round: int) -> Tensor:
    """Return the first model with the biases of some units lowered, others in each round, as far as a budget allows."""
    layout, parameters = victim.model.layout, victim.model.vector.clone()
    first, bias = list(layout.slices)[:2]
    weights = parameters[layout.slices[first]].view(layout.shapes[first])
    biases = parameters[layout.slices[bias]]
    # Numbers have mean 0 and deviation 1; a mark of a category is 1 in some of the rows.
    spread = (weights.square() * torch.where(victim.zero_or_one, 0.2, 1.0)).sum(dim=1).sqrt()
    middle = (weights * victim.zero_or_one * 0.35).sum(dim=1) + biases
    shifts = (middle + 2.2 * spread).clamp(min=0.0)
    units = shifts.argsort().roll(-5 * round)
    left = budget**2
    for unit in units.tolist():
        if shifts[unit] ** 2 <= left:
            biases[unit] -= shifts[unit]
            left -= float(shifts[unit] ** 2)
    return parameters


class Allowed:
    """How far a model may be from those before, computed as the site does: an attacker who knows the site's bound."""

    def __init__(self, victim: Victim) -> None:
        self.first, self.under_way = victim.model.vector.clone(), 0
        self.per_round, self._factor = float("inf"), victim.site.limits.model_change
        if not victim.guarded:
            return
        algorithm, first_length = victim.algorithm, float(self.first.norm())
        client = victim.site.client(victim.assignment("none"), victim.name, round=0, phase="reference", state={})
        if algorithm.params.privacy != "none" and algorithm.params.noise:
            reference = plausible_model.private_reference(algorithm, client.samples, victim.model.layout, first_length)
        else:
            reference = plausible_model.measure_reference(
                algorithm, client, victim.agreed.model, victim.federation.seed
            )
        ratio = plausible_model.steps_ratio(algorithm, client.samples, list(victim.agreed.sites.values()))
        self.per_round = plausible_model.change_per_round(algorithm, reference, self.first, victim.model.layout, ratio)

    def change(self, rounds: int) -> float:
        """Return the change that the site accepts after so many rounds."""
        return plausible_model.allowed_change(rounds, self.per_round, self._factor, float(self.first.norm()))

    def budget(self, round: int) -> float:
        """Return how far the model of a round may be from the first, if half of it is spent anew in each round."""
        if round == 1 or self.per_round == float("inf"):
            return 0.0 if round == 1 else self.per_round
        return 0.999 * min(self.change(1) / 2**0.5, self.change(round - 1))

    def nearest(self, before: Tensor, wanted: Tensor, round: int) -> Tensor:
        """Return `wanted`, or the point on the way to it that a site still accepts in this round."""
        if self.per_round == float("inf"):
            return wanted
        if round == 1:
            return self.first
        step, drift = 0.999 * self.change(1), 0.999 * self.change(round - 1)
        point = towards(before, wanted, step)
        self.under_way += int(not torch.equal(point, wanted))
        return towards(self.first, point, drift)


def towards(start: Tensor, end: Tensor, most: float) -> Tensor:
    """Return the end of a way, or the point on it that is as far from its start as may be."""
    length = float((end - start).norm())
    return end if length <= most else start + (end - start) * (most / length)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", dest="rows", choices=("made-up", "heart-disease"), default="made-up")
    parser.add_argument("--way", choices=WAYS, action="append", help="all of them if left out")
    parser.add_argument("--questions", type=int, default=44, help="how often the server asks")
    parser.add_argument("--rounds", type=int, help="the approved rounds, if not those of the example")
    parser.add_argument("--guard", choices=("on", "off"), default="on", help="off: the site answers without its guard")
    parser.add_argument("--model-change", type=float, help="the site's limits.model_change, if not the default")
    parser.add_argument("--shown-rows", type=int, help="the site's limits.shown_rows, if not the default")
    parser.add_argument("--algorithm", help="the method, if not that of the example, or fedavg with --privacy record")
    parser.add_argument("--privacy", choices=("none", "record", "client"), default="none")
    parser.add_argument("--noise", type=float, help="the noise multiplier; 'farfield privacy' finds one for an ε")
    parser.add_argument("--clip", type=float, help="the length to which a row's gradient or a reply is cut")
    parser.add_argument("--no-epsilon", action="store_true", help="do not compute ε, which is slow for little noise")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.privacy != "none" and (given.noise is None or given.clip is None):
        parser.error(f"--privacy {given.privacy} needs --noise and --clip")
    limits = {"model_change": given.model_change, "shown_rows": given.shown_rows}
    limits = {name: value for name, value in limits.items() if value is not None}
    settings = {"privacy": given.privacy, "noise": given.noise, "clip": given.clip}
    settings = {name: value for name, value in settings.items() if value is not None}
    if given.privacy == "client":
        settings["weighting"] = "uniform"
    # FedIIR's penalty multiplies gradients of many rows, and has no privacy of single ones.
    algorithm = given.algorithm or ("fedavg" if given.privacy == "record" else None)
    results = []
    for way in given.way or WAYS:
        with tempfile.TemporaryDirectory() as folder:
            write_hospitals(Path(folder), given.rows == "made-up")
            victim = Victim(
                Path(folder),
                limits={"limits": limits} if limits else None,
                rounds=given.rounds,
                settings=settings,
                algorithm=algorithm,
                guarded=given.guard == "on",
                accounted=not given.no_epsilon,
            )
            loot = attack(victim, way, given.questions)
        found, rows = int(loot.found.sum()), len(loot.rows)
        results.append(
            {
                "rows": given.rows,
                "way": way,
                "found": found,
                "of": rows,
                "answered": loot.questions,
                "rounds": victim.federation.rounds,
                "algorithm": victim.federation.algorithm,
                "guard": given.guard,
                "limits": limits,
                "settings": settings,
                "privacy": victim.epsilon,
            }
        )
        told = f"; {victim.epsilon}" if victim.epsilon else ""
        print(f"{given.rows}, {way}: {found} of {rows} rows, {loot.questions} questions answered{told}")
        if victim.refused:
            print(f"  first refusal: {victim.refused[0]}")
    if given.json:
        given.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
