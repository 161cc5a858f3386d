"""Models of timm in whole runs: a bench, a resumed one, a model folder, cached features, a download."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load, load_file, save, save_file
from torch import nn

import farfield as ff
from farfield.models import BACKBONES, Model, ModelSpec, ModelState, build_model, pin
from farfield.tasks.images import features
from farfield.tasks.images.features import FeatureError, with_features
from farfield.tasks.images.image_set import decode
from farfield.tasks.open_task import open_task
from farfield.tasks.task import Domain, Task
from farfield.trained.model_folder import load_model
from farfield.trained.training import train
from tests.tasks.image_files import make_folder
from tests.with_timm import scramble, timm_or_skip

timm = timm_or_skip()
SETTINGS = {"model.featurizer": "timm:test_resnet", "model.norm": "freeze", "batch_size": 8, "lr": 0.02}
NAME = "test_resnet.r160_in1k"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with weights of two small models."""
    folder = tmp_path / "data"
    monkeypatch.setenv("FARFIELD_DATA", str(folder))
    monkeypatch.setenv("FARFIELD_CACHE", str(tmp_path / "cache"))
    (folder / "weights").mkdir(parents=True)
    for name in ("test_resnet", "test_vit"):
        network = scramble(timm.create_model(name))
        save_file(network.state_dict(), folder / "weights" / f"timm-{name}.r160_in1k.safetensors")
    features.frozen.cache_clear()
    return folder


def toy(size: int = 32) -> Task:
    """Two classes of brightness at three sites; learnable from the pixels."""
    g = torch.Generator().manual_seed(0)
    domains = []
    for name in "abc":
        y = torch.arange(16) % 2
        x = 0.3 * torch.rand((16, 3, size, size), generator=g) + 0.5 * y.view(-1, 1, 1, 1)
        domains.append(Domain(name, x, y))
    spec = ModelSpec(featurizer="convnet", input_shape=(3, size, size), outputs=2, hidden=(4,), norm="group")
    return Task("toy", "classification", tuple(domains), ("dark", "light"), spec)


def test_a_bench_trains_and_its_bits_do_not_depend_on_workers_or_a_resume(data: Path, tmp_path: Path) -> None:
    def bench(out: str, **options: object) -> list[dict[str, object]]:
        result = ff.bench(
            toy(),
            algorithms=["fedavg", "fediir"],
            held_out=["c"],
            seeds=1,
            settings=SETTINGS,
            out=tmp_path / out,
            **options,
        )
        return [row for row in result.rows if row["algorithm"] in ("fedavg", "fediir")]

    whole = bench("whole", rounds=3)
    bench("stopped", rounds=1)
    resumed = bench("stopped", rounds=3, resume=True)
    workers = bench("workers", rounds=3, workers=2)
    shas = [[row["model_sha256"] for row in rows] for rows in (whole, resumed, workers)]
    assert shas[0] == shas[1] == shas[2]
    assert len(set(shas[0])) == 2
    rounds = [json.loads(line) for path in (tmp_path / "whole").rglob("rounds.jsonl") for line in path.open()]
    assert len(rounds) >= 6
    configs = [path.read_text() for path in (tmp_path / "whole").rglob("config.toml")]
    digest = hashlib.sha256((data / "weights" / f"timm-{NAME}.safetensors").read_bytes()).hexdigest()
    assert any(f"timm:{NAME}@{timm.__version__}" in text and digest in text for text in configs)


def test_a_model_folder_predicts_the_same_bits_without_the_weights_it_started_from(data: Path, tmp_path: Path) -> None:
    out = train(toy(), "fedavg", tmp_path / "model", rounds=2, settings=SETTINGS)
    file = data / "weights" / f"timm-{NAME}.safetensors"
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    x = toy().domains[1].x
    with safe_open(out / "model.safetensors", "pt") as opened:
        about = json.loads(opened.metadata()["farfield"])
    recorded = ModelSpec.model_validate(about["spec"])
    assert recorded.featurizer == f"timm:{NAME}@{timm.__version__}"
    assert recorded.weights == f"{file.name}@sha256:{digest}"
    tensors = load_file(out / "model.safetensors")
    model = build_model(recorded, seed=5)
    model.load(ModelState(tensors["parameters"], tensors["buffers"]))
    with torch.no_grad():
        expected = model.eval_unseen()(x).softmax(1)
    file.unlink()
    first, again = load_model(out), load_model(out)
    assert torch.equal(first.outputs(x), again.outputs(x))
    torch.testing.assert_close(first.outputs(x), expected, rtol=1e-6, atol=1e-7)
    assert torch.equal(first.model.vector, model.vector)
    card = (out / "README.md").read_text()
    assert f"timm:{NAME}@{timm.__version__}" in card.replace("\\", "")
    assert digest in card


def direct(name: str) -> Model:
    spec = ModelSpec(featurizer=f"timm:{name}", input_shape=(3, 160, 160), outputs=2, norm="freeze")
    return build_model(pin(spec, BACKBONES), seed=0).eval()


@pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
def test_cached_features_are_those_of_a_direct_pass(data: Path, tmp_path: Path, name: str) -> None:
    root = make_folder(tmp_path / "sites", {"a": {"cat": 5, "dog": 5}, "b": {"cat": 5, "dog": 5}})
    task = open_task(root, features=f"timm:{name}")
    paths = [root / path for path in sorted(p.relative_to(root).as_posix() for p in root.rglob("*.png"))]
    with torch.no_grad():
        pixels = torch.stack([torch.from_numpy(decode(path.read_bytes(), 160)) for path in paths]) / 255
        expected = direct(name).features(pixels)
    got = torch.cat([domain.x for domain in task.domains])
    assert float(expected.std(0).mean()) > 1e-3  # features that are all alike would prove nothing
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)
    assert task.input is not None
    assert task.input.size == 160
    assert task.input.backbone == f"timm:{name}.r160_in1k@{timm.__version__}"
    assert open_task(root, features=f"cached:{task.input.backbone}").fingerprint == task.fingerprint


def test_batchnorm_with_an_activation_is_folded_and_the_function_stays(data: Path) -> None:
    network = scramble(timm.create_model("test_efficientnet"))
    save_file(network.state_dict(), data / "weights" / "timm-test_efficientnet.r160_in1k.safetensors")
    folded, width, _ = features.frozen("timm:test_efficientnet")
    assert width == 256
    assert not any(isinstance(module, nn.BatchNorm2d) for module in folded.modules())
    x = torch.rand((2, 3, 160, 160), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(folded(x), direct("test_efficientnet").features(x), rtol=1e-3, atol=1e-4)


def test_a_model_on_cached_features_predicts_images_and_needs_the_same_backbone(data: Path, tmp_path: Path) -> None:
    root = make_folder(tmp_path / "sites")
    out = train(open_task(root, features="timm:test_resnet"), "fedavg", tmp_path / "model", rounds=1)
    trained = load_model(out)
    examples = trained.read(root / "north")
    again = with_features(ff.read_folder(root, size=16), "timm:test_resnet").domains[0].x
    assert torch.equal(examples.x, again)
    assert f"timm:{NAME}@{timm.__version__}" in (out / "README.md").read_text()
    (data / "weights" / f"timm-{NAME}.safetensors").unlink()
    features.frozen.cache_clear()
    with pytest.raises(FeatureError, match=r"this model takes features of timm:test_resnet.*are not here"):
        load_model(out).read(root / "north")


class Hub:
    """One file of a repository, as the hub's client asks for it, and what was asked for."""

    def __init__(self, path: str, content: bytes) -> None:
        self.path, self.content, self.asked = path, content, list[str]()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.asked.append(f"{handler.command} {handler.path}")
        here = handler.path == self.path
        body = self.content if here else b""
        handler.send_response(200 if here else 404)
        if here:
            handler.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
            handler.send_header("X-Repo-Commit", "c" * 40)
        else:
            handler.send_header("X-Error-Code", "EntryNotFound")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        if handler.command == "GET":
            handler.wfile.write(body)


@pytest.fixture
def hub() -> Iterator[tuple[Hub, str]]:
    state = scramble(timm.create_model("test_resnet"), seed=7).state_dict()
    running = Hub(f"/timm/{NAME}/resolve/main/model.safetensors", save(state))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            running.answer(self)

        do_HEAD = do_GET  # noqa: N815 - the standard library's name

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield running, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_weights_are_downloaded_when_asked_for_and_at_no_other_time(hub: tuple[Hub, str], tmp_path: Path) -> None:
    running, address = hub
    folder = tmp_path / "data"
    environment = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "hf"), "FARFIELD_DATA": str(folder)}

    def farfield(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tests.with_timm", *arguments]
        environment_of_all = {**os.environ, **environment, "FARFIELD_CACHE": str(tmp_path / "cache")}
        return subprocess.run(command, env=environment_of_all, capture_output=True, text=True, check=False)

    make_folder(tmp_path / "sites")
    bench = (
        "bench",
        "--data",
        str(tmp_path / "sites"),
        "--features",
        "timm:test_resnet",
        "-a",
        "fedavg",
        "--rounds",
        "1",
    )
    refused = farfield(*bench, "--out", str(tmp_path / "out"))
    assert refused.returncode == 2
    assert f"farfield data fetch timm:{NAME}" in " ".join(refused.stderr.split())
    assert running.asked == []
    asked = farfield("data", "fetch", "timm:test_resnet")
    assert asked.returncode == 2
    assert "terms: apache-2.0" in asked.stdout
    assert running.asked == []
    done = farfield("data", "fetch", "timm:test_resnet", "--yes")
    assert done.returncode == 0, done.stderr
    assert f"GET /timm/{NAME}/resolve/main/model.safetensors" in running.asked
    file = folder / "weights" / f"timm-{NAME}.safetensors"
    stored, published = load_file(file), load(running.content)
    assert stored.keys() == published.keys()
    assert all(torch.equal(stored[name], value) for name, value in published.items())
    record = (folder / "weights" / f"{file.name}.sha256").read_text()
    assert f"timm/{NAME}" in record
    assert hashlib.sha256(file.read_bytes()).hexdigest() in record
    assert not (folder / ".fetch").exists()
    again = farfield("data", "fetch", "timm:test_resnet", "--yes")
    assert again.returncode == 2
    assert "add --replace" in " ".join(again.stderr.split())
