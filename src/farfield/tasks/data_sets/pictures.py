"""Turning and resizing whole arrays of small images, as bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from farfield.tasks.data_sets.array_sets import Bytes

#: Images that are turned at once: their lookups are held as numbers of eight bytes.
AT_ONCE = 1024


def turn_bytes(
    images: Bytes, degrees: float | NDArray[np.float64], method: Literal["bilinear", "nearest"] = "bilinear"
) -> Bytes:
    """Images [n, height, width] or [n, height, width, 3] turned counter-clockwise about their centre.

    `degrees` is one angle, or one for each image. A pixel that would come from outside is black.
    """
    turned = np.empty_like(images)
    one_angle = np.ndim(degrees) == 0
    angles = np.deg2rad(np.broadcast_to(np.asarray(degrees, np.float64), (1 if one_angle else len(images),)))
    height, width = images.shape[1:3]
    # One lookup serves all images where they share the angle.
    lookup = list(_sources(angles, height, width, method)) if one_angle else []
    for start in range(0, len(images), AT_ONCE):
        part = images[start : start + AT_ONCE]
        pixels = torch.from_numpy(np.ascontiguousarray(part)).reshape(len(part), height * width, -1)
        here = lookup or _sources(angles[start : start + AT_ONCE], height, width, method)
        total = torch.zeros(pixels.shape, dtype=torch.float32)
        for index, weight in here:
            if one_angle:
                found = pixels.index_select(1, index[0])
            else:
                found = pixels.gather(1, index.unsqueeze(-1).expand(pixels.shape))
            total += found * weight.unsqueeze(-1)
        turned[start : start + AT_ONCE] = total.round_().to(torch.uint8).reshape(part.shape).numpy()
    return turned


def _sources(angles: NDArray[np.float64], height: int, width: int, method: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Where the pixels of the turned image come from: pixel numbers and weights [angle, pixel], once or four times."""
    rows, columns = np.mgrid[:height, :width].reshape(2, -1)
    down, right = rows - (height - 1) / 2, columns - (width - 1) / 2
    cosine, sine = np.cos(angles)[:, None], np.sin(angles)[:, None]
    # Rounded, so that a quarter turn does not fall off the edge by 1e-15.
    y = np.round(cosine * down + sine * right + (height - 1) / 2, 9)
    x = np.round(-sine * down + cosine * right + (width - 1) / 2, 9)
    if method == "nearest":
        y, x = np.floor(y + 0.5), np.floor(x + 0.5)
    inside = (y >= 0) & (y <= height - 1) & (x >= 0) & (x <= width - 1)
    top, left = np.floor(y), np.floor(x)
    for lower in (0, 1) if method == "bilinear" else (0,):
        for later in (0, 1) if method == "bilinear" else (0,):
            share = (y - top if lower else 1 - (y - top)) * (x - left if later else 1 - (x - left)) * inside
            row, column = np.clip(top + lower, 0, height - 1), np.clip(left + later, 0, width - 1)
            yield torch.from_numpy((row * width + column).astype(np.int64)), torch.from_numpy(share.astype(np.float32))


def as_channels(images: Bytes) -> Tensor:
    """[n, height, width] or [n, height, width, 3] as a tensor [n, channels, height, width]."""
    planes = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
    return torch.from_numpy(np.ascontiguousarray(planes))


def as_colour(images: Bytes, size: int) -> Tensor:
    """Images as [n, 3, size, size]: grey ones with three equal channels, resized bilinearly where need be."""
    result = torch.empty((len(images), 3, size, size), dtype=torch.uint8)
    for start in range(0, len(images), AT_ONCE):
        part = as_channels(images[start : start + AT_ONCE])
        if part.shape[2:] != (size, size):
            smooth = torch.nn.functional.interpolate(
                part.float(), (size, size), mode="bilinear", align_corners=False, antialias=True
            )
            part = smooth.round_().clamp_(0, 255).to(torch.uint8)
        result[start : start + AT_ONCE] = part
    return result
