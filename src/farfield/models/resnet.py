"""ResNet-18 and ResNet-50 with the names and the arithmetic of torchvision's, so that its weight files load.

He, Zhang, Ren, Sun. Deep Residual Learning for Image Recognition. CVPR 2016. As in torchvision, the stride of a
bottleneck is in its 3×3 convolution (the "v1.5" form), not in the first 1×1 of the paper.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

#: What makes a normalisation layer of so many channels; `last` marks the one before a residual sum.
Norm = Callable[[int, bool], nn.Module]


def batch_norm(channels: int, last: bool) -> nn.Module:
    return nn.BatchNorm2d(channels)


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)


def _shortcut(inputs: int, outputs: int, stride: int, norm: Norm) -> nn.Sequential | None:
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(_convolution(inputs, outputs, 1, stride), norm(outputs, False))


class Basic(nn.Module):
    """Two 3×3 convolutions and the input added."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = _convolution(inputs, width, 3, stride)
        self.bn1 = norm(width, False)
        self.conv2 = _convolution(width, width, 3)
        self.bn2 = norm(width, True)
        self.downsample = _shortcut(inputs, width, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn1(self.conv1(x)).relu()
        y = self.bn2(self.conv2(y))
        return (y + (x if self.downsample is None else self.downsample(x))).relu()  # type: ignore[no-any-return]


class Bottleneck(nn.Module):
    """1×1 down to a quarter, 3×3, 1×1 up again, and the input added."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, norm: Norm) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = _convolution(inputs, width, 1)
        self.bn1 = norm(width, False)
        self.conv2 = _convolution(width, width, 3, stride)
        self.bn2 = norm(width, False)
        self.conv3 = _convolution(width, outputs, 1)
        self.bn3 = norm(outputs, True)
        self.downsample = _shortcut(inputs, outputs, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn1(self.conv1(x)).relu()
        y = self.bn2(self.conv2(y)).relu()
        y = self.bn3(self.conv3(y))
        return (y + (x if self.downsample is None else self.downsample(x))).relu()  # type: ignore[no-any-return]


DEPTHS: dict[int, tuple[type[Basic] | type[Bottleneck], tuple[int, int, int, int]]] = {
    18: (Basic, (2, 2, 2, 2)),
    50: (Bottleneck, (3, 4, 6, 3)),
}


class ResNet(nn.Module):
    """Images [n, 3, h, w] to logits of `classes`, or to features where `classes` is 0."""

    def __init__(self, depth: int, classes: int = 1000, norm: Norm = batch_norm) -> None:
        super().__init__()
        block, counts = DEPTHS[depth]
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = norm(64, False)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        channels = 64
        for number, (count, width) in enumerate(zip(counts, (64, 128, 256, 512), strict=True), start=1):
            layers: list[nn.Module] = []
            for i in range(count):
                layers.append(block(channels, width, 2 if i == 0 and number > 1 else 1, norm))
                channels = width * block.expansion
            setattr(self, f"layer{number}", nn.Sequential(*layers))
        self.width = channels
        self.fc = nn.Linear(channels, classes) if classes else nn.Identity()
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.bn1(self.conv1(x)).relu())
        for number in range(1, 5):
            x = self.get_submodule(f"layer{number}")(x)
        return self.fc(x.mean((2, 3)))  # type: ignore[no-any-return]
