"""Experiment trackers of others behind `Tracker`; each package is imported when its tracker is built."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any


class TensorBoardTracker:
    """Writes files for TensorBoard into a folder (`pip install 'hge[tensorboard]'`)."""

    def __init__(self, folder: str | Path) -> None:
        self.writer: Any = _module("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(folder))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record numbers of a batch as scalars."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def mark(self, step: int, text: str) -> None:
        """Record a decision as a text."""
        self.writer.add_text("decisions", text, step)

    def close(self) -> None:
        """Write what is left."""
        self.writer.close()


class MlflowTracker:
    """Logs to MLflow's active run (`pip install 'hge[mlflow]'`)."""

    def __init__(self) -> None:
        self.mlflow: Any = _module("mlflow", "mlflow")
        self._marks = 0

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record numbers of a batch as metrics."""
        self.mlflow.log_metrics(dict(values), step=step)

    def mark(self, step: int, text: str) -> None:
        """Record a decision as a tag: MLflow has no texts by step."""
        self._marks += 1
        self.mlflow.set_tag(f"decision.{self._marks:04}", f"batch {step}: {text}")


class WandbTracker:
    """Logs to a run of Weights & Biases, by default a new one, by batch (`pip install 'hge[wandb]'`)."""

    def __init__(self, run: Any = None, **settings: Any) -> None:
        self.run: Any = _module("wandb", "wandb").init(**settings) if run is None else run
        self.run.define_metric("*", step_metric="batch")  # W&B's own step must increase with every call

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record numbers of a batch."""
        self.run.log({"batch": step, **values})

    def mark(self, step: int, text: str) -> None:
        """Record a decision."""
        self.run.log({"batch": step, "decision": text})


def _module(name: str, extra: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise ValueError(f"tracker: {extra} is not installed; install it with: pip install 'hge[{extra}]'") from None
