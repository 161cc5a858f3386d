"""FedProx: a quadratic pull towards the global model keeps local training from drifting.

    Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated Optimization in Heterogeneous Networks. MLSys 2020. Eq. 2.

The local objective is R_c(w) + μ/2 ‖w − w_global‖². Its gradient μ(w − w_global) is added to the data's gradient
before the optimizer sees it; several public versions put it into the momentum buffer or forget the square.

Differs from the paper in: a fixed number of local epochs instead of an inexactness criterion.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from farfield.algorithms.fedavg import FedAvg
from farfield.algorithms.parameters import log_range, parameter
from farfield.algorithms.registry import register
from farfield.federation.local_training import Local
from farfield.math import proximal_penalty


@register
class FedProx(FedAvg):
    """FedAvg with a proximal term that holds local models near the global one."""

    name: ClassVar[str] = "fedprox"
    family: ClassVar[str] = "heterogeneity"
    paper: ClassVar[str] = "Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020"
    differences: ClassVar[tuple[str, ...]] = ("a fixed number of local epochs instead of an inexactness criterion",)
    penalty_weight: ClassVar[str | None] = "mu"
    stackable: ClassVar[bool] = True
    fedavg_when: ClassVar[Mapping[str, Any] | None] = {"mu": 0.0}

    class Params(FedAvg.Params):
        mu: float = parameter(0.1, "μ, weight of the proximal term; 0 gives FedAvg", log_range(1e-4, 1.0), ge=0)

    params: Params

    def penalty(self, local: Local) -> Tensor:
        return proximal_penalty(local.parameters, local.start, self.params.mu)

    def adjust(self, gradient: Tensor, local: Local) -> None:
        if self.params.mu:
            gradient.add_(local.parameters, alpha=self.params.mu).sub_(local.start, alpha=self.params.mu)
