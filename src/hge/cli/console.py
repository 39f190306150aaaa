"""The console of the commands: names of files, data sets and classes are shown as they are."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text


class PlainConsole(Console):
    """A console without markup and emoji codes, which lets no text control the terminal.

    >>> PlainConsole(width=40).print("a[red]b :smile: \\x1b]0;c")
    a[red]b :smile: �]0;c
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return the text without characters that cannot be printed."""
        return super().render_str(printable(text), **options)


def printable(text: str) -> str:
    """Return the text with a mark in place of control characters, and of bytes that are not UTF-8."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "�" for letter in text)
