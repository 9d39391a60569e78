"""What the commands share: errors of the user, optional packages, tables of text; no I/O."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

Table = Sequence[Sequence[str]]


class UserError(Exception):
    """What was asked for cannot be done; the text is one line that says why."""


def need(module: str, extra: str, purpose: str) -> None:
    """Raise if an optional package is missing.

    Args:
        module: What would be imported.
        extra: The extra of this project that brings it.
        purpose: What it is needed for, to begin the sentence with.

    Raises:
        UserError: It is missing; the text says how to install it.
    """
    if importlib.util.find_spec(module) is None:
        raise UserError(f'{purpose} needs {module}: pip install "swm_async[{extra}]"')


def one_line(error: BaseException) -> str:
    """The kind of an exception and the first line of its text."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def text_table(rows: Table) -> str:
    """Align columns for a terminal; the first row is the heading, the first column is text."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        first, *others = zip(row, widths, strict=True)
        cells = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def markdown_table(rows: Table) -> str:
    """The same as a table in Markdown."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + "|".join([" --- "] + [" ---: "] * (len(rows[0]) - 1)) + "|")
    return "\n".join(lines)
