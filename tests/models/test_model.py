"""The flat vector, the head's slice, gradients, seeds and hashes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from farfield.models import Model, ModelSpec, ModelState, build_model, hash_states

SPEC = ModelSpec(featurizer="mlp", input_shape=(4,), outputs=3, hidden=(6, 5))
SHAPES = {
    "linear head": SPEC,
    "head without bias": SPEC.model_copy(update={"head_bias": False}),
    "mlp head": SPEC.model_copy(update={"head": "mlp", "head_hidden": 7}),
    "gaussian": SPEC.model_copy(update={"representation": "gaussian"}),
    "batch norm": SPEC.model_copy(update={"norm": "average"}),
    "identity": ModelSpec(featurizer="identity", input_shape=(2, 3), outputs=1, hidden=()),
    "convnet": ModelSpec(featurizer="convnet", input_shape=(2, 6, 6), outputs=3, hidden=(4, 5), norm="group"),
}
every_shape = pytest.mark.parametrize("spec", SHAPES.values(), ids=SHAPES.keys())


def batch(spec: ModelSpec, rows: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn((rows, *spec.input_shape), generator=generator)
    return x, torch.arange(rows) % max(spec.outputs, 2)


@every_shape
def test_writing_to_the_vector_changes_every_parameter(spec: ModelSpec) -> None:
    model = build_model(spec, seed=0)
    model.vector.copy_(torch.arange(model.layout.parameters, dtype=torch.float32))
    for name, parameter in model.named_parameters():
        piece = model.layout.slices[name]
        expected = torch.arange(piece.start, piece.stop, dtype=torch.float32).view(parameter.shape)
        assert torch.equal(parameter.detach(), expected), name


@every_shape
def test_writing_to_a_parameter_changes_the_vector_there_and_nowhere_else(spec: ModelSpec) -> None:
    model = build_model(spec, seed=0)
    for name, parameter in model.named_parameters():
        before = model.vector.clone()
        with torch.no_grad():
            parameter.add_(1.0)
        changed = (model.vector != before).nonzero().squeeze(1)
        piece = model.layout.slices[name]
        assert changed.tolist() == list(range(piece.start, piece.stop)), name


@every_shape
def test_the_slices_cover_the_vector_once_and_in_order(spec: ModelSpec) -> None:
    model = build_model(spec, seed=0)
    start = 0
    for name, parameter in model.named_parameters():
        assert model.layout.slices[name] == slice(start, start + parameter.numel())
        assert model.layout.shapes[name] == parameter.shape
        start += parameter.numel()
    assert start == model.layout.parameters == len(model.vector) == len(model.gradient)


@every_shape
def test_the_head_is_the_last_slice_and_holds_the_heads_weights(spec: ModelSpec) -> None:
    model = build_model(spec, seed=0)
    head = torch.cat([p.detach().reshape(-1) for p in model.head.parameters()])
    assert model.layout.head.stop == model.layout.parameters
    assert torch.equal(model.vector[model.layout.head], head)


def test_a_linear_head_is_its_weight_and_then_its_bias() -> None:
    model = build_model(SPEC, seed=0)
    last = model.head.last
    assert last.weight.shape == (3, 5)
    assert model.layout.head == slice(len(model.vector) - 18, len(model.vector))
    assert torch.equal(model.vector[-18:-3], last.weight.detach().reshape(-1))
    assert torch.equal(model.vector[-3:], last.bias.detach())


def test_the_last_layer_of_an_mlp_head_gives_the_logits() -> None:
    model = build_model(SHAPES["mlp head"], seed=0)
    assert model.layout.head.stop - model.layout.head.start == (5 * 7 + 7) + (7 * 3 + 3)
    assert model.head.last.weight.shape == (3, 7)


@every_shape
def test_the_model_is_the_head_of_its_features(spec: ModelSpec) -> None:
    model = build_model(spec, seed=0).eval()
    x, _ = batch(spec)
    features = model.features(x)
    assert features.shape == (8, model.layout.features)
    assert torch.equal(model(x), model.head(features))
    assert model(x).shape == (8, model.layout.outputs)


@every_shape
def test_backward_equals_torchs_own_gradient(spec: ModelSpec) -> None:
    model = build_model(spec, seed=0).eval()
    x, y = batch(spec)
    risk = F.cross_entropy(model(x), y) if spec.outputs > 1 else model(x).square().mean()
    risk.backward(retain_graph=True)
    own = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    model.backward(risk)
    assert torch.equal(model.gradient, torch.cat([g.reshape(-1) for g in own]))
    assert float(model.gradient.norm()) > 0


def test_backward_gives_zero_for_parameters_that_the_loss_does_not_touch() -> None:
    model = build_model(SPEC, seed=0)
    x, y = batch(SPEC)
    model.backward(F.cross_entropy(model(x), y))
    assert float(model.gradient[model.layout.head].norm()) > 0
    model.backward(model.features(x).square().sum())
    assert torch.count_nonzero(model.gradient[model.layout.head]) == 0
    assert float(model.gradient[: model.layout.head.start].norm()) > 0


@pytest.mark.parametrize("head", ["linear", "mlp"])
def test_backward_from_the_final_layer_is_backward(head: str) -> None:
    spec = ModelSpec(input_shape=(4,), outputs=3, hidden=(5,), head=head, head_hidden=6)
    model = build_model(spec, 0)
    x = torch.randn(7, 4, generator=torch.Generator().manual_seed(1))
    inside = model.head.before_last(model.features(x))
    cut = inside.detach().requires_grad_()
    loss = F.cross_entropy(model.head.last(cut), torch.arange(7) % 3)
    by_inside, *by_final = torch.autograd.grad(loss, [cut, *model.head.last.parameters()])
    model.backward_from(inside, by_inside, torch.cat([part.reshape(-1) for part in by_final]))
    known = model.gradient.clone()
    model.backward(F.cross_entropy(model(x), torch.arange(7) % 3))
    torch.testing.assert_close(known, model.gradient)


def test_a_loss_of_several_numbers_is_refused() -> None:
    model = build_model(ModelSpec(input_shape=(4,), outputs=3, hidden=(5,)), 0)
    losses = F.cross_entropy(model(torch.ones(7, 4)), torch.arange(7) % 3, reduction="none")
    with pytest.raises(ValueError, match=r"shape \(7,\), and a gradient is of one number: take its mean"):
        model.backward(losses)


def test_backward_overwrites_the_gradient_that_was_there() -> None:
    model = build_model(SPEC, seed=0)
    x, y = batch(SPEC)
    model.backward(F.cross_entropy(model(x), y))
    once = model.gradient.clone()
    model.backward(F.cross_entropy(model(x), y))
    assert torch.equal(model.gradient, once)


def test_a_step_on_the_vector_is_a_step_of_the_model() -> None:
    model = build_model(SPEC, seed=0)
    twin = build_model(SPEC, seed=0)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    x, y = batch(SPEC)
    for _ in range(3):
        model.backward(F.cross_entropy(model(x), y))
        model.vector.add_(model.gradient, alpha=-0.1)
        optimizer.zero_grad()
        F.cross_entropy(twin(x), y).backward()
        optimizer.step()
    assert torch.equal(model.vector, twin.vector)
    assert torch.equal(model(x), twin(x))


@every_shape
def test_the_same_seed_gives_the_same_weights_whatever_was_drawn_before(spec: ModelSpec) -> None:
    first = build_model(spec, seed=5).state()
    torch.rand(17)
    again = build_model(spec, seed=5).state()
    other = build_model(spec, seed=6).state()
    assert torch.equal(first.parameters, again.parameters)
    assert not torch.equal(first.parameters, other.parameters)


def test_building_a_model_leaves_the_global_random_numbers_alone() -> None:
    torch.manual_seed(11)
    expected = torch.rand(4)
    torch.manual_seed(11)
    build_model(SHAPES["convnet"], seed=0)
    assert torch.equal(torch.rand(4), expected)


def test_a_state_is_a_copy_and_loading_it_brings_the_numbers_back() -> None:
    model = build_model(SHAPES["batch norm"], seed=0)
    saved = model.state()
    hashed = saved.sha256()
    model.vector.add_(1.0)
    model.buffer_vector.add_(2.0)
    assert saved.sha256() == hashed
    model.load(saved)
    assert model.state().sha256() == hashed
    # Loading writes into the same memory, so the parameters are still views.
    model.vector.zero_()
    assert all(torch.count_nonzero(p) == 0 for p in model.parameters())


def test_a_state_dict_carries_every_number_once() -> None:
    model = build_model(SHAPES["batch norm"], seed=0)
    floating = [t for t in model.state_dict().values() if t.is_floating_point()]
    assert sum(t.numel() for t in floating) == model.layout.parameters + model.layout.buffers


def test_a_state_weighs_its_parameters_and_buffers() -> None:
    model = build_model(SHAPES["batch norm"], seed=0)
    assert model.state().nbytes == 4 * (model.layout.parameters + model.layout.buffers)


def state(parameters: list[float], buffers: list[float]) -> ModelState:
    return ModelState(torch.tensor(parameters), torch.tensor(buffers))


def test_one_bit_in_a_parameter_changes_the_hash() -> None:
    one = state([1.0, 2.0], [3.0])
    flipped = ModelState((one.parameters.view(torch.int32) ^ 1).view(torch.float32), one.buffers)
    assert (flipped.parameters - one.parameters).abs().max() < 3e-7
    assert flipped.sha256() != one.sha256()
    assert state([1.0, 2.0], [3.0]).sha256() == one.sha256()


def test_one_bit_in_a_buffer_changes_the_hash() -> None:
    one = state([1.0, 2.0], [3.0])
    flipped = ModelState(one.parameters, (one.buffers.view(torch.int32) ^ 1).view(torch.float32))
    assert flipped.sha256() != one.sha256()


def test_the_hash_tells_parameters_from_buffers_and_one_dtype_from_another() -> None:
    hashes = [
        state([1.0, 2.0], [3.0]).sha256(),
        state([1.0], [2.0, 3.0]).sha256(),
        state([1.0, 2.0, 3.0], []).sha256(),
        ModelState(torch.tensor([1.0, 2.0], dtype=torch.float64), torch.tensor([3.0])).sha256(),
        state([0.0, 2.0], [3.0]).sha256(),
        state([-0.0, 2.0], [3.0]).sha256(),
    ]
    assert len(set(hashes)) == len(hashes)


def test_the_hash_of_several_models_depends_on_their_order() -> None:
    a, b = state([1.0], []), state([2.0], [])
    assert hash_states([a, b]) != hash_states([b, a])
    assert hash_states([a]) == a.sha256() != hash_states([a, a])


def test_an_unknown_featurizer_gets_a_suggestion() -> None:
    with pytest.raises(ValueError, match=r"^unknown featurizer 'covnet'; did you mean 'convnet'\?$"):
        Model(ModelSpec(featurizer="covnet", input_shape=(1, 8, 8), outputs=2))


def test_a_featurizer_that_nobody_could_mean_gets_the_list() -> None:
    with pytest.raises(ValueError, match=r"^unknown featurizer 'xyzzy'; choose one of .*mlp.*"):
        Model(ModelSpec(featurizer="xyzzy", input_shape=(4,), outputs=2))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"input_shape": ()}, "input_shape"),
        ({"input_shape": (4, 0)}, "input_shape"),
        ({"hidden": (6, -1)}, "hidden"),
        ({"outputs": 0}, "outputs"),
        ({"dropout": 1.0}, "dropout"),
        ({"norm": "layer"}, "norm"),
        ({"hiden": (6,)}, "hiden"),
    ],
)
def test_a_spec_that_cannot_be_built_is_refused_by_name(settings: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        ModelSpec.model_validate({"input_shape": (4,), "outputs": 3, **settings})


@pytest.mark.parametrize("head", ["linear", "mlp"])
def test_a_kaiming_start_changes_the_heads_weights_and_nothing_else(head: str) -> None:
    spec = SPEC.model_copy(update={"hidden": (400,), "head": head, "head_hidden": 200, "outputs": 150})
    plain, kaiming = (build_model(spec.model_copy(update={"head_init": i}), 0) for i in ("same", "kaiming"))
    for name, part in plain.layout.slices.items():
        same = torch.equal(plain.vector[part], kaiming.vector[part])
        assert same is not (name.startswith("head.") and name.endswith("weight")), name
    for layer in kaiming.head.modules():
        if isinstance(layer, torch.nn.Linear):
            # N(0, 2 / inputs), and PyTorch's uniform start has 1 / (3 inputs).
            assert float(layer.weight.detach().var()) == pytest.approx(2 / layer.in_features, rel=0.05)
            assert abs(float(layer.weight.detach().mean())) < 0.01
            assert float(layer.weight.detach().abs().max()) > 3.5 * (2 / layer.in_features) ** 0.5


def test_a_model_that_does_not_ask_for_the_kaiming_start_has_the_bits_it_always_had() -> None:
    """The hash was taken before there was a choice."""
    assert build_model(SPEC, 0).state().sha256() == "9b14ff7ec5ea69af4fb7561eea8322474ce83d85d35bcd1dd8891cf2bd3c10d5"
