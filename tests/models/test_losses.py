"""The loss that a model's outputs ask for, against its closed forms."""

from __future__ import annotations

from math import exp, log

import pytest
import torch

from farfield.models import predicted_labels, probabilities, task_loss


def test_one_logit_means_binary_cross_entropy() -> None:
    logits, labels = torch.tensor([[0.5], [-2.0], [3.0]]), torch.tensor([1, 0, 0])
    each = [log(1 + exp(-0.5)), log(1 + exp(-2.0)), log(1 + exp(3.0))]
    assert float(task_loss(logits, labels)) == pytest.approx(sum(each) / 3, rel=1e-6)
    assert float(task_loss(logits, labels, reduction="sum")) == pytest.approx(sum(each), rel=1e-6)
    assert task_loss(logits, labels, reduction="none").tolist() == pytest.approx(each, rel=1e-6)


def test_a_large_logit_costs_its_size_and_not_infinity() -> None:
    assert float(task_loss(torch.tensor([[200.0]]), torch.tensor([0]))) == 200.0
    assert float(task_loss(torch.tensor([[200.0]]), torch.tensor([1]))) == 0.0


def test_many_logits_mean_cross_entropy() -> None:
    logits, labels = torch.tensor([[1.0, 2.0, 0.0], [0.0, 0.0, 0.0]]), torch.tensor([0, 2])
    each = [log(exp(1.0) + exp(2.0) + 1.0) - 1.0, log(3.0)]
    assert float(task_loss(logits, labels)) == pytest.approx(sum(each) / 2, rel=1e-6)
    assert float(task_loss(logits, labels, reduction="sum")) == pytest.approx(sum(each), rel=1e-6)


def test_two_logits_and_one_logit_agree() -> None:
    margin, labels = torch.tensor([0.3, -1.2, 4.0]), torch.tensor([0, 1, 1])
    two = torch.stack([torch.zeros(3), margin], dim=1)
    torch.testing.assert_close(task_loss(two, labels), task_loss(margin[:, None], labels))
    torch.testing.assert_close(probabilities(two), probabilities(margin[:, None]))
    assert predicted_labels(two).tolist() == predicted_labels(margin[:, None]).tolist() == [1, 0, 1]


def test_real_targets_mean_squared_error_row_by_row() -> None:
    outputs, targets = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([1.0, 0.0, 1.0])
    # A column against a row would be nine differences if it broadcast.
    assert float(task_loss(outputs, targets)) == pytest.approx((0 + 4 + 9) / 3)
    assert float(task_loss(outputs, targets, reduction="sum")) == 13.0


def test_the_gradient_of_the_binary_loss_is_probability_minus_label() -> None:
    logits = torch.tensor([[0.5], [-2.0]], requires_grad=True)
    task_loss(logits, torch.tensor([1, 0]), reduction="sum").backward()
    assert logits.grad is not None
    expected = [1 / (1 + exp(-0.5)) - 1, 1 / (1 + exp(2.0))]
    assert logits.grad.squeeze(1).tolist() == pytest.approx(expected, rel=1e-6)


def test_probabilities_have_a_column_for_each_class_and_add_up_to_one() -> None:
    one, many = probabilities(torch.tensor([[0.0], [2.0]])), probabilities(torch.tensor([[0.0, 0.0, log(2.0)]]))
    assert one.shape == (2, 2)
    assert one[0].tolist() == [0.5, 0.5]
    assert float(one[1, 1]) == pytest.approx(1 / (1 + exp(-2.0)))
    assert many[0].tolist() == pytest.approx([0.25, 0.25, 0.5])


def test_a_logit_of_zero_is_not_yet_the_positive_class() -> None:
    assert predicted_labels(torch.tensor([[0.0], [1e-6], [-1e-6]])).tolist() == [0, 1, 0]
    assert predicted_labels(torch.tensor([[0.1, 0.7, 0.2]])).tolist() == [1]
