"""Plain training of one network and its score: the baseline that Gated Experts are compared with.

It imports only the networks from hge. There is no gate, no task, no loss statistic and no check for NaN; the step is
as fast as possible without rewriting the networks: one backward pass for network and score, a fused optimiser,
channels last for convolutions, and on a GPU the whole step in one CUDA graph. It can also be run by itself:

    python -m hge.bench.plain_training --net mlp --score sketch
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Literal, cast, get_args

import torch
from torch import Tensor, nn

from hge.experts.networks import AUTOENCODERS, NETS, Autoencoder, Shape

Precision = Literal["fp32", "tf32", "bf16"]
ScoreName = Literal["sketch", "autoencoder"]
Step = Callable[[Tensor, Tensor], Tensor]
"""(uint8 images, labels) -> the network's loss before the update, left on the device."""

MOMENTUM, WEIGHT_DECAY, CLIP_NORM = 0.9, 1e-4, 1.0
WARM_UP = 3
"""Steps before a graph is captured, which set up momentum, workspaces and convolution algorithms."""


@dataclass(frozen=True)
class Model:
    """Network, score and arithmetic of plain training."""

    net: str = "mlp"
    score: ScoreName = "sketch"
    autoencoder: str = "mlp"
    shape: Shape = (1, 28, 28)
    outputs: int = 10
    precision: Precision = "fp32"
    lr: float = 0.01


class Trainer:
    """A network and its score, trained batch by batch: the eager loop."""

    def __init__(self, model: Model, device: torch.device) -> None:
        self.precision = model.precision
        self.net = NETS[model.net](model.shape, model.outputs).to(device)
        self.autoencoder: nn.Module | None = None
        self.sketch: Sketch | None = None
        if model.score == "autoencoder":
            self.autoencoder = cast(nn.Module, AUTOENCODERS[model.autoencoder](model.shape)).to(device)
        else:
            self.sketch = Sketch(prod(model.shape), device)
        trained = nn.ModuleList([self.net] if self.autoencoder is None else [self.net, self.autoencoder])
        convolves = any(isinstance(module, nn.Conv2d) for module in trained.modules())
        self.layout = torch.channels_last if convolves else torch.contiguous_format
        trained.to(memory_format=self.layout)  # type: ignore[call-overload]  # torch's stubs lack it
        self.optimiser = torch.optim.SGD(
            trained.parameters(), model.lr, MOMENTUM, weight_decay=WEIGHT_DECAY, fused=True
        )

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        """Train network and score on a batch; return the network's loss before the update."""
        as_bytes = x.dtype == torch.uint8
        x = x.to(dtype=torch.float32, memory_format=self.layout)
        x = x.div_(255) if as_bytes else x
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.precision == "bf16", cache_enabled=False):
            loss = nn.functional.cross_entropy(self.net(x), y)
            objective = loss
            if self.autoencoder is not None:
                # The two share no parameter, so one backward pass gives both their own gradients.
                objective = loss + reconstruction_loss(cast(Autoencoder, self.autoencoder), x)
        self.optimiser.zero_grad()
        objective.backward()  # type: ignore[no-untyped-call]
        if self.autoencoder is not None:
            nn.utils.clip_grad_norm_(self.autoencoder.parameters(), CLIP_NORM)
        self.optimiser.step()
        if self.sketch is not None:
            self.sketch.add(x)
        return loss.detach()


class Graphed:
    """The same step as one CUDA graph with static inputs. Capturing it trains on the first batch `WARM_UP` times."""

    def __init__(self, trainer: Trainer, x: Tensor, y: Tensor) -> None:
        self.trainer = trainer  # kept alive: the graph writes to its memory
        self.x, self.y = x.clone(), y.clone()
        stream = torch.cuda.Stream(x.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(x.device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                trainer.step(self.x, self.y)
        torch.cuda.current_stream(x.device).wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        gc.disable()  # collecting an older graph during a capture would end the capture
        with torch.cuda.graph(self.graph):
            self.loss = trainer.step(self.x, self.y)
        gc.enable()

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        """Train on a batch of the captured size; the loss is overwritten by the next step."""
        self.x.copy_(x)
        self.y.copy_(y)
        self.graph.replay()
        return self.loss


class Sketch:
    """Moments of the inputs in a few directions, and of their energies: the sufficient statistics of a Gaussian.

    >>> sketch = Sketch(4, torch.device("cpu"), directions=2)
    >>> sketch.add(torch.rand(8, 4))
    >>> sketch.moments.shape, float(sketch.moments[0, 0])  # the first coordinate is 1, so that it counts the rows
    (torch.Size([5, 5]), 8.0)
    """

    CENTRE = 0.5
    """Close to the mean pixel of most images."""

    def __init__(self, inputs: int, device: torch.device, directions: int = 64) -> None:
        self.directions = torch.linalg.qr(torch.randn(inputs, directions, device=device))[0]
        self.moments = torch.zeros(3 + directions, 3 + directions, dtype=torch.float64, device=device)

    @torch.no_grad()
    def add(self, x: Tensor) -> None:
        """Update the moments with a batch."""
        centred = x.flatten(1) - self.CENTRE
        coordinates = centred @ self.directions
        length = torch.linalg.vector_norm(centred, dim=1, keepdim=True)
        outside = (length.square() - coordinates.square().sum(1, keepdim=True)).clamp_min_(0).sqrt_()
        logarithms = torch.cat([length, outside], dim=1).clamp_min_(1e-3).log_()
        rows = coordinates.new_ones(len(x), 1 + 2 + coordinates.shape[1], dtype=torch.float64)
        rows[:, 1:] = torch.cat([logarithms, torch.copysign(coordinates.abs().log1p_(), coordinates)], dim=1)
        self.moments.addmm_(rows.T, rows)


def reconstruction_loss(autoencoder: Autoencoder, x: Tensor) -> Tensor:
    """Mean squared error + KL divergence, the latent sampled."""
    mean, log_variance = autoencoder.encode(x)
    latent = mean + (0.5 * log_variance).exp() * torch.randn_like(mean)
    kl = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1)
    return nn.functional.mse_loss(autoencoder.decode(latent).float(), x) + kl.mean()


@contextmanager
def arithmetic(precision: Precision) -> Iterator[None]:
    """Compute products at this precision inside the block, and let cuDNN search for the fastest convolutions."""
    before = torch.get_float32_matmul_precision()
    tf32 = precision != "fp32"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False, allow_tf32=tf32):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def main() -> None:
    """Time the loops on random images: the time of a step does not depend on their content."""
    parser = argparse.ArgumentParser(description="Time plain training of one network and its score.")
    parser.add_argument("--net", choices=("mlp", "resnet18"), default="mlp")
    parser.add_argument("--score", choices=get_args(ScoreName), default="sketch")
    parser.add_argument("--precision", choices=get_args(Precision), default="fp32")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batches", type=int, default=500)
    options = parser.parse_args()
    colour = options.net == "resnet18"
    shape, autoencoder = ((3, 32, 32), "conv") if colour else ((1, 28, 28), "mlp")
    model = Model(options.net, options.score, autoencoder, shape, precision=options.precision)
    device = torch.device(options.device)
    x = torch.randint(256, (8, 128, *shape), dtype=torch.uint8, device=device)
    y = torch.randint(model.outputs, (8, 128), device=device)
    with arithmetic(model.precision):
        _time("eager", Trainer(model, device).step, x, y, options.batches)
        if device.type == "cuda":
            _time("graphed", Graphed(Trainer(model, device), x[0], y[0]).step, x, y, options.batches)


def _time(name: str, step: Step, x: Tensor, y: Tensor, batches: int) -> None:
    for i in range(len(x)):
        loss = step(x[i], y[i])
    loss.item()  # waits until the device is done
    started = time.perf_counter()
    for i in range(batches):
        loss = step(x[i % len(x)], y[i % len(x)])
    print(f"{name}: loss {loss.item():.3f}, {1e3 * (time.perf_counter() - started) / batches:.3f} ms a step")


if __name__ == "__main__":
    main()
