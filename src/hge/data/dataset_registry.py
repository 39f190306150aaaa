"""The known data sets: possible locations of their files, download addresses, and contents."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hge.data import formats
from hge.data.formats import ImageSet


@dataclass(frozen=True)
class Layout:
    """One possible layout of a set's files in the data folder."""

    path: str
    """The folder or archive, relative to the data folder."""
    read: Callable[[Path], ImageSet]
    required: tuple[str, ...] = ()
    """Files and folders that must be in the folder; none for an archive."""
    optional: tuple[str, ...] = ()
    """Optional files, used if present."""
    import_path: str = ""
    """Destination of an import, if not `path`."""

    def complete(self, at: Path) -> bool:
        """Return whether everything needed is at `at`."""
        # unlike Path's methods, these return False if a folder may not be entered
        return all(os.path.exists(at / part) for part in self.required) if self.required else os.path.isfile(at)


@dataclass(frozen=True)
class Download:
    """An official file: its address, checksum and destination."""

    url: str
    checksum: str
    path: str


@dataclass(frozen=True)
class DatasetInfo:
    """A data set that can be loaded."""

    name: str
    title: str
    layouts: tuple[Layout, ...]
    """In order of preference: first the files as downloaded, not unpacked or changed."""
    downloads: tuple[Download, ...]
    official: Counts | None = None
    """Counts of the complete official set, if its checksums are not known."""


@dataclass(frozen=True)
class Counts:
    """Counts of a set: shape of one image, number of classes, images per class."""

    shape: tuple[int, ...]
    classes: int
    train: int
    test: int


@dataclass(frozen=True)
class KnownVariant:
    """A variant of a set, recognised by the sha256 of its arrays: C order, uint8; Tiny ImageNet's channels last."""

    variant: str
    sha256: dict[str, str]


def _idx_layouts(title: str, class_names: str) -> tuple[Layout, ...]:
    """Return the layouts of the four idx files, gzipped or unpacked, in torchvision's folder or one level higher."""
    return tuple(
        Layout(
            path,
            partial(formats.read_mnist, suffix=suffix, class_names=tuple(class_names.split())),
            required=tuple(f"{file}{suffix}" for file in _IDX_FILES),
            import_path=f"{title}/raw",
        )
        for path in (f"{title}/raw", title, f"{title.lower()}/raw", title.lower())
        for suffix in (".gz", "")
    )


def _archive(url: str, md5: str) -> Download:
    return Download(url, f"md5:{md5}", url.rpartition("/")[2])


def _idx_downloads(title: str, base: str, *md5s: str) -> tuple[Download, ...]:
    return tuple(
        Download(f"{base}{file}.gz", f"md5:{md5}", f"{title}/raw/{file}.gz")
        for file, md5 in zip(_IDX_FILES, md5s, strict=True)
    )


_IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_TORONTO = "https://www.cs.toronto.edu/~kriz/"

DATASETS: dict[str, DatasetInfo] = {
    info.name: info
    for info in (
        DatasetInfo(
            "mnist",
            "MNIST",
            _idx_layouts("MNIST", "0 1 2 3 4 5 6 7 8 9"),
            _idx_downloads(
                "MNIST",
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "d53e105ee54ea40749a09fcbcd1e9432",
                "9fb629c4189551a2d022fa330f9573f3",
                "ec29112dd5afa0611ce80d1b7f02629c",
            ),
        ),
        DatasetInfo(
            "kmnist",
            "KMNIST",
            _idx_layouts("KMNIST", "o ki su tsu na ha ma ya re wo"),
            _idx_downloads(
                "KMNIST",
                "http://codh.rois.ac.jp/kmnist/dataset/kmnist/",
                "bdb82020997e1d708af4cf47b453dcf7",
                "e144d726b3acfaa3e44228e80efcd344",
                "5c965bf0a639b31b8f53240b1b52f4d7",
                "7320c461ea6c1c855c0b718fb2a4b134",
            ),
            official=Counts((1, 28, 28), classes=10, train=6000, test=1000),
        ),
        DatasetInfo(
            "cifar10",
            "CIFAR-10",
            (
                Layout("cifar-10-python.tar.gz", formats.read_cifar10),
                Layout(
                    "cifar-10-batches-py",
                    formats.read_cifar10,
                    required=("batches.meta", *(f"data_batch_{i}" for i in range(1, 6)), "test_batch"),
                ),
            ),
            (_archive(f"{_TORONTO}cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),),
        ),
        DatasetInfo(
            "cifar100",
            "CIFAR-100",
            (
                Layout("cifar-100-python.tar.gz", formats.read_cifar100),
                Layout("cifar-100-python", formats.read_cifar100, required=("meta", "train", "test")),
            ),
            (_archive(f"{_TORONTO}cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),),
        ),
        DatasetInfo(
            "tiny-imagenet",
            "Tiny ImageNet",
            (
                Layout("tiny-imagenet-200.zip", formats.read_tiny_imagenet),
                Layout(
                    "tiny-imagenet-200",
                    formats.read_tiny_imagenet,
                    required=("wnids.txt", "train", "val"),
                    optional=("words.txt",),
                ),
                Layout("tiny-imagenet-200-32px", formats.read_tiny_imagenet_32px, required=("train.npz", "val.npz")),
            ),
            (_archive("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"),),
            official=Counts((3, 32, 32), classes=200, train=500, test=50),
        ),
    )
}

CHECKSUMS: dict[str, KnownVariant] = {
    "mnist": KnownVariant(
        "official",
        {
            "train images": "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
            "train labels": "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
            "test images": "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
            "test labels": "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
        },
    ),
    "kmnist": KnownVariant(
        "part: 8,000 + 2,000 of the official test images, not comparable",
        {
            "train images": "92bada63638cd5da0b49f6a5489c24c91fe01b4a906031770fe480d5ae2621a7",
            "train labels": "5c1d8c04b4af2aada6618d24d7f7befb1263330409e12e6c1dbe5b1ababe286c",
            "test images": "81a5a298a688f1512dce6692576275d81b39212fb23c81bcdfd511b7bba29816",
            "test labels": "59448e35097534e02942ea06ed46822594e8c0cb7bb2c2b45156d1f25f421d3c",
        },
    ),
    "cifar10": KnownVariant(
        "official",
        {
            "train images": "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
            "train labels": "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
            "test images": "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
            "test labels": "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
        },
    ),
    "cifar100": KnownVariant(
        "official",
        {
            "train images": "de64658905c6b161606e3649ddafce7cf86c7634a0cf9116d518e64ef46a33c5",
            "train labels": "9f11b9f97aad759ba6df0a33e3218b01d8deaf4ed3a14aa1185d69b9ad7ebcb3",
            "train coarse": "1804078d4e89b6b90bd5da6ffead1404596f6eecba15ceb8d95b6a09dfbba4c0",
            "test images": "83c56492b2c11211ad1bb2dbd4f2eef4170a0441e41a41f3039c3144b1f5a511",
            "test labels": "4dad7d09c7c97d33f6cb928d705cf4196221316fd6e31bdd978a08ed9103ee0b",
            "test coarse": "48df17fb3bf299f43dd7e131db11ca0ea8b07d750be8b6dcf7ad6ff1b4cc721d",
        },
    ),
    "tiny-imagenet": KnownVariant(
        "100 classes at 32 pixels, lossy, not comparable",
        {
            "train images": "272aafe3011074f6fab62c431a052fc62965d202706b56660fc9104628e9afd4",
            "train labels": "cbf4030b1377441436d0dbafd850e207d16c73ee15701ec75b125c084108f0a2",
            "test images": "5316deabe83f6e900bfac48da42270328acfc5af20934f9cc1146c23292c433d",
            "test labels": "bf03b2e94a082162758d2e90dc0144ef11a38f5a01ed4685e1bd49ffb93223ac",
        },
    ),
}
