"""For the site: doctests that follow a docstring's text, without a heading, are shown as code."""

from __future__ import annotations

import re
from typing import Any

import griffe

SESSION = re.compile(r"^>>> .*(?:\n(?!\n).*)*", re.MULTILINE)
"""From a prompt to the next empty line."""


class FencedDoctests(griffe.Extension):
    """Put a fence around every session of a docstring that has no section of examples."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Change the docstring of whatever was read."""
        if obj.docstring is not None and "Examples\n---" not in obj.docstring.value:
            obj.docstring.value = SESSION.sub(lambda session: f"```pycon\n{session[0]}\n```", obj.docstring.value)
