"""Turning images, against a loop that looks up every pixel and against SciPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.ndimage import rotate

from farfield.tasks.data_sets.pictures import as_channels, as_colour, turn_bytes


def naive(image: np.ndarray, degrees: float, method: str) -> np.ndarray:
    """One pixel at a time: go back by the angle about the centre, and look there."""
    height, width = image.shape[:2]
    turned = np.zeros_like(image)
    angle = math.radians(degrees)
    for row in range(height):
        for column in range(width):
            down, right = row - (height - 1) / 2, column - (width - 1) / 2
            y = round(math.cos(angle) * down + math.sin(angle) * right + (height - 1) / 2, 9)
            x = round(-math.sin(angle) * down + math.cos(angle) * right + (width - 1) / 2, 9)
            if method == "nearest":
                y, x = math.floor(y + 0.5), math.floor(x + 0.5)
            if not (0 <= y <= height - 1 and 0 <= x <= width - 1):
                continue
            top, left = math.floor(y), math.floor(x)
            total = np.zeros(image.shape[2:])
            for r, weight_r in ((top, 1 - (y - top)), (top + 1, y - top)):
                for c, weight_c in ((left, 1 - (x - left)), (left + 1, x - left)):
                    if weight_r * weight_c > 0:
                        total = total + weight_r * weight_c * image[r, c]
            turned[row, column] = np.rint(total)
    return turned


@pytest.mark.parametrize("method", ["bilinear", "nearest"])
@pytest.mark.parametrize("degrees", [0, 15, 37.5, 90, -40, -90, 180])
@pytest.mark.parametrize("shape", [(9, 9), (8, 8, 3), (6, 10)])
def test_it_is_what_a_loop_over_pixels_gives(shape: tuple[int, ...], degrees: float, method: str) -> None:
    images = np.random.default_rng(1).integers(0, 256, (3, *shape), dtype=np.uint8)
    turned = turn_bytes(images, degrees, method)  # type: ignore[arg-type]
    expected = np.stack([naive(image, degrees, method) for image in images])
    # A value half-way between two bytes may be rounded either way.
    assert np.abs(turned.astype(int) - expected.astype(int)).max() <= (1 if method == "bilinear" else 0)


@pytest.mark.parametrize("degrees", [15, 30, 45, 60, 75])
def test_bilinear_agrees_with_scipy(degrees: int) -> None:
    image = np.random.default_rng(2).integers(0, 256, (1, 28, 28), dtype=np.uint8)
    theirs = rotate(image[0].astype(float), degrees, reshape=False, order=1, cval=0.0)
    assert np.abs(turn_bytes(image, degrees)[0] - theirs).max() <= 0.51


def test_a_quarter_turn_is_exact_and_counter_clockwise() -> None:
    images = np.random.default_rng(3).integers(0, 256, (2, 16, 16, 3), dtype=np.uint8)
    for method in ("bilinear", "nearest"):
        assert np.array_equal(turn_bytes(images, 90, method), np.rot90(images, 1, axes=(1, 2)))  # type: ignore[arg-type]
        assert np.array_equal(turn_bytes(images, -90, method), np.rot90(images, -1, axes=(1, 2)))  # type: ignore[arg-type]


def test_each_image_may_have_its_own_angle_and_parts_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    images = np.random.default_rng(4).integers(0, 256, (7, 12, 12, 3), dtype=np.uint8)
    angles = np.linspace(-90, 90, 7)
    expected = np.concatenate([turn_bytes(images[i : i + 1], float(angles[i]), "nearest") for i in range(7)])
    monkeypatch.setattr("farfield.tasks.data_sets.pictures.AT_ONCE", 3)
    assert np.array_equal(turn_bytes(images, angles, "nearest"), expected)


def test_grey_images_get_three_equal_channels_and_the_common_size() -> None:
    images = np.random.default_rng(5).integers(0, 256, (2, 16, 16), dtype=np.uint8)
    colour = as_colour(images, 32)
    assert colour.shape == (2, 3, 32, 32)
    assert bool((colour[:, 0] == colour[:, 1]).all())
    assert bool((colour[:, 0] == colour[:, 2]).all())
    # Twice the size by bilinear interpolation: an inner pixel lies 1/4 and 3/4 between its neighbours.
    weights = np.array([[0.75 * 0.75, 0.75 * 0.25], [0.25 * 0.75, 0.25 * 0.25]])
    assert int(colour[0, 0, 3, 3]) == pytest.approx((images[0, 1:3, 1:3] * weights).sum(), abs=0.51)
    assert np.array_equal(as_colour(images, 16)[:, 0].numpy(), images)


def test_channels_come_first() -> None:
    images = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)
    planes = as_channels(images)
    assert planes.shape == (2, 3, 4, 5)
    assert int(planes[1, 2, 3, 4]) == images[1, 3, 4, 2]
    assert as_channels(images[..., 0]).shape == (2, 1, 4, 5)
