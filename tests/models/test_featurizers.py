"""Convolutions on awkward sizes, and the Gaussian representation."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from farfield.models import Model, ModelSpec, build_model
from farfield.models.model import SIGMA_FLOOR

GAUSSIAN = ModelSpec(featurizer="mlp", input_shape=(4,), outputs=3, hidden=(5,), representation="gaussian")


@pytest.mark.parametrize(
    ("shape", "hidden", "left"),
    [
        ((1, 7, 5), (4, 6), (4, 3)),
        ((3, 1, 1), (4, 6), (1, 1)),
        ((2, 8, 3), (4, 6, 5, 7), (2, 1)),
        ((1, 9, 9), (4,), (9, 9)),
    ],
)
def test_a_convnet_halves_odd_images_rounding_up_and_takes_the_mean(
    shape: tuple[int, ...], hidden: tuple[int, ...], left: tuple[int, int]
) -> None:
    model = build_model(ModelSpec(featurizer="convnet", input_shape=shape, outputs=2, hidden=hidden), seed=0)
    x = torch.randn((3, *shape), generator=torch.Generator().manual_seed(0))
    assert isinstance(model.featurizer, nn.Sequential)
    maps = model.featurizer[:-2](x)
    assert maps.shape == (3, hidden[-1], *left)
    torch.testing.assert_close(model.features(x), maps.mean((2, 3)))
    assert model.layout.features == hidden[-1]
    assert model(x).shape == (3, 2)


def test_a_convnet_normalises_after_the_relu() -> None:
    spec = ModelSpec(featurizer="convnet", input_shape=(1, 4, 4), outputs=2, hidden=(4,), norm="average")
    kinds = [type(m) for m in build_model(spec, seed=0).featurizer.children()]
    assert kinds[:3] == [nn.Conv2d, nn.ReLU, nn.BatchNorm2d]


def test_a_convnet_refuses_vectors() -> None:
    with pytest.raises(ValueError, match=r"'convnet' needs images .*\(4,\)"):
        Model(ModelSpec(featurizer="convnet", input_shape=(4,), outputs=2))


def test_a_gaussian_representation_is_sampled_in_training() -> None:
    model = build_model(GAUSSIAN, seed=0).train()
    x = torch.randn((1, 4), generator=torch.Generator().manual_seed(0)).expand(20000, 4)
    mu, sigma = (t[0].detach() for t in model.represent(x[:1]))
    torch.manual_seed(0)
    samples = model.features(x).detach()
    # Five standard errors of a mean and of a standard deviation over 20000 draws.
    assert ((samples.mean(0) - mu).abs() < 5 * sigma / 20000**0.5).all()
    assert ((samples.std(0) / sigma - 1).abs() < 5 / (2 * 20000) ** 0.5).all()


def test_a_gaussian_representation_is_its_mean_in_evaluation() -> None:
    model = build_model(GAUSSIAN, seed=0).eval()
    x = torch.randn((6, 4), generator=torch.Generator().manual_seed(0))
    mu, _ = model.represent(x)
    assert torch.equal(model.features(x), mu)
    assert torch.equal(model.eval_unseen()(x), model.head(mu))
    assert not torch.equal(model.train().features(x), mu)


def test_mean_and_deviation_are_the_two_halves_of_one_layer() -> None:
    model = build_model(GAUSSIAN, seed=0)
    x = torch.randn((6, 4), generator=torch.Generator().manual_seed(0))
    assert model.gaussian is not None
    raw = model.gaussian(model.featurizer(x))
    mu, sigma = model.represent(x)
    assert torch.equal(mu, raw[:, :5])
    torch.testing.assert_close(sigma, torch.log1p(raw[:, 5:].exp()) + SIGMA_FLOOR)


@pytest.mark.parametrize("raw", [-1000.0, -20.0, 0.0, 1000.0])
def test_a_standard_deviation_is_positive_and_has_a_finite_logarithm(raw: float) -> None:
    model = build_model(GAUSSIAN, seed=0)
    assert model.gaussian is not None
    with torch.no_grad():
        model.gaussian.bias.fill_(raw)
    _, sigma = model.represent(torch.zeros(2, 4))
    assert (sigma >= SIGMA_FLOOR).all()
    assert torch.isfinite(sigma.log()).all()


def test_the_gradient_reaches_the_deviation_only_through_a_sample() -> None:
    model = build_model(GAUSSIAN, seed=0)
    x = torch.randn((6, 4), generator=torch.Generator().manual_seed(0))
    weight = model.layout.slices["gaussian.weight"]
    deviation = slice(weight.start + 25, weight.stop)
    model.train().backward(model(x).square().mean())
    assert float(model.gradient[deviation].norm()) > 0
    model.eval().backward(model(x).square().mean())
    assert torch.count_nonzero(model.gradient[deviation]) == 0


def test_a_plain_model_has_no_mean_and_deviation_to_give() -> None:
    model = build_model(GAUSSIAN.model_copy(update={"representation": "plain"}), seed=0)
    with pytest.raises(ValueError, match="representation='gaussian'"):
        model.represent(torch.zeros(1, 4))
