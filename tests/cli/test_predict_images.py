"""`farfield predict` on image files: the same numbers as in memory, and a sentence for what cannot be predicted."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import farfield as ff
from farfield.models.resnet import ResNet
from farfield.tasks import Task
from farfield.tasks.images import features
from farfield.tasks.images.features import with_features
from tests.tasks.image_files import make_folder, picture, save
from tests.tasks.tables import visits, write

Command = Callable[..., Any]
# No norm, because these pictures differ in little but their colour, which a norm takes away.
SMALL = ("--rounds", "3", "--set", "model.hidden=[8]", "--set", "model.norm=none", "--out", "model")


def save_weights(folder: Path, seed: int) -> None:
    torch.manual_seed(seed)
    (folder / "weights").mkdir(parents=True, exist_ok=True)
    torch.save(ResNet(18).state_dict(), folder / "weights" / "resnet18.pth")


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with weights, small inputs of the backbone, and the folder `sites` of 48 images to train on."""
    folder = tmp_path / "data"
    monkeypatch.setenv("FARFIELD_DATA", str(folder))
    monkeypatch.setenv("FARFIELD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(features, "INPUT", 32)
    features.frozen.cache_clear()
    save_weights(folder, seed=0)
    make_folder(tmp_path / "sites")
    return folder


@pytest.fixture
def pixels(farfield: Command) -> None:
    ran = farfield("train", "--data", "sites", "--image-size", "16", *SMALL)
    assert ran.code == 0, ran.err
    assert "farfield bench --data sites --algorithms fedavg --image-size 16" in ran.out


@pytest.fixture
def frozen(farfield: Command) -> None:
    ran = farfield("train", "--data", "sites", "--features", "cached:resnet18", *SMALL)
    assert ran.code == 0, ran.err
    assert "farfield bench --data sites --algorithms fedavg --features cached:resnet18" in ran.out
    features.frozen.cache_clear()


def rows(text: str) -> dict[str, dict[str, str]]:
    return {row.pop("file"): row for row in csv.DictReader(io.StringIO(text))}


def in_memory(task: Task, listed: Task) -> dict[str, list[float]]:
    """What the model says of the rows that training had, by the file that each was made of."""
    assert listed.images is not None
    x = torch.cat([domain.x for domain in task.domains])
    return dict(zip(listed.images.paths, ff.load_model(Path("model")).outputs(x).tolist(), strict=True))


def assert_same(ran: Any, expected: dict[str, list[float]]) -> None:
    assert (ran.code, ran.err) == (0, "")
    got = rows(ran.out)
    assert len({row["p(cat)"] for row in got.values()}) > 40  # else files that were mixed up would not show
    assert set(got) == set(expected)
    for file, row in got.items():
        given = [float(row["p(cat)"]), float(row["p(dog)"])]
        assert given == pytest.approx(expected[file], abs=1e-6)
        assert row["label"] == ("cat" if given[0] >= given[1] else "dog")


def test_a_folder_is_predicted_as_the_rows_of_training_are(farfield: Command, pixels: None) -> None:
    task = ff.read_folder("sites", size=16)
    assert_same(farfield("predict", "model", "sites"), in_memory(task, task))


def test_frozen_features_are_computed_as_in_training(farfield: Command, frozen: None, data: Path) -> None:
    listed = ff.read_folder("sites", size=16)
    assert_same(farfield("predict", "model", "sites"), in_memory(with_features(listed, "resnet18"), listed))
    card = Path("model/README.md").read_text()
    about = ff.load_model(Path("model")).about["input"]
    name, _, digest = about["weights"].partition("@sha256:")
    assert (about["backbone"], about["size"], name, len(digest)) == ("resnet18", 32, "resnet18.pth", 64)
    assert "farfield predict MODEL IMAGES" in card
    assert f"are not in this folder: resnet18.pth, sha256 {digest}" in card


@pytest.mark.slow
def test_weights_that_are_absent_or_others_are_refused(farfield: Command, frozen: None, data: Path) -> None:
    save_weights(data, seed=1)
    ran = farfield("predict", "model", "sites", "--to", "out.csv")
    assert ran.code == 2
    assert "this model takes features of resnet18, and the weights 'resnet18.pth' with sha256" in ran.err
    assert "resnet18.pth' has sha256" in ran.err
    (data / "weights" / "resnet18.pth").unlink()
    ran = farfield("predict", "model", "sites", "--to", "out.csv")
    assert ran.code == 2
    assert f"are not here; put the file that has it into {data / 'weights'}" in ran.err
    assert len(ran.err.strip().splitlines()) == 1
    assert not Path("out.csv").exists()
    save_weights(data, seed=0)
    assert farfield("predict", "model", "sites").code == 0


def test_a_folder_needs_no_classes_and_may_be_deep(farfield: Command, pixels: None) -> None:
    for number, name in enumerate(("top.png", "a/b/c/deep.JPG", "a/b/side.bmp", ".hidden.png")):
        save(Path("new") / name, seed=100 + number)
    Path("new/notes.txt").write_text("no image")
    ran = farfield("predict", "model", "new", "--to", "out.csv")
    assert (ran.code, ran.out, ran.err) == (0, "", "3 images: out.csv\n")
    assert list(rows(Path("out.csv").read_text())) == ["top.png", "a/b/side.bmp", "a/b/c/deep.JPG"]


@pytest.mark.parametrize(
    ("given", "files"),
    [
        (["one.png"], ["one.png"]),
        (["new/two"], ["two"]),
        (["one.png", "new/three.png"], ["one.png", "new/three.png"]),
        (["new/three.png", "new/two", "new/three.png"], ["three.png", "two"]),
        (["more", "new/three.png"], ["more/four.png", "new/three.png"]),
        (["new/../one.png"], ["one.png"]),
    ],
)
def test_files_go_by_their_path_in_the_folder_of_all(
    farfield: Command, pixels: None, given: list[str], files: list[str]
) -> None:
    for seed, name in enumerate(("one.png", "new/three.png", "more/four.png")):
        save(Path(name), seed=100 + seed)
    picture(200).save("new/two", format="PNG")  # what it is, the content says
    ran = farfield("predict", "model", *given)
    assert ran.code == 0, ran.err
    assert list(rows(ran.out)) == files
    absolute = farfield("predict", "model", *(str(Path(name).absolute()) for name in given))
    assert absolute.out == ran.out


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pixels", "frozen"])
def test_broken_files_are_named_in_one_sentence_and_nothing_is_written(
    farfield: Command, kind: str, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(kind)
    whole = save(Path("new/whole.png"), seed=100).read_bytes()
    Path("new/cut.png").write_bytes(whole[:200])
    Path("new/text.jpg").write_text("no image")
    ran = farfield("predict", "model", "new", "--to", "out.csv")
    assert ran.code == 2
    assert "2 images in 'new' cannot be decoded: 'cut.png' (" in ran.err
    assert "'text.jpg' (no image that Pillow knows); mend or remove them" in ran.err
    assert len(ran.err.strip().splitlines()) == 1
    assert not Path("out.csv").exists()


def test_pixels_as_an_array_give_what_their_files_give(farfield: Command, pixels: None) -> None:
    task = ff.read_folder("sites", size=16)
    np.save("x.npy", task.domains[0].x.numpy())
    from_array = list(csv.DictReader(io.StringIO(farfield("predict", "model", "x.npy").out)))
    from_files = list(rows(farfield("predict", "model", "sites/north").out).values())
    assert [row.pop("row") for row in from_array] == [str(number) for number in range(1, 17)]
    assert from_array == from_files


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["nowhere"], "there is no file 'nowhere'"),
        (["sites/north/cat/000.png", "gone.png"], "there is no file 'gone.png'"),
        (["empty"], "there are no images in 'empty'"),
        (["sites", "empty"], "there are no images in 'empty'"),
        (["x.npy", "sites"], "'x.npy' is no image, and 'sites' is a folder"),
        (["x.npy", "x.npy"], "'x.npy' is one file too many"),
        (["x.npy"], "the model takes examples of shape (3, 16, 16); 'x.npy' has (5,)"),
        (["notes.txt"], "1 image in '.' cannot be decoded: 'notes.txt' (no image that Pillow knows)"),
    ],
)
def test_what_a_model_of_images_cannot_read(farfield: Command, pixels: None, given: list[str], sentence: str) -> None:
    Path("empty").mkdir()
    Path("notes.txt").write_text("hello")
    np.save("x.npy", np.zeros((2, 5), dtype="float32"))
    ran = farfield("predict", "model", *given)
    assert ran.code == 2
    assert sentence in " ".join(ran.err.split())
    assert (ran.out, len(ran.err.strip().splitlines())) == ("", 1)


def test_models_of_other_things_refuse_images(farfield: Command, tmp_path: Path) -> None:
    write(visits(), tmp_path / "visits.csv")
    table = ("--data", "visits.csv", "--label", "died", "--domain", "hospital")
    assert farfield("train", *table, "--rounds", "1", "--out", "table").code == 0
    assert farfield("train", "rotated-digits", "--rounds", "1", "--out", "digits").code == 0
    ran = farfield("predict", "table", "sites")
    assert ran.code == 2
    assert "'sites' is a folder, and this model was trained on rows of a table: give it .csv" in ran.err
    ran = farfield("predict", "digits", "sites/north/cat/000.png")
    assert ran.code == 2
    assert "trained on arrays of shape (1, 8, 8), not on image files: give it .npy" in ran.err
    assert "farfield predict MODEL ROWS.csv" in Path("table/README.md").read_text()
    assert "examples of shape (1, 8, 8)" in Path("digits/README.md").read_text()
