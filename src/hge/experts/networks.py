"""The networks of the paper's appendix (MLP, ResNet-18, two variational autoencoders), and a small CNN of our own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from math import prod
from typing import Protocol

import torch
from torch import Tensor, nn

Shape = tuple[int, ...]
NetFactory = Callable[[Shape, int], nn.Module]
"""(shape of one input, number of outputs) -> a classifier whose forward returns logits."""


class Autoencoder(Protocol):
    """Interface of an autoencoder score's network, which must also be an `nn.Module`."""

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and the log-variance of the latent."""

    def decode(self, z: Tensor) -> Tensor:
        """Return the reconstruction, in the input's shape."""


AutoencoderFactory = Callable[[Shape], Autoencoder]
"""(shape of one input) -> an autoencoder."""


class MLP(nn.Sequential):
    """Three linear layers of 100 hidden units.

    The paper puts a ReLU after each of the three; on the logits it disables classes (docs/paper.md, reading 6), so the
    last one is only used with `relu_on_logits`.
    """

    def __init__(self, shape: Shape, outputs: int, *, hidden: int = 100, relu_on_logits: bool = False) -> None:
        layers = [
            nn.Flatten(),
            nn.Linear(prod(shape), hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, outputs),
        ]
        super().__init__(*layers, *([nn.ReLU()] if relu_on_logits else []))


class MLPVAE(nn.Module):
    """Linear(D, 512), ReLU, two heads to 32 latents; a mirrored decoder with a sigmoid."""

    def __init__(self, shape: Shape, *, hidden: int = 512, latents: int = 32) -> None:
        super().__init__()
        inputs = prod(shape)
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU())
        self.mean = nn.Linear(hidden, latents)
        self.log_variance = nn.Linear(hidden, latents)
        self.decoder = nn.Sequential(
            nn.Linear(latents, hidden),
            nn.ReLU(),
            nn.Linear(hidden, inputs),
            nn.Sigmoid(),
            nn.Unflatten(1, shape),
        )

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and the log-variance of the latent."""
        h = self.encoder(x)
        return self.mean(h), self.log_variance(h)

    def decode(self, z: Tensor) -> Tensor:
        """Return the reconstruction."""
        out: Tensor = self.decoder(z)
        return out


class ConvVAE(nn.Module):
    """Two convolutions, Linear to 128, two heads to 64 latents; a mirrored decoder. Keeps the input's resolution."""

    def __init__(self, shape: Shape, *, hidden: int = 128, latents: int = 64) -> None:
        super().__init__()
        channels, height, width = _image_shape(shape, "conv autoencoder")
        features = 64 * height * width
        # A bias before a BatchNorm has no effect, since the mean is subtracted again; the paper's layers have one.
        self.encoder = nn.Sequential(
            nn.Conv2d(channels, 32, 3, 1, 1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(inplace=True),
            nn.Conv2d(32, 64, 3, 1, 1, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            ChannelsLastFlatten(),
            nn.Linear(features, hidden),
        )
        self.mean = nn.Linear(hidden, latents)
        self.log_variance = nn.Linear(hidden, latents)
        self.decoder = nn.Sequential(
            nn.Linear(latents, hidden),
            nn.ReLU(),
            nn.Linear(hidden, features),
            nn.ReLU(inplace=True),
            ChannelsLastUnflatten((height, width, 64)),
            nn.ConvTranspose2d(64, 32, 3, 1, 1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(inplace=True),
            nn.ConvTranspose2d(32, channels, 3, 1, 1),
        )
        # With stock initialisation exp(log-variance) diverges within three steps (docs/paper.md, reading 7).
        nn.init.zeros_(self.log_variance.weight)
        nn.init.zeros_(self.log_variance.bias)
        with torch.no_grad():
            self.mean.weight.mul_(0.1)
            self.mean.bias.mul_(0.1)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and the log-variance of the latent; the latter softly bounded to ±6."""
        h = self.encoder(x)
        return self.mean(h), 6 * torch.tanh(self.log_variance(h) / 6)

    def decode(self, z: Tensor) -> Tensor:
        """Return the reconstruction."""
        out: Tensor = self.decoder(z)
        return out


class ChannelsLastFlatten(nn.Module):
    """Flattens images pixel by pixel, without a copy if they are in channels-last memory format."""

    def forward(self, x: Tensor) -> Tensor:
        """Return one row per image."""
        return x.permute(0, 2, 3, 1).flatten(1)


class ChannelsLastUnflatten(nn.Module):
    """Converts flat rows to images, pixel by pixel."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        """Height, width, channels."""

    def forward(self, x: Tensor) -> Tensor:
        """Return images in channels-last memory format."""
        return x.view(len(x), *self.shape).permute(0, 3, 1, 2)


class ResNet18(nn.Module):
    """ResNet-18 with torchvision's parameter names. `cifar_stem`: start with a 3×3 convolution and no pooling."""

    def __init__(self, shape: Shape, outputs: int, *, cifar_stem: bool = False) -> None:
        super().__init__()
        channels, _, _ = _image_shape(shape, "resnet18")
        self.conv1 = (
            nn.Conv2d(channels, 64, 3, 1, 1, bias=False) if cifar_stem else nn.Conv2d(channels, 64, 7, 2, 3, bias=False)
        )
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if cifar_stem else nn.MaxPool2d(3, 2, 1)
        self.layer1 = nn.Sequential(BasicBlock(64, 64, 1), BasicBlock(64, 64, 1))
        self.layer2 = nn.Sequential(BasicBlock(64, 128, 2), BasicBlock(128, 128, 1))
        self.layer3 = nn.Sequential(BasicBlock(128, 256, 2), BasicBlock(256, 256, 1))
        self.layer4 = nn.Sequential(BasicBlock(256, 512, 2), BasicBlock(512, 512, 1))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512, outputs)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(self.avgpool(x).flatten(1))
        return logits


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = (
            None
            if stride == 1 and inputs == outputs
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        out: Tensor = self.relu(self.bn2(self.conv2(x)) + shortcut)
        return out


class FourConvolutions(nn.Sequential):
    """Four 3×3 convolutions of 128 to 512 channels, each at half the resolution of the previous one.

    In the few steps of a streamed task it learns more than a ResNet-18 (results/choices/networks.json).
    """

    def __init__(self, shape: Shape, outputs: int, *, width: int = 128) -> None:
        channels, height, image_width = _image_shape(shape, "conv4")
        if min(height, image_width) < 16:
            raise ValueError(f"conv4: got images of {height} × {image_width}, expected at least 16 × 16")
        layers: list[nn.Module] = []
        for inputs, maps in pairwise((channels, width, 2 * width, 4 * width, 4 * width)):
            convolution = nn.Conv2d(inputs, maps, 3, 1, 1, bias=False)
            # Pooling first: the same values and gradients as after the ReLU, which then has a quarter to do.
            layers += [convolution, nn.BatchNorm2d(maps), nn.MaxPool2d(2), nn.ReLU(inplace=True)]
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, outputs))
        # Channels last in memory make this network faster, also on a CPU; inputs follow the weights' format.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack it


NETS: dict[str, NetFactory] = {
    "mlp": MLP,
    # partial, not lambda: a fitted estimator can be pickled
    "mlp-wide": partial(MLP, hidden=400),
    "mlp-relu-logits": partial(MLP, relu_on_logits=True),
    "resnet18": ResNet18,
    "resnet18-cifar": partial(ResNet18, cifar_stem=True),
    "conv4": FourConvolutions,
    "conv4-narrow": partial(FourConvolutions, width=32),
}

AUTOENCODERS: dict[str, AutoencoderFactory] = {"mlp": MLPVAE, "conv": ConvVAE}


def _image_shape(shape: Shape, net: str) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise ValueError(f"{net}: got inputs of shape {shape}, expected (channels, height, width)")
    return shape[0], shape[1], shape[2]
