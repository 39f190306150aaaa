"""Manifests of checkpoints with a valid checksum."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def sealed(body: dict[str, Any]) -> str:
    content = json.dumps(body, sort_keys=True).encode()
    return json.dumps({"sha256": hashlib.sha256(content).hexdigest(), "body": body})
