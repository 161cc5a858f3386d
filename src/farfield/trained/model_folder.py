"""A model folder: the weights, what prepares its inputs, and how it is written and read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from farfield.algorithms import State
from farfield.federation.client import Rows
from farfield.models import Model, ModelSpec, ModelState, build_model, probabilities
from farfield.protocol.measurement import predict
from farfield.records import RecordsError
from farfield.records.bench_folder import PREPARATION
from farfield.records.checked_files import read_checked_json, write_checked_json
from farfield.records.checked_tensors import load_checked, save_checked
from farfield.records.checksums import DamagedFile
from farfield.reproducibility.devices import CPU, computing_on, device_named
from farfield.reproducibility.precision import check_precision
from farfield.runs.plan import Plan
from farfield.runs.settings import PlanError
from farfield.runs.source_schema import SourceSchema
from farfield.tasks import Domain
from farfield.tasks.images.image_set import ImageInput
from farfield.tasks.outline import TaskOutline
from farfield.tasks.task import Fitted
from farfield.tasks.user_data.bag_of_words import FittedWords
from farfield.tasks.user_data.column_statistics import PreparationError
from farfield.tasks.user_data.fitted_preparation import read_fitted
from farfield.tasks.user_data.preparation import FittedTable
from farfield.trained.evaluation import Evaluation, evaluate
from farfield.trained.examples import Examples, read_examples
from farfield.trained.model_about import check_card, model_sizes, read_about

WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class TrainedModel:
    """A model folder in memory: the model, what its outputs mean, and what is known of how it was made."""

    model: Model
    classes: tuple[str, ...]
    about: Mapping[str, Any]
    #: How raw rows become examples; None where the model takes them unchanged.
    preparation: FittedTable | FittedWords | None = None
    #: How images become examples; None where the model was not trained on images.
    input: ImageInput | None = None
    #: Where the model computes; what goes in and what comes out is on the CPU.
    device: torch.device = CPU

    def read(self, *paths: str | Path) -> Examples:
        """Examples from files of the kind that the model was trained on, made as training made its own.

        For a model of a table its raw rows (.csv, .tsv, .parquet); for a model of images any number of image files and
        folders; for the others, and for these as well, arrays (.npy, .npz, .csv).
        """
        files = [Path(path) for path in paths]
        return read_examples(files, self.model.spec, self.preparation, self.input, self.device)

    def evaluate(self, *data: str | Path, label: str | None = None, domain: str | None = None) -> Evaluation:
        """How good the model is on labelled files; see `farfield.evaluate`."""
        return evaluate(self, *data, label=label, domain=domain)

    def outputs(self, x: Tensor) -> Tensor:
        """Class probabilities (one column per class), or the predicted values of a regression, for examples.

        Examples are what `read` gives; for a model with a preparation, `preparation.apply` makes them of raw rows.
        """
        scores = self.scores(x)
        return probabilities(scores) if self.classes else scores

    def scores(self, x: Tensor) -> Tensor:
        """The logits of a classifier, or the predicted values of a regression, for examples."""
        if tuple(x.shape[1:]) != self.model.spec.input_shape:
            want = self.model.spec.input_shape
            raise PlanError(f"the model takes examples of shape {want}, and these have {tuple(x.shape[1:])}")
        if len(x) == 0:
            raise PlanError("there are no examples to predict")
        if len(x) == 1 and self.model.spec.norm == "local":
            raise PlanError("this model normalises by the statistics of a batch; give it at least two examples")
        rows = Rows({"": Domain("", x, torch.zeros(len(x)))}, [("", torch.arange(len(x)))], self.device)
        with computing_on(self.device):
            logits = predict(self.model, rows)
        return logits if self.classes or self.preparation is None else self.preparation.outputs(logits)


class Best:
    """Keeps the best model so far on disk, so that a kill costs nothing."""

    def __init__(
        self,
        out: Path,
        plan: Plan,
        task: TaskOutline,
        algorithm: str,
        fitted: Fitted | None,
        schema: SourceSchema | None = None,
    ) -> None:
        self._out, self._fitted = out, fitted
        self._about = {
            "task": plan.task,
            "kind": task.kind,
            "classes": list(task.classes if schema is None else schema.classes),
            "algorithm": algorithm,
            "method": plan.variant(algorithm).method,
            "spec": plan.spec_for(plan.algorithm(algorithm), schema).model_dump(mode="json"),
            "settings": plan.settings[algorithm],
            "domains": list(task.domain_names),
            "prepared": fitted is not None,
            "input": None if task.input is None else asdict(task.input),
        }

    def keep(self, state: State, validation: float) -> None:
        if self._fitted is not None:  # first, because weights without it are of no use
            write_checked_json(self._out / PREPARATION, self._fitted.to_json())
        about = {**self._about, "round": state.round, "source_validation": validation}
        tensors = {"parameters": state.model.parameters, "buffers": state.model.buffers}
        save_checked(self._out / WEIGHTS, tensors, {"farfield": json.dumps(about)})


def load_model(folder: Path, device: str = "cpu", precision: str = "float32") -> TrainedModel:
    """Read a model folder that `train` wrote. It predicts on this device and in this precision.

    The precision is not that of the training: a model that was trained in bfloat16 has parameters in float32.
    """
    on = device_named(device)
    check_precision(precision, on)
    path = Path(folder) / WEIGHTS
    if not path.exists():
        raise RecordsError(f"'{folder}' holds no model (no {WEIGHTS}); give a folder that 'farfield train' wrote")
    tensors, metadata = load_checked(path, frozenset({"farfield"}))
    about = read_about(path, metadata["farfield"])
    if tensors.keys() != {"parameters", "buffers"}:
        raise RecordsError(f"'{path}' is damaged or was not written by farfield: it has {sorted(tensors)[:5]}")
    state = ModelState(tensors["parameters"], tensors["buffers"])
    check_card(Path(folder), path, state)
    model = _built(path, about.spec.model_copy(update={"precision": precision}), state)
    preparation = _read_preparation(Path(folder) / PREPARATION) if about.prepared else None
    return TrainedModel(model, about.classes, about.everything, preparation, about.input, on)


def _built(path: Path, spec: ModelSpec, state: ModelState) -> Model:
    """Return the model of a spec with these numbers, which must be as many and finite."""
    parts = (state.parameters, state.buffers)
    wanted, found = [(size,) for size in model_sizes(path, spec)], [tuple(part.shape) for part in parts]
    if found != wanted or not all(part.is_floating_point() for part in parts):
        raise RecordsError(f"'{path}' is damaged: its model takes {wanted} numbers, and the file holds {found}")
    if not all(bool(torch.isfinite(part).all()) for part in parts):
        raise RecordsError(f"'{path}' is damaged: some of its numbers are not finite")
    model = build_model(spec, seed=0)
    model.load(state)
    return model


def _read_preparation(path: Path) -> FittedTable | FittedWords:
    if not path.exists():
        raise RecordsError(f"'{path}' is missing; without it the model cannot read rows, so train it again")
    try:
        return read_fitted(read_checked_json(path))
    except DamagedFile:
        raise
    except (ValueError, PreparationError) as error:
        raise RecordsError(f"'{path}' cannot be used: {error}") from error
