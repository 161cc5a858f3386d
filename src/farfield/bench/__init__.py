"""The main job: plans, runs and sweeps, and their results."""

from farfield.bench.api import BenchResult, bench
from farfield.bench.evaluating import Evaluation, evaluate
from farfield.bench.plan import Job, Plan, make_plan
from farfield.bench.settings import PlanError
from farfield.bench.training import TrainedModel, load_model, train

__all__ = [
    "BenchResult",
    "Evaluation",
    "Job",
    "Plan",
    "PlanError",
    "TrainedModel",
    "bench",
    "evaluate",
    "load_model",
    "make_plan",
    "train",
]
