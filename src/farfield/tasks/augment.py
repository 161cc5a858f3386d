"""Augmentations of training batches, on whole batches of tensors: draws of its own for every image, without a loop.

    x = AUGMENTATIONS["standard"](x, generator)        # x: [n, 1 or 3, h, w], floats between 0 and 1

"standard" is what papers on domain generalisation do: a random crop of 70 to 100 % of the area resized to the full
size, a horizontal flip, colour jitter of 0.3, and a tenth of the images in grey. Validation and test rows never
come here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

AREA = (0.7, 1.0)
RATIO = (3 / 4, 4 / 3)
JITTER = 0.3
GREY_SHARE = 0.1
#: Brightness of red, green and blue to the eye (ITU-R 601), as in Pillow and torchvision.
GREY = (0.299, 0.587, 0.114)


@dataclass(frozen=True)
class Draws:
    """What is drawn for a batch, a number an image. Boxes are in whole pixels. It is drawn on the CPU."""

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor
    flip: Tensor
    brightness: Tensor
    contrast: Tensor
    saturation: Tensor
    hue: Tensor
    grey: Tensor

    def on(self, device: torch.device) -> Draws:
        """The same draws where the images are."""
        return Draws(**{name: drawn.to(device) for name, drawn in vars(self).items()})


def draw(images: int, height: int, width: int, generator: Generator) -> Draws:
    """Draw for so many images of this size. A box that would stick out is cut to the image."""
    u = torch.rand((10, images), generator=generator)
    area = (AREA[0] + (AREA[1] - AREA[0]) * u[0]) * height * width
    low, high = math.log(RATIO[0]), math.log(RATIO[1])
    ratio = torch.exp(low + (high - low) * u[1])
    box_width = (area * ratio).sqrt().round().clamp(1, width)
    box_height = (area / ratio).sqrt().round().clamp(1, height)
    return Draws(
        top=((height - box_height + 1) * u[2]).floor(),
        left=((width - box_width + 1) * u[3]).floor(),
        height=box_height,
        width=box_width,
        flip=u[4] < 0.5,
        brightness=1 - JITTER + 2 * JITTER * u[5],
        contrast=1 - JITTER + 2 * JITTER * u[6],
        saturation=1 - JITTER + 2 * JITTER * u[7],
        hue=JITTER * (2 * u[8] - 1),
        grey=u[9] < GREY_SHARE,
    )


def standard(x: Tensor, generator: Generator) -> Tensor:
    """Crop, flip, jitter and grey, with draws of its own for every image."""
    drawn = draw(len(x), x.shape[2], x.shape[3], generator).on(x.device)
    x = crop_and_flip(x, drawn)
    return recolour(x, drawn) if x.shape[1] == 3 else relight(x, drawn).clamp(0, 1)


def crop_and_flip(x: Tensor, drawn: Draws) -> Tensor:
    """Each image's box, resized bilinearly to the full size, and mirrored where drawn."""
    rows = _sampled_at(x.shape[2], drawn.top, drawn.height)
    columns = _sampled_at(x.shape[3], drawn.left, drawn.width)
    columns = torch.where(drawn.flip.unsqueeze(1), columns.flip(1), columns)
    # grid_sample counts from −1 at the outer edge of the first pixel to 1 at that of the last.
    down = (2 * rows + 1) / x.shape[2] - 1
    across = (2 * columns + 1) / x.shape[3] - 1
    n, h, w = len(x), x.shape[2], x.shape[3]
    grid = torch.stack([across.unsqueeze(1).expand(n, h, w), down.unsqueeze(2).expand(n, h, w)], dim=3)
    return F.grid_sample(x, grid.to(x.dtype), mode="bilinear", padding_mode="border", align_corners=False)


def _sampled_at(size: int, start: Tensor, length: Tensor) -> Tensor:
    """Where along an axis each of `size` output pixels looks, [n, size]; never outside the box."""
    steps = torch.arange(size, dtype=start.dtype, device=start.device) + 0.5
    places = start.unsqueeze(1) + steps * (length / size).unsqueeze(1) - 0.5
    return places.clamp(min=start.unsqueeze(1), max=(start + length - 1).unsqueeze(1))


def relight(x: Tensor, drawn: Draws) -> Tensor:
    """Brightness, then contrast around the image's mean grey."""
    x = (x * _each(drawn.brightness, x)).clamp(0, 1)
    mean = _grey(x).mean((1, 2, 3), keepdim=True) if x.shape[1] == 3 else x.mean((1, 2, 3), keepdim=True)
    return torch.lerp(mean, x, _each(drawn.contrast, x)).clamp(0, 1)


def recolour(x: Tensor, drawn: Draws) -> Tensor:
    """Brightness, contrast, saturation, hue, and grey for some."""
    x = relight(x, drawn)
    x = torch.lerp(_grey(x), x, _each(drawn.saturation, x)).clamp(0, 1)
    x = turn_hue(x, drawn.hue)
    return torch.where(_each(drawn.grey, x), _grey(x), x)


def turn_hue(x: Tensor, turns: Tensor) -> Tensor:
    """Hue moved by so many turns of the colour circle; value and saturation (as in HSV) stay."""
    red, green, blue = x.unbind(1)
    value = torch.maximum(torch.maximum(red, green), blue)
    spread = value - torch.minimum(torch.minimum(red, green), blue)
    safe = spread.clamp(min=torch.finfo(x.dtype).tiny)
    # In sixths of the circle, from the channel that is largest and the difference of the other two; grey has none.
    sixths = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, (blue - red) / safe + 2, (red - green) / safe + 4),
    )
    sixths += 6 * turns.to(x.dtype).view(-1, 1, 1)
    out = torch.empty_like(x)
    for channel, place in enumerate((0, 2, 4)):
        # How far the hue is from the channel's own place on the circle, 0 to 3; a hue is less than 9 sixths from it.
        distance = (3 - ((sixths - place).abs() - 3).abs()).abs()
        out[:, channel] = value - spread * (distance - 1).clamp_(0, 1)
    return out


def _grey(x: Tensor) -> Tensor:
    return x[:, 0:1] * GREY[0] + x[:, 1:2] * GREY[1] + x[:, 2:3] * GREY[2]


def _each(values: Tensor, x: Tensor) -> Tensor:
    shaped = values.view(-1, 1, 1, 1)
    return shaped if shaped.dtype == torch.bool else shaped.to(x.dtype)


Augmentation = Callable[[Tensor, Generator], Tensor]
AUGMENTATIONS: dict[str, Augmentation] = {"standard": standard}
NONE = "none"
