"""A trained model reads what it was trained on, and makes the same examples of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import farfield as ff
from farfield.errors import UserError
from farfield.models import ModelSpec
from farfield.models.resnet import ResNet
from farfield.tasks import Domain, Task
from farfield.tasks.images import features
from farfield.tasks.images import new_images as image_files
from farfield.tasks.images.features import ready_features, with_features
from farfield.tasks.images.image_set import ImageInput, ImageSet
from farfield.trained import evaluation
from farfield.trained.model_folder import TrainedModel
from tests.tasks.image_files import make_folder
from tests.tasks.tables import visits, write


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FARFIELD_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("FARFIELD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(features, "INPUT", 32)
    features.frozen.cache_clear()
    (tmp_path / "data" / "weights").mkdir(parents=True)
    torch.manual_seed(0)
    torch.save(ResNet(18).state_dict(), tmp_path / "data" / "weights" / "resnet18.pth")
    return tmp_path / "data"


def trained(task: Task, tmp_path: Path) -> TrainedModel:
    return ff.load_model(ff.train(task, "fedavg", tmp_path / "model", rounds=1, settings={"model.hidden": [4]}))


@pytest.mark.parametrize("in_memory", [True, False])
def test_files_become_the_rows_of_training_and_nothing_is_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: bool
) -> None:
    root = make_folder(tmp_path / "sites")
    task = ff.read_folder(root, size=16)
    model = trained(task, tmp_path)
    assert model.input == ImageInput(16)
    before = sorted((tmp_path / "cache").rglob("*"))
    monkeypatch.setattr(image_files, "IN_MEMORY", 1 << 30 if in_memory else 0)
    examples = model.read(root)
    assert task.images is not None
    assert examples.files == task.images.paths
    assert torch.equal(examples.x, torch.cat([domain.x for domain in task.domains]))
    x, notes = model.read(root / "south" / "dog", str(root / "north" / "cat" / "003.png"))
    assert notes == ()
    assert torch.equal(x, torch.cat([task.domain("south").x[8:], task.domain("north").x[3:4]]))
    assert sorted((tmp_path / "cache").rglob("*")) == before


def test_features_of_files_are_those_of_training_to_the_bit(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "sites")
    task = with_features(ff.read_folder(root, size=16), "resnet18")
    examples = trained(task, tmp_path).read(root)
    assert torch.equal(examples.x, torch.cat([domain.x for domain in task.domains]))


def test_a_model_on_features_of_arrays_takes_the_arrays_or_the_features(tmp_path: Path) -> None:
    g = torch.Generator().manual_seed(0)
    raw = [torch.randint(0, 256, (12, 1, 8, 8), generator=g, dtype=torch.uint8) for _ in "ab"]
    domains = tuple(Domain(n, x, torch.arange(12) % 2) for n, x in zip("ab", raw, strict=True))
    spec = ModelSpec(input_shape=(1, 8, 8), outputs=2)
    task = with_features(Task("digits", "classification", domains, ("x", "y"), spec), "resnet18")
    model = trained(task, tmp_path)
    np.save(tmp_path / "raw.npy", raw[1].numpy())
    np.save(tmp_path / "features.npy", task.domains[1].x.numpy())
    assert torch.equal(model.read(tmp_path / "raw.npy").x, task.domains[1].x)
    assert torch.equal(model.read(tmp_path / "features.npy").x, task.domains[1].x)
    with pytest.raises(ff.UserError, match=r"trained on arrays of shape \(1, 8, 8\), not on image files"):
        model.read(make_folder(tmp_path / "sites"))


def test_features_of_new_images_are_computed_where_the_model_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_folder(tmp_path / "sites")
    task = with_features(ff.read_folder(root, size=16), "resnet18")
    gpu, asked = torch.device("mps", 0), list[torch.device]()
    file_features = image_files.file_features

    def noted(images: ImageSet, way: ImageInput, device: torch.device) -> Iterator[Any]:
        asked.append(device)
        return file_features(images, way)

    monkeypatch.setattr(image_files, "file_features", noted)
    model = replace(trained(task, tmp_path), device=gpu)
    assert torch.equal(model.read(root).x, torch.cat([domain.x for domain in task.domains]))
    monkeypatch.setattr(evaluation, "measure", lambda trained, labelled: labelled)
    model.evaluate(root)
    assert asked == [gpu, gpu]


def test_a_model_on_ready_features_does_not_guess_how_they_were_made(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "ready.npz",
        feature=np.random.default_rng(0).normal(size=(40, 6)),
        label=np.arange(40) % 2,
        domain=np.repeat([0, 1], 20),
        domain_names=np.array(["a", "b"]),
        class_names=np.array(["dog", "house"]),
    )
    task = ready_features("pacs", tmp_path / "ready.npz")
    model = trained(task, tmp_path)
    assert model.input is None
    with pytest.raises(ff.UserError, match=r"'.*000.png' is an image, and .* arrays of shape \(6,\)"):
        model.read(make_folder(tmp_path / "sites") / "north" / "cat" / "000.png")
    np.save(tmp_path / "features.npy", task.domains[1].x.numpy())
    assert torch.equal(model.read(tmp_path / "features.npy").x, task.domains[1].x)


def test_reading_nothing_is_refused(tmp_path: Path) -> None:
    model = trained(ff.read_folder(make_folder(tmp_path / "sites"), size=16), tmp_path)
    with pytest.raises(ff.UserError, match="at least one file"):
        model.read()


def test_an_array_to_predict_is_looked_at_as_a_table_is(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    rows = {site: draw.normal(0, 1, (30, 3)) for site in "ab"}
    task = ff.task_from_arrays("mine", {site: (x, (x[:, 0] > 0).astype(int)) for site, x in rows.items()})
    model = ff.load_model(ff.train(task, "fedavg", tmp_path / "m", rounds=1))
    new = draw.normal(0, 1, (4, 3))
    new[1, 2] = np.nan
    np.save(tmp_path / "new.npy", new)
    examples = model.read(tmp_path / "new.npy")
    assert torch.isfinite(model.outputs(examples.x)).all()
    (note,) = examples.notes
    assert note.startswith("column 'x2' has no value in row 2, and in training none was missing")
    new[2, 0] = np.inf
    np.save(tmp_path / "new.npy", new)
    with pytest.raises(UserError, match="column 'x0' has an infinite value in row 3"):
        model.read(tmp_path / "new.npy")


def test_an_image_with_a_value_that_is_none_is_refused(tmp_path: Path) -> None:
    images = np.random.default_rng(0).random((20, 1, 8, 8)).astype(np.float32)
    task = ff.task_from_arrays("tiny", {site: (images, np.arange(20) % 2) for site in "ab"})
    model = ff.load_model(ff.train(task, "fedavg", tmp_path / "m", rounds=1))
    images[4, 0, 0, 0] = np.nan
    np.save(tmp_path / "new.npy", images)
    with pytest.raises(UserError, match=r"new\.npy' has a value that is not finite in row 5"):
        model.read(tmp_path / "new.npy")
    np.save(tmp_path / "none.npy", images[:0])
    with pytest.raises(UserError, match="there are no examples"):
        model.outputs(model.read(tmp_path / "none.npy").x)


def test_other_spellings_of_yes_and_no_are_the_classes_of_the_model(tmp_path: Path) -> None:
    frame = visits(60)
    task = ff.read_table(write(frame, tmp_path / "v.csv"), label="died", domain="hospital")
    model = ff.train(task, "fedavg", tmp_path / "model", rounds=1)
    before = ff.evaluate(model, tmp_path / "v.csv", label="died")
    write(frame.replace({"died": {"yes": "TRUE ", "no": "N"}}), tmp_path / "w.csv")
    after = ff.evaluate(model, tmp_path / "w.csv", label="died")
    assert after.metrics == before.metrics
