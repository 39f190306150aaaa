"""Shared parts of training experts and their scores: optimisers, precision, BatchNorm statistics."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.flop_counter import FlopCounterMode

from hge.core.config import OptimiserConfig, Precision

MAX_GRADIENT_NORM = 30.0
"""Longest gradient of an expert's network: longer than any in training that goes well, boundaries of tasks included."""


def build_optimiser(config: OptimiserConfig, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return SGD or Adam, as set in `config`; fused, so that a step can be skipped by a flag on the device."""
    if config.name == "adam":
        return torch.optim.Adam(parameters, lr=config.lr, weight_decay=config.weight_decay, fused=True)
    return torch.optim.SGD(
        parameters, lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay, fused=True
    )


def masked_step(optimiser: torch.optim.Optimizer, skip: Tensor, scale: Tensor | None = None) -> None:
    """Take a step with the gradient divided by `scale`, unless `skip` is 1.

    This is what `torch.amp.GradScaler` does with fused optimisers; the host does not have to wait.
    """
    for group in optimiser.param_groups:
        if "capturable" in group:  # read by Adam; set here because a network may move after its optimiser was built
            group["capturable"] = skip.is_cuda
    optimiser.found_inf, optimiser.grad_scale = skip, scale  # type: ignore[attr-defined]
    optimiser.step()


class FusedStep:
    """Steps of a fused optimiser on a CPU, by its kernel alone: the rest takes longer than updating a small network.

    The optimiser's state must be initialised, which `state_of` does, and its tensors may not be replaced later.

    >>> net = nn.Linear(1, 1, bias=False)
    >>> optimiser = build_optimiser(OptimiserConfig("sgd", lr=0.5, momentum=0.0, weight_decay=0.0), net.parameters())
    >>> before, _ = net.weight.item(), FusedStep(optimiser)([torch.ones(1, 1)])
    >>> round(before - net.weight.item(), 3)
    0.5
    """

    def __init__(self, optimiser: torch.optim.Optimizer) -> None:
        (self.group,) = optimiser.param_groups
        weights = self.group["params"]
        names = list(optimiser.state[weights[0]])
        self.weights = [weight.detach() for weight in weights]
        self.state = {name: [optimiser.state[weight][name] for weight in weights] for name in names}

    def __call__(self, gradients: list[Tensor]) -> None:
        """Take a step."""
        group, state = self.group, self.state
        if "betas" in group:
            torch._foreach_add_(state["step"], 1)
            torch._fused_adam_(
                *(self.weights, gradients, state["exp_avg"], state["exp_avg_sq"], [], state["step"]),
                lr=group["lr"],
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                amsgrad=group["amsgrad"],
                maximize=group["maximize"],
            )
        else:
            torch._fused_sgd_(
                *(self.weights, gradients, state.get("momentum_buffer", [])),
                lr=group["lr"],
                momentum=group["momentum"],
                weight_decay=group["weight_decay"],
                dampening=group["dampening"],
                nesterov=group["nesterov"],
                maximize=group["maximize"],
                is_first_step=False,
            )


def follow(optimiser: torch.optim.Optimizer, weights: Sequence[Tensor], gradients: Sequence[Tensor]) -> bool:
    """Take a step along gradients, clipped as an expert's are; change nothing and return False if one is not finite."""
    norm = gradient_norm(list(gradients))
    if not norm.isfinite():
        return False
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = gradient
    masked_step(optimiser, torch.zeros_like(norm), clipping(norm))
    return True


def state_of(net: nn.Module, optimiser: torch.optim.Optimizer | None, prefix: str) -> dict[str, Tensor]:
    """Return all tensors that training changes, by name and in a fixed order: weights, buffers, the optimiser's state.

    The state of an optimiser that has not taken a step yet is initialised with zeros.
    """
    state = {f"{prefix}.{name}": tensor for name, tensor in (*net.named_parameters(), *net.named_buffers())}
    for group in optimiser.param_groups if optimiser else ():
        for number, parameter in enumerate(group["params"]):
            own = optimiser.state[parameter] if optimiser else {}
            if not own and "betas" in group:
                step = torch.zeros((), device=parameter.device)
                own.update(step=step, exp_avg=torch.zeros_like(parameter), exp_avg_sq=torch.zeros_like(parameter))
            elif not own and group["momentum"]:
                own.update(momentum_buffer=torch.zeros_like(parameter))
            state |= {f"{prefix}.optimiser.{number}.{name}": tensor for name, tensor in own.items()}
    return state


def check_state(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raise an error that names the mismatch, if there is one."""
    if mismatched := sorted(tensors.keys() ^ expected.keys()):
        raise ValueError(
            f"expert's state: got or lacks {', '.join(mismatched[:3])}, expected the tensors of this network and score"
        )
    for name, tensor in expected.items():
        got = tensors[name]
        if (got.shape, got.dtype) != (tensor.shape, tensor.dtype):
            found, wanted = (f"{tuple(t.shape)} {str(t.dtype).removeprefix('torch.')}" for t in (got, tensor))
            raise ValueError(f"expert's state: got {name} of {found}, expected {wanted}")


def gradient_norm(gradients: list[Tensor]) -> Tensor:
    """Return the length of a gradient, not finite if any of its values is not."""
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    return norm


def clipping(norm: Tensor) -> Tensor:
    """Return what a gradient of this length is divided by, so that none is too long."""
    return (norm / MAX_GRADIENT_NORM).clamp_min(1.0)


def gradients(net: nn.Module) -> list[Tensor]:
    """Return the gradients of all parameters that have one."""
    return [p.grad for p in net.parameters() if p.grad is not None]


@torch.no_grad()
def multiply_adds(net: nn.Module, row: Tensor, *inputs: object) -> float:
    """Count the multiply-adds of products and convolutions in one forward pass for one row, and further inputs."""
    with network_mode(net, training=False, rows=1), FlopCounterMode(display=False) as counter:
        net(row, *inputs)
    return float(counter.get_total_flops()) / 2


def has_batch_norm(net: nn.Module) -> bool:
    """Return whether any layer is a BatchNorm."""
    return any(isinstance(module, _BatchNorm) for module in net.modules())


@contextmanager
def network_mode(net: nn.Module, *, training: bool, rows: int, batch_statistics: bool = False) -> Iterator[None]:
    """Set `net` to training mode, to evaluation with batch statistics, or to prediction; afterwards to eval mode.

    Evaluation with batch statistics computes what a training step would compute, but does not update the running
    statistics: another task's data must not leak into them, and the eval-mode loss is not comparable with the training
    losses behind the bound (docs/paper.md, reading 8). A single row has no batch statistics and uses the running ones.
    """
    norms = [(m, m.track_running_stats) for m in net.modules() if isinstance(m, _BatchNorm)]
    net.train(training or batch_statistics)
    for norm, tracks in norms:
        norm.train(norm.training and rows > 1)
        norm.track_running_stats = tracks and training
    others = (
        []
        if training
        else [(b, b.clone()) for m in net.modules() if not isinstance(m, _BatchNorm) for b in m.buffers(recurse=False)]
    )
    try:
        yield
    finally:
        for norm, tracks in norms:
            norm.track_running_stats = tracks
        for buffer, before in others:  # state of other layers in a user's net
            buffer.copy_(before)
        net.eval()


@contextmanager
def deterministic_algorithms(enabled: bool) -> Iterator[None]:
    """Use deterministic GPU algorithms inside the block, at some cost in speed, if `enabled`."""
    if not enabled:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # otherwise torch refuses matrix products
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


@contextmanager
def arithmetic(precision: Precision, device: torch.device) -> Iterator[None]:
    """Compute products on a GPU in this precision inside the block, with the fastest convolution algorithms.

    fp32: full precision. tf32 and bf16: the inputs of matrix products and convolutions are rounded to 10 bits; for bf16
    see also `autocast`.
    """
    if device.type != "cuda":
        yield
        return
    matmul, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn
    before = cudnn.allow_tf32, cudnn.benchmark
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
    # Benchmarking may select another kernel each time, which changes the last digits.
    search = not torch.are_deterministic_algorithms_enabled()
    cudnn.allow_tf32, cudnn.benchmark = precision != "fp32", search
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        cudnn.allow_tf32, cudnn.benchmark = before


def autocast(
    precision: Precision, device: torch.device, dtype: torch.dtype = torch.bfloat16
) -> AbstractContextManager[None]:
    """Compute forward passes in 16 bits where that is safe, if the precision is bf16."""
    if device.type != "cuda" or precision != "bf16":
        return nullcontext()
    # Without its cache: a cached copy of a weight would be outdated when a captured graph is replayed.
    return torch.autocast("cuda", dtype, cache_enabled=False)


def resolve_device(name: str) -> str:
    """Return the device selected by `auto`, or the name itself if torch can use it."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device: got {name!r}, expected auto, cpu or a usable cuda device ({reason})") from None
    return name
