"""Methods, one file each. The base class is FedAvg; a new file here is found by itself."""

from farfield.algorithms.fedavg import Direction, FedAvg
from farfield.algorithms.parameters import choices, fixed, linear_range, log_range, parameter
from farfield.algorithms.registry import AlgorithmError, build, discover, method, names, params_of, parts, register, use
from farfield.algorithms.state import Aggregate, State
from farfield.algorithms.supports import AtLeast, Misfit, No, Supports
from farfield.algorithms.worked_examples import by_hand, worked_example
from farfield.federation.local_training import Local

discover()

__all__ = [
    "Aggregate",
    "AlgorithmError",
    "FedAvg",
    "AtLeast",
    "Local",
    "Misfit",
    "No",
    "Direction",
    "State",
    "Supports",
    "build",
    "by_hand",
    "choices",
    "fixed",
    "linear_range",
    "log_range",
    "method",
    "names",
    "parameter",
    "params_of",
    "parts",
    "register",
    "use",
    "worked_example",
]
