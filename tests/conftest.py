from __future__ import annotations

import os

import pytest

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported, here and in the processes that tests start


@pytest.fixture(scope="session", autouse=True)
def _repeatable_on_a_gpu() -> None:
    """The same suite runs on a GPU, where only these algorithms give the same digits twice."""
    import torch  # not above: xdist's controller runs no tests and needs no torch

    if torch.cuda.is_available():
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.use_deterministic_algorithms(True)
