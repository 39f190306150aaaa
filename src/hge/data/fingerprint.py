"""A fingerprint of a scenario's data, by which a run that is resumed recognises them."""

from __future__ import annotations

import hashlib
import json

from torch import Tensor

from hge.data.scenarios import Scenario


def fingerprint(scenario: Scenario) -> str:
    """Return a checksum of all rows and labels, and of the tasks that are made of them.

    How inputs are derived from rows is not part of it: that follows from the settings.
    """
    parts = [(task.name, part) for task in scenario.tasks for part in (task.train, task.test)]
    sources = {id(part.source): part.source for _, part in parts}  # tasks share them
    contents = {name: [_content(source.x), _content(source.y)] for name, source in sources.items()}
    tasks = [[name, part.label_offset, _content(part.rows), *contents[id(part.source)]] for name, part in parts]
    return hashlib.sha256(json.dumps(tasks).encode()).hexdigest()


def _content(tensor: Tensor) -> str:
    content = hashlib.sha256(tensor.cpu().contiguous().numpy().data).hexdigest()
    return f"{tensor.dtype} {tuple(tensor.shape)} {content}"
