"""Checkpoints are written whole or not at all, and a bad one is recognised, whatever is bad about it."""

from __future__ import annotations

import json
import shutil
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.manifests import sealed
from helpers.places import GOLDEN
from helpers.small_learners import BATCHES, MLP, SETTINGS, learner_of, through_json
from hge import GatedExperts
from hge.core.own_folder import MARKER
from hge.experiments.recipes import build_config
from hge.experiments.runner import run
from hge.learning.checkpoint import CheckpointError, Checkpoints, forget_checkpoints, read_checkpoint
from hge.learning.manifest_check import check_learner
from hge.learning.state import Snapshot, restore, take_snapshot


@cache
def snapshot(batches: int, name: str = "sticky") -> Snapshot:
    """Return the snapshot of a learner after some batches; writing it changes nothing of it."""
    learner, _ = learner_of(SETTINGS[name], "stacked", MLP)
    list(learner.learn_all(BATCHES[:batches]))
    return take_snapshot(learner)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three checkpoints were written, two are kept."""
    path = tmp_path_factory.mktemp("checkpoints")
    checkpoints = Checkpoints(path)
    learner, _ = learner_of(SETTINGS["sticky"], "stacked", MLP)
    for start, stop in ((0, 20), (20, 45), (45, 50)):
        list(learner.learn_all(BATCHES[start:stop]))
        checkpoints.write(take_snapshot(learner), {"position": stop})
    return path


def files_of(folder: Path, steps: int) -> dict[str, dict[str, str]]:
    files: dict[str, dict[str, str]] = json.loads((folder / f"checkpoint-{steps}.json").read_text())["body"]["files"]
    return files


def spoil(file: Path, damage: str) -> None:
    content = bytearray(file.read_bytes())
    if damage == "torn":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    else:
        file.unlink()


@pytest.fixture
def mine(folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(folder, tmp_path / "c")
    return tmp_path / "c"


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_through_the_disk_and_on(name: str, tmp_path: Path) -> None:
    whole, _ = learner_of(SETTINGS[name], "stacked", MLP)
    steps = list(whole.learn_all(BATCHES))
    Checkpoints(tmp_path).write(snapshot(64, name), {"note": "µ"})
    read, facts = read_checkpoint(tmp_path)
    learner, _ = learner_of(SETTINGS[name], "stacked", MLP)
    restore(learner, read)
    assert facts == {"note": "µ"}
    assert repr(list(learner.learn_all(BATCHES[64:]))) == repr(steps[64:])


def test_two_are_kept_and_have_no_file_in_common(folder: Path) -> None:
    assert sorted(p.name for p in folder.glob("*.json")) == ["checkpoint-45.json", "checkpoint-50.json"]
    old, new = (files_of(folder, n) for n in (45, 50))
    assert old["expert.0"]["sha256"] == new["expert.0"]["sha256"], "not trained since"
    assert old["expert.1"]["sha256"] != new["expert.1"]["sha256"]
    named = [entry["file"] for files in (old, new) for entry in files.values()]
    assert sorted(p.name for p in folder.glob("*.safetensors")) == sorted(named)
    assert [p.name for p in folder.glob(".*")] == [MARKER]


def test_idle_experts_are_written_twice_and_then_never_again(tmp_path: Path) -> None:
    """The two copies are named in turn."""
    checkpoints, learner = Checkpoints(tmp_path), learner_of(SETTINGS["sticky"], "stacked", MLP)[0]
    list(learner.learn_all(BATCHES[:45]))
    written: dict[str, int] = {}
    for start in range(45, 57, 3):
        list(learner.learn_all(BATCHES[start : start + 3]))
        checkpoints.write(take_snapshot(learner), {})
        files = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("expert-0-*")}
        assert files.items() >= written.items()
        written = files
    assert len(written) == 2


@pytest.mark.parametrize("damage", ["torn", "flipped", "gone"])
def test_whatever_file_is_damaged_the_one_before_can_be_loaded(mine: Path, damage: str) -> None:
    newest = {entry["file"] for entry in files_of(mine, 50).values()} | {"checkpoint-50.json"}
    for file in sorted(mine.iterdir()):
        content = file.read_bytes()
        spoil(file, damage)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert read_checkpoint(mine)[1] == {"position": 45 if file.name in newest else 50}, file.name
        file.write_bytes(content)


@pytest.mark.parametrize("damage", ["torn", "flipped", "gone"])
@pytest.mark.parametrize("steps", [45, 50])
@pytest.mark.parametrize("name", ["expert.0", "expert.1", "state", "manifest"])
def test_the_next_checkpoint_mends_what_is_damaged(mine: Path, name: str, steps: int, damage: str) -> None:
    """After it there are two intact ones again: the damaged one is replaced by the one before it, or written again."""
    spoil(mine / (f"checkpoint-{steps}.json" if name == "manifest" else files_of(mine, steps)[name]["file"]), damage)
    Checkpoints(mine).write(snapshot(61), {"position": 61})
    (mine / "checkpoint-61.json").unlink()
    before = 45 if steps == 50 else 50
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_checkpoint(mine)[1] == {"position": before}


@pytest.mark.parametrize("damage", ["torn", "flipped", "gone"])
def test_an_idle_expert_that_the_only_checkpoint_lost_is_written_again(mine: Path, damage: str) -> None:
    (mine / "checkpoint-45.json").unlink()
    spoil(mine / files_of(mine, 50)["expert.0"]["file"], damage)
    Checkpoints(mine).write(snapshot(61), {"position": 61})
    (mine / "checkpoint-61.json").unlink()
    assert read_checkpoint(mine)[1] == {"position": 50}


def test_nothing_of_others_is_touched(mine: Path) -> None:
    others = [
        "notes.txt",
        "weights.safetensors",
        "checkpoint-old.json",
        "checkpoint-7.json",
        ".vimrc.tmp",
        "state.json",
    ]
    for name in others:
        (mine / name).write_text('{"epoch": 7}')
    Checkpoints(mine).write(snapshot(61), {"position": 61})
    assert all((mine / name).read_text() == '{"epoch": 7}' for name in others)
    forget_checkpoints(mine)
    assert sorted(path.name for path in mine.iterdir()) == sorted([MARKER, *others])


@pytest.mark.parametrize(
    "name", ["checkpoint-7.json", "state-0123456789abcdef.safetensors", "expert-0-0123456789abcdef-copy.safetensors"]
)
def test_files_of_others_in_the_way_are_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('{"epoch": 7}')
    with pytest.raises(ValueError, match=f"{name} in the way, not written by hge for a run's checkpoints"):
        Checkpoints(tmp_path).write(snapshot(3), {})
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_checkpoints_without_a_marker_are_recognised(mine: Path) -> None:
    """As versions without markers left them; what they had half written is deleted, too."""
    (mine / MARKER).unlink()
    for name in (".state-0123456789abcdef.safetensors.tmp", ".checkpoint-61.json.4711.tmp"):
        (mine / name).write_bytes(b"half")
    Checkpoints(mine).write(snapshot(61), {"position": 61})
    assert read_checkpoint(mine)[1] == {"position": 61}
    assert [path.name for path in mine.glob(".*")] == [MARKER]


@pytest.mark.parametrize("damage", ["torn", "flipped", "gone"])
@pytest.mark.parametrize("which", ["checkpoint-50.json", "state"])
def test_a_bad_one_is_told_and_the_one_before_is_used(mine: Path, which: str, damage: str) -> None:
    spoil(mine / (files_of(mine, 50)["state"]["file"] if which == "state" else which), damage)
    if (which, damage) == ("checkpoint-50.json", "gone"):
        assert read_checkpoint(mine)[1] == {"position": 45}
        return
    with pytest.warns(UserWarning, match="trying the checkpoint before it"):
        assert read_checkpoint(mine)[1] == {"position": 45}


def test_a_write_that_was_cut_off_leaves_the_last_checkpoint(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*c/state-[0-9a-f]{16}\.safetensors'"):
        Checkpoints(mine).write(snapshot(61), {"position": 61})
    monkeypatch.undo()
    assert read_checkpoint(mine)[1] == {"position": 50}
    Checkpoints(mine).write(snapshot(61), {"position": 61})
    assert read_checkpoint(mine)[1] == {"position": 61}
    assert [path.name for path in mine.glob(".*")] == [MARKER], "what the cut-off write left is swept up"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 99}, "schema 99"),
        ({"files": {}}, "missing"),
        ({"files": {"state": {"file": "../../etc/passwd", "sha256": "", "bytes": 0}}}, "without a folder"),
        ({"learner": []}, "wrong kind"),
    ],
)
def test_a_manifest_from_elsewhere_is_refused(mine: Path, change: dict[str, object], message: str) -> None:
    """Even one whose checksum is right: nothing outside the folder is read, nothing is executed."""
    for path in mine.glob("*.json"):
        body = json.loads(path.read_text())["body"] | change
        path.write_text(sealed(body))
    with pytest.warns(UserWarning, match="trying"), pytest.raises(CheckpointError, match=message):
        read_checkpoint(mine)


@pytest.mark.filterwarnings("ignore:.*trying the checkpoint before it")
def test_a_manifest_that_lacks_something_is_refused_whatever_it_is(tmp_path: Path) -> None:
    """Written by somebody who knows how to make the checksum right."""
    rows = torch.rand(100, 6, generator=torch.Generator().manual_seed(0))
    model = GatedExperts(class_capacity=4, organisation="tree").partial_fit(rows, (rows[:, 0] > 0.5).long())
    model.save(tmp_path)
    path = next(tmp_path.glob("*.json"))
    body = json.loads(path.read_text())["body"]
    for part in ("learner", "facts"):
        for name in body[part]:
            lacking = body | {part: {k: v for k, v in body[part].items() if k != name}}
            path.write_text(sealed(lacking))
            with pytest.raises(ValueError, match=rf"'{name}'.*missing|expected a saved model"):
                GatedExperts.load(tmp_path)
            for value in (None, "x", -7):
                odd = body | {part: body[part] | {name: value}}
                path.write_text(sealed(odd))
                with suppress(ValueError):  # and nothing else
                    GatedExperts.load(tmp_path)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ([[-1, -1], [7, 0]], "got expert 7, expected one of 1"),
        ([[-1, -1], [0, 1]], "got node 1 as the parent of node 1, expected one before it"),
    ],
)
def test_a_tree_of_what_is_not_there_is_refused(tree: list[list[int]], message: str) -> None:
    learner, _ = learner_of(SETTINGS["tree"], "eager", MLP)
    learner.learn(BATCHES[0])
    facts = through_json(learner.snapshot()).facts
    check_learner(facts)
    with pytest.raises(ValueError, match=message):
        check_learner(facts | {"organisation": facts["organisation"] | {"tree": tree}})


def test_numbers_beyond_64_bits_are_refused() -> None:
    """A tensor, into which some of them go, would overflow."""
    learner, _ = learner_of(SETTINGS["sticky"], "eager", MLP)
    learner.learn(BATCHES[0])
    facts = through_json(learner.snapshot()).facts
    check_learner(facts | {"outliers": 2**63 - 1})
    with pytest.raises(ValueError, match=r"learner\.outliers: got 9223372036854775808, expected int"):
        check_learner(facts | {"outliers": 2**63})


def test_counts_of_no_steps_are_refused() -> None:
    learner, _ = learner_of(SETTINGS["sticky"], "eager", MLP)
    learner.learn(BATCHES[0])
    facts = through_json(learner.snapshot()).facts
    check_learner(facts | {"steps": 1, "outliers": 5})
    with pytest.raises(ValueError, match="of no steps"):
        check_learner(facts | {"steps": 0})


def test_another_life_in_the_same_folder_changes_nothing_of_the_old_one(tmp_path: Path) -> None:
    """Two models, as many batches each: neither takes the other's files for its own."""
    for seed in (1, 2):
        learner, _ = learner_of(SETTINGS["sticky"], "stacked", MLP)
        list(learner.learn_all(BATCHES[seed : seed + 12]))
        Checkpoints(tmp_path).write(take_snapshot(learner), {"seed": seed})
    read, facts = read_checkpoint(tmp_path)
    assert facts == {"seed": 2}
    assert torch.equal(read.experts[0]["pool.net.1.weight"], learner.pool.state(0)["net.1.weight"])


def test_no_checkpoint_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint here"):
        read_checkpoint(tmp_path)


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@pytest.mark.filterwarnings("ignore:.*trying the checkpoint before it")
def test_no_flipped_byte_goes_unnoticed(folder: Path, data: st.DataObject) -> None:
    """Whatever byte of whatever file is changed: the state that is read is one that was written, or none is."""
    files = sorted(p for p in folder.iterdir())
    file = data.draw(st.sampled_from(files))
    content = file.read_bytes()
    place, bit = data.draw(st.integers(0, len(content) - 1)), data.draw(st.integers(0, 7))
    changed = bytearray(content)
    changed[place] ^= 1 << bit
    file.write_bytes(changed)
    try:
        read, facts = read_checkpoint(folder)
        assert facts["position"] in (45, 50)
        assert read.facts["steps"] == facts["position"]
        assert torch.isfinite(read.experts[0]["pool.net.1.weight"]).all()
    except CheckpointError:
        pass
    finally:
        file.write_bytes(content)


def test_what_the_first_release_wrote_is_refused_with_the_reason(tmp_path: Path) -> None:
    """Manifests of 0.1.0 (schema 2); their tensors are left out, since the schema is looked at first."""
    written = tmp_path / "written"
    shutil.copytree(GOLDEN / "release-0.1.0", written)
    told = "got schema 2, expected 9; another version wrote it"
    with pytest.warns(UserWarning, match=told), pytest.raises(ValueError, match=told):
        GatedExperts.load(written / "model")
    with pytest.warns(UserWarning, match=told), pytest.raises(ValueError, match=told):
        run(build_config("split-digits"), written / "run", resume=True)
