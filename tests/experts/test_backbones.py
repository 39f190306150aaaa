"""EfficientNet-Lite0 as in its package, whose place a file of random weights takes here."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_sample_images
from torch import Tensor, nn
from torch.nn.functional import batch_norm, conv2d, pad

from hge.experts.backbones import BACKBONES, PACKAGE, WEIGHTS, Block, EfficientNetLite0, SameConv, efficientnet_lite0

EXPANDED = [32, 96, 144, 144, 240, 240, 480, 480, 480, 672, 672, 672, 1152, 1152, 1152, 1152]
PROJECTED = [16, 24, 24, 40, 40, 80, 80, 80, 112, 112, 112, 192, 192, 192, 192, 320]
KERNELS = [3, 3, 3, 5, 5, 3, 3, 3, 5, 5, 5, 5, 5, 5, 5, 3]


def weights_of_the_package() -> dict[str, Tensor]:
    """Random weights with the names and shapes of the file in version 0.1.0 of the package."""
    generator = torch.Generator().manual_seed(0)
    found: dict[str, Tensor] = {}

    def convolution(name: str, *shape: int) -> None:
        found[f"{name}.weight"] = torch.randn(*shape, generator=generator) / (shape[1] * shape[2] * shape[3]) ** 0.5

    def norm(name: str, channels: int) -> None:
        for part in ("weight", "bias", "running_mean", "running_var"):
            found[f"{name}.{part}"] = torch.rand(channels, generator=generator) + (part == "running_var")
        found[f"{name}.num_batches_tracked"] = torch.tensor(0)

    convolution("_conv_stem", 32, 3, 3, 3)
    norm("_bn0", 32)
    inputs = 32
    for number, (inner, outputs, kernel) in enumerate(zip(EXPANDED, PROJECTED, KERNELS, strict=True)):
        block = f"_blocks.{number}"
        if number:
            convolution(f"{block}._expand_conv", inner, inputs, 1, 1)
            norm(f"{block}._bn0", inner)
        convolution(f"{block}._depthwise_conv", inner, 1, kernel, kernel)
        norm(f"{block}._bn1", inner)
        convolution(f"{block}._project_conv", outputs, inner, 1, 1)
        norm(f"{block}._bn2", outputs)
        inputs = outputs
    convolution("_conv_head", 1280, 320, 1, 1)
    norm("_bn1", 1280)
    return found | {"_fc.weight": torch.zeros(1000, 1280), "_fc.bias": torch.zeros(1000)}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that must not be imported, before any installed one; returns its file of weights."""
    file = tmp_path / PACKAGE / WEIGHTS
    file.parent.mkdir(parents=True)
    (tmp_path / PACKAGE / "__init__.py").write_text("raise AssertionError('imported')")
    torch.save(weights_of_the_package(), file)
    monkeypatch.syspath_prepend(tmp_path)
    return file


def test_the_package_s_weights_fit(package: Path) -> None:
    given = weights_of_the_package()
    assert sum(weight.numel() for weight in given.values()) == 4_694_073  # as in the package's file
    net = efficientnet_lite0()
    assert sum(name.endswith("weight") and weight.ndim == 4 for name, weight in given.items()) * 2 == len(
        net.state_dict()
    )
    images = torch.rand(2, 3, 32, 48, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        features = net(images)
    assert features.shape == (2, 1280)
    assert 0 <= float(features.min()) < float(features.max()) <= 6
    assert not torch.equal(features[0], features[1])


@pytest.mark.parametrize(
    ("convolution", "norm", "stride", "padding"),
    [
        ("conv_stem", "bn0", 2, (0, 1, 0, 1)),
        ("blocks.15.expand_conv", "blocks.15.bn0", 1, (0, 0, 0, 0)),
        ("blocks.15.depthwise_conv", "blocks.15.bn1", 1, (1, 1, 1, 1)),
        ("blocks.15.project_conv", "blocks.15.bn2", 1, (0, 0, 0, 0)),
        ("conv_head", "bn1", 1, (0, 0, 0, 0)),
    ],
)
def test_a_batch_norm_is_part_of_its_convolution(
    convolution: str, norm: str, stride: int, padding: tuple[int, ...], package: Path
) -> None:
    given, net = weights_of_the_package(), efficientnet_lite0()
    own = net.get_submodule(convolution)
    assert isinstance(own, SameConv)
    x = torch.rand(2, own.in_channels, 6, 6, generator=torch.Generator().manual_seed(1))
    place, _, name = convolution.rpartition(".")
    weight = given[f"_{place}._{name}.weight" if place else f"_{name}.weight"]
    place, _, name = norm.rpartition(".")
    mean, variance, factor, bias = (
        given[f"_{place}._{name}.{part}" if place else f"_{name}.{part}"]
        for part in ("running_mean", "running_var", "weight", "bias")
    )
    made = conv2d(pad(x, padding), weight, stride=stride, groups=own.groups)
    torch.testing.assert_close(own(x), batch_norm(made, mean, variance, factor, bias, eps=1e-3), atol=1e-4, rtol=1e-4)


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [])
    with pytest.raises(ValueError, match=r"features: .*not installed; install them with: pip .*\[backbones\]"):
        BACKBONES["efficientnet-lite0"]()


@pytest.mark.parametrize("what", ["no file", "code", "others"])
def test_weights_that_are_none_are_refused(what: str, package: Path) -> None:
    if what == "no file":
        package.unlink()
    else:
        given: dict[str, object] = dict(weights_of_the_package())
        given |= {"_bn1.bias": nn.Linear(1, 1)} if what == "code" else {"_bn1.bias": torch.zeros(1279)}
        torch.save(given, package)
    with pytest.raises(ValueError, match=r"features: got .*\.pth \(.*Error\), expected the weights of Eff"):
        efficientnet_lite0()


def test_images_are_enlarged_to_the_smallest_side_and_no_further() -> None:
    net = EfficientNetLite0(smallest=64).eval()
    sizes: list[tuple[int, ...]] = []
    net.conv_stem.register_forward_pre_hook(lambda _, inputs: sizes.append(tuple(inputs[0].shape[1:])))
    with torch.no_grad():
        for shape in ((3, 32, 48), (3, 64, 64), (1, 80, 70)):
            net(torch.zeros(1, *shape))
    assert sizes == [(3, 64, 96), (3, 64, 64), (3, 80, 70)]


def test_grey_images_are_three_equal_channels() -> None:
    net, grey = EfficientNetLite0(smallest=32).eval(), torch.rand(2, 1, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(net(grey), net(grey.expand(-1, 3, -1, -1)))


def test_pixels_are_normalised_as_in_training() -> None:
    net = EfficientNetLite0(smallest=8).eval()
    seen: list[Tensor] = []
    net.conv_stem.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        net(torch.tensor([0.0, 127 / 255, 1.0]).repeat(1, 3, 8, 3)[..., :8])
    torch.testing.assert_close(seen[0][0, 0, 0, :3], torch.tensor([-127 / 128, 0.0, 1.0]), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (torch.zeros(2, 64), r"got rows of shape \(64,\), expected images \(1 or 3, height, width\)"),
        (torch.zeros(2, 4, 8, 8), r"got rows of shape \(4, 8, 8\)"),
        (255 * torch.ones(2, 3, 8, 8), "got pixels of 255 to 255, expected uint8 images, or pixels of 0 to 1"),
        (-torch.ones(2, 3, 8, 8), "got pixels of -1 to -1"),
    ],
)
def test_what_is_no_image_is_named(rows: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EfficientNetLite0()(rows)


@pytest.mark.parametrize(("size", "stride", "kernel"), [(8, 2, 3), (7, 2, 3), (8, 1, 5), (9, 2, 5), (5, 2, 1)])
def test_an_odd_pixel_of_padding_is_at_the_right_and_below(size: int, stride: int, kernel: int) -> None:
    """The pixel in the middle of the kernel's first position, computed by hand as TensorFlow's guide says."""
    layer = SameConv(1, 1, kernel, stride=stride)
    positions = torch.arange(float(size * size)).view(1, 1, size, size)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.zero_()
        layer.weight[0, 0, 0, 0] = 1  # picks the upper left pixel
        picked = layer(positions)
    total = kernel - stride if size % stride == 0 else kernel - size % stride
    before = max(total, 0) // 2
    assert picked.shape[2:] == (-(-size // stride),) * 2
    first = stride * -(-before // stride)  # the first output whose kernel begins inside the image
    assert float(picked[0, 0, first // stride, first // stride]) == (first - before) * (size + 1)


def test_blocks_have_a_shortcut_where_the_shape_is_kept() -> None:
    assert [block.shortcut for block in EfficientNetLite0().blocks if isinstance(block, Block)] == [
        *(False, False, True, False, True, False, True, True),
        *(False, True, True, False, True, True, True, False),
    ]


@pytest.mark.slow
@pytest.mark.skipif(find_spec(PACKAGE) is None, reason=f"{PACKAGE} is not installed")
def test_pretrained_features_tell_photographs_apart() -> None:
    """Parts of one photograph have more similar features than parts of two."""
    photographs = [torch.tensor(image).movedim(2, 0) / 255 for image in load_sample_images().images]
    parts = torch.stack([image[:, 100:324, left : left + 224] for image in photographs for left in (50, 300)])
    with torch.no_grad():
        features = efficientnet_lite0().eval()(parts)
    near = nn.functional.cosine_similarity(features[:, None], features[None], dim=2)
    assert float(min(near[0, 1], near[2, 3])) > float(near[:2, 2:].max()) + 0.2
