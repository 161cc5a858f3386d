"""FedAvgM, FedAdam, FedYogi: the mean update is a pseudo-gradient for an optimizer at the server.

    Hsu, Qi, Brown. Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification. 2019.
    Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan. Adaptive Federated Optimization. ICLR 2021,
    Algorithm 2.

They have no client half, so they can stand after a '+': `fedprox+fedadam`.

Differs from the papers in: nothing known. Reddi et al. use no bias correction and start v at τ²; so do these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from farfield.algorithms.fedavg import FedAvg
from farfield.algorithms.registry import register

REDDI = "Reddi et al., Adaptive Federated Optimization, ICLR 2021"


@register
class FedAvgM(FedAvg):
    """FedAvg with momentum at the server."""

    name: ClassVar[str] = "fedavgm"
    family: ClassVar[str] = "server optimizer"
    paper: ClassVar[str] = "Hsu, Qi, Brown, Measuring the Effects of Non-Identical Data Distribution, 2019"
    differences: ClassVar[tuple[str, ...]] = ()
    server_half: ClassVar[frozenset[str]] = frozenset({"optimizer"})
    fedavg_when: ClassVar[Mapping[str, Any] | None] = {"server_momentum": 0.0}

    class Params(FedAvg.Params):
        server_optimizer: Literal["sgd", "adam", "yogi"] = Field("sgd", description="what applies the direction")
        server_lr: float = Field(1.0, gt=0, description="η, global step size")
        server_momentum: float = Field(0.9, ge=0, lt=1, description="β, momentum of the server; 0 gives FedAvg")


@register
class FedAdam(FedAvg):
    """FedAvg with Adam at the server."""

    name: ClassVar[str] = "fedadam"
    family: ClassVar[str] = "server optimizer"
    paper: ClassVar[str] = REDDI
    differences: ClassVar[tuple[str, ...]] = ()
    server_half: ClassVar[frozenset[str]] = frozenset({"optimizer"})

    class Params(FedAvg.Params):
        server_optimizer: Literal["sgd", "adam", "yogi"] = Field("adam", description="what applies the direction")
        server_lr: float = Field(0.03, gt=0, description="η, global step size")
        server_momentum: float = Field(0.9, ge=0, lt=1, description="β₁")


@register
class FedYogi(FedAvg):
    """FedAvg with Yogi at the server."""

    name: ClassVar[str] = "fedyogi"
    family: ClassVar[str] = "server optimizer"
    paper: ClassVar[str] = REDDI
    differences: ClassVar[tuple[str, ...]] = ()
    server_half: ClassVar[frozenset[str]] = frozenset({"optimizer"})

    class Params(FedAvg.Params):
        server_optimizer: Literal["sgd", "adam", "yogi"] = Field("yogi", description="what applies the direction")
        server_lr: float = Field(0.03, gt=0, description="η, global step size")
        server_momentum: float = Field(0.9, ge=0, lt=1, description="β₁")
