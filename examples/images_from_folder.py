"""Images from a folder: learn one folder per class, save the model, and predict other images with `hge predict`.

The images are scikit-learn's digits, written as PNG files; classes come in pairs, as a stream would bring them.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from hge import GatedExperts
from hge.data.input_file import read_images

SHAPE = (3 * 8 * 8,)


def write_images(folder: Path, start: int, end: int) -> None:
    """Write some digits as folder/CLASS/NUMBER.png."""
    images, labels = load_digits().images[start:end], load_digits().target[start:end]
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        (folder / str(label)).mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * 15).astype(np.uint8)).save(folder / str(label) / f"{number}.png")


def main() -> None:
    """Write, learn, save, predict."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_images(folder / "train", 0, 1000)
        write_images(folder / "new", 1000, 1200)
        model = GatedExperts()
        for pair in range(0, 10, 2):
            parts = [read_images(folder / "train" / str(label), SHAPE).rows for label in (pair, pair + 1)]
            labels = np.repeat([pair, pair + 1], [len(part) for part in parts])
            order = np.random.default_rng(pair).permutation(len(labels))
            model.partial_fit(np.concatenate(parts)[order], labels[order])
        print(model)
        model.save(folder / "model")
        command = [sys.executable, "-m", "hge", "predict", "model", "new", "--out", "labels.npz"]
        subprocess.run(command, cwd=folder, check=True)
        with np.load(folder / "labels.npz") as found:
            right = [
                Path(name).parent.name == str(label) for name, label in zip(found["row"], found["label"], strict=True)
            ]
        print(f"{100 * np.mean(right):.1f} % of the new images predicted rightly, each on its own")


if __name__ == "__main__":
    main()
