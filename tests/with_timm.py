"""timm for tests: skip where it is not installed; stand in for torchvision's compiled part where that fits no torch.

timm imports torchvision, and torchvision registers two operators that its compiled part defines. Where that part was
built for another torch, declaring the two operators is enough for everything that timm does with images.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch
from torch import nn

_DECLARED: list[torch.library.Library] = []


def is_installed() -> bool:
    return importlib.util.find_spec("timm") is not None


def declare_operators() -> None:
    """Declare the operators of torchvision if its compiled part cannot be loaded. Before the first import of timm."""
    found = importlib.util.find_spec("torchvision")
    if _DECLARED or found is None or found.origin is None:
        return
    try:
        torch.ops.load_library(str(Path(found.origin).with_name("_C.so")))
    except OSError:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _DECLARED.append(library)


def timm_or_skip() -> Any:
    """Return timm, or skip the module that asks for it."""
    import pytest

    if not is_installed():
        pytest.skip("timm is not installed here; 'make timm' runs these tests", allow_module_level=True)
    declare_operators()
    import timm

    return timm


def scramble(network: nn.Module, seed: int = 0) -> nn.Module:
    """Random numbers also where a fresh network has zeros and ones, so that every number counts."""
    torch.manual_seed(seed)
    for name, value in network.state_dict().items():
        if name.endswith(("running_mean", "bias")):
            value.normal_(0, 0.1)
        elif name.endswith("running_var") or (value.dim() == 1 and name.endswith("weight")):
            value.uniform_(0.5, 1.5)
    return network


# `python -m tests.with_timm bench …` is the command line where torchvision needs the operators.
if __name__ == "__main__":
    from farfield.cli.main import run

    declare_operators()
    run()
