from __future__ import annotations

import os

import torch

torch.set_num_threads(1)
if torch.cuda.is_available():  # the same suite runs on a GPU, where only these algorithms give the same digits twice
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
