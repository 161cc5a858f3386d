"""A trained model measured at a site whose labels are known: how good is it there, and how sure is that?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from farfield.protocol.metrics import logit_metrics, regression_metrics
from farfield.protocol.row_intervals import bootstrap_interval, wilson_interval
from farfield.protocol.site_figures import classification_site, regression_site
from farfield.records.atomic import write_json
from farfield.report.evaluated_sites import evaluated_sites_grid
from farfield.report.evaluation_table import EvaluationTable, Measured, evaluation_table
from farfield.report.grid import Grid
from farfield.trained.examples import ExamplesError
from farfield.trained.labelled_examples import Labelled, Reader, Texts

if TYPE_CHECKING:
    from farfield.trained.model_folder import TrainedModel

#: Labels that a note names.
NAMED = 5


@dataclass(frozen=True)
class Evaluation:
    """What came of it: `overall` and `domains` (empty where the data names at most one), and what must be said."""

    about: Mapping[str, Any]
    kind: str
    classes: tuple[str, ...]
    overall: Measured
    domains: tuple[Measured, ...]
    notes: tuple[str, ...]

    @property
    def metrics(self) -> Mapping[str, float]:
        return self.overall.metrics

    def table(self) -> EvaluationTable:
        return evaluation_table(self.kind, self.overall, self.domains, self.classes)

    def sites(self) -> Grid | None:
        """Support, ranking and calibration of each site and of all rows; None for more than two classes."""
        lines = [*self.domains, self.overall]
        return evaluated_sites_grid([(line.name, line.site) for line in lines if line.site is not None])

    def to_json(self) -> dict[str, Any]:
        named = {name: self.about[name] for name in ("task", "algorithm", "method", "round") if name in self.about}
        return {
            **named,
            "classes": list(self.classes),
            **self.overall.to_json(self.classes),
            "domains": [domain.to_json(self.classes) for domain in self.domains],
            "notes": list(self.notes),
        }

    def json(self, path: str | Path) -> Path:
        write_json(Path(path), self.to_json())
        return Path(path)

    def __str__(self) -> str:
        return self.table().grid.markdown()


def evaluate(
    model: TrainedModel | str | Path,
    *data: str | Path,
    label: str | None = None,
    domain: str | None = None,
    device: str = "cpu",
    precision: str = "float32",
) -> Evaluation:
    """Measure a trained model, or the folder that holds one, on labelled files of the kind that it was trained on.

    A table has its truth in the column `label` and, if there are several sites in it, their names in `domain` (both
    as in training by default); a .npz file has arrays x and y (`label` names another than y) and perhaps `domain`; a
    folder of images is class/*.png or domain/class/*.png. Rows without a label are left out, and so are classes that
    the model does not know; the notes say how many. A folder's model computes on `device` and in `precision`; one that
    is loaded already stays as it was loaded.
    """
    from farfield.trained.model_folder import load_model

    trained = load_model(Path(model), device, precision) if isinstance(model, str | Path) else model
    if not data:
        raise ExamplesError("give at least one file to measure on")
    paths = [Path(path) for path in data]
    for path in paths:
        if not path.exists():
            raise ExamplesError(f"there is no file '{path}'")
    reader = Reader(trained.model.spec, trained.preparation, trained.input, trained.classes, trained.device)
    return measure(trained, reader.read(paths, label, domain))


def measure(trained: TrainedModel, data: Labelled) -> Evaluation:
    """The metrics of a model on labelled examples. Each domain is predicted by itself, as an unseen client would be."""
    known, notes = _known(data, trained.classes)
    names = list(dict.fromkeys(data.domains[known]))
    rows_of = {name: np.flatnonzero(known & (data.domains == name)) for name in names}
    outputs = [trained.scores(data.x[torch.from_numpy(rows)]).numpy() for rows in rows_of.values()]
    order = np.concatenate(list(rows_of.values()))
    truth = _truth(data.labels[order], trained.classes)
    measured, start = [], 0
    for name, part in zip(names, outputs, strict=True):
        measured.append(_measured(name, part, truth[start : start + len(part)], trained.classes))
        start += len(part)
    overall = _measured("all", np.concatenate(outputs), truth, trained.classes)
    unknown = int((~known).sum())
    if unknown:
        counted = overall.metrics["accuracy"] * overall.rows / (overall.rows + unknown)
        notes.append(f"counted as wrong, the rows of unknown classes would make the accuracy {100 * counted:.1f} %")
    return Evaluation(
        about=trained.about,
        kind="classification" if trained.classes else "regression",
        classes=trained.classes,
        overall=overall,
        domains=tuple(measured) if len(measured) > 1 else (),
        notes=(*data.notes, *notes, *_seen(names, trained), *_absent(overall, trained.classes)),
    )


def _known(data: Labelled, classes: Sequence[str]) -> tuple[NDArray[np.bool_], list[str]]:
    """Which rows have a class that the model knows; the others are named."""
    if not classes:
        return np.ones(len(data.labels), dtype=bool), []
    known = np.isin(data.labels.astype(str), list(classes))
    counts: dict[str, int] = {}
    for text in data.labels[~known]:
        counts[text] = counts.get(text, 0) + 1
    ranked = sorted(counts, key=lambda text: (-counts[text], text))
    shown = ", ".join(f"'{text}' ({counts[text]})" for text in ranked[:NAMED])
    shown += f" and {len(ranked) - NAMED} more" if len(ranked) > NAMED else ""
    its = ", ".join(f"'{name}'" for name in classes[:NAMED]) + (", …" if len(classes) > NAMED else "")
    folded = {" ".join(name.split()).casefold(): name for name in classes}
    near = [(text, folded[text.casefold()]) for text in ranked if text.casefold() in folded]
    hint = f"; '{near[0][0]}' is spelt '{near[0][1]}' in the model" if near else ""
    if not known.any():
        raise ExamplesError(f"no label is a class of this model, which knows {its}; there is {shown}{hint}")
    if not counts:
        return known, []
    many = f"{len(known) - int(known.sum())} of {len(known)} rows"
    return known, [f"{many} have classes that the model never learned and are left out: {shown}{hint}"]


def _truth(labels: Texts | NDArray[np.float64], classes: Sequence[str]) -> NDArray[Any]:
    codes = {name: number for number, name in enumerate(classes)}
    return np.array([codes[text] for text in labels]) if classes else labels.astype(np.float64)


def _measured(name: str, outputs: NDArray[Any], truth: NDArray[Any], classes: Sequence[str]) -> Measured:
    if classes:
        metrics, site = logit_metrics(outputs, truth), classification_site(outputs, truth, classes)
        if outputs.shape[1] == 1:  # one logit: the other class has zero
            outputs = np.hstack([np.zeros_like(outputs), outputs])
        counts = np.bincount(truth, minlength=len(classes))
        hits = np.bincount(truth[outputs.argmax(axis=1) == truth], minlength=len(classes))
        interval = wilson_interval(metrics["accuracy"], len(truth))
        return Measured(name, len(truth), metrics, interval, tuple(counts.tolist()), tuple(hits.tolist()), site)
    guess = outputs.reshape(-1).astype(np.float64)
    of_loss = bootstrap_interval(np.square(guess - truth))
    return Measured(name, len(truth), regression_metrics(guess, truth), of_loss, site=regression_site(guess, truth))


def _seen(names: Sequence[str], trained: TrainedModel) -> list[str]:
    seen = [name for name in names if name in trained.about.get("domains", ())]
    if not seen:
        return []
    shown = ", ".join(f"'{name}'" for name in seen[:NAMED]) + (", …" if len(seen) > NAMED else "")
    return [f"the model was trained on domains of the names {shown}: on these the figures are not of an unseen site"]


def _absent(overall: Measured, classes: Sequence[str]) -> list[str]:
    absent = [name for name, count in zip(classes, overall.counts, strict=False) if not count]
    if not absent:
        return []
    shown = ", ".join(f"'{name}'" for name in absent[:NAMED])
    shown += f" and {len(absent) - NAMED} more" if len(absent) > NAMED else ""
    return [f"no row here has the class {shown}, so nothing is measured of it"]
