"""Decoding of images that may be hostile: a list of formats, a limit of pixels, and errors that name the file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF")
"""Pillow's decoders that may run. Others start programs (EPS: Ghostscript) or are rarely tested."""
MOST_PIXELS = 40_000_000
"""Decoding takes up to 8 bytes per pixel."""


def decode_image(stream: BinaryIO, where: Path, size: int, formats: tuple[str, ...] = FORMATS) -> npt.NDArray[np.uint8]:
    """Return an image as RGB, resized to [3, size, size]."""
    from PIL import Image

    try:
        with Image.open(stream, formats=formats) as image:
            fault = _fault(image.mode, image.size)
            if fault is None:
                return _small(image, size)
    except Exception as error:  # a broken image may raise almost any exception
        raise ValueError(f"{where}: not a readable image in {', '.join(formats)} ({error})") from error
    raise ValueError(f"{where}: {fault}")


def _fault(mode: str, size: tuple[int, int]) -> str | None:
    """Return what is wrong with an image that is not decoded yet."""
    width, height = size
    if width * height > MOST_PIXELS:
        return f"got {width} × {height} pixels, expected at most {MOST_PIXELS:,}; make it smaller"
    if mode in ("I", "F"):
        return f"got an image of mode {mode}, whose maximum is not defined; expected 8 or 16 bits"
    return None


def _small(image: Image.Image, size: int) -> npt.NDArray[np.uint8]:
    from PIL import Image

    if image.mode.startswith("I;16"):  # which `convert` would clip at 255
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    colours = image if image.mode == "RGB" else image.convert("RGB")
    small = colours.resize((size, size), Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(small, dtype=np.uint8).transpose(2, 0, 1))
