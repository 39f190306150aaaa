"""Networks with all that ResNet-18 and its autoencoder ask of a pool, and a thousandth of their weights."""

from __future__ import annotations

from functools import partial

from torch import nn

from hge.experts.networks import BasicBlock, ConvVAE, Shape


def small_resnet(shape: Shape, outputs: int) -> nn.Module:
    """ResNet-18's stem and one block with a shortcut: BatchNorm, in-place ReLU, convolutions without a bias."""
    return nn.Sequential(
        nn.Conv2d(shape[0], 8, 3, 1, 1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        BasicBlock(8, 16, 2),
        nn.AdaptiveAvgPool2d((1, 1)),
        nn.Flatten(),
        nn.Linear(16, outputs),
    )


small_conv_autoencoder = partial(ConvVAE, hidden=16, latents=8)
