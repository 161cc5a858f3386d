"""The mathematics that clients use, on fake tensors: torch raises where devices mix, and results stay on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_leaves

from farfield.math import gaussian_kl, linear_head_gradient, residuals
from farfield.math.geometric_mean import weighted_geometric_mean
from farfield.math.head_gradients import gradient_moments, through_softmax, variance_derivatives
from farfield.math.stacks import (
    add_product,
    mean_of_classes,
    mean_of_logits,
    mean_square,
    product,
    sigmoid,
    stacked_linear,
)
from farfield.models import task_loss
from farfield.tasks.augment import draw
from tests.devices.pretended import pretended_device

pytestmark = pytest.mark.pretended_gpu

GPU = pretended_device()
ROWS, FEATURES, CLASSES, STACK = 12, 5, 3, 4


def on_gpu(*shape: int) -> Tensor:
    return torch.randn(shape, device=GPU)


def labels(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64, device=GPU)


def _backward(make: Callable[[Tensor], Tensor], *shape: int) -> Any:
    x = on_gpu(*shape).requires_grad_()
    return torch.autograd.grad(make(x).sum(), x)


KERNELS: dict[str, Callable[[], Any]] = {
    "residuals": lambda: residuals(on_gpu(ROWS, CLASSES), labels(ROWS)),
    "residuals of one logit": lambda: residuals(on_gpu(ROWS, 1), labels(ROWS)),
    "head gradient": lambda: linear_head_gradient(on_gpu(ROWS, FEATURES), on_gpu(ROWS, CLASSES), labels(ROWS)),
    "head gradients of a stack": lambda: linear_head_gradient(
        on_gpu(STACK, ROWS, FEATURES), on_gpu(STACK, ROWS, CLASSES), labels(STACK, ROWS)
    ),
    "moments": lambda: gradient_moments(on_gpu(ROWS, FEATURES), on_gpu(ROWS, CLASSES)),
    "variance derivatives": lambda: variance_derivatives(
        on_gpu(ROWS, FEATURES),
        on_gpu(ROWS, CLASSES),
        (on_gpu(CLASSES, FEATURES), on_gpu(CLASSES)),
        (on_gpu(CLASSES, FEATURES), on_gpu(CLASSES)),
    ),
    "softmax derivative": lambda: through_softmax(on_gpu(ROWS, CLASSES), on_gpu(ROWS, CLASSES), labels(ROWS)),
    "geometric mean": lambda: weighted_geometric_mean(on_gpu(ROWS, FEATURES)),
    "geometric mean, published": lambda: weighted_geometric_mean(on_gpu(ROWS, FEATURES), "published"),
    "divergence": lambda: gaussian_kl(*(on_gpu(ROWS, FEATURES).exp() for _ in range(4))),
    "small product": lambda: product(on_gpu(STACK, 2, 3), on_gpu(STACK, 3, 1)),
    "large product": lambda: product(on_gpu(STACK, 20, 30), on_gpu(STACK, 30, 10)),
    "added product": lambda: add_product(on_gpu(STACK, 1, 4), on_gpu(STACK, 2, 3), on_gpu(STACK, 3, 4)),
    "layer": lambda: _backward(
        lambda x: stacked_linear(x, on_gpu(STACK, 6, FEATURES), on_gpu(STACK, 6)), STACK, ROWS, FEATURES
    ),
    "mean of classes": lambda: _backward(mean_of_classes, STACK, ROWS),
    "mean of logits": lambda: _backward(lambda x: mean_of_logits(x, on_gpu(STACK, ROWS)), STACK, ROWS),
    "mean square": lambda: _backward(lambda x: mean_square(x, on_gpu(STACK, ROWS)), STACK, ROWS),
    "sigmoid": lambda: sigmoid(on_gpu(STACK, ROWS)),
    "loss": lambda: task_loss(on_gpu(STACK, ROWS, CLASSES), labels(STACK, ROWS)),
    "weighted loss": lambda: task_loss(on_gpu(ROWS, CLASSES), labels(ROWS), class_weights=on_gpu(CLASSES)),
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_stays_on_the_device(name: str) -> None:
    with FakeTensorMode():
        tensors = [leaf for leaf in tree_leaves(KERNELS[name]()) if isinstance(leaf, Tensor)]
    assert tensors
    assert {tensor.device for tensor in tensors} == {GPU}


def test_fake_tensors_of_two_devices_raise() -> None:
    with FakeTensorMode(), pytest.raises(RuntimeError, match="device"):
        product(on_gpu(STACK, 20, 30), torch.randn(STACK, 30, 10))


def test_augmentations_are_drawn_on_the_cpu_and_follow_the_images() -> None:
    drawn = draw(4, 8, 8, torch.Generator().manual_seed(3)).on(torch.device("meta"))
    assert {value.device.type for value in vars(drawn).values()} == {"meta"}
