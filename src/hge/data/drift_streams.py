"""Streams whose concept changes, for prequential evaluation: generators, and the rows of a data set as a concept.

A stream is drawn from a generator of its own (`numpy.random.Generator`), so that a seed determines it. The generators
of concepts follow their published definitions (STAGGER and Sine: Schlimmer and Granger 1986, Gama et al. 2004; Agrawal
et al. 1993; random RBF and LED: MOA).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatRows = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
Rng = np.random.Generator
Concept = Callable[[int, Rng], tuple[FloatRows, Labels]]
"""(number of rows, generator) -> rows and labels."""

RECURRING = (0, 1, 0, 2, 1)
"""Order of the visits to three concepts: two of them come back."""


@dataclass(frozen=True)
class DriftStream:
    """Rows in the order of a stream, with the concept of each, and rows of each concept that are not in the stream."""

    x: FloatRows
    y: Labels
    concept: Labels
    """Known to the evaluation only."""
    held_out: dict[int, tuple[FloatRows, Labels]]

    def __len__(self) -> int:
        return len(self.y)


def visit(
    concepts: Sequence[Concept], order: Sequence[int], rows: int, rng: Rng, *, blend: int = 0, held_out: int = 500
) -> DriftStream:
    """Return a stream that visits the concepts in order, `rows` rows each.

    Over `blend` rows around each boundary, rows of the next concept become ever more frequent: they change places with
    rows of the last one, so that no row is lost or repeated.
    """
    if not 0 <= blend <= rows:
        raise ValueError(f"blend: got {blend}, expected 0 to {rows}, the rows of a visit")
    parts = [concepts[c](rows, rng) for c in order]
    x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    concept = np.repeat(np.array(order, np.int64), rows)
    if blend:
        source = np.arange(len(y))
        for boundary in range(rows, len(y), rows):
            before = np.arange(boundary - blend // 2, boundary)
            swapped = before[rng.random(len(before)) < (np.arange(len(before)) + 0.5) / (2 * len(before))]
            mirror = 2 * boundary - 1 - swapped
            source[swapped], source[mirror] = mirror, swapped
        x, y, concept = x[source], y[source], concept[source]
    return DriftStream(x, y, concept, {c: concepts[c](held_out, rng) for c in sorted(set(order))})


def stagger(number: int) -> Concept:
    """STAGGER's concepts 0, 1, 2 over size, colour and shape, three values each."""

    def draw(rows: int, rng: Rng) -> tuple[FloatRows, Labels]:
        size, colour, shape = rng.integers(0, 3, (3, rows))
        rules = ((size == 0) & (colour == 0), (colour == 1) | (shape == 1), size >= 1)
        return np.stack([size, colour, shape], 1).astype(np.float32), rules[number].astype(np.int64)

    return draw


def sine(number: int) -> Concept:
    """Sine1 and Sine2 (0 and 2), and both with reversed labels (1 and 3)."""

    def draw(rows: int, rng: Rng) -> tuple[FloatRows, Labels]:
        x = rng.random((rows, 2))
        curve = np.sin(x[:, 0]) if number < 2 else 0.5 + 0.3 * np.sin(3 * np.pi * x[:, 0])
        return x.astype(np.float32), ((x[:, 1] >= curve) ^ (number % 2 == 1)).astype(np.int64)

    return draw


def agrawal(number: int) -> Concept:
    """Functions 0 to 6 of Agrawal et al.: loan decisions on nine attributes of very different scales."""

    def draw(rows: int, rng: Rng) -> tuple[FloatRows, Labels]:
        salary = rng.uniform(20_000, 150_000, rows)
        commission = np.where(salary >= 75_000, 0.0, rng.uniform(10_000, 75_000, rows))
        age, level = rng.integers(20, 81, rows), rng.integers(0, 5, rows)
        car, zipcode = rng.integers(1, 21, rows), rng.integers(0, 9, rows)
        value = (9 - zipcode) * 100_000 * rng.uniform(0.5, 1.5, rows)
        years, loan = rng.integers(1, 31, rows), rng.uniform(0, 500_000, rows)
        x = np.stack([salary, commission, age, level, car, zipcode, value, years, loan], 1)
        group = np.digitize(age, [40, 60])

        def between(what: npt.NDArray[np.float64], least: Sequence[float], width: float) -> npt.NDArray[np.bool_]:
            low = np.array(least)[group]
            return (what >= low) & (what <= low + width)

        schooled = np.array([[1, 1, 0, 0, 0], [0, 1, 1, 1, 0], [0, 0, 1, 1, 1]], bool)[group, level]
        low, high = between(salary, (25_000, 50_000, 25_000), 50_000), between(salary, (50_000, 75_000, 50_000), 50_000)
        last = group == 2
        rules = (
            group != 1,
            between(salary, (50_000, 75_000, 25_000), 50_000),
            schooled,
            np.where(last, np.where(schooled, high, low), np.where(schooled, low, high)),
            np.where(
                between(salary, (50_000, 75_000, 25_000), 50_000),
                between(loan, (100_000, 200_000, 300_000), 200_000),
                between(loan, (200_000, 300_000, 100_000), 200_000),
            ),
            between(salary + commission, (50_000, 75_000, 25_000), 50_000),
            2 * (salary + commission) / 3 - loan / 5 - 20_000 > 0,
        )
        return x.astype(np.float32), (~rules[number]).astype(np.int64)

    return draw


def random_rbf(seed: int, inputs: int = 10, centroids: int = 50, classes: int = 2) -> Concept:
    """Rows around random centroids, each with a class, a weight and a spread."""
    rng = np.random.default_rng([seed, 7])
    centre, label = rng.random((centroids, inputs)), rng.integers(0, classes, centroids)
    spread, weight = rng.random(centroids), rng.random(centroids)

    def draw(rows: int, rng: Rng) -> tuple[FloatRows, Labels]:
        chosen = rng.choice(centroids, rows, p=weight / weight.sum())
        away = rng.uniform(-1, 1, (rows, inputs))
        away *= (rng.normal(size=rows) * spread[chosen] / np.linalg.norm(away, axis=1))[:, None]
        return (centre[chosen] + away).astype(np.float32), label[chosen].astype(np.int64)

    return draw


SEGMENTS = (
    "1110111",
    "0010010",
    "1011101",
    "1011011",
    "0111010",
    "1101011",
    "1101111",
    "1010010",
    "1111111",
    "1111011",
)


def led(noise: float = 0.1) -> Concept:
    """Digits on a display of seven segments, each inverted with a probability, beside 17 random inputs."""
    shown = np.array([[int(on) for on in digit] for digit in SEGMENTS])

    def draw(rows: int, rng: Rng) -> tuple[FloatRows, Labels]:
        y = rng.integers(0, 10, rows)
        lit = shown[y] ^ (rng.random((rows, 7)) < noise)
        return np.hstack([lit, rng.integers(0, 2, (rows, 17))]).astype(np.float32), y.astype(np.int64)

    return draw


def noise(inputs: int = 10, classes: int = 2) -> Concept:
    """Labels that do not depend on the inputs."""
    return lambda rows, rng: (rng.normal(size=(rows, inputs)).astype(np.float32), rng.integers(0, classes, rows))


def of_rows(x: npt.NDArray[np.generic], y: npt.NDArray[np.generic]) -> Concept:
    """Rows of a data set in random order, each at most once: held-out rows are therefore not in the stream.

    The concept remembers which rows were drawn, so it serves for one stream.
    """
    left: list[int] | None = None

    def draw(rows: int, rng: Rng) -> tuple[FloatRows, Labels]:
        nonlocal left
        left = rng.permutation(len(y)).tolist() if left is None else left
        if rows > len(left):
            raise ValueError(f"rows: got {rows}, expected at most {len(left)}: {len(y)} rows, each drawn at most once")
        chosen, left = left[:rows], left[rows:]
        return x[chosen].astype(np.float32), y[chosen].astype(np.int64)

    return draw
