"""Memory that the first expert takes, estimated from the number of features before anything is allocated."""

from __future__ import annotations

import os
from math import prod
from typing import Any

import torch

from hge.experts.pool_spec import PoolSpec
from hge.experts.scores.space import MAX_DIRECTIONS

FLOAT, DOUBLE = 4, 8


class TooLargeError(ValueError):
    """Rows with more features than the memory allows."""


def check_memory(spec: PoolSpec, memory_rows: int, device: torch.device) -> None:
    """Raise an error if the first expert takes more memory than there is."""
    needed, there = memory_needed(spec, memory_rows), device_memory(device)
    if there is not None and needed > there:
        raise TooLargeError(
            f"X: got rows of {prod(spec.shape):,} features, for which the first expert would take at least "
            f"{needed / 2**30:,.1f} GiB; expected at most the {there / 2**30:,.1f} GiB of {device.type}; select or "
            "project features, or choose a smaller net"
        )


def memory_needed(spec: PoolSpec, memory_rows: int) -> int:
    """Return at least how many bytes the first expert takes: networks, the sketches' directions, the linear model."""
    moments = 2 if spec.optimiser.name == "adam" else 1
    copies = 2 * (1 + moments) + 1  # the weights and moments, those of the last good state, the gradients
    inputs = prod(spec.shape)
    networks = _weights(spec, spec.score.name == "autoencoder") * copies * FLOAT
    directions = inputs * min(inputs, spec.score.components or MAX_DIRECTIONS) * FLOAT
    linear = inputs * spec.outputs * DOUBLE if memory_rows else 0
    return networks + directions + linear


def _weights(spec: PoolSpec, autoencoder: bool) -> int:
    """Return the number of weights; 0 if they are not known without building the network."""
    try:
        with torch.device("meta"):  # shapes without data
            networks: list[Any] = [spec.net(spec.shape, spec.outputs)]
            if autoencoder:
                networks.append(spec.autoencoder(spec.shape))
    except Exception:  # a user's factory that needs data, or is wrong, which is reported when it is called
        return 0
    return sum(weight.numel() for network in networks for weight in network.parameters())


def device_memory(device: torch.device) -> int | None:
    """Return the bytes of a device's memory, or None where that is not known."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on Windows
        return None
