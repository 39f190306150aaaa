"""Image data sets by name: finding, loading, downloading, importing and verifying their files."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hge.data.dataset_registry import CHECKSUMS, DATASETS, Counts, DatasetInfo, Download, Layout
from hge.data.formats import ImageSet


@dataclass(frozen=True)
class Verification:
    """Result of verifying a set's files."""

    name: str
    found: Path | None
    ok: bool
    variant: str
    detail: str


def data_folder(given: Path | None) -> Path:
    """Return the folder of the data: `given`, else HGE_DATA, else `hge` in the platform's cache folder."""
    if given or os.environ.get("HGE_DATA"):
        return Path(given or os.environ["HGE_DATA"]).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "hge"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "hge"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hge"


def find(name: str, folder: Path) -> Path | None:
    """Return the location of the set under `folder`, if it is there."""
    return next((folder / layout.path for layout in _present_layouts(name, folder)), None)


def load(name: str, folder: Path) -> ImageSet:
    """Read a set, once per process. The arrays are shared and must not be modified."""
    layout = next(_present_layouts(name, folder), None)
    if layout is None:
        raise ValueError(
            f"{DATASETS[name].title} was not found: {_download_hint(name, folder)}, or run `hge data get {name}`"
        )
    return _load(layout, (folder / layout.path).resolve())


def verify(name: str, folder: Path) -> Verification:
    """Compare a set with the known checksums of its arrays, or with the official counts if none are known."""
    layout = next(_present_layouts(name, folder), None)
    if layout is None:
        return Verification(name, None, False, "missing", _download_hint(name, folder))
    at = folder / layout.path
    try:
        images = layout.read(at)
    except ValueError as error:
        return Verification(name, at, False, "unreadable", str(error))
    known, found = CHECKSUMS[name], _sha256(images, channels_last=name == "tiny-imagenet")
    differ = [key for key, value in known.sha256.items() if found.get(key) != value]
    counts = f"{len(images.train_labels):,} + {len(images.test_labels):,} images of {len(images.class_names)} classes"
    if not differ:
        return Verification(name, at, True, known.variant, f"{counts}, sha256 of every array as known")
    official = DATASETS[name].official
    if official is not None and _counts(images) == official:
        return Verification(name, at, True, "official counts; no checksum known", counts)
    return Verification(name, at, False, "unknown", f"{counts}, differs in {', '.join(differ)} from: {known.variant}")


def get(name: str, folder: Path, progress: bool) -> Path:
    """Download the official files unless they are present, and return the location of the set."""
    info = _info(name)
    verification = verify(name, folder)
    if verification.found is not None and verification.ok and verification.variant.startswith("official"):
        return verification.found
    try:
        pooch: Any = import_module("pooch")  # an optional, untyped dependency
    except ImportError:
        raise ValueError(f"downloading {info.title} needs pooch: pip install 'hge[data]'") from None
    pooch.get_logger().setLevel("WARNING")
    for download in info.downloads:
        target = folder / download.path
        with _bar(target.name, progress) as bar:
            _retrieve(pooch, info, download, target, pooch.HTTPDownloader(progressbar=bar, chunk_size=2**16))
    found = find(name, folder)
    if found is None:
        raise ValueError(f"{info.title} was not found after its download: {_download_hint(name, folder)}")
    return found


def import_files(source: Path, folder: Path) -> list[str]:
    """Copy every known set at or under `source` into `folder`; return their names."""
    source = Path(os.path.abspath(source.expanduser()))
    # `source` may be a set itself, or contain sets, up to two folders deep
    bases = [source, *source.parents[:2], *(sub for deep in ("*/", "*/*/") for sub in sorted(source.glob(deep)))]
    found: dict[str, tuple[Layout, Path]] = {}
    for name in DATASETS:
        for base in bases:
            for layout in _present_layouts(name, base):
                at = base / layout.path
                if at == source or source in at.parents:
                    found.setdefault(name, (layout, at))
    if not found:
        places = ", ".join(dict.fromkeys(layout.path for info in DATASETS.values() for layout in info.layouts))
        raise ValueError(f"{source}: no known data set found, expected one of {places}")
    targets = {name: folder / (layout.import_path or layout.path) for name, (layout, _) in found.items()}
    present = [name for name, target in targets.items() if target.exists()]
    for name in present:
        layout, at = found[name]
        if not _same(name, layout.read(at), targets[name]):
            raise ValueError(f"{targets[name]}: contains other data than {at}; move it away to import the latter")
    for name, (layout, at) in found.items():
        if name not in present:
            _copy(layout, at, targets[name])
    return list(found)


def _info(name: str) -> DatasetInfo:
    if name not in DATASETS:
        raise ValueError(f"data set: got {name!r}, expected one of {', '.join(DATASETS)}")
    return DATASETS[name]


def _present_layouts(name: str, folder: Path) -> Iterator[Layout]:
    return (layout for layout in _info(name).layouts if layout.complete(folder / layout.path))


def _download_hint(name: str, folder: Path) -> str:
    files = [folder / download.path for download in DATASETS[name].downloads]
    return f"put {', '.join(file.name for file in files)} into {files[0].parent}"


@lru_cache(maxsize=8)
def _load(layout: Layout, at: Path) -> ImageSet:
    return layout.read(at)


def _sha256(images: ImageSet, channels_last: bool = False) -> dict[str, str]:
    arrays: dict[str, npt.NDArray[Any]] = {}
    for part, pixels, labels in (
        ("train", images.train_images, images.train_labels),
        ("test", images.test_images, images.test_labels),
    ):
        arrays[f"{part} images"] = pixels.transpose(0, 2, 3, 1) if channels_last else pixels
        arrays[f"{part} labels"] = labels
        if images.coarse_labels_of_class is not None:
            arrays[f"{part} coarse"] = np.array(images.coarse_labels_of_class)[labels]
    return {
        key: hashlib.sha256(np.ascontiguousarray(array, np.uint8).data).hexdigest() for key, array in arrays.items()
    }


def _counts(images: ImageSet) -> Counts | None:
    """Return the counts of the set, if all classes have the same number of images."""
    shapes = {images.train_images.shape[1:], images.test_images.shape[1:]}
    classes = len(images.class_names)
    train, test = (
        set(np.bincount(labels, minlength=classes).tolist()) for labels in (images.train_labels, images.test_labels)
    )
    if len(shapes) != 1 or len(train) != 1 or len(test) != 1:
        return None
    return Counts(shapes.pop(), classes, train.pop(), test.pop())


def _retrieve(pooch: Any, info: DatasetInfo, download: Download, target: Path, downloader: object) -> None:
    attempts = 3
    for attempt in range(attempts):
        try:
            pooch.retrieve(download.url, download.checksum, target.name, target.parent, downloader=downloader)
            return
        except (OSError, ValueError) as error:  # errors of requests are OSErrors, a wrong checksum is a ValueError
            if attempt + 1 == attempts:
                why = f"{type(error).__name__}: {textwrap.shorten(str(error), 120)}"
                raise ValueError(
                    f"{info.title} could not be downloaded ({why}): put the file from {download.url} at {target}"
                ) from error


@contextmanager
def _bar(title: str, shown: bool) -> Iterator[Any]:
    """Yield a progress bar for pooch, or False for none."""
    if not shown:
        yield False
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns) as progress:
        task = progress.add_task(title, total=None)

        class Bar:
            total: int

            def update(self, amount: int) -> None:
                progress.update(task, total=self.total, advance=amount)

            def reset(self) -> None:
                progress.reset(task)

            def close(self) -> None:
                progress.stop()

        yield Bar()


def _same(name: str, images: ImageSet, target: Path) -> bool:
    there = next((layout.read(target) for layout in DATASETS[name].layouts if layout.complete(target)), None)
    return there is not None and _sha256(there) == _sha256(images)


def _copy(layout: Layout, source: Path, target: Path) -> None:
    """Copy under a temporary name, check that it can be read, then rename it."""
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        if layout.required:
            part.mkdir()
            for inner in (*layout.required, *(inner for inner in layout.optional if (source / inner).exists())):
                copy = shutil.copytree if (source / inner).is_dir() else shutil.copyfile
                copy(source / inner, part / inner)
        else:
            shutil.copyfile(source, part)
        layout.read(part)
        part.rename(target)
    except OSError as error:
        raise ValueError(f"{source}: could not be copied to {target} ({error})") from error
    except ValueError as error:
        raise ValueError(str(error).replace(str(part), str(source))) from error
    finally:
        if part.is_dir():
            shutil.rmtree(part)
        part.unlink(missing_ok=True)
