"""Farfield: federated learning that holds up on clients it has never seen.

import farfield as ff
result = ff.bench("rotated-digits", algorithms=["fedavg", "fedprox"], seeds=3)
result.table()
result.report("report.html")
"""

from importlib.metadata import version

from farfield.algorithms import FedAvg, register
from farfield.errors import UserError
from farfield.models import ModelSpec
from farfield.runs.bench import BenchResult, bench
from farfield.runs.variants import method
from farfield.tasks import Domain, Task, task_from_arrays
from farfield.tasks import load_folder as read_folder
from farfield.tasks import load_table as read_table
from farfield.trained.evaluation import Evaluation, evaluate
from farfield.trained.model_folder import load_model
from farfield.trained.training import train

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
    "method",
    "read_folder",
    "read_table",
    "register",
    "task_from_arrays",
    "train",
]
