"""Models and runs in experiment trackers: TensorBoard, MLflow, Weights & Biases, or one of your own."""

from hge.tracking.adapters import MlflowTracker, TensorBoardTracker, WandbTracker
from hge.tracking.sources import ModelTracking, track_run
from hge.tracking.tracker import Tracker

__all__ = ["MlflowTracker", "ModelTracking", "TensorBoardTracker", "Tracker", "WandbTracker", "track_run"]
