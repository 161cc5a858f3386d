"""Our ResNets against timm's with the same weights: a training step and a forward pass, as a ratio of processor time.

    python benchmarks/backbones.py [--pairs 9] [--size 64] [--batch 8] [--depth 18]

Needs timm. The two take turns in one process on one thread. Printed is the median of ours / timm's, with its range.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from farfield.models.resnet import ResNet


def step(network: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Callable[[], object]:
    def run() -> object:
        network.train()
        return torch.autograd.grad(F.cross_entropy(network(x), y), list(network.parameters()))

    return run


def forward(network: nn.Module, x: torch.Tensor) -> Callable[[], object]:
    def run() -> object:
        network.eval()
        with torch.inference_mode():
            return network(x)

    return run


def ratios(ours: Callable[[], object], theirs: Callable[[], object], pairs: int) -> list[float]:
    def seconds(run: Callable[[], object]) -> float:
        start = time.process_time()
        run()
        return time.process_time() - start

    for run in (ours, theirs):
        run()
    found = []
    for number in range(pairs):
        first, second = (ours, theirs) if number % 2 == 0 else (theirs, ours)
        a, b = seconds(first), seconds(second)
        found.append(a / b if number % 2 == 0 else b / a)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, default in (("pairs", 9), ("size", 64), ("batch", 8), ("depth", 18)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    import timm

    torch.set_num_threads(1)
    torch.manual_seed(0)
    ours = ResNet(options.depth)
    theirs = timm.create_model(f"resnet{options.depth}")
    theirs.load_state_dict(ours.state_dict())
    x, y = torch.rand(options.batch, 3, options.size, options.size), torch.arange(options.batch)
    for what, make in (("training step", lambda n: step(n, x, y)), ("forward pass", lambda n: forward(n, x))):
        found = ratios(make(ours), make(theirs), options.pairs)
        print(
            f"resnet{options.depth}, {options.batch} images of {options.size} px, {what}: ours / timm "
            f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f}, {options.pairs} pairs)"
        )


if __name__ == "__main__":
    main()
