from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hge.experts.extractor import CHUNK, Extractor


def small_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.ReLU(inplace=True), nn.Flatten())


def test_a_module_is_copied_frozen_and_never_in_training_mode() -> None:
    net, x = small_net(), torch.rand(3 * CHUNK + 5, 1, 8, 8)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    extractor = Extractor(net)
    with torch.enable_grad():
        first, second = extractor(x), extractor(x)
    assert net.training, "the caller's own is left alone"
    for name, tensor in net.state_dict().items():
        torch.testing.assert_close(tensor, before[name])
    assert not first.requires_grad
    torch.testing.assert_close(first, second)
    torch.testing.assert_close(first, net.eval()(x).detach())
    with torch.no_grad():
        next(net.parameters()).zero_()
    torch.testing.assert_close(extractor(x), first)


def test_memory_is_bounded_and_others_are_let_in_between_two_passes() -> None:
    sizes: list[int] = []
    pauses: list[int] = []

    def features(rows: Tensor) -> Tensor:
        sizes.append(len(rows))
        return rows

    Extractor(features)(torch.zeros(2 * CHUNK + 1, 3), lambda: pauses.append(len(sizes)))
    assert (sizes, pauses) == ([CHUNK, CHUNK, 1], [1, 2, 3])


@pytest.mark.parametrize("result", [Tensor.double, Tensor.numpy, lambda x: x.int().tolist(), lambda x: x.bfloat16()])
def test_any_array_becomes_float32(result: Any) -> None:
    found = Extractor(lambda rows: result(rows))(torch.ones(2, 3))
    assert found.dtype == torch.float32
    assert found.tolist() == [[1, 1, 1], [1, 1, 1]]


def test_bytes_are_0_to_1_and_other_numbers_are_unchanged() -> None:
    extractor = Extractor(nn.Flatten())
    assert extractor(torch.tensor([[0, 255]], dtype=torch.uint8)).tolist() == [[0, 1]]
    assert extractor(torch.tensor([[0.0, 255.0]])).tolist() == [[0, 255]]


def test_the_digest_is_of_the_weights() -> None:
    assert Extractor(small_net()).digest == Extractor(small_net()).digest
    assert Extractor(lambda rows: rows).digest is None
    net = small_net()
    digests = {Extractor(net).digest}
    for tensor in (*net.parameters(), *net.buffers()):
        with torch.no_grad():
            tensor.add_(1)
        digests.add(Extractor(net).digest)
    assert len(digests) == 1 + len([*net.parameters(), *net.buffers()])


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ("resnet", "features: got 'resnet', expected efficientnet-lite0, an nn.Module, a function or None"),
        (nn.Flatten, "features: got the class Flatten, expected"),
        (3, "features: got 3, expected"),
    ],
)
def test_what_is_no_extractor_is_named(features: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Extractor(features)


def test_a_module_that_cannot_be_copied_is_named() -> None:
    net = nn.Linear(3, 2)
    net.cache = net(torch.ones(1, 3))  # of a graph
    with pytest.raises(ValueError, match=r"features: RuntimeError: .*deepcopy"):
        Extractor(net)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (nn.Linear(5, 2), "features: RuntimeError: .*shapes cannot be multiplied"),
        (lambda rows: rows[:, 0], r"features: got an array of shape \(4,\) for 4 rows, expected \(4, features\)"),
        (lambda rows: rows[:2], r"features: got an array of shape \(2, 3\) for 4 rows"),
        (lambda rows: rows[:, :0], r"features: got an array of shape \(4, 0\) for 4 rows"),
        (lambda rows: rows / 0 * 0, r"features: got NaN or more than 1e\+15, expected finite numbers"),
        (lambda rows: rows * 1e20, r"features: got NaN or more than 1e\+15"),
        (lambda rows: "abcd", "features: TypeError"),
    ],
)
def test_features_that_are_none_are_named(features: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Extractor(features)(torch.ones(4, 3))


def test_all_rows_have_as_many_features() -> None:
    with pytest.raises(ValueError, match="features: got different numbers of features for some rows"):
        Extractor(lambda rows: np.ones((len(rows), len(rows))))(torch.ones(CHUNK + 1, 3))
