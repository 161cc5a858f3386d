"""Image tasks on the command line: features, sizes, notes, and what resuming checks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from farfield.models.resnet import ResNet
from farfield.tasks.images import features
from farfield.tasks.registry import load
from tests.tasks.image_files import make_folder, save

DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
SMALL = ("--algorithms", "fedavg", "--seeds", "1", "--rounds", "2", "--quiet", "--parallel", "1")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "data"
    monkeypatch.setenv("FARFIELD_DATA", str(folder))
    monkeypatch.setenv("FARFIELD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(features, "INPUT", 32)
    load.cache_clear()
    features.frozen.cache_clear()
    make_folder(folder / "PACS", {domain: {"cat": 12, "dog": 12} for domain in DOMAINS})
    (folder / "weights").mkdir()
    torch.manual_seed(0)
    torch.save(ResNet(18).state_dict(), folder / "weights" / "resnet18.pth")
    return folder


@pytest.mark.slow
def test_a_bench_on_cached_features_runs_and_records_what_they_are(
    farfield: Callable[..., Any], data: Path, tmp_path: Path
) -> None:
    ran = farfield("bench", "pacs", "--features", "cached:resnet18", *SMALL, "--out", "b", "--json", "rows.json")
    assert ran.code == 0, ran.err
    assert "note: domain 'art_painting' has 24 images here; published are 2,048 (the same" in ran.err
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [(row["task"], row["held_out"]) for row in rows] == [("pacs", domain) for domain in DOMAINS]
    config = (tmp_path / "b" / "bench.toml").read_text()
    assert "features of resnet18 (resnet18.pth@sha256:" in config
    assert str(data) not in config.replace(f"'{data / 'PACS'}'", "")


def test_a_bench_on_pixels_is_not_resumed_on_other_images(farfield: Callable[..., Any], data: Path) -> None:
    command = ("bench", "pacs", "--image-size", "16", *SMALL, "--out", "b", "--set", "model.hidden=[4]")
    assert farfield(*command).code == 0
    assert farfield(*command, "--resume").code == 0
    save(data / "PACS" / "photo" / "cat" / "000.png", seed=12345)
    load.cache_clear()
    ran = farfield(*command, "--resume")
    assert ran.code == 2
    assert "holds another bench: data is" in ran.err


def test_augmentation_can_be_switched_off_and_one_or_two_processes_agree(
    farfield: Callable[..., Any], data: Path, tmp_path: Path
) -> None:
    hashes = []
    base = ("bench", "pacs", "--image-size", "16", "--held-out", "photo", *SMALL, "--set", "model.hidden=[4]")
    for name, more in (("one", ()), ("two", ("--workers", "2")), ("plain", ("--set", "augment=none"))):
        ran = farfield(*base, *more, "--out", name, "--json", f"{name}.json")
        assert ran.code == 0, ran.err
        hashes.append(json.loads((tmp_path / f"{name}.json").read_text())[0]["model_sha256"])
    assert hashes[0] == hashes[1]
    assert hashes[0] != hashes[2]


@pytest.mark.slow
def test_a_backbone_trains_from_a_local_file(farfield: Callable[..., Any], data: Path, tmp_path: Path) -> None:
    ran = farfield(
        "train", "pacs", "--image-size", "32", "--rounds", "1", "--out", "model", "--set", "local_steps=1",
        "--set", "model.featurizer=resnet18", "--set", "model.norm=freeze",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert "resnet18.pth@sha256:" in (tmp_path / "model" / "run" / "config.toml").read_text()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--features", "cached:vgg"), "there is no backbone 'vgg'"),
        (("--features", "cached:resnet50"), "the pretrained weights of resnet50 are not here"),
        (("--set", "model.featurizer=resnet18"), "model.norm is 'group': set model.norm=freeze"),
        (("--set", "model.featurizer=resnet50", "--set", "model.norm=freeze"), "train from scratch with"),
        (("--set", "augment=strong"), "choose one of none, standard"),
        (("--validation", "official"), "has no official split"),
        (("--image-size", "4"), "choose a size from 8 to 1024"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    farfield: Callable[..., Any], data: Path, options: tuple[str, ...], sentence: str
) -> None:
    ran = farfield("bench", "pacs", *SMALL, *options)
    assert ran.code == 2
    assert sentence in ran.err
    assert "Traceback" not in ran.err
