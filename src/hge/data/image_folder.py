"""A user's own images: a folder with one folder of images per class."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hge.data.formats import ImageSet
from hge.data.image_decoding import decode_image
from hge.data.untrusted import open_regular

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".tif", ".tiff"}
TEST_SHARE = 0.2


def read_image_folder(folder: Path, size: int = 32) -> ImageSet:
    """Read all images as RGB, resized to `size`; a fifth, chosen by content, is for testing.

    Adding or renaming other files does not change the part an image is assigned to.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder; expected one with a folder of images per class (--data)")
    classes = sorted(p for p in folder.iterdir() if p.is_dir())
    images: list[npt.NDArray[np.uint8]] = []
    labels: list[int] = []
    for label, place in enumerate(classes):
        files = sorted(p for p in place.rglob("*") if p.suffix.lower() in SUFFIXES)
        if not files:
            endings = ", ".join(sorted(SUFFIXES))
            raise ValueError(f"{place}: no images found; expected a folder of images per class (--data), in {endings}")
        images += [_read_image(file, size) for file in files]
        labels += [label] * len(files)
    if len(classes) < 2:
        raise ValueError(f"{folder}: got {len(classes)} folders, expected one folder of images per class, at least two")
    x, y = np.stack(images), np.array(labels, dtype=np.int64)
    test = np.array([_is_for_testing(image) for image in images])
    for label, place in enumerate(classes):
        sides = test[y == label]
        if sides.all() or not sides.any():
            raise ValueError(f"{place}: too few images ({len(sides)}) for training and testing; expected some dozens")
    return ImageSet(x[~test], y[~test], x[test], y[test], tuple(map(_class_name, classes)), None)


def _read_image(file: Path, size: int) -> npt.NDArray[np.uint8]:
    with open_regular(file) as stream:
        return decode_image(stream, file, size)


def _class_name(folder: Path) -> str:
    """Return the folder's name; bytes that are not UTF-8, which no report could show, are replaced."""
    return os.fsencode(folder.name).decode("utf-8", "replace")


def _is_for_testing(image: npt.NDArray[np.uint8]) -> bool:
    return hashlib.blake2b(image.tobytes(), digest_size=1).digest()[0] < 256 * TEST_SHARE
