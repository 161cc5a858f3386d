"""Methods, one file each. The base class is FedAvg; a new file here is found by itself."""

from farfield.algorithms.fedavg import Direction, FedAvg
from farfield.algorithms.registry import AlgorithmError, build, discover, method, names, params_of, parts, register, use
from farfield.algorithms.state import Aggregate, State
from farfield.federation.local_training import Local

discover()

__all__ = [
    "Aggregate",
    "AlgorithmError",
    "FedAvg",
    "Local",
    "Direction",
    "State",
    "build",
    "method",
    "names",
    "params_of",
    "parts",
    "register",
    "use",
]
