"""Features that are kept: no row is computed twice, and what is kept is what would be computed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from hge.experiments import feature_store
from hge.experiments.feature_store import FeatureStore
from hge.experts.extractor import Extractor


class Counting(nn.Module):
    """A convolution that counts the rows it is given."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.net, self.rows = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten()), 0

    def forward(self, x: Tensor) -> Tensor:
        self.rows += len(x)
        made: Tensor = self.net(x)
        return made


def images(rows: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, (rows, 1, 6, 6), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def store(folder: Path, net: nn.Module | None = None) -> tuple[FeatureStore, Counting]:
    extractor = Extractor(net or Counting())
    counting = extractor.compute
    assert isinstance(counting, Counting)
    return FeatureStore(extractor, folder), counting


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_store, "ROWS_PER_FILE", 64)


def test_rows_are_computed_once_whatever_their_order(tmp_path: Path) -> None:
    x = images(200)
    first, counted = store(tmp_path)
    found = first(x)
    torch.testing.assert_close(found, Extractor(Counting())(x), rtol=0, atol=0)
    assert counted.rows == 200 + 1  # and the probe
    second, counted = store(tmp_path)
    order = torch.randperm(200, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(second(torch.cat([x[order], images(10, seed=1)]))[:200], found[order], rtol=0, atol=0)
    assert counted.rows == 10 + 1


def test_other_weights_have_other_files(tmp_path: Path) -> None:
    x = images(10)
    first, other = store(tmp_path)[0](x), store(tmp_path, Counting(seed=1))[0](x)
    assert not torch.equal(first, other)
    torch.testing.assert_close(other, Extractor(Counting(seed=1))(x), rtol=0, atol=0)


def test_the_same_bytes_of_another_kind_are_other_rows(tmp_path: Path) -> None:
    numbers = torch.arange(8, dtype=torch.int32).view(2, 4)
    features = FeatureStore(Extractor(lambda rows: rows.float()), tmp_path)
    assert features(numbers).tolist() == numbers.tolist()
    assert features(numbers.view(torch.float32)).tolist() == numbers.view(torch.float32).tolist() != numbers.tolist()


def test_what_was_computed_before_an_interruption_is_kept(tmp_path: Path) -> None:
    x, seen = images(200), list[int]()

    def interrupt(done: int, total: int) -> None:
        assert total == 200
        seen.append(done)
        if done >= 150:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store(tmp_path)[0](x, interrupt)
    assert seen == [32, 64, 96, 128, 160]
    again, counted = store(tmp_path)
    again(x)
    assert counted.rows == 200 - 128 + 1


def test_a_damaged_file_is_named_and_its_rows_are_computed_again(tmp_path: Path) -> None:
    x = images(100)
    found = store(tmp_path)[0](x)
    files = sorted(tmp_path.rglob("*.safetensors"))
    assert len(files) == 2
    files[0].write_bytes(files[0].read_bytes()[:-100])
    again, counted = store(tmp_path)
    with pytest.warns(UserWarning, match=f"{files[0].name} is not used: .*Delete it"):
        torch.testing.assert_close(again(x), found, rtol=0, atol=0)
    assert 1 < counted.rows < 101


def test_nothing_is_kept_without_a_folder_or_if_it_cannot_be_written(tmp_path: Path) -> None:
    x = images(100)
    store(tmp_path / "missing")[0](x)
    assert not (tmp_path / "missing").exists()
    (tmp_path / "features").write_text("a file in the place of the folder")
    with pytest.warns(UserWarning, match="Features are not kept"):
        found = store(tmp_path)[0](x)
    torch.testing.assert_close(found, Extractor(Counting())(x), rtol=0, atol=0)
