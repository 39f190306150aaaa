from __future__ import annotations

import pytest
import torch
from torch import nn

from hge.experts.networks import AUTOENCODERS, MLP, NETS, ConvVAE, ResNet18


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (3, 40, 24)])
def test_classifiers_are_sized_from_the_input(name: str, shape: tuple[int, ...]) -> None:
    assert NETS[name](shape, 7).eval()(torch.rand(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize("name", AUTOENCODERS)
@pytest.mark.parametrize("shape", [(3, 16, 16), (1, 12, 10)])
def test_autoencoders_are_sized_from_the_input(name: str, shape: tuple[int, ...]) -> None:
    net = AUTOENCODERS[name](shape)
    mean, log_variance = net.encode(torch.rand(3, *shape))
    assert mean.shape == log_variance.shape
    assert net.decode(mean).shape == (3, *shape)


def test_appendix_sizes() -> None:
    def linear(net: nn.Module) -> list[tuple[int, int]]:
        return [(m.in_features, m.out_features) for m in net.modules() if isinstance(m, nn.Linear)]

    assert linear(MLP((784,), 10)) == [(784, 100), (100, 100), (100, 10)]
    assert linear(AUTOENCODERS["mlp"]((784,))) == [(784, 512), (512, 32), (512, 32), (32, 512), (512, 784)]  # type: ignore[arg-type]
    assert linear(ConvVAE((3, 32, 32))) == [(65536, 128), (128, 64), (128, 64), (64, 128), (128, 65536)]


def test_relu_on_the_logits_is_an_option() -> None:
    torch.manual_seed(0)
    x = torch.randn(50, 4)
    assert (NETS["mlp-relu-logits"]((4,), 3)(x) >= 0).all()
    assert (NETS["mlp"]((4,), 3)(x) < 0).any()


def test_resnet18_has_torchvisions_state_dict() -> None:
    torchvision = pytest.importorskip("torchvision")
    theirs, ours = torchvision.models.resnet18(num_classes=5), ResNet18((3, 64, 64), 5)
    ours.load_state_dict(theirs.state_dict())
    x = torch.rand(2, 3, 64, 64)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))


def test_resnet18_has_the_published_number_of_parameters() -> None:
    """11 689 512, as He et al.'s ResNet-18 for 1000 classes; names are torchvision's."""
    net = ResNet18((3, 224, 224), 1000)
    assert sum(p.numel() for p in net.parameters()) == 11_689_512
    names = set(net.state_dict())
    assert {"conv1.weight", "layer2.0.downsample.0.weight", "layer4.1.bn2.running_var", "fc.bias"} <= names
    assert len(names) == 122


def test_cifar_stem_keeps_the_resolution() -> None:
    net = NETS["resnet18-cifar"]((3, 32, 32), 10)
    assert isinstance(net, ResNet18)
    assert net.conv1.stride == (1, 1)
    assert net.layer4(net.layer3(net.layer2(net.layer1(net.maxpool(net.conv1(torch.rand(1, 3, 32, 32))))))).shape[
        2:
    ] == (4, 4)


def test_images_are_required_by_name() -> None:
    with pytest.raises(
        ValueError, match=r"resnet18: got inputs of shape \(64,\), expected \(channels, height, width\)"
    ):
        NETS["resnet18"]((64,), 10)


def test_four_convolutions_need_room_for_four_halvings() -> None:
    assert NETS["conv4"]((1, 16, 20), 7)(torch.rand(2, 1, 16, 20)).shape == (2, 7)
    with pytest.raises(ValueError, match=r"conv4: got images of 15 × 32, expected at least 16 × 16"):
        NETS["conv4"]((3, 15, 32), 10)
