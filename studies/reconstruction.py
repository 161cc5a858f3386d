"""How many rows of a site does a malicious server get back, with messages that the site has approved?

    python -m studies.reconstruction [--data made-up|heart-disease] [--way repeats|runs|rounds|patient|few-units]

The attacker is the server of `examples/hospitals`. It sends models of its own choice in place of the federation's: all
units of the first layer look along one direction and differ in their thresholds, so that the gradients of two
neighbours differ by the rows between their thresholds alone (Fowl et al., Robbing the Fed, ICLR 2022). Where one row
lies there, it comes back exactly. The shared target of FedIIR is set to the gradient that the site has just sent, which
switches the penalty off. The site's own app answers in this process, as it would behind Flower.

    repeats   other models for round 1, again and again
    runs      the same, each under the name of a new run
    rounds    one model of the attacker's choice in each approved round
    patient   the federation's own first model, then in each round as far towards such a model as the site accepts

    few-units the federation's own first model, with the biases of a few units lowered as far as the site accepts, so
              that each of them is active for the rows alone that lie furthest out

The last three end with the approved rounds.

A row counts as recovered if a guess is within 0.05 of it in every prepared feature. Only guesses that a server can
tell from noise are counted: every output of a category must be within 0.05 of 0 or 1.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import tempfile
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w
import torch
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor

from farfield.algorithms import build
from farfield.deployment.federation_file import FederationFile, read_federation
from farfield.deployment.manifest.manifest import make_manifest, own_spec
from farfield.deployment.schema.agreement import agree
from farfield.deployment.schema.site_schema import AgreedSchema
from farfield.deployment.site.client_app import make_app
from farfield.deployment.site.data import SiteData, open_site
from farfield.deployment.site.deployed_site import DeployedSite
from farfield.deployment.site.site_file import read_site
from farfield.federation.engines.flower.packing import pack, unpack
from farfield.federation.engines.flower.run_assignment import Assignment
from farfield.federation.refusal import readable
from farfield.models import build_model
from farfield.tasks.task import Fitted

HOSPITALS = Path(__file__).parents[1] / "examples" / "hospitals"
TRAINING = ("cleveland", "hungarian", "switzerland")
WAYS = ("repeats", "runs", "rounds", "patient", "few-units")
#: How near a guess must come in every feature.
NEAR = 0.05
#: The scale of the first layer and of the head: small, so that several local steps all see nearly the same model.
WIDTH, HEAD = 1e-2, 1e-3


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


class Victim:
    """One site behind its own app, and what its server may know: the schema and the preparation of all sites."""

    def __init__(
        self,
        folder: Path,
        name: str = "cleveland",
        limits: dict[str, Any] | None = None,
        rounds: int | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
        self.name, self.folder = name, folder
        self.federation: FederationFile = read_federation(HOSPITALS / "federation.toml")
        changed = {"rounds": rounds or self.federation.rounds, "settings": settings or self.federation.settings}
        self.federation = self.federation.model_copy(update=changed)
        if limits:
            path = folder / name / "site.toml"
            path.write_text(path.read_text() + "\n" + tomli_w.dumps(limits))
        opened = {other: open_site(read_site(folder / other)) for other in TRAINING}
        self.data: SiteData = opened[name]
        spec = own_spec(self.federation, self.data.schema)
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
        header = {
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
    layout = victim.model.layout
    first, bias, head = (name for name in layout.slices if name != "head.0.bias")
    units, inputs = layout.shapes[first]
    along = torch.randn(inputs, generator=draw) * ~victim.zero_or_one
    along /= along.norm()
    # Prepared numbers have mean 0 and deviation 1 over all sites, and so has their sum along a unit vector.
    part = number % windows
    shares = 0.004 + 0.992 * torch.linspace(part / windows, (part + 1) / windows, units)
    at = torch.distributions.Normal(0.0, 1.2).icdf(shares)
    parameters = torch.zeros_like(victim.model.vector)
    parameters[layout.slices[first]] = (WIDTH * along).repeat(units, 1).reshape(-1)
    parameters[layout.slices[bias]] = -WIDTH * at
    sign = torch.tensor([1.0, -1.0])[: layout.shapes[head][0]]
    parameters[layout.slices[head]] = (HEAD * sign[:, None]).repeat(1, units).reshape(-1)
    return parameters


def guesses(victim: Victim, parameters: Tensor, update: Tensor) -> Tensor:
    """Return the rows that an update tells: of each unit, and of each two units that are neighbours."""
    layout = victim.model.layout
    first, bias = list(layout.slices)[:2]
    weights, biases = (
        update[layout.slices[first]].view(layout.shapes[first]).double(),
        update[layout.slices[bias]].double(),
    )
    order = parameters[layout.slices[bias]].argsort(descending=True)
    weights, biases = weights[order], biases[order]
    weights, biases = torch.cat([weights, weights.diff(dim=0)]), torch.cat([biases, biases.diff()])
    told = biases.abs() > 1e-3 * biases.abs().max().clamp(min=1e-30)
    return (weights[told] / biases[told, None]).float()


def attack(victim: Victim, way: str, questions: int) -> Loot:
    """Ask questions in one of the ways, and collect the rows that come back."""
    loot = Loot(victim.rows, victim.zero_or_one)
    parameters, rounds = victim.model.vector.clone(), victim.federation.rounds or 1
    in_turn, allowed = way in WAYS[2:], Allowed(victim)
    for number in range(min(questions, rounds) if in_turn else questions):
        round, run = number + 1 if in_turn else 1, f"run-{number}" if way == "runs" else "run"
        if way == "few-units":
            parameters = lowered(victim, allowed.budget(round), round)
        elif way == "patient":
            parameters = allowed.nearest(parameters, crafted(victim, max(0, number - allowed.under_way)), round)
        else:
            parameters = crafted(victim, number)
        told = victim.ask("head_gradient", parameters, round, run)
        if "gradient" not in told:
            continue
        answer = victim.ask("train", parameters, round, run, target=told["gradient"])
        if "update" not in answer:
            continue
        loot.questions += 1
        loot.add(guesses(victim, parameters, answer["update"]))
    return loot


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
        try:
            from farfield.deployment.site import plausible_model as bound
        except ImportError:  # a version without the bound
            self.per_round = float("inf")
            return
        algorithm = build(victim.federation.algorithm, victim.settings, victim.federation.rounds)
        client = victim.site.client(victim.assignment("none"), victim.name, round=0, phase="reference", state={})
        reference = bound.measure_reference(algorithm, client, victim.agreed.model, victim.federation.seed)
        ratio = bound.steps_ratio(algorithm, client.samples, list(victim.agreed.sites.values()))
        self.per_round = bound.change_per_round(algorithm, reference, self.first, victim.model.layout, ratio)
        self._bound, self._factor = bound.allowed_change, victim.site.limits.model_change

    def change(self, rounds: int) -> float:
        """Return the change that the site accepts after so many rounds."""
        return self._bound(rounds, self.per_round, self._factor, float(self.first.norm()))

    def budget(self, round: int) -> float:
        """Return how far the model of a round may be from the first, if half of it is spent anew in each round."""
        if round == 1 or self.per_round == float("inf"):
            return 0.0 if round == 1 else self.per_round
        return 0.999 * min(self.change(1) / 2**0.5, self.change(round - 1))

    def nearest(self, before: Tensor, wanted: Tensor, round: int) -> Tensor:
        """Return the point on the way to `wanted` that a site still accepts in this round."""
        if round == 1:
            return self.first
        if self.per_round == float("inf"):
            return wanted
        step = 0.999 * self.change(1)
        point = before + (wanted - before) * min(1.0, step / max(float((wanted - before).norm()), 1e-12))
        self.under_way += int(not torch.equal(point, wanted))
        drift = 0.999 * self.change(round - 1)
        return self.first + (point - self.first) * min(1.0, drift / max(float((point - self.first).norm()), 1e-12))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", dest="rows", choices=("made-up", "heart-disease"), default="made-up")
    parser.add_argument("--way", choices=WAYS, action="append", help="all of them if left out")
    parser.add_argument("--questions", type=int, default=44, help="how often the server asks")
    parser.add_argument("--rounds", type=int, help="the approved rounds, if not those of the example")
    parser.add_argument("--model-change", type=float, help="the site's limits.model_change, if not the default")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    results = []
    for way in given.way or WAYS:
        with tempfile.TemporaryDirectory() as folder:
            write_hospitals(Path(folder), given.rows == "made-up")
            changed = {} if given.model_change is None else {"limits": {"model_change": given.model_change}}
            victim = Victim(Path(folder), limits=changed, rounds=given.rounds)
            loot = attack(victim, way, given.questions)
        found, rows = int(loot.found.sum()), len(loot.rows)
        results.append({"rows": given.rows, "way": way, "found": found, "of": rows, "answered": loot.questions})
        print(f"{given.rows}, {way}: {found} of {rows} rows, {loot.questions} questions answered")
        if victim.refused:
            print(f"  first refusal: {victim.refused[0]}")
    if given.json:
        given.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
