"""The streams of the benchmark by name (docs/streams.md): generated, made of images, and recorded ones.

Images and recorded streams are read from files: below the folder of the data sets (HGE_DATA), or in river's package.

>>> stream = STREAMS["stagger"].draw(seed=0)
>>> stream.x.shape, sorted(stream.held_out)
((20000, 3), [0, 1, 2])
"""

from __future__ import annotations

import csv
import gzip
import io
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hge.data import drift_streams as drift
from hge.data.datasets import data_folder
from hge.data.drift_streams import RECURRING, Concept, DriftStream, FloatRows, Labels, Rng
from hge.data.formats import read_mnist

PAIR_ORDER = (0, 1, 2, 0, 3, 1, 4, 2, 3, 4)
"""Order of the visits to five pairs of classes: each comes back."""
IMAGES = {"mnist": "MNIST", "kmnist": "KMNIST", "fashion": "FashionMNIST"}
"""Sets of images, and their folders."""
IDX_FILES = tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
DIGITS_HELD_OUT = 360

Rows = tuple[FloatRows, Labels]
Split = tuple[Rows, Rows]
"""Rows to learn, and rows to hold out."""


@dataclass(frozen=True)
class NamedStream:
    """A stream: what it is, how it is drawn from a seed, and the files that it needs.

    If its concepts are not known, the drawn stream has no held-out rows.
    """

    about: str
    draw: Callable[[int], DriftStream]
    files: Callable[[], list[Path]] = list

    @property
    def missing(self) -> list[Path]:
        """Files that were not found."""
        return [path for path in self.files() if not path.is_file()]


def _generated(
    about: str, concepts: Callable[[int, Rng], list[Concept]], rows: int = 4000, order: tuple[int, ...] = RECURRING
) -> NamedStream:
    def draw(seed: int) -> DriftStream:
        rng = _generator(seed)
        return drift.visit(concepts(seed, rng), order, rows, rng)

    return NamedStream(about, draw)


def _generator(seed: int) -> Rng:
    return np.random.default_rng([seed, 11])


@dataclass(frozen=True)
class ImagePlan:
    """How a stream is made of a set of images.

    Images to learn are from the training files, held-out ones from the test files. No image is learned twice in one
    concept: with too few images, as in a part of KMNIST, visits are shorter.
    """

    about: str
    divide: Callable[[Split, Rng], list[Split]]
    order: tuple[int, ...]
    rows: int
    held_out: int = 300
    blended: bool = False
    """Whether each boundary is blended over half a visit."""

    def draw(self, folder: str, seed: int) -> DriftStream:
        """Draw the stream from the images of a folder."""
        rng = _generator(seed)
        concepts = self.divide(_read_images(_in_folder(f"{folder}/raw")), rng)
        used = sorted(set(self.order))
        rows = min(self.rows, *(len(concepts[c][0][1]) // self.order.count(c) for c in used))
        learned = [drift.of_rows(*learn) for learn, _ in concepts]
        stream = drift.visit(learned, self.order, rows, rng, blend=rows // 2 if self.blended else 0, held_out=0)
        return replace(stream, held_out={c: drift.of_rows(*concepts[c][1])(self.held_out, rng) for c in used})


def _image_files(folder: str) -> list[Path]:
    return [_in_folder(f"{folder}/raw/{name}") for name in IDX_FILES]


@lru_cache(maxsize=1)
def _read_images(folder: Path) -> Split:
    """Return training and test images at 14×14 pixels, flat, 0 to 255."""
    images = read_mnist(folder, suffix="", class_names=[str(label) for label in range(10)])

    def smaller(x: npt.NDArray[np.uint8]) -> FloatRows:
        means: FloatRows = x.reshape(-1, 14, 2, 14, 2).mean((2, 4), dtype=np.float32).reshape(-1, 196)
        return means

    return (smaller(images.train_images), images.train_labels), (smaller(images.test_images), images.test_labels)


def _by_pairs(images: Split, rng: Rng) -> list[Split]:
    """Five concepts of two classes each."""

    def of(rows: Rows, classes: Labels) -> Rows:
        own = np.isin(rows[1], classes)
        return rows[0][own], rows[1][own]

    return [(of(images[0], pair), of(images[1], pair)) for pair in rng.permutation(10).reshape(5, 2)]


def _by_labels(images: Split, rng: Rng) -> list[Split]:
    """Three concepts: the same images, labels permuted."""
    (x, y), (test_x, test_y) = images
    return [((x, p[y]), (test_x, p[test_y])) for p in (rng.permutation(10) for _ in range(3))]


def _by_pixels(images: Split, rng: Rng) -> list[Split]:
    """Three concepts: the same labels, pixels permuted."""
    (x, y), (test_x, test_y) = images
    return [((x[:, p], y), (test_x[:, p], test_y)) for p in (rng.permutation(x.shape[1]) for _ in range(3))]


def _digit_pairs(seed: int) -> DriftStream:
    """Five pairs of scikit-learn's digits one after the other, each row once; a fifth of the rows is held out."""
    from sklearn.datasets import load_digits

    rng = _generator(seed)
    x, y = load_digits(return_X_y=True)
    order = rng.permutation(len(y))
    x, y = x[order].astype(np.float32), y[order].astype(np.int64)
    held_out, learned = ((x[part], y[part]) for part in (slice(DIGITS_HELD_OUT), slice(DIGITS_HELD_OUT, None)))
    concepts = _by_pairs((learned, held_out), rng)
    rows, labels = (np.concatenate([part[0][kind] for part in concepts]) for kind in (0, 1))
    concept = np.concatenate([np.full(len(part[0][1]), c) for c, part in enumerate(concepts)])
    return DriftStream(rows, labels, concept, {c: part[1] for c, part in enumerate(concepts)})


def _recorded(about: str, path: Callable[[], Path], read: Callable[[Path], tuple[Any, Any]]) -> NamedStream:
    """Rows in their own order, whatever the seed; the concepts are not known."""

    def draw(seed: int) -> DriftStream:
        x, y = read(path())
        return DriftStream(x.astype(np.float32), y.astype(np.int64), np.zeros(len(y), np.int64), {})

    return NamedStream(about, draw, lambda: [path()])


def _in_folder(path: str) -> Path:
    return data_folder(None) / path


def _in_river(name: str) -> Path:
    """Return the place of a data file in river's package, which is not imported."""
    spec = find_spec("river")
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0] if places else "river") / "datasets" / name


def _arrays(path: Path) -> tuple[Any, Any]:
    with np.load(path) as arrays:
        return arrays["X"], arrays["y"]


def _table(path: Path) -> tuple[Any, Any]:
    """Read a compressed CSV file whose last column has the labels."""
    cells = np.array(list(csv.reader(io.StringIO(_text(path))))[1:])
    return cells[:, :-1].astype(np.float64), np.unique(cells[:, -1], return_inverse=True)[1]


def _sparse_table(path: Path) -> tuple[Any, Any]:
    """Read lines such as "-1 1:1.617466 2:-0.919233", the label first."""
    rows = [line.split() for line in _text(path).splitlines() if line.strip()]
    x = np.array([[float(value.partition(":")[2]) for value in row[1:]] for row in rows])
    return x, np.array([row[0] == "1" for row in rows])


def _text(path: Path) -> str:
    if path.suffix == ".gz":
        return gzip.decompress(path.read_bytes()).decode()
    with zipfile.ZipFile(path) as archive:
        return archive.read(archive.namelist()[0]).decode()


IMAGE_PLANS = {
    "labels": ImagePlan("labels permuted, 5 visits of up to 3,000 rows", _by_labels, RECURRING, 3000, held_out=500),
    "pairs": ImagePlan("pairs of classes, 10 visits of up to 1,500 rows", _by_pairs, PAIR_ORDER, 1500),
    "pairs-short": ImagePlan("pairs of classes, 10 visits of up to 500 rows", _by_pairs, PAIR_ORDER, 500),
    "pixels": ImagePlan("pixels permuted, 5 visits of up to 4,000 rows", _by_pixels, RECURRING, 4000, held_out=500),
    "pairs-blended": ImagePlan(
        "pairs of classes, 6 visits of up to 2,000 rows, blended", _by_pairs, PAIR_ORDER[:6], 2000, blended=True
    ),
}

STREAMS = {
    "stagger": _generated("three STAGGER concepts", lambda _, rng: [drift.stagger(k) for k in rng.permutation(3)]),
    "sine": _generated("three of four Sine concepts", lambda _, rng: [drift.sine(k) for k in rng.permutation(4)[:3]]),
    "agrawal": _generated(
        "three of seven Agrawal functions", lambda _, rng: [drift.agrawal(k) for k in rng.permutation(7)[:3]]
    ),
    "rbf": _generated(
        "three random RBF concepts", lambda seed, _: [drift.random_rbf(1000 * seed + k) for k in range(3)]
    ),
    **{
        f"{images}-{name}": NamedStream(
            f"{folder}, {plan.about}",
            partial(plan.draw, folder),
            partial(_image_files, folder),
        )
        for images, folder in IMAGES.items()
        for name, plan in IMAGE_PLANS.items()
    },
    "digit-pairs": NamedStream("scikit-learn's digits, five pairs of classes, each row once", _digit_pairs),
    **{
        name: _recorded(about, partial(_in_folder, f"streams/{name}.npz"), _arrays)
        for name, about in {
            "elec": "electricity prices, recorded",
            "gas": "gas sensors, recorded",
            "outdoor": "objects outdoors, recorded",
            "powersupply": "hour of the day from power supplies, recorded",
        }.items()
    },
    "image-segments": _recorded("image segments (river)", partial(_in_river, "segment.csv.zip"), _table),
    "bananas": _recorded("bananas (river)", partial(_in_river, "banana.zip"), _sparse_table),
    "phishing": _recorded("phishing (river)", partial(_in_river, "phishing.csv.gz"), _table),
    "rbf-stationary": _generated(
        "one random RBF concept", lambda seed, _: [drift.random_rbf(5000 + seed)], 12_000, (0,)
    ),
    "led": _generated("LED digits with 10 % noise, no change", lambda *_: [drift.led()], 10_000, (0,)),
    "noise": _generated("labels that do not depend on the inputs", lambda *_: [drift.noise()], 6000, (0,)),
}
"""The streams by name."""
