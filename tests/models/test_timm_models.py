"""Models of timm as featurizers: timm's own numbers, the contract of a model, norm policies, weights from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from farfield.models import BACKBONES, Model, ModelSpec, TimmError, WeightsError, build_model, pin
from farfield.models.norm_layers import replace_norms
from farfield.models.resnet import ResNet
from farfield.tasks.data_folder.store import VARIABLE
from tests.with_timm import scramble, timm_or_skip

timm = timm_or_skip()


def spec(name: str = "test_resnet", **changed: Any) -> ModelSpec:
    fields = {"input_shape": (3, 32, 32), "outputs": 4, "norm": "average", "weights": "none"} | changed
    return ModelSpec(featurizer=f"timm:{name}", **fields)


def images(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "data"))
    (tmp_path / "data" / "weights").mkdir(parents=True)
    return tmp_path / "data"


def test_our_resnet18_computes_what_timms_does_with_the_same_weights() -> None:
    ours, theirs = scramble(ResNet(18)), timm.create_model("resnet18")
    theirs.load_state_dict(ours.state_dict())
    x = images((2, 3, 64, 64))
    for mode in (False, True):  # with stored statistics, and with those of the batch
        a, b = (network.train(mode)(x) for network in (ours, theirs))
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    grads = [torch.autograd.grad(y.square().mean(), list(n.parameters())) for y, n in ((a, ours), (b, theirs))]
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_both_resnet18_featurizers_give_the_same_model_from_one_file(data: Path) -> None:
    torch.save(scramble(ResNet(18)).state_dict(), data / "weights" / "mine.pth")
    file = str(data / "weights" / "mine.pth")
    made = [
        build_model(pin(spec(weights=file).model_copy(update={"featurizer": name}), BACKBONES), seed=3).eval()
        for name in ("resnet18", "timm:resnet18.tv_in1k")
    ]
    assert list(made[0].layout.slices) == list(made[1].layout.slices)
    assert torch.equal(made[0].vector, made[1].vector)
    assert torch.equal(made[0].buffer_vector, made[1].buffer_vector)
    x = images((2, 3, 32, 32))
    with torch.no_grad():
        torch.testing.assert_close(made[0](x), made[1](x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet", "test_vit", "test_convnext"])
def test_vector_and_buffers_hold_what_timm_has_and_training_moves_them(name: str) -> None:
    size = 64 if name == "test_convnext" else 32
    model = build_model(spec(name, input_shape=(3, size, size)), seed=0)
    kwargs = {"img_size": 32} if name == "test_vit" else {}
    reference = timm.create_model(name, num_classes=0, **kwargs).eval()
    features = reference(images((1, 3, size, size))).shape[1]
    assert model.layout.features == features
    head = 4 * features + 4
    assert model.layout.parameters == sum(p.numel() for p in reference.parameters()) + head == model.vector.numel()
    norms = [m for m in reference.modules() if isinstance(m, nn.BatchNorm2d)]
    assert model.layout.buffers == sum(2 * m.num_features for m in norms) == model.buffer_vector.numel()
    assert bool(norms) == (name in ("test_resnet", "test_efficientnet"))
    x, y = images((4, 3, size, size)), torch.arange(4)
    before, first = model.state(), float(F.cross_entropy(model.train()(x), y))
    for _ in range(10):
        model.backward(F.cross_entropy(model.train()(x), y))
        model.vector.add_(model.gradient, alpha=-0.05 / float(model.gradient.norm()))
    assert float(F.cross_entropy(model(x), y)) < first
    assert torch.equal(before.buffers, model.buffer_vector) == (not norms)
    model.load(before)  # the flat vectors are the network's own numbers
    assert model.state().sha256() == before.sha256()


def test_constants_in_buffers_do_not_travel() -> None:
    with torch.device("meta"):
        model = Model(spec("efficientnet_blur_b0", input_shape=(3, 64, 64)))
        reference = timm.create_model("efficientnet_blur_b0")
    assert any(name.endswith(".filt") and b.is_floating_point() for name, b in reference.named_buffers())
    norms = [module for module in reference.modules() if isinstance(module, nn.BatchNorm2d)]
    assert model.layout.buffers == sum(2 * norm.num_features for norm in norms) > 0


def test_pixels_are_normalised_by_timms_mean_and_deviation(data: Path) -> None:
    for name, mean in (("test_resnet", 0.5), ("test_efficientnet", 0.485)):
        network = scramble(timm.create_model(name)).eval()
        known = timm.data.resolve_model_data_config(network)
        assert known["mean"][0] == mean
        save_file(network.state_dict(), data / "weights" / f"timm-{name}.r160_in1k.safetensors")
        model = build_model(pin(spec(name, weights="auto"), BACKBONES), seed=0).eval()
        shift, scale = (torch.tensor(known[key]).view(1, 3, 1, 1) for key in ("mean", "std"))
        x = images((2, 3, 32, 32))
        with torch.no_grad():
            expected = network.forward_head(network.forward_features((x - shift) / scale), pre_logits=True)
            torch.testing.assert_close(model.features(x), expected, rtol=1e-5, atol=1e-5)
        grey = build_model(pin(spec(name, weights="auto", input_shape=(1, 32, 32)), BACKBONES), seed=0).eval()
        with torch.no_grad():  # one channel is repeated to three
            assert torch.equal(grey.features(x[:, :1]), model.features(x[:, :1].expand(-1, 3, -1, -1)))


@pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet"])
@pytest.mark.parametrize("norm", ["none", "group", "average", "freeze", "local"])
def test_norm_policies_apply_as_they_do_to_our_backbones(name: str, norm: str) -> None:
    model = build_model(spec(name, norm=norm), seed=0)
    keeps = norm in ("average", "freeze", "local")
    assert any(isinstance(m, nn.BatchNorm2d) for m in model.modules()) == keeps
    assert any(isinstance(m, nn.GroupNorm) for m in model.modules()) == (norm == "group")
    assert (model.layout.buffers > 0) == keeps
    before = model.buffer_vector.clone()
    x = images((4, 3, 32, 32)) + 1.0
    model.backward(F.cross_entropy(model.train()(x), torch.arange(4)))
    assert bool(torch.isfinite(model.gradient).all())
    assert float(model.gradient.abs().max()) > 0
    assert torch.equal(before, model.buffer_vector) == (norm not in ("average", "local"))
    stored = model.buffer_vector.clone()
    with torch.no_grad():
        unseen = model.eval_unseen()(x)
        usual = model.eval()(x)
    assert torch.equal(stored, model.buffer_vector)  # an unseen client leaves the statistics alone
    assert torch.equal(unseen, usual) == (norm != "local")


@pytest.mark.parametrize("norm", ["group", "none"])
def test_the_activation_in_timms_batchnorm_stays_when_the_norm_is_replaced(norm: str) -> None:
    network = nn.Sequential(timm.layers.BatchNormAct2d(16, act_layer=nn.SiLU), nn.BatchNorm2d(16))
    with torch.no_grad():
        for layer in network:
            layer.weight.uniform_(0.5, 1.5)
            layer.bias.normal_()
    weights = [(layer.weight.detach().clone(), layer.bias.detach().clone()) for layer in network]
    replace_norms(network, spec(norm=norm), keep_start=True)
    x = torch.randn((2, 16, 5, 5), generator=torch.Generator().manual_seed(0))

    def step(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if norm == "group":  # sixteen groups of one channel: each image's channel by its own mean and variance
            x = (x - x.mean((2, 3), keepdim=True)) / (x.var((2, 3), unbiased=False, keepdim=True) + 1e-5).sqrt()
        return x * weight.view(-1, 1, 1) + bias.view(-1, 1, 1)

    first = step(x, *weights[0])
    expected = step(first * first.sigmoid(), *weights[1])
    torch.testing.assert_close(network(x), expected, rtol=1e-5, atol=1e-5)


def test_a_model_without_batchnorm_takes_its_weights_under_every_policy(data: Path) -> None:
    save_file(timm.create_model("test_vit").state_dict(), data / "weights" / "timm-test_vit.r160_in1k.safetensors")
    shas = set()
    for norm in ("none", "group", "freeze"):
        chosen = spec("test_vit", weights="auto", norm=norm, input_shape=(3, 160, 160))
        shas.add(build_model(pin(chosen, BACKBONES), seed=0).state().sha256())
    assert len(shas) == 1


def test_a_pinned_name_has_tag_version_and_the_hash_of_the_file(data: Path) -> None:
    file = data / "weights" / "timm-test_resnet.r160_in1k.safetensors"
    save_file(scramble(timm.create_model("test_resnet")).state_dict(), file)
    pinned = pin(spec(weights="auto"), BACKBONES)
    assert pinned.featurizer == f"timm:test_resnet.r160_in1k@{timm.__version__}"
    name, _, digest = pinned.weights.partition("@sha256:")
    assert name == file.name
    assert len(digest) == 64
    assert pin(pinned, BACKBONES) == pinned
    model = build_model(pinned, seed=0)
    first = model.vector[model.layout.slices["featurizer.network.conv1.0.weight"]]
    assert torch.equal(first, load_file(file)["conv1.0.weight"].flatten())
    # Random weights follow the seed, pretrained ones do not; the head follows it always.
    other, head = build_model(pinned, seed=1), model.layout.head
    assert torch.equal(model.vector[: head.start], other.vector[: head.start])
    assert not torch.equal(model.vector[head], other.vector[head])


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"name": "resnt18"}, "timm has no model 'resnt18'; did you mean 'timm:resnet18'?"),
        ({"name": "qqqqqqqqq"}, r"timm has no model 'qqqqqqqqq'; timm.list_models\(\) in Python lists all"),
        ({"name": "hf-hub:timm/resnet18"}, "timm has no model 'hf-hub:timm/resnet18'"),
        ({"name": "test_resnet.r160"}, "test_resnet has no weights 'r160'; did you mean 'timm:test_resnet.r160_in1k'?"),
        ({"name": "test_resnet@0.1"}, r"built with timm 0.1, and timm .* is installed here: pip install 'timm==0.1'"),
        ({"input_shape": (2, 32, 32)}, "needs images of 1 or 3 channels"),
        ({"input_shape": (5,)}, "needs images of 1 or 3 channels"),
        ({"name": "test_vit", "input_shape": (3, 40, 40)}, "cannot take images of 40 × 40 .*: give --image-size 160"),
        ({"name": "inception_v3", "input_shape": (3, 8, 8)}, "cannot take images of 8 × 8 .*: give --image-size 299"),
        ({"name": "levit_128s", "input_shape": (3, 224, 224), "norm": "group"}, "BatchNorm layers on vectors"),
        ({"name": "efficientvim_m1", "input_shape": (3, 224, 224)}, "parameters that do not train"),
    ],
)
def test_what_cannot_be_built_is_refused_with_a_sentence(changed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TimmError, match=sentence):
        build_model(pin(spec(**changed), BACKBONES), seed=0)


def test_weights_that_do_not_fit_name_the_first_key(data: Path, tmp_path: Path) -> None:
    own = timm.create_model("test_resnet").state_dict()
    torch.save(timm.create_model("test_vit").state_dict(), tmp_path / "other.pth")
    torch.save({**own, "conv1.0.weight": torch.zeros(16, 3, 5, 5)}, tmp_path / "shape.pth")
    torch.save({**own, "layer9.weight": torch.zeros(1)}, tmp_path / "more.pth")
    torch.save(own, tmp_path / "good.pth")
    for file, norm, sentence in (
        ("other.pth", "freeze", r"holds other weights than those of timm:test_resnet.*it has no 'conv1.0.weight'"),
        ("shape.pth", "freeze", r"does not fit timm:test_resnet.*'conv1.0.weight' is \(16, 3, 5, 5\)"),
        ("more.pth", "freeze", "it has 'layer9.weight' too"),
        ("good.pth", "group", "trained with BatchNorm, and model.norm is 'group'"),
    ):
        with pytest.raises(WeightsError, match=sentence):
            build_model(pin(spec(weights=str(tmp_path / file), norm=norm), BACKBONES), seed=0)
    build_model(pin(spec(weights=str(tmp_path / "good.pth")), BACKBONES), seed=0)
    with pytest.raises(TimmError, match=r"pretrained on images of 160 × 160 and takes no other size.*--image-size 160"):
        build_model(pin(spec("test_vit", weights=str(tmp_path / "other.pth")), BACKBONES), seed=0)
    with pytest.raises(
        WeightsError, match=r"no timm-test_resnet.r160_in1k.safetensors.*farfield data fetch timm:test_"
    ):
        pin(spec(weights="auto"), BACKBONES)
