"""A preset's network on the command line: what it needs is said before any work, and what runs is what is recorded."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from farfield.models.resnet import ResNet
from farfield.tasks.images import features
from farfield.tasks.registry import load
from tests.tasks.image_files import make_folder

DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
SMALL = ("--algorithms", "fedavg", "--seeds", "1", "--rounds", "1", "--held-out", "photo", "--parallel", "1")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with a small PACS and no weights."""
    folder = tmp_path / "data"
    monkeypatch.setenv("FARFIELD_DATA", str(folder))
    monkeypatch.setenv("FARFIELD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(features, "INPUT", 32)
    load.cache_clear()
    features.frozen.cache_clear()
    make_folder(folder / "PACS", {domain: {"cat": 12, "dog": 12} for domain in DOMAINS})
    return folder


def test_a_preset_without_its_weights_ends_with_one_sentence_before_an_image_is_decoded(
    farfield: Callable[..., Any], data: Path, tmp_path: Path
) -> None:
    ran = farfield("bench", "--preset", "fediir/pacs")
    assert ran.code == 2
    message = " ".join(ran.err.split())
    for part in (
        "error: the pretrained weights of resnet18 are not here",
        f"there is no resnet18.safetensors, .pth or .pt in {data / 'weights'};",
        f"download https://download.pytorch.org/models/resnet18-f37072fd.pth to {data / 'weights' / 'resnet18.pth'}",
        "train from scratch with --set model.weights=none",
        "take frozen features with --features cached",
    ):
        assert part in message
    assert "Traceback" not in ran.err
    assert ran.out == ""
    assert not (tmp_path / "cache").exists()
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("command", [("bench",), ("train", "--out", "model")])
def test_a_users_own_backbone_without_weights_is_refused_as_early(
    farfield: Callable[..., Any], data: Path, tmp_path: Path, command: tuple[str, ...]
) -> None:
    ran = farfield(*command, "pacs", "--set", "model.featurizer=resnet50", "--set", "model.norm=freeze")
    assert ran.code == 2
    assert "resnet50-0676ba61.pth" in ran.err
    assert not (tmp_path / "cache").exists()


def test_of_data_and_weights_that_are_both_missing_the_data_is_told(farfield: Callable[..., Any], data: Path) -> None:
    ran = farfield("bench", "--preset", "fediir/vlcs")
    assert ran.code == 2
    assert "the data of task 'vlcs' is not here: there is no VLCS or vlcs in" in ran.err
    assert "see 'farfield data ls'" in ran.err
    assert "pretrained weights" not in ran.err


def test_a_presets_size_and_model_are_printed_and_recorded(
    farfield: Callable[..., Any], data: Path, tmp_path: Path
) -> None:
    small = ("--set", "model.featurizer=convnet", "--set", "model.hidden=[4]", "--set", "local_steps=1")
    ran = farfield("bench", "--preset", "fedcir/pacs", *SMALL, *small, "--out", "b")
    assert ran.code == 0, ran.err
    assert "model: convnet, 4, norm average, on examples of 3 × 128 × 128\n" in ran.err
    plan = tomllib.loads((tmp_path / "b" / "bench.toml").read_text())
    assert (plan["model"]["input_shape"], plan["model"]["norm"], plan["augment"]) == ([3, 128, 128], "average", "none")
    (config,) = (tmp_path / "b").rglob("config.toml")
    assert tomllib.loads(config.read_text())["model"]["input_shape"] == [3, 128, 128]


def test_a_users_image_size_wins_over_the_presets_and_only_that_size_is_decoded(
    farfield: Callable[..., Any], data: Path, tmp_path: Path
) -> None:
    small = ("--set", "model.featurizer=convnet", "--set", "model.hidden=[4]", "--set", "local_steps=1")
    ran = farfield("bench", "--preset", "fediir/pacs", "--image-size", "16", *SMALL, *small, "--out", "b")
    assert ran.code == 0, ran.err
    assert "model: convnet, 4, norm group, head 256, on examples of 3 × 16 × 16; augmentation: standard" in ran.err
    assert "note: preset 'fediir/pacs' freezes the BatchNorm statistics of pretrained weights" in ran.err
    sizes = [path.name.rpartition("-")[2].partition(".")[0] for path in (tmp_path / "cache" / "pixels").iterdir()]
    assert set(sizes) == {"16"}


@pytest.mark.slow
def test_a_preset_on_cached_features_has_the_model_of_the_features_and_says_so(
    farfield: Callable[..., Any], data: Path, tmp_path: Path
) -> None:
    (data / "weights").mkdir()
    torch.save(ResNet(18).state_dict(), data / "weights" / "resnet18.pth")
    ran = farfield("bench", "--preset", "fediir/pacs", "--features", "cached:resnet18", *SMALL, "--out", "b")
    assert ran.code == 0, ran.err
    assert "which is left out because --features gives vectors" in ran.err
    plan = tomllib.loads((tmp_path / "b" / "bench.toml").read_text())
    model = plan["model"]
    assert (model["featurizer"], model["input_shape"], model["head"]) == ("mlp", [512], "linear")
    assert (plan["augment"], plan["settings"]["fedavg"]["lr"]) == ("none", 2.5e-3)
    assert any("--features gives vectors" in note for note in plan["notes"])


def test_a_presets_network_goes_with_a_users_own_images_and_not_with_other_rows(
    farfield: Callable[..., Any], data: Path, tmp_path: Path
) -> None:
    ran = farfield("bench", "--data", str(data / "PACS"), "--preset", "fediir/vlcs")
    assert ran.code == 2
    assert "the pretrained weights of resnet18 are not here" in ran.err
    options = ("--algorithms", "fedavg", "--seeds", "1", "--rounds", "1", "--held-out", "0", "--parallel", "1")
    ran = farfield("bench", "rotated-digits", "--preset", "fediir/pacs", *options, "--out", "digits")
    assert ran.code == 0, ran.err
    assert "has a network for task 'pacs' (resnet18 pretrained, norm freeze, head 256, 224 px), which is" in ran.err
    plan = tomllib.loads((tmp_path / "digits" / "bench.toml").read_text())
    assert plan["model"]["featurizer"] == "mlp"


def test_presets_are_listed_with_their_network_and_shown_with_their_sources(farfield: Callable[..., Any]) -> None:
    rows = {row["name"]: row for row in json.loads(farfield("list", "presets", "--json").out)}
    assert rows["fediir/pacs"]["model"] == "resnet18 pretrained, norm freeze, head 256, 224 px"
    assert rows["fedilc/eicu"]["model"] == "mlp, 1024-1024-512, init xavier, one output"
    ran = farfield("show", "fediir/office-home")
    assert ran.code == 0
    assert '"model.head_hidden" = 1024       # published code: 2048-1024-classes\n' in ran.out
    assert (
        "unknown preset 'fediir/office-hom'; did you mean 'fediir/office-home'?"
        in farfield("show", "fediir/office-hom").err
    )
