"""Farfield: federated learning that holds up on clients it has never seen.

import farfield as ff
result = ff.bench("rotated-digits", algorithms=["fedavg", "fedprox"], seeds=3)
result.table()
result.report("report.html")
"""

from importlib.metadata import version

from farfield.algorithms import FedAvg, register
from farfield.bench import BenchResult, Evaluation, bench, evaluate, load_model, train
from farfield.errors import UserError
from farfield.models import ModelSpec
from farfield.tasks import Domain, Task, task_from_arrays
from farfield.tasks import load_folder as read_folder
from farfield.tasks import load_table as read_table

__version__ = version("farfield")

__all__ = [
    "BenchResult",
    "Domain",
    "Evaluation",
    "FedAvg",
    "ModelSpec",
    "Task",
    "UserError",
    "bench",
    "evaluate",
    "load_model",
    "read_folder",
    "read_table",
    "register",
    "task_from_arrays",
    "train",
]
