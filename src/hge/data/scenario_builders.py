"""Builders of scenarios: classes split into tasks, permuted pixels, two data sets in turn, a user's images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hge.data.datasets import load
from hge.data.formats import ImageSet
from hge.data.image_folder import read_image_folder
from hge.data.transforms import AsIs, Permute, resize

# The builders import torch, scikit-learn and modules that need them, so that listing the scenarios does not.
if TYPE_CHECKING:
    import torch

    from hge.core.randomness import Keys
    from hge.data.scenarios import Prepare, Scenario, Source, Task


@dataclass(frozen=True)
class Request:
    """Arguments of a scenario's builder."""

    tasks: int
    keys: Keys
    folder: Path
    """Folder of the data sets."""
    device: torch.device
    shared_labels: bool = False
    """Whether two data sets in turn have the same labels, not disjoint ones."""


@dataclass(frozen=True)
class LoadedDataset:
    """A loaded data set: rows on the device, and class names."""

    train: Source
    test: Source
    class_names: tuple[str, ...]
    superclass: tuple[int, ...] | None = None


def split_digits(request: Request) -> Scenario:
    """Ten digits in pairs, drawn by the seed."""
    return split_classes("digits", 5, AsIs(), request)


def recurring_digits(request: Request) -> Scenario:
    """Split Digits with recurring tasks: A B A C B D A E C."""
    from hge.data.scenarios import recur

    visits = tuple(t for t in (0, 1, 0, 2, 1, 3, 0, 4, 2) if t < request.tasks)
    return recur(split_digits(request), visits)


def permuted(dataset: str, request: Request) -> Scenario:
    """All classes; the first task with the original pixels, each further one with its own permutation of them."""
    import torch

    from hge.data.scenarios import Part, Scenario, Task

    data = _loaded(dataset, request)
    inputs = data.train.x[0].numel()
    tasks = []
    for t in range(request.tasks):
        order = np.arange(inputs) if t == 0 else request.keys.rng("permutation", t).permutation(inputs)
        prepare = Permute(torch.from_numpy(order).to(request.device))
        parts = [Part(source, torch.arange(len(source.y)), prepare) for source in (data.train, data.test)]
        tasks.append(Task(parts[0], parts[1], f"permutation {t}"))
    return Scenario.in_order(tuple(tasks), len(data.class_names))


def hybrid(first: str, second: str, prepare: tuple[Prepare, Prepare], request: Request) -> Scenario:
    """The tasks of two data sets in turn, with disjoint labels unless they are to be shared."""
    from hge.data.scenarios import mix

    if request.tasks < 2:
        raise ValueError(f"tasks: got {request.tasks}, expected at least 2, one of each data set")
    halves = [
        split_classes(
            name, _TASKS_OF_HALF[name.partition("@")[0]], step, request, tasks=count, domain=domain, draw=draw
        )
        for name, step, count, domain, draw in (
            (first, prepare[0], (request.tasks + 1) // 2, first, ()),
            (second, prepare[1], request.tasks // 2, f"{second}, inverted" if first == second else second, (1,)),
        )
    ]
    return mix(halves[0], halves[1], shared_labels=request.shared_labels)


def image_folder(request: Request) -> Scenario:
    """A user's images, split by class into the requested number of tasks."""
    from hge.data.scenarios import Scenario

    images = read_image_folder(request.folder)
    if len(images.class_names) < request.tasks:
        raise ValueError(
            f"tasks: got {request.tasks}, expected at most the {len(images.class_names)} classes there are"
        )
    data = _on_device(images, 0, request.device)
    order = request.keys.rng("classes").permutation(len(images.class_names))
    own = np.array_split(order, request.tasks)
    return Scenario.in_order(tuple(_class_task(data, classes, AsIs()) for classes in own), len(images.class_names))


def superclass_pairs(request: Request) -> Scenario:
    """CIFAR-100 split by pairs of superclasses instead of at random (the paper's side experiment, Section 5.3)."""
    from hge.data.scenarios import Scenario

    data = _loaded("cifar100", request)
    assert data.superclass is not None
    superclass = np.array(data.superclass)
    order = request.keys.rng("classes").permutation(20)
    pairs = [np.flatnonzero(np.isin(superclass, order[2 * t : 2 * t + 2])) for t in range(request.tasks)]
    return Scenario.in_order(tuple(_class_task(data, classes, AsIs()) for classes in pairs), 100)


_TASKS_OF_HALF = {"mnist": 5, "kmnist": 5, "cifar10": 5, "cifar100": 10, "tiny-imagenet": 10}


def split_classes(
    dataset: str,
    parts: int,
    prepare: Prepare,
    request: Request,
    *,
    tasks: int | None = None,
    domain: str = "",
    draw: tuple[int, ...] = (),
) -> Scenario:
    """Split the classes evenly into `parts`, at random by the seed, and take the first `tasks` of them."""
    from hge.data.scenarios import Scenario

    data = _loaded(dataset, request)
    classes = min(len(data.class_names), 100)  # Tiny ImageNet: 100 classes are drawn (Section 5)
    order = request.keys.rng("classes", *draw).permutation(len(data.class_names))[:classes]
    per_task = classes // parts
    count = request.tasks if tasks is None else tasks
    own = [order[per_task * t : per_task * (t + 1)] for t in range(count)]
    made = tuple(_class_task(data, classes_of_task, prepare, domain) for classes_of_task in own)
    return Scenario.in_order(made, len(data.class_names))


def _class_task(data: LoadedDataset, classes: Sequence[int] | np.ndarray, prepare: Prepare, domain: str = "") -> Task:
    import torch

    from hge.data.scenarios import Part, Task

    parts = []
    for source in (data.train, data.test):
        wanted = torch.isin(source.y, torch.as_tensor(np.asarray(classes), device=source.y.device))
        parts.append(Part(source, wanted.nonzero().flatten(), prepare))
    names = [data.class_names[c] for c in sorted(int(c) for c in classes)]
    shown = " and ".join(names) if len(names) <= 2 else f"{names[0]} … {names[-1]}"
    return Task(parts[0], parts[1], shown, domain)


def _loaded(name: str, request: Request) -> LoadedDataset:
    if name == "digits":
        return _digits(request.keys, request.device)
    bare, _, size = name.partition("@")  # mnist@32: resized to 32 pixels
    return _image_set(bare, int(size or 0), request.folder, str(request.device))


@lru_cache(maxsize=8)
def _image_set(name: str, size: int, folder: Path, device: str) -> LoadedDataset:
    """Load a data set onto the device, with its images resized once; several runs in one process share it."""
    import torch

    return _on_device(load(name, folder), size, torch.device(device))


def _on_device(images: ImageSet, size: int, device: torch.device) -> LoadedDataset:
    import torch

    from hge.data.scenarios import Source

    train, test = (
        Source(resize(torch.from_numpy(x), size) if size else torch.from_numpy(x), torch.from_numpy(y)).to(device)
        for x, y in ((images.train_images, images.train_labels), (images.test_images, images.test_labels))
    )
    return LoadedDataset(train, test, images.class_names, images.coarse_labels_of_class)


def _digits(keys: Keys, device: torch.device) -> LoadedDataset:
    """scikit-learn's 8×8 digits: 80 % of each class for training, 20 % for testing, drawn by the seed."""
    import torch
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    from hge.data.scenarios import Source

    x, y = load_digits(return_X_y=True)
    seed = keys.integer("split") % 2**32
    rows = train_test_split(np.arange(len(y)), test_size=0.2, stratify=y, random_state=seed)
    images, labels = torch.from_numpy((x / 16).astype(np.float32)), torch.from_numpy(y.astype(np.int64))
    train, test = (Source(images[part], labels[part]).to(device) for part in rows)
    return LoadedDataset(train, test, tuple("0123456789"))
