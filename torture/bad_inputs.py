"""Bad inputs: each is accepted, or refused with an error that names the problem and leaves the state unchanged."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from scipy import sparse

from hge import GatedExperts
from torture.digest import state_digest

Log = Callable[[str], None]
FEATURES, CLASSES = 6, 3
CALLS = ("partial_fit", "fit", "predict", "predict_proba", "predict_expert", "construct", "construct", "load")
LARGEST_EPOCHS = 2


def torture_inputs(folder: Path, examples: int, seed_: int, log: Log) -> dict[str, Any]:
    """Call all methods with generated inputs; return the counts of the outcomes, and all failures."""
    fuzz = Fuzz(folder, log)

    @seed(seed_)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(call=st.sampled_from(CALLS), data=st.data())
    def one(call: str, data: st.DataObject) -> None:
        fuzz.run(call, data)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one()
    return {"examples": fuzz.number, "seed": seed_, "outcomes": dict(fuzz.outcomes), "wrong": fuzz.wrong}


class Fuzz:
    """A model that is called with generated inputs, and checked after each call."""

    def __init__(self, folder: Path, log: Log) -> None:
        rng = np.random.default_rng(0)
        self.X, self.y = rng.random((40, FEATURES), dtype=np.float32), rng.integers(0, CLASSES, 40)
        self.good = GatedExperts(class_capacity=CLASSES + 1, batch_size=8, epochs=1).partial_fit(self.X, self.y)
        self.model = deepcopy(self.good)
        self.digest = state_digest(self.model.learner_)
        self.folder, self.log = folder, log
        self.good.save(folder)
        self.number = 0
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []

    def run(self, call: str, data: st.DataObject) -> None:
        """Make one call and record its outcome."""
        special = {"construct": self._construct, "load": self._load}
        outcome, shown = special[call](data) if call in special else self._call(call, data)
        self.number += 1
        self.outcomes[f"{call}: {outcome.partition(':')[0]}"] += 1
        if outcome.startswith("wrong"):
            self.wrong.append(f"{call}{shown}: {outcome}")
        if self.number % 1000 == 0:
            self.log(f"bad inputs: {self.number}, {len(self.wrong)} wrong")

    def _call(self, call: str, data: st.DataObject) -> tuple[str, str]:
        arguments = [data.draw(rows(self.X))]
        if call in ("partial_fit", "fit"):
            arguments.append(data.draw(labels(self.y)))
        if call == "partial_fit" and data.draw(st.integers(0, 4)) == 0:
            arguments.append(data.draw(st.one_of(st.none(), labels(self.y))))
        outcome = attempt(lambda: getattr(self.model, call)(*arguments), r"X|y|classes|labels?")
        changed = state_digest(self.model.learner_) != self.digest
        if changed and (outcome != "accepted" or call.startswith("predict")):
            outcome = f"wrong: the state changed ({outcome})"
        if changed or outcome == "accepted":
            self.model = deepcopy(self.good)
        return outcome, f"({', '.join(f'{a!r:.80}' for a in arguments)})"

    def _construct(self, data: st.DataObject) -> tuple[str, str]:
        """Change a parameter of a fitted model and fit it again; an error must leave the old state unchanged."""
        name = data.draw(st.sampled_from(sorted(self.good.get_params())))
        value = data.draw(VALUES)
        if name == "epochs" and isinstance(value, int) and value > LARGEST_EPOCHS:
            value = LARGEST_EPOCHS  # valid, but would take too long
        if name == "on_event" and callable(value):
            value = None  # valid, but what it raises is its own
        self.model.set_params(**{name: value})
        # The error may name another parameter that is incompatible with the value.
        outcome = attempt(lambda: self.model.fit(self.X, self.y), r"[a-z_]+:")
        self.model.set_params(**{name: self.good.get_params()[name]})
        if outcome == "accepted":
            self.model = deepcopy(self.good)
        elif state_digest(self.model.learner_) != self.digest:
            outcome = f"wrong: the state changed ({outcome})"
            self.model = deepcopy(self.good)
        return outcome, f"({name}={value!r:.80})"

    def _load(self, data: st.DataObject) -> tuple[str, str]:
        """Load a good model with another parameter."""
        name, value = data.draw(st.sampled_from(sorted(self.good.get_params()))), data.draw(VALUES)
        return attempt(
            lambda: GatedExperts.load(self.folder, **{name: value}), r"[a-z_' ]+:"
        ), f"({name}={value!r:.80})"


def attempt(call: Callable[[], Any], named: str) -> str:
    """Return `accepted`, `refused: …` for an error that names what was wrong, or `wrong: …`."""
    try:
        call()
    except (ValueError, TypeError) as error:
        if not re.search(rf"(?<!\w)({named})", str(error)):
            return f"wrong: an error that names nothing, {type(error).__name__}: {error}"
        return f"refused: {error}"
    except Exception as error:
        return f"wrong: {error!r}"
    return "accepted"


NUMBERS = st.sampled_from([0, 1, -1, 2.5, 1e16, -1e30, 1e38, float("nan"), float("inf"), -float("inf"), 2**70, 1e-45])
THINGS = st.sampled_from(
    [None, "rows", b"rows", {}, {"a": 1}, set(), object(), [], [[]], [[1, 2], [3]], 3, float("nan"), True, range(5)]
)
DTYPES = ("f8", "f4", "f2", "i8", "u1", "?", "U3", "O", "c16", "M8[D]", "m8[s]", "S3")
TENSOR_DTYPES = (torch.float64, torch.bfloat16, torch.int32, torch.bool, torch.complex64, torch.uint8, torch.float16)
VALUES = st.one_of(
    NUMBERS,
    THINGS,
    st.integers(-3, 3),
    st.floats(),
    st.text(max_size=4),
    st.sampled_from(["auto", "tree", "lca", "joint", "sgd", "adam", "skip", "batch", "cpu", "cuda:99", "elbo", "mlp"]),
    st.sampled_from(
        [np.float32(0.5), np.int64(2), np.array(3), torch.tensor(2), lambda *_: None, torch.nn.Linear(6, 4)]
    ),
)


@st.composite
def rows(draw: st.DrawFn, good: Any) -> Any:
    """Draw X: rows that are corrupted in one of several ways, or an arbitrary object."""
    way = draw(st.integers(0, 9))
    count = draw(st.integers(0, 12))
    if way == 0:
        return draw(THINGS)
    if way <= 3:  # one bad number
        x = np.array(good[: max(count, 1)], dtype=draw(st.sampled_from(["f4", "f8", "O"])))
        x[draw(st.integers(0, len(x) - 1)), draw(st.integers(0, FEATURES - 1))] = draw(NUMBERS)
        return x
    if way == 4:  # another shape
        shape = draw(st.lists(st.integers(0, 7), max_size=4))
        return np.zeros(shape, dtype=draw(st.sampled_from(["f4", "i8"])))
    if way == 5:  # another type
        return _as(good[:count], draw(st.sampled_from(DTYPES)))
    if way == 6:
        return torch.from_numpy(good[:count].copy()).to(draw(st.sampled_from(TENSOR_DTYPES)))
    if way == 7:
        kinds = (sparse.csr_matrix, lambda x: torch.from_numpy(x.copy()).to_sparse(), np.ma.masked_array, list)
        return draw(st.sampled_from(kinds))(good[:count])
    if way == 8:
        return good[:count, : draw(st.integers(0, FEATURES))]
    return good[:count]


@st.composite
def labels(draw: st.DrawFn, good: Any) -> Any:
    """Draw y: labels that are corrupted or of another length, or an arbitrary object."""
    way = draw(st.integers(0, 7))
    y = good[: draw(st.integers(0, 12))]
    if way == 0:
        return draw(THINGS)
    if way == 1 and len(y):
        spoiled = np.array(y, dtype="O")
        spoiled[draw(st.integers(0, len(y) - 1))] = draw(st.one_of(NUMBERS, THINGS))
        return draw(st.sampled_from((spoiled, spoiled.tolist())))
    if way == 2:
        return _as(y, draw(st.sampled_from(DTYPES)))
    if way == 3:
        return y + draw(st.integers(-5, 100))
    if way == 4:
        return y[:, None].repeat(draw(st.integers(0, 3)), axis=1)
    if way == 5:
        return torch.from_numpy(y.copy()).to(draw(st.sampled_from(TENSOR_DTYPES)))
    return y


def _as(values: Any, dtype: str) -> Any:
    if dtype[0] in "Mm":
        return np.asarray(values).astype("i8").astype(dtype)
    return np.asarray(values).astype(dtype)
