from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from hge.core.randomness import Keys
from hge.core.types import Batch
from hge.data.catalogue import SCENARIOS
from hge.data.image_folder import read_image_folder
from hge.data.scenario_builders import Request
from hge.data.scenarios import Part, Scenario, Source, Task, mix, recur, revisit
from hge.data.transforms import AsIs, Flatten, Invert, ToColour, resize

DIGITS = ["split-digits", "permuted-digits", "recurring-digits"]


def build(name: str, tasks: int, seed: int = 0) -> Scenario:
    return SCENARIOS[name].build(Request(tasks, Keys(seed), Path(), torch.device("cpu")))


def tiny(classes: int = 2, rows: int = 8, tasks: int = 3) -> Scenario:
    """Tasks of a few rows whose inputs tell the task."""
    made = []
    for t in range(tasks):
        source = Source(torch.full((rows, 1), t, dtype=torch.uint8), torch.arange(rows) % classes)
        part = Part(source, torch.arange(rows), AsIs())
        made.append(Task(part, part, f"task {t}"))
    return Scenario.in_order(tuple(made), classes)


@pytest.mark.parametrize("name", DIGITS)
def test_streams_are_as_long_as_they_say(name: str) -> None:
    info, keys = SCENARIOS[name], Keys(1)
    scenario = build(name, info.tasks, seed=1)
    batches = list(scenario.stream(info.batch_size, 2, keys))
    assert len(batches) == scenario.batches(info.batch_size, 2)
    assert min(len(batch) for _, batch in batches) > 1
    assert {batch.x.dtype for _, batch in batches} == {torch.float32}
    assert 0 <= min(batch.x.min() for _, batch in batches) <= max(batch.x.max() for _, batch in batches) <= 1


def test_images_need_not_be_flattened() -> None:
    source = Source(torch.arange(8, dtype=torch.uint8).view(2, 1, 2, 2), torch.zeros(2, dtype=torch.int64))
    rows, inverted = (Part(source, torch.arange(2), prepare) for prepare in (Flatten(), Invert()))
    scenario = Scenario.in_order((Task(rows, rows, "rows"), Task(inverted, inverted, "inverted")), 1).as_images()
    assert torch.equal(scenario.tasks[0].train.whole().x, source.x)
    assert torch.equal(scenario.tasks[0].test.whole().x, source.x)
    assert torch.equal(scenario.tasks[1].train.whole().x, 255 - source.x)


def test_split_digits_pairs_all_classes_once() -> None:
    scenario = build("split-digits", 5)
    classes = [set(task.train.whole().y.tolist()) for task in scenario.tasks]
    assert all(len(c) == 2 for c in classes)
    assert set.union(*classes) == set(range(10))
    for task, own in zip(scenario.tasks, classes, strict=True):
        assert set(task.test.whole().y.tolist()) == own


def test_split_is_stratified_and_drawn_per_seed() -> None:
    for seed in (0, 1):
        scenario = build("split-digits", 5, seed)
        train, test = (sum(len(getattr(t, part)) for t in scenario.tasks) for part in ("train", "test"))
        assert (train, test) == (1437, 360)
        shares = [len(t.test) / (len(t.train) + len(t.test)) for t in scenario.tasks]
        np.testing.assert_allclose(shares, 0.2, atol=0.01)
    assert build("split-digits", 5, 0).tasks[0].name != build("split-digits", 5, 3).tasks[0].name


def test_training_and_test_rows_are_disjoint() -> None:
    task = build("permuted-digits", 1).tasks[0]
    train = {row.tobytes() for row in task.train.whole().x.numpy()}
    assert not [row for row in task.test.whole().x.numpy() if row.tobytes() in train]


def test_permuted_digits_are_the_same_images_with_other_pixels() -> None:
    first, second, third = (task.train.whole() for task in build("permuted-digits", 3).tasks)
    assert torch.equal(first.y, second.y)
    assert torch.equal(first.x.sort(dim=1).values, second.x.sort(dim=1).values)
    assert not torch.equal(first.x, second.x)
    assert not torch.equal(second.x, third.x)


def test_recurring_digits_come_back() -> None:
    assert [v.task for v in build("recurring-digits", 5).visits] == [0, 1, 0, 2, 1, 3, 0, 4, 2]
    assert [v.task for v in build("recurring-digits", 2).visits] == [0, 1, 0, 1, 0]


def test_epochs_are_reshuffled_and_reproducible() -> None:
    scenario = build("split-digits", 1)
    first, again = (list(scenario.stream(32, 2, Keys(0))) for _ in range(2))
    assert all(torch.equal(a.x, b.x) for (_, a), (_, b) in zip(first, again, strict=True))
    half = len(first) // 2
    assert not torch.equal(first[0][1].x, first[half][1].x)
    whole = scenario.tasks[0].train.whole()
    for part in (first[:half], first[half:]):
        rows = torch.cat([batch.x for _, batch in part])
        assert torch.equal(rows.sort(dim=0).values, whole.x.sort(dim=0).values)


def test_mixed_scenarios_alternate_with_disjoint_labels() -> None:
    mixed = mix(tiny(classes=2, tasks=3), tiny(classes=4, tasks=2))
    assert mixed.classes == 6
    assert [v.task for v in mixed.visits] == [0, 3, 1, 4, 2]
    labels = [set(task.train.whole().y.tolist()) for task in mixed.tasks]
    assert labels == [{0, 1}] * 3 + [{2, 3, 4, 5}] * 2
    with pytest.raises(ValueError, match=r"mix: got inputs of shapes \(1,\) and \(64,\)"):
        mix(tiny(), build("split-digits", 2))


def test_visits_recur_and_have_their_own_lengths() -> None:
    scenario = revisit(tiny(), "0 1:0.5 0:2")
    tasks = [task for task, _ in scenario.stream(4, 4, Keys(0))]
    assert tasks == [0] * 8 + [1] * 4 + [0] * 16
    assert len(tasks) == scenario.batches(4, 4)
    assert [v.task for v in recur(tiny(), (2, 0)).visits] == [2, 0]


@pytest.mark.parametrize("visits", ["0 x", "0 3", "-1", "0:0", "1:abc", " "])
def test_wrong_visits_are_named(visits: str) -> None:
    with pytest.raises(ValueError, match="visits: got"):
        revisit(tiny(), visits)


def test_blended_boundaries_lose_and_repeat_nothing() -> None:
    hard = tiny(rows=32)
    soft = Scenario(hard.tasks, hard.visits, hard.classes, blend=6)
    expected, found = ([task for task, _ in s.stream(4, 2, Keys(0))] for s in (hard, soft))
    assert sorted(found) == sorted(expected)
    assert found != expected
    assert all(int(batch.x[0, 0]) == task for task, batch in soft.stream(4, 2, Keys(0)))
    changes = sum(a != b for a, b in pairwise(found))
    assert changes > 2
    assert found[:8] == [0] * 8
    assert found[-8:] == [2] * 8


def test_inputs_are_prepared_as_bytes() -> None:
    x = torch.arange(12, dtype=torch.uint8).reshape(3, 1, 2, 2)
    assert torch.equal(Invert()(x), 255 - x)
    colour = ToColour()(x)
    assert colour.shape == (3, 3, 2, 2)
    assert torch.equal(colour[:, 0], colour[:, 2])
    large = resize(torch.full((2, 1, 28, 28), 200, dtype=torch.uint8), 32)
    assert large.shape == (2, 1, 32, 32)
    assert large.dtype == torch.uint8
    assert (large == 200).all()


def test_part_makes_batches_of_its_own_rows() -> None:
    source = Source(torch.arange(10, dtype=torch.uint8)[:, None], torch.arange(10))
    part = Part(source, torch.tensor([7, 3, 5]), Invert(), label_offset=100)
    batch = part.batch(torch.tensor([1, 2]))
    assert isinstance(batch, Batch)
    assert batch.x.flatten().tolist() == [252, 250]
    assert batch.y.tolist() == [103, 105]
    assert [len(b) for b in part.batches(2)] == [2, 1]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Three classes of plain colours with noise, forty images each."""
    rng = np.random.default_rng(0)
    for name, colour in (("red", (200, 40, 40)), ("green", (40, 200, 40)), ("blue", (40, 40, 200))):
        (tmp_path / name).mkdir()
        for number in range(40):
            pixels = np.clip(np.array(colour) + rng.normal(0, 20, (12, 16, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.png")
    return tmp_path


def test_folder_of_images_by_class(images: Path) -> None:
    scenario = SCENARIOS["image-folder"].build(Request(3, Keys(0), images, torch.device("cpu")))
    assert scenario.shape == (3, 32, 32)
    assert sorted(task.name for task in scenario.tasks) == ["blue", "green", "red"]
    assert sum(len(task.train) + len(task.test) for task in scenario.tasks) == 120
    assert all(len(task.test) > 2 for task in scenario.tasks)


def test_folder_that_is_none_is_named(images: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    empty = tmp_path_factory.mktemp("empty")
    for place, fault in (
        (empty, "got 0 folders, expected one folder of images per class"),
        (empty / "x", "no such folder"),
    ):
        with pytest.raises(ValueError, match=fault):
            SCENARIOS["image-folder"].build(Request(2, Keys(0), place, torch.device("cpu")))
    Image.fromarray(np.zeros((8, 8), np.float32)).save(images / "blue" / "float.tif")
    with pytest.raises(ValueError, match=r"float\.tif: got an image of mode F"):
        SCENARIOS["image-folder"].build(Request(2, Keys(0), images, torch.device("cpu")))
    (images / "blue" / "float.tif").unlink()
    (images / "red" / "broken.png").write_bytes(b"not an image")
    with pytest.raises(ValueError, match=r"broken\.png: not a readable image"):
        SCENARIOS["image-folder"].build(Request(2, Keys(0), images, torch.device("cpu")))


def test_images_of_sixteen_bits_are_not_cut_off(images: Path) -> None:
    ramp = np.linspace(0, 65535, 32).astype(np.uint16)[None].repeat(32, axis=0)
    Image.fromarray(ramp).save(images / "red" / "deep.png")
    read = read_image_folder(images)
    pixels = np.concatenate([read.train_images, read.test_images])
    assert (pixels == (ramp >> 8).astype(np.uint8)).all(axis=(1, 2, 3)).sum() == 1


def test_mixed_scenarios_may_share_their_labels() -> None:
    mixed = mix(tiny(classes=2, tasks=3), tiny(classes=4, tasks=2), shared_labels=True)
    assert mixed.classes == 4
    labels = [set(task.train.whole().y.tolist()) for task in mixed.tasks]
    assert labels == [{0, 1}] * 3 + [{0, 1, 2, 3}] * 2


@pytest.mark.parametrize("scenario", ["mnist-kmnist", "mnist-cif10", "cif10-inv", "cif-imgnet"])
def test_hybrids_need_a_task_of_each_half(scenario: str) -> None:
    with pytest.raises(ValueError, match="tasks: got 1, expected at least 2, one of each data set"):
        build(scenario, 1)
