"""Softmax regression: maximum a posteriori weights under a standard normal prior, by L-BFGS, on any device."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import minimize

from hge.gating.tree import FloatArray, IntArray


def softmax_regression(
    x: FloatArray, label: IntArray, weight: FloatArray, labels: int, iterations: int, device: torch.device
) -> tuple[FloatArray, FloatArray]:
    """Return weights [columns, labels] and biases [labels] for weighted rows.

    >>> x, label = np.array([[-2.0], [-1.0], [1.0], [2.0]]), np.array([0, 0, 1, 1])
    >>> weights, bias = softmax_regression(x, label, np.ones(4), 2, 50, torch.device("cpu"))
    >>> (x @ weights + bias).argmax(axis=1).tolist()
    [0, 0, 1, 1]
    """
    rows, columns = x.shape
    # Single precision is enough for the loss; L-BFGS itself works in double.
    inputs, weigh = (torch.from_numpy(a).to(device, torch.float32) for a in (x, weight))
    target = torch.from_numpy(label).to(device)

    def loss(flat: FloatArray) -> tuple[float, FloatArray]:
        parameters = torch.from_numpy(flat).to(device, torch.float32)
        w, b = parameters[:-labels].reshape(columns, labels), parameters[-labels:]
        logs = torch.log_softmax(torch.addmm(b, inputs, w), dim=1)
        own = logs.gather(1, target[:, None])[:, 0]
        value = -float((own * weigh).sum(dtype=torch.float64)) + float(flat @ flat) / 2
        error = logs.exp_()
        error[torch.arange(rows, device=device), target] -= 1
        error *= weigh[:, None]
        gradient = torch.cat([(inputs.T @ error).ravel(), error.sum(0)]).double().cpu().numpy() + flat
        return value / rows, gradient / rows

    with torch.no_grad():
        # The weights of the last fit would be no better a start: a new expert's columns matter to all others.
        start = np.zeros((columns + 1) * labels)
        found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": iterations}).x
    return found[:-labels].reshape(columns, labels), found[-labels:]
