"""The main job: plans, runs and sweeps, and their results."""

from farfield.bench.api import BenchResult, bench
from farfield.bench.plan import Job, Plan, make_plan
from farfield.bench.settings import PlanError
from farfield.bench.training import TrainedModel, load_model, train

__all__ = ["BenchResult", "Job", "Plan", "PlanError", "TrainedModel", "bench", "load_model", "make_plan", "train"]
