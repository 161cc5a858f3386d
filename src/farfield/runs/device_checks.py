"""What of a plan a device cannot do, said before anything is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from farfield.reproducibility.devices import DeviceError
from farfield.reproducibility.precision import check_precision, precision_named
from farfield.runs.plan import Plan


def with_precision(settings: Mapping[str, Any] | None, precision: str | None) -> Mapping[str, Any] | None:
    """Return the settings with the precision among them, where one is asked for."""
    return settings if precision is None else {**(settings or {}), "model.precision": precision_named(precision)}


def check_device(plan: Plan, devices: tuple[torch.device, ...]) -> None:
    """Refuse a precision that the device does not have, and methods whose clients need float64 on one without it."""
    if devices[0].type != "cuda":  # timing would start CUDA in this process; the process of a run does it
        check_precision(plan.model.precision, devices[0])
    if devices[0].type != "mps":
        return
    for label in plan.algorithms:
        algorithm = plan.algorithm(label)
        if algorithm.float64_at_clients or algorithm.params.privacy == "record":
            what = label if algorithm.float64_at_clients else f"{label} with privacy=record"
            raise DeviceError(f"the clients of {what} compute in float64, which MPS does not have; use --device cpu")
