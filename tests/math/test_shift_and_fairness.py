import math

import pytest
import torch

from farfield.math import Fairness, fairness, gradient_cosines, prediction_disagreement, proxy_a_distance

ACCURACIES = [0.443, 0.434, 0.428, 0.42, 0.44, 0.411, 0.413, 0.367, 0.371]


def test_fairness_matches_the_golden_numbers() -> None:
    measured = fairness(ACCURACIES)
    assert measured.variance * 1000 == pytest.approx(0.6907654320987655, rel=1e-9)
    assert measured.entropy * 10 == pytest.approx(21.95172757077661, rel=1e-9)


def test_equal_accuracies_are_perfectly_fair() -> None:
    for accuracy in (1.0, 0.3, 0.0):
        measured = fairness([accuracy] * 9)
        assert measured.variance == pytest.approx(0.0, abs=1e-30)
        assert measured.entropy == pytest.approx(math.log(9), rel=1e-12)


def test_one_client_with_all_the_accuracy_has_no_entropy() -> None:
    assert fairness(torch.tensor([0.0, 1.0])) == Fairness(variance=0.25, entropy=0.0)


def test_accuracies_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="not negative"):
        fairness([0.5, -0.1])
    with pytest.raises(ValueError, match="non-empty"):
        fairness([])


@pytest.mark.parametrize(("error", "distance"), [(0.5, 0.0), (0.25, 1.0), (0.0, 2.0), (0.75, -1.0)])
def test_proxy_a_distance(error: float, distance: float) -> None:
    assert proxy_a_distance(error) == distance


def test_an_error_rate_outside_the_unit_interval_is_refused() -> None:
    with pytest.raises(ValueError, match=r"1\.5"):
        proxy_a_distance(1.5)


def test_disagreement_is_the_share_of_different_labels() -> None:
    labels = torch.tensor([0, 1, 2, 2])
    assert prediction_disagreement(labels, labels) == 0.0
    assert prediction_disagreement(labels, torch.tensor([0, 1, 2, 1])) == 0.25
    assert prediction_disagreement(labels, labels + 1) == 1.0
    with pytest.raises(ValueError, match="equally long"):
        prediction_disagreement(labels, labels[:2])


def test_cosines_agree_with_torch_and_with_hand_computed_angles() -> None:
    updates = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0], [1.0, 1.0]])
    expected = torch.tensor([1.0, 0.0, -1.0, math.sqrt(0.5)], dtype=torch.float64)
    torch.testing.assert_close(gradient_cosines(updates, torch.tensor([5.0, 0.0])), expected)
    random = torch.randn(6, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    theirs = torch.nn.functional.cosine_similarity(random, random[:1], dim=1)
    torch.testing.assert_close(gradient_cosines(random, random[0]), theirs, rtol=1e-12, atol=1e-15)


def test_cosines_of_vectors_without_length_are_zero() -> None:
    updates = torch.tensor([[0.0, 0.0], [1.0, 2.0]])
    assert gradient_cosines(updates, torch.tensor([1.0, 2.0])).tolist() == pytest.approx([0.0, 1.0])
    assert gradient_cosines(updates, torch.zeros(2)).tolist() == [0.0, 0.0]


def test_cosines_do_not_depend_on_scale() -> None:
    updates = torch.tensor([[1.0, 2.0], [3.0, -1.0]])
    direction = torch.tensor([1.0, 1.0])
    expected = gradient_cosines(updates, direction)
    for scale in (1e-30, 1e30):
        torch.testing.assert_close(gradient_cosines(scale * updates, scale * direction), expected, rtol=1e-6, atol=0)
