"""The norm policies: where statistics live, what training does to them, what an unseen client uses."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from farfield.models import NORM_POLICIES, Model, ModelSpec, build_model

MLP = ModelSpec(featurizer="mlp", input_shape=(4,), outputs=3, hidden=(6,))
CONVNET = ModelSpec(featurizer="convnet", input_shape=(2, 5, 5), outputs=3, hidden=(6, 4))
both = pytest.mark.parametrize("spec", [MLP, CONVNET], ids=["mlp", "convnet"])


def made(spec: ModelSpec, norm: str) -> Model:
    return build_model(spec.model_copy(update={"norm": norm}), seed=0)


def inputs(spec: ModelSpec, seed: int = 1) -> Tensor:
    """Far from mean zero and variance one, so that it shows which statistics normalised them."""
    return 3.0 + 2.0 * torch.randn((16, *spec.input_shape), generator=torch.Generator().manual_seed(seed))


def batch_norms(model: Model) -> list[nn.modules.batchnorm._BatchNorm]:
    return [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]


@both
@pytest.mark.parametrize("norm", ["average", "freeze", "local"])
def test_statistics_live_in_a_vector_of_their_own(spec: ModelSpec, norm: str) -> None:
    model = made(spec, norm)
    widths = sum(spec.hidden)
    assert model.layout.buffers == len(model.buffer_vector) == 2 * widths
    plain = made(spec, "none")
    assert model.layout.parameters == plain.layout.parameters + 2 * widths  # the affine weights, nothing more
    assert not any("running" in name for name in model.layout.slices)
    for layer in batch_norms(model):
        assert layer.running_mean is not None
        assert layer.running_mean.tolist() == [0.0] * layer.num_features
    model.buffer_vector.fill_(7.0)
    for layer in batch_norms(model):
        assert layer.running_mean is not None
        assert layer.running_var is not None
        assert layer.running_mean.tolist() == layer.running_var.tolist() == [7.0] * layer.num_features


def test_a_training_pass_moves_the_averaged_statistics_and_no_parameter() -> None:
    model = made(MLP, "average").train()
    before = model.vector.clone()
    x = inputs(MLP)
    model(x)
    assert torch.equal(model.vector, before)
    linear = model.featurizer[1]
    assert isinstance(linear, nn.Linear)
    hidden = linear(x).detach()
    mean, variance = 0.1 * hidden.mean(0), 0.9 + 0.1 * hidden.var(0)
    torch.testing.assert_close(model.buffer_vector, torch.cat([mean, variance]))


@both
def test_averaged_statistics_come_with_the_state_and_are_what_evaluation_uses(spec: ModelSpec) -> None:
    model = made(spec, "average").train()
    x = inputs(spec)
    for _ in range(5):
        model(x)
    here = model.eval()(x)
    elsewhere = made(spec, "average").eval()
    assert not torch.equal(elsewhere(x), here)
    elsewhere.load(model.state())
    assert torch.equal(elsewhere(x), here)
    assert torch.equal(elsewhere.eval_unseen()(x), here)


@both
def test_frozen_statistics_stay_as_they_were_made_also_in_training(spec: ModelSpec) -> None:
    model = made(spec, "freeze").train()
    before = model.buffer_vector.clone()
    out = model(inputs(spec))
    assert torch.equal(model.buffer_vector, before)
    assert model.training
    assert [layer.training for layer in batch_norms(model)] == [False] * len(spec.hidden)
    assert torch.equal(out, model.eval()(inputs(spec)))
    assert torch.equal(out, model.eval_unseen()(inputs(spec)))


@both
def test_the_affine_weights_of_a_frozen_norm_still_train(spec: ModelSpec) -> None:
    model = made(spec, "freeze").train()
    model.backward(model(inputs(spec)).square().mean())
    affine = [
        model.gradient[model.layout.slices[f"{name}.weight"]]
        for name, m in model.named_modules()
        if isinstance(m, nn.modules.batchnorm._BatchNorm)
    ]
    assert len(affine) == len(spec.hidden)
    assert all(float(g.norm()) > 0 for g in affine)


def test_freezing_the_norm_leaves_dropout_in_training() -> None:
    model = build_model(MLP.model_copy(update={"norm": "freeze", "dropout": 0.5}), seed=0)
    dropout = next(m for m in model.modules() if isinstance(m, nn.Dropout))
    assert model.train() is model
    assert dropout.training
    model.eval()
    assert not dropout.training


@both
def test_an_unseen_client_of_a_local_norm_is_normalised_by_its_own_batch(spec: ModelSpec) -> None:
    model = made(spec, "local").train()
    model(inputs(spec, seed=2))  # some statistics that are not the batch's
    kept = model.buffer_vector.clone()
    x = inputs(spec)
    unseen = model.eval_unseen()(x)
    assert torch.equal(model.buffer_vector, kept)
    seen = model.eval()(x)
    assert not torch.allclose(unseen, seen)
    by_batch = model.train()(x)
    torch.testing.assert_close(unseen, by_batch)


@both
def test_a_local_norm_trains_again_after_it_served_an_unseen_client(spec: ModelSpec) -> None:
    used, fresh = made(spec, "local"), made(spec, "local")
    used.eval_unseen()(inputs(spec))
    for model in (used, fresh):
        model.train()(inputs(spec))
    assert not torch.equal(fresh.buffer_vector, made(spec, "local").buffer_vector)
    assert torch.equal(used.buffer_vector, fresh.buffer_vector)


def test_an_unseen_client_of_a_local_norm_gets_no_dropout() -> None:
    model = build_model(MLP.model_copy(update={"norm": "local", "dropout": 0.5}), seed=0).eval_unseen()
    x = inputs(MLP)
    assert torch.equal(model(x), model(x))


@pytest.mark.parametrize("hidden", [(6,), (12, 10), (64,)])
def test_group_norm_has_no_statistics_to_share(hidden: tuple[int, ...]) -> None:
    model = made(MLP.model_copy(update={"hidden": hidden}), "group")
    assert model.layout.buffers == 0
    assert model.buffer_vector.shape == (0,)
    assert [m.num_channels for m in model.modules() if isinstance(m, nn.GroupNorm)] == list(hidden)
    x = inputs(MLP)
    rows_alone = torch.cat([model.train()(row[None]) for row in x])
    torch.testing.assert_close(model.train()(x), rows_alone)  # a row's output does not depend on its batch
    torch.testing.assert_close(model.eval_unseen()(x), rows_alone)
    assert float(rows_alone.detach().std(0).max()) > 0.01  # and does depend on the row


def test_no_norm_means_no_buffers_and_the_same_model_for_everybody() -> None:
    model = made(MLP, "none")
    assert model.layout.buffers == 0
    assert torch.equal(model.train()(inputs(MLP)), model.eval_unseen()(inputs(MLP)))


def test_every_policy_says_what_an_unseen_client_uses() -> None:
    assert set(NORM_POLICIES) == {"none", "average", "freeze", "local", "group"}
    for policy in ("none", "average", "freeze", "local"):
        assert "unseen client" in NORM_POLICIES[policy]
    assert "no statistics" in NORM_POLICIES["group"]
