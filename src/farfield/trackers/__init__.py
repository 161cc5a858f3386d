"""Trackers: callbacks that send a bench's rounds to TensorBoard, MLflow or Weights & Biases.

Each needs a package of its own, which is imported when the tracker is made: `pip install 'farfield[tensorboard]'`,
`'farfield[mlflow]'`, `'farfield[wandb]'`, or `'farfield[track]'` for all three.
"""

from farfield.trackers.mlflow_runs import MLflow
from farfield.trackers.named import NAMES, tracker_named
from farfield.trackers.tensorboard_events import TensorBoard
from farfield.trackers.wandb_runs import WandB

__all__ = ["NAMES", "MLflow", "TensorBoard", "WandB", "tracker_named"]
