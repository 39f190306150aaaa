"""A copy of an MLP in which some layers are replaced: what methods have in common that are made for MLPs only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import nn

from hge.experts.networks import NetFactory, Shape
from hge.learning.online import Setting

PLAIN = (nn.Flatten, nn.Linear, nn.ReLU)


def with_layers(setting: Setting, rebuild: Callable[[Sequence[nn.Module]], nn.Module]) -> Setting:
    """Return a setting whose network is rebuilt from the layers of GE's; raise a ValueError if that is no MLP.

    >>> from hge.experts.networks import MLP
    >>> [type(layer).__name__ for layer in layers_of(MLP((4,), 2))]
    ['Flatten', 'Linear', 'ReLU', 'Linear', 'ReLU', 'Linear']
    """
    original: NetFactory = setting.spec.net

    def build(shape: Shape, outputs: int) -> nn.Module:
        return rebuild(layers_of(original(shape, outputs)))

    return replace(setting, spec=replace(setting.spec, net=build))


def layers_of(net: nn.Module) -> list[nn.Module]:
    """Return the layers of an MLP; raise a ValueError if it has others."""
    layers = [net] if not isinstance(net, nn.Sequential) else [*net]
    for layer in layers:
        if not isinstance(layer, PLAIN):
            raise ValueError(f"net: got a network with a {type(layer).__name__}, expected an MLP, as net=mlp")
    return layers
