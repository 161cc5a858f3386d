from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from farfield.tasks import load
from farfield.tasks.data_sets.rotated_digits import ANGLES, image_numbers, turn


def digest(image: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(image, dtype=np.float64)).hexdigest()


def test_six_domains_share_the_1797_images() -> None:
    task = load("rotated-digits")
    assert task.domain_names == ("0", "15", "30", "45", "60", "75")
    assert [len(domain) for domain in task.domains] == [300, 300, 300, 299, 299, 299]
    assert task.domains[0].x.shape == (300, 1, 8, 8)
    assert task.classes == tuple("0123456789")


def test_the_label_counts_are_these() -> None:
    task = load("rotated-digits")
    total = sum(torch.bincount(domain.y, minlength=10) for domain in task.domains)
    assert torch.as_tensor(total).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert torch.bincount(task.domain("0").y, minlength=10).tolist() == [32, 35, 26, 35, 22, 36, 37, 29, 21, 27]
    assert torch.bincount(task.domain("75").y, minlength=10).tolist() == [37, 28, 26, 36, 27, 30, 32, 28, 32, 23]


def test_each_image_is_in_exactly_one_domain() -> None:
    digits = load_digits()
    task = load("rotated-digits")
    seen: set[str] = set()
    for angle, numbers, domain in zip(ANGLES, image_numbers(1797), task.domains, strict=True):
        images = digits.images[numbers]
        # The domain really holds these images, turned, with their labels.
        expected = torch.from_numpy((turn(images, angle) / 16).astype(np.float32))
        torch.testing.assert_close(domain.x.squeeze(1), expected, rtol=0, atol=1e-6)
        assert domain.y.tolist() == digits.target[numbers].tolist()
        hashes = {digest(image) for image in images}
        assert len(hashes) == len(numbers)
        assert seen.isdisjoint(hashes)
        seen |= hashes
    assert len(seen) == 1797


def test_pixels_lie_between_0_and_1_and_domain_0_is_untouched() -> None:
    task = load("rotated-digits")
    for domain in task.domains:
        assert float(domain.x.min()) == 0.0
        assert 0.9 < float(domain.x.max()) <= 1.0
    first = load_digits().images[image_numbers(1797)[0]] / 16
    assert np.array_equal(task.domain("0").x.squeeze(1).numpy(), first.astype(np.float32))


def test_images_turn_counter_clockwise() -> None:
    right_of_centre = np.zeros((1, 9, 9))
    right_of_centre[0, 4, 7] = 1.0
    above_centre = np.zeros((1, 9, 9))
    above_centre[0, 1, 4] = 1.0
    np.testing.assert_allclose(turn(right_of_centre, 90), above_centre, atol=1e-12)


def test_half_way_between_pixels_is_interpolated_bilinearly() -> None:
    """Turning the left of two pixels by 45° puts the top right output pixel at distance √½ along the row."""
    image = np.array([[[1.0, 1.0, 1.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]])
    turned = turn(image, 45)
    # Output (0, 1) looks up (1 - √½, 1 + √½): between row 0 of ones and row 1 of zeros.
    assert turned[0, 0, 1] == pytest.approx(np.sqrt(0.5))
    assert turned[0, 1, 1] == pytest.approx(0.0)
    # Output (0, 0) looks up (1 - √2, 1), outside the image.
    assert turned[0, 0, 0] == 0.0
