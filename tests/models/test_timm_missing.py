"""A model of timm where timm is not installed: one sentence that says what to install, wherever it is asked for."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from farfield.deployment.federation_file import FederationFileError, read_federation
from farfield.models import BACKBONES, MissingTimm, ModelSpec, build_model, pin, resolved_name, timm_library
from farfield.records import RecordsError
from farfield.runs.plan import make_plan
from farfield.tasks.images.features import backbone_named
from farfield.tasks.open_task import open_task
from farfield.tasks.task import Domain, Task
from farfield.trained.model_about import model_sizes, read_about

SENTENCE = r"'timm:resnet18' needs the package timm, which is not installed: pip install 'farfield\[timm\]'"


@pytest.fixture(autouse=True)
def no_timm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Python's own way to say that a module is not there; where timm is not installed, it changes nothing."""
    monkeypatch.setitem(sys.modules, "timm", None)
    _forget()
    yield
    monkeypatch.undo()
    _forget()


def _forget() -> None:
    timm_library._imported.cache_clear()
    timm_library.configuration.cache_clear()


def toy() -> Task:
    domains = tuple(Domain(name, torch.rand(12, 3, 32, 32), torch.arange(12) % 2) for name in "ab")
    spec = ModelSpec(input_shape=(3, 32, 32), outputs=2)
    return Task("toy", "classification", domains, ("x", "y"), spec)


def test_a_plan_and_features_are_refused_with_what_to_install() -> None:
    with pytest.raises(ValueError, match=SENTENCE):
        make_plan(toy(), algorithms=["fedavg"], settings={"model.featurizer": "timm:resnet18"})
    with pytest.raises(MissingTimm, match=SENTENCE):
        build_model(ModelSpec(featurizer="timm:resnet18", input_shape=(3, 32, 32), outputs=2, weights="none"), seed=0)
    with pytest.raises(MissingTimm, match=SENTENCE):
        open_task(toy(), features="timm:resnet18")
    assert backbone_named("timm:resnet18") == backbone_named("cached:timm:resnet18") == "timm:resnet18"
    assert resolved_name("resnet18") == "resnet18"
    assert pin(ModelSpec(input_shape=(3,), outputs=2), BACKBONES).weights == "none"


def test_a_federation_file_that_names_a_timm_model_is_refused_at_the_site(tmp_path: Path) -> None:
    file = tmp_path / "federation.toml"
    example = Path(__file__).parents[2] / "examples" / "hospitals" / "federation.toml"
    file.write_text(f'{example.read_text()}\n[set]\n"model.featurizer" = "timm:resnet18"\n')
    with pytest.raises(FederationFileError, match=f"key 'set': model.featurizer: {SENTENCE}"):
        read_federation(file)


def test_a_model_folder_is_not_called_damaged_where_timm_is_missing(tmp_path: Path) -> None:
    spec = {"featurizer": "timm:resnet18@1.0.30", "input_shape": [3, 32, 32], "outputs": 2, "weights": "x.pth@sha256:0"}
    about = read_about(tmp_path / "model.safetensors", json.dumps({"spec": spec, "classes": ["a", "b"]}))
    with pytest.raises(RecordsError, match=f"cannot be built here: {SENTENCE}") as told:
        model_sizes(tmp_path / "model.safetensors", about.spec)
    assert "damaged" not in str(told.value)
