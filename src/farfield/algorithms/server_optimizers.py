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

from farfield.algorithms.fedavg import FedAvg
from farfield.algorithms.parameters import linear_range, log_range, parameter
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
        server_optimizer: Literal["sgd", "adam", "yogi"] = parameter("sgd", "what applies the direction")
        server_lr: float = parameter(1.0, "η, global step size", log_range(1e-3, 2.0), gt=0)
        server_momentum: float = parameter(
            0.9, "β, momentum of the server; 0 gives FedAvg", linear_range(0.0, 0.99), ge=0, lt=1
        )


@register
class FedAdam(FedAvg):
    """FedAvg with Adam at the server."""

    name: ClassVar[str] = "fedadam"
    family: ClassVar[str] = "server optimizer"
    paper: ClassVar[str] = REDDI
    differences: ClassVar[tuple[str, ...]] = ()
    server_half: ClassVar[frozenset[str]] = frozenset({"optimizer"})

    class Params(FedAvg.Params):
        server_optimizer: Literal["sgd", "adam", "yogi"] = parameter("adam", "what applies the direction")
        server_lr: float = parameter(0.03, "η, global step size", log_range(1e-3, 2.0), gt=0)
        server_momentum: float = parameter(0.9, "β₁", linear_range(0.0, 0.99), ge=0, lt=1)


@register
class FedYogi(FedAvg):
    """FedAvg with Yogi at the server."""

    name: ClassVar[str] = "fedyogi"
    family: ClassVar[str] = "server optimizer"
    paper: ClassVar[str] = REDDI
    differences: ClassVar[tuple[str, ...]] = ()
    server_half: ClassVar[frozenset[str]] = frozenset({"optimizer"})

    class Params(FedAvg.Params):
        server_optimizer: Literal["sgd", "adam", "yogi"] = parameter("yogi", "what applies the direction")
        server_lr: float = parameter(0.03, "η, global step size", log_range(1e-3, 2.0), gt=0)
        server_momentum: float = parameter(0.9, "β₁", linear_range(0.0, 0.99), ge=0, lt=1)
