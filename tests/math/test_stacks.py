"""Operations on a stack have, for each client, the bits of the same operation on it alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from farfield.math.stacks import (
    add_product,
    mean_of_classes,
    mean_of_logits,
    mean_square,
    product,
    rounds_alike,
    stacked_linear,
)

ROWS = (1, 2, 3, 5, 8, 10, 16, 17, 32, 33, 50, 64, 357)
WIDTHS = (2, 5, 13, 20, 64, 256)
OUTPUTS = (1, 2, 3, 7, 10, 64)


def stack(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_and_its_derivatives(rows: int, bias: bool) -> None:
    for width in WIDTHS:
        for outputs in OUTPUTS:
            # Weights lie in a long vector of each client, as they do in a model.
            vectors = stack(4, outputs * width + outputs + 7, seed=rows)
            weight = vectors[:, 3 : 3 + outputs * width].view(4, outputs, width).detach().requires_grad_()
            start = vectors[:, 3 + outputs * width : 3 + outputs * width + outputs].detach().requires_grad_()
            x, by = stack(4, rows, width, seed=width).requires_grad_(), stack(4, rows, outputs, seed=outputs)
            given = stacked_linear(x, weight, start if bias else None)
            wanted = [x, weight, start] if bias else [x, weight]
            found = torch.autograd.grad(given, wanted, by)
            for client in range(4):
                own = [tensor[client].detach().clone().requires_grad_() for tensor in wanted]
                alone = F.linear(*own)
                assert torch.equal(alone, given[client]), (rows, width, outputs)
                for one, other in zip(torch.autograd.grad(alone, own, by[client]), found, strict=True):
                    assert torch.equal(one, other[client]), (rows, width, outputs)


@pytest.mark.parametrize(("beta", "alpha"), [(1.0, 1.0), (-1.0, 1 / 32), (0.0, 1 / 7), (1.0, 0.013)])
def test_scaled_products(beta: float, alpha: float) -> None:
    for rows, terms, columns in ((10, 64, 7), (7, 10, 64), (1, 5, 3), (64, 32, 1), (3, 32, 20), (5, 5, 5), (2, 300, 1)):
        begin, left, right = (
            stack(3, rows, columns, seed=1),
            stack(3, rows, terms, seed=2),
            stack(3, terms, columns, seed=3),
        )
        found = add_product(begin, left, right, beta=beta, alpha=alpha)
        into = add_product(begin, left, right, beta=beta, alpha=alpha, out=torch.empty_like(begin))
        for client in range(3):
            alone = torch.addmm(begin[client], left[client], right[client], beta=beta, alpha=alpha)
            assert torch.equal(found[client], alone), (rows, terms, columns)
            assert torch.equal(into[client], alone), (rows, terms, columns)
        assert torch.equal(add_product(begin[0], left[0], right[0], beta=beta, alpha=alpha), found[0])


def test_a_client_does_not_depend_on_how_many_there_are() -> None:
    left, right = stack(300, 32, 64, seed=0), stack(300, 64, 10, seed=1)
    assert rounds_alike(32, 64, 10)
    whole = product(left, right)
    for count in (1, 2, 7, 299):
        assert torch.equal(product(left[:count], right[:count]), whole[:count])
    assert torch.equal(product(left[5:6], right[5:6])[0], left[5] @ right[5])


def test_the_mean_loss_of_classes() -> None:
    for rows in (*range(1, 70), 100, 128, 255, 256, 257, 300, 4097):
        logits = stack(3, rows, 5, seed=rows).requires_grad_()
        labels = torch.randint(5, (3, rows), generator=torch.Generator().manual_seed(rows))
        each = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(3, rows)
        means = mean_of_classes(each)
        (found,) = torch.autograd.grad(means.sum(), logits)
        for client in range(3):
            own = logits[client].detach().clone().requires_grad_()
            alone = F.cross_entropy(own, labels[client])
            assert torch.equal(alone, means[client]), rows
            assert torch.equal(torch.autograd.grad(alone, own)[0], found[client]), rows


@pytest.mark.parametrize("share", [1.0, 0.3])
def test_the_mean_losses_of_one_output(share: float) -> None:
    for rows in (1, 2, 3, 5, 8, 10, 17, 31, 64, 100):
        given, truth = stack(3, rows, seed=rows).requires_grad_(), (stack(3, rows, seed=1) > 0).float()
        for stacked, alone in ((mean_of_logits, F.binary_cross_entropy_with_logits), (mean_square, F.mse_loss)):
            means = stacked(given, truth)
            (found,) = torch.autograd.grad((means * share).sum(), given)
            for client in range(3):
                own = given[client].detach().clone().requires_grad_()
                mean = alone(own, truth[client])
                assert torch.equal(mean, means[client]), rows
                assert torch.equal(torch.autograd.grad(mean * share, own)[0], found[client]), rows


@pytest.mark.parametrize("clients", [1, 2, 7, 64, 65, 130])
def test_rows_are_added_up_as_by_the_loss_of_one_client(clients: int) -> None:
    for rows in (1, 2, 15, 16, 17, 18, 33, 64, 255, 257, 258, 500, 1000, 4098):
        given = stack(clients, rows, 4, seed=rows).log_softmax(-1)
        labels = torch.randint(4, (clients, rows), generator=torch.Generator().manual_seed(rows))
        means = mean_of_classes(-given.gather(-1, labels.unsqueeze(-1)).squeeze(-1))
        alone = torch.stack([F.nll_loss(own, truth) for own, truth in zip(given, labels, strict=True)])
        assert torch.equal(means, alone), rows


def test_more_rows_than_torch_adds_up_by_sixteen() -> None:
    given = stack(2, (1 << 16) + 300, 2, seed=0).log_softmax(-1)
    labels = torch.ones(2, given.shape[1], dtype=torch.int64)
    means = mean_of_classes(-given[..., 1])
    assert torch.equal(means, torch.stack([F.nll_loss(own, truth) for own, truth in zip(given, labels, strict=True)]))
