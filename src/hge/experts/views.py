"""Known views of an input as further classes: four rotations of an image, or cyclic shifts of a row's features.

An expert that must tell the views apart learns features that also tell the tasks apart, and its answers are averaged
over the views (results/choices/views).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hge.experts.networks import NetFactory, Shape

ROTATIONS = 4
"""Number of views of an image: rotations by a quarter turn."""


class Views(nn.Module):
    """A network with an output for each pair of view and class. View 0 is the input itself.

    In training, all views of a row are learned: `loss`. An answer is the mean, over the views, of the logits of (view,
    class) for that view of the row.

    >>> net = Views(lambda shape, outputs: nn.Linear(shape[0], outputs), (4,), outputs=3, views=2, answering=2)
    >>> net.net.out_features, tuple(net(torch.zeros(5, 4)).shape)
    (6, (5, 3))
    """

    def __init__(
        self,
        factory: NetFactory,
        shape: Shape,
        outputs: int,
        views: int,
        answering: int,
        *,
        scaling: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.scaling = nn.Identity() if scaling is None else scaling
        """Applied before the views are made, so that its statistics are of the rows alone."""
        self.net = factory(shape, views * outputs)
        self.outputs, self.views, self.answering = outputs, views, answering

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [rows, outputs], averaged over the first `answering` views."""
        logits = self.net(self._first_views(x, self.answering)).unflatten(0, (self.answering, len(x)))
        return self._matching(logits).mean(0)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the cross-entropy of all views with their pairs of view and class."""
        pairs = torch.cat([y + view * self.outputs for view in range(self.views)])
        return nn.functional.cross_entropy(self.net(self._first_views(x, self.views)), pairs)

    def _first_views(self, x: Tensor, count: int) -> Tensor:
        """Return [count · rows, …], view by view."""
        x = self.scaling(x)
        views = torch.cat([view_of(x, number, self.views) for number in range(count)])
        last = x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)
        return views.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)

    def _matching(self, logits: Tensor) -> Tensor:
        """Return [views, rows, outputs]: of each view's logits, those of its own pairs."""
        return torch.stack([own.unflatten(1, (-1, self.outputs))[:, view] for view, own in enumerate(logits)])


def view_of(x: Tensor, number: int, views: int) -> Tensor:
    """Return a view of rows: an image turned by a number of quarter turns, or a row's features shifted cyclically.

    >>> view_of(torch.tensor([[1, 2, 3, 4]]), 1, 2).tolist()
    [[3, 4, 1, 2]]
    >>> view_of(torch.tensor([[[[1, 2], [3, 4]]]]), 1, 4)[0, 0].tolist()
    [[2, 4], [1, 3]]
    """
    if x.ndim == 4:
        return torch.rot90(x, number, (2, 3))
    return x.roll(number * (x.shape[1] // views), 1)


def training_loss(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the loss that a network is trained on: cross-entropy, over all views if it has several."""
    return net.loss(x, y) if isinstance(net, Views) else nn.functional.cross_entropy(net(x), y)


def check_views(shape: Shape, views: int, answering: int) -> None:
    """Raise an error if inputs of this shape do not have that many views."""
    if not 0 <= answering <= views:
        raise ValueError(f"answer_views: got {answering}, expected 0 to {views}, the number of views")
    if views == 1:
        return
    image = len(shape) == 3
    if image and shape[1] != shape[2]:
        raise ValueError(f"views: got images of {shape[1]} × {shape[2]}, expected square ones for views > 1")
    most = ROTATIONS if image else shape[0]
    if not 1 <= views <= most:
        raise ValueError(f"views: got {views}, expected 1 to {most} for inputs of shape {shape}")
