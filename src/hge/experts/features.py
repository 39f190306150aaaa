"""Features: the inputs of a network's last linear layer."""

from __future__ import annotations

from torch import Tensor, nn

from hge.experts.views import Views


def features_and_logits(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the inputs [rows, features] of the last linear layer and the logits [rows, outputs].

    The features of several views stand side by side. There are none if the net has no such layer or does not apply it
    once, to one vector per row and view.

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> [tuple(part.shape) for part in features_and_logits(net, torch.zeros(5, 4))]
    [(5, 3), (5, 2)]
    """
    captured: list[Tensor] = []
    linear = [module for module in net.modules() if isinstance(module, nn.Linear)][-1:]
    hooks = [m.register_forward_pre_hook(lambda _, inputs: captured.append(inputs[0])) for m in linear]
    try:
        logits: Tensor = net(x)
    finally:
        for hook in hooks:
            hook.remove()
    views = net.answering if isinstance(net, Views) else 1
    if len(captured) != 1 or captured[0].ndim != 2 or len(captured[0]) != views * len(x):
        return logits[:, :0].detach(), logits
    return captured[0].detach().view(views, len(x), -1).movedim(0, 1).flatten(1), logits
