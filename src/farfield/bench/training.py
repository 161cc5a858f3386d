"""One method on all domains: the model that is put to use, with a card that says where it comes from."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from farfield.algorithms import State
from farfield.bench.engines import check_engine, open_engine
from farfield.bench.evaluating import Evaluation, evaluate
from farfield.bench.examples import Examples, read_examples
from farfield.bench.job import PREPARATION, run_job
from farfield.bench.plan import Job, Plan, check_counts, make_plan
from farfield.bench.prepare import run_data
from farfield.bench.rounds import Watch
from farfield.bench.settings import PlanError, check_weights
from farfield.federation.client import Rows
from farfield.models import NORM_POLICIES, Model, ModelSpec, ModelState, build_model, hash_states, probabilities
from farfield.protocol.evaluation import predict
from farfield.records import RecordsError, RunFolder, difference
from farfield.records.atomic import write_atomic, write_json
from farfield.tasks import Domain, Task, load, names
from farfield.tasks.data_folder.store import MissingData
from farfield.tasks.images.features import open_task
from farfield.tasks.images.files import ImageInput
from farfield.tasks.own.fitted import read_fitted
from farfield.tasks.own.preparation import FittedTable
from farfield.tasks.own.statistics import PreparationError
from farfield.tasks.own.words import FittedWords
from farfield.tasks.task import Fitted

WEIGHTS, CARD = "model.safetensors", "README.md"


@dataclass(frozen=True)
class TrainedModel:
    """A model folder in memory: the model, what its outputs mean, and what is known of how it was made."""

    model: Model
    classes: tuple[str, ...]
    about: Mapping[str, Any]
    #: How raw rows become examples; None where the model takes them as they are.
    preparation: FittedTable | FittedWords | None = None
    #: How images become examples; None where the model was not trained on images.
    input: ImageInput | None = None

    def read(self, *paths: str | Path) -> Examples:
        """Examples from files of the kind that the model was trained on, made as training made its own.

        For a model of a table its raw rows (.csv, .tsv, .parquet); for a model of images any number of image files and
        folders; for the others, and for these as well, arrays (.npy, .npz, .csv).
        """
        return read_examples([Path(path) for path in paths], self.model.spec, self.preparation, self.input)

    def evaluate(self, *data: str | Path, label: str | None = None, domain: str | None = None) -> Evaluation:
        """How good the model is on labelled files; see `farfield.evaluate`."""
        return evaluate(self, *data, label=label, domain=domain)

    def outputs(self, x: Tensor) -> Tensor:
        """Class probabilities (one column a class), or the predicted values of a regression, for examples.

        Examples are what `read` gives; for a model with a preparation, `preparation.apply` makes them of raw rows.
        """
        if tuple(x.shape[1:]) != self.model.spec.input_shape:
            want = self.model.spec.input_shape
            raise PlanError(f"the model takes examples of shape {want}, and these have {tuple(x.shape[1:])}")
        if len(x) == 0:
            raise PlanError("there are no examples to predict")
        if len(x) == 1 and self.model.spec.norm == "local":
            raise PlanError("this model normalises by the statistics of a batch; give it at least two examples")
        rows = Rows({"": Domain("", x, torch.zeros(len(x)))}, [("", torch.arange(len(x)))])
        logits = predict(self.model, rows)
        if self.classes:
            return probabilities(logits)
        return logits if self.preparation is None else self.preparation.outputs(logits)


def train(
    task: str | Task,
    algorithm: str,
    out: str | Path,
    *,
    rounds: int | None = None,
    communications: int | Sequence[int] | None = None,
    seed: int = 0,
    partition: str | None = None,
    clients: int | None = None,
    cohort: int | None = None,
    validation: float | str = 0.1,
    features: str | None = None,
    image_size: int | None = None,
    settings: Mapping[str, Any] | None = None,
    engine: str = "local",
    workers: int | None = None,
    checkpoint_every: int = 10,
    resume: bool = False,
    ready: Callable[[Plan], None] = lambda _: None,
    watch: Watch = lambda _: None,
) -> Path:
    """Train on every domain and keep the model of the round with the best source validation. Returns the folder.

    `ready` is called when everything was checked, before the first round.
    """
    check_weights(settings)
    task = open_task(task, features=features, image_size=image_size)
    out = Path(out)
    check_engine(engine, None)
    check_counts(workers, None, checkpoint_every)
    plan = make_plan(
        task,
        algorithms=[algorithm],
        seeds=[seed],
        rounds=rounds,
        communications=communications,
        partition=partition,
        clients=clients,
        cohort=cohort,
        validation=validation,
        evaluate_every=1,
        equal_steps=False,
        all_train=True,
        settings=settings,
    )
    if plan.algorithm(algorithm).name == "local-only":
        raise PlanError("local-only gives one model a client and no common one to keep; train another method")
    job = Job(algorithm, None, seed)
    folder = out / "run"
    _check_folder(out, folder, plan, job, resume)
    best = Best(out, plan, task, algorithm, run_data(plan, task, job).fitted)
    ready(plan)
    with open_engine(engine, plan, task, workers) as factory:
        result = run_job(
            plan,
            task,
            job,
            folder,
            engine=factory,
            checkpoint_every=checkpoint_every,
            watch=watch,
            on_better=best.keep,
        )
    write_card(out, plan, task, job, result)
    return out


def _check_folder(out: Path, folder: Path, plan: Plan, job: Job, resume: bool) -> None:
    run = RunFolder(folder)
    if run.exists:
        changed = difference(run.config, plan.job_config(job))
        if changed:
            raise RecordsError(
                f"'{out}' holds another training: {changed}; choose another --out, or leave the setting as it was "
                "and add --resume"
            )
        if not resume:
            raise RecordsError(f"'{out}' holds this training already; add --resume to go on, or choose another --out")
    elif out.exists() and any(out.iterdir()):
        raise RecordsError(f"'{out}' is not empty and holds no training; choose another folder for --out")
    elif resume:
        raise RecordsError(f"there is no training in '{out}' to resume; leave --resume away to start one")


class Best:
    """Keeps the best model so far on disk, so that a kill costs nothing."""

    def __init__(self, out: Path, plan: Plan, task: Task, algorithm: str, fitted: Fitted | None) -> None:
        self._out, self._fitted = out, fitted
        self._about = {
            "task": plan.task,
            "kind": task.kind,
            "classes": list(task.classes),
            "algorithm": algorithm,
            "spec": plan.spec_for(plan.algorithm(algorithm)).model_dump(mode="json"),
            "settings": plan.settings[algorithm],
            "domains": list(task.domain_names),
            "prepared": fitted is not None,
            "input": None if task.input is None else asdict(task.input),
        }

    def keep(self, state: State, validation: float) -> None:
        if self._fitted is not None:  # first, because weights without it are of no use
            write_json(self._out / PREPARATION, self._fitted.to_json())
        about = {**self._about, "round": state.round, "source_validation": validation}
        tensors = {"parameters": state.model.parameters, "buffers": state.model.buffers}
        metadata = {"farfield": json.dumps(about)}
        write_atomic(self._out / WEIGHTS, save(tensors, metadata=metadata))


def write_card(
    out: Path, plan: Plan, task: Task, job: Job, result: Mapping[str, Any], unseen: str | None = None
) -> None:
    """Describe the model that was kept. `unseen` says how it does where it was not trained; left out, how to know."""
    write_atomic(out / CARD, _card(plan, task, job, result, load_model(out), unseen).encode())


def load_model(folder: Path) -> TrainedModel:
    """Read a model folder that `train` wrote."""
    path = Path(folder) / WEIGHTS
    if not path.exists():
        raise RecordsError(f"'{folder}' holds no model (no {WEIGHTS}); give a folder that 'farfield train' wrote")
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads(file.metadata()["farfield"])
            state = ModelState(file.get_tensor("parameters"), file.get_tensor("buffers"))
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise RecordsError(f"'{path}' is damaged or was not written by farfield: {error}") from error
    # The numbers come from this file, so the weights that training started from are not needed.
    model = build_model(ModelSpec(**{**about["spec"], "weights": "none"}), seed=0)
    model.load(state)
    preparation = _read_preparation(Path(folder) / PREPARATION) if about.get("prepared") else None
    given = about.get("input")
    way = None if given is None else ImageInput(**{**given, "arrays": tuple(given["arrays"])})
    return TrainedModel(model, tuple(about["classes"]), about, preparation, way)


def _read_preparation(path: Path) -> FittedTable | FittedWords:
    if not path.exists():
        raise RecordsError(f"'{path}' is missing; without it the model cannot read rows, so train it again")
    try:
        content = json.loads(path.read_text())
        return read_fitted(content)
    except (ValueError, PreparationError) as error:
        raise RecordsError(f"'{path}' cannot be used: {error}") from error


def _bench_command(task: Task, algorithm: str) -> str:
    if task.input is not None and task.input.backbone:
        options = f"--features cached:{task.input.backbone} --algorithms {algorithm}"
        return f"`farfield bench` on the images that it was trained on with `{options}`"
    if _is_registered(task):
        return f"`farfield bench {task.name} --algorithms {algorithm}`"
    what = "table" if task.preparation is not None else "data"
    return f"`farfield bench --data` with the {what} that it was trained on, and `--algorithms {algorithm}`"


def _is_registered(task: Task) -> bool:
    try:
        return task.name in names() and load(task.name).data_hash == task.data_hash
    except MissingData:  # trained on ready features of images that are not here
        return False


def _usage(trained: TrainedModel) -> str:
    """How to ask the model, for its card."""
    way, shape = trained.input, trained.model.spec.input_shape
    if trained.preparation is not None:
        what, how = "ROWS.csv", "ROWS.csv has the columns of the table it was trained on, with or without the label"
    elif way is None or way.arrays:
        shape = shape if way is None else way.arrays
        what, how = (
            "EXAMPLES.npy",
            f"EXAMPLES.npy has examples of shape {shape}, as in training; .npz and .csv work too",
        )
    else:
        what = "IMAGES"
        how = f"IMAGES are image files, or folders of them; they are decoded at {way.size} × {way.size}, as in training"
    command = f"farfield predict MODEL {what} --to predictions.csv"
    needs = ""
    if way is not None and way.backbone:
        name, _, digest = way.weights.partition("@sha256:")
        needs = f"""
The model takes features of the frozen backbone {way.backbone}, and `predict` computes them. That needs the backbone's
weights, which are not in this folder: {name}, sha256 {digest}.
"""
    measure = "Where the labels are known, `farfield evaluate MODEL DATA` measures how good the model is."
    return f"```\n{command}\n```\n\nMODEL is this folder. {how}. {measure}\n{needs}"


def _card(
    plan: Plan, task: Task, job: Job, result: Mapping[str, Any], trained: TrainedModel, unseen: str | None
) -> str:
    if unseen is None:
        unseen = (
            "It does not say how the model does at a site that did\n"
            f"not: run {_bench_command(task, job.algorithm)}, which holds out one domain after the other."
        )
    state = trained.model.state()
    metric = "loss" if task.kind == "regression" else "accuracy"
    settings = "\n".join(f"| {name} | {value} |" for name, value in plan.settings[job.algorithm].items())
    return f"""# {job.algorithm} on {task.name}

A model for {task.description or task.name}, trained across {result["clients"]} clients holding the domains
{", ".join(task.domain_names)}.

| | |
|---|---|
| method | {job.algorithm} |
| round kept | {trained.about["round"]} of {plan.rounds}, by source validation |
| {metric} on the sources' validation rows | {trained.about["source_validation"]:.4f} |
| parameters | {state.parameters.numel()} |
| normalisation | {plan.model.norm}: {NORM_POLICIES[plan.model.norm]} |
| sha256 of parameters and buffers | {hash_states([state])} |
| seed | {job.seed} |

The validation figure is measured on the domains that took part. {unseen}

## Use

{_usage(trained)}
## Settings

| parameter | value |
|---|---|
{settings}
"""
