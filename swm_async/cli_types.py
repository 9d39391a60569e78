"""How the commands read single arguments: numbers within bounds, NAME=VALUE; no I/O."""

from __future__ import annotations

import argparse
import ast
from typing import Any


def count(text: str) -> int:
    """Read an integer of 0 or more."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"must be 0 or more, found {number}")
    return number


def positive(text: str) -> int:
    """Read an integer of 1 or more."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, found {number}")
    return number


def seconds(text: str) -> float:
    """Read seconds, finite and above 0."""
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be above 0, found {text}")
    return number


def keyword(text: str) -> tuple[str, Any]:
    """Read NAME=VALUE; a value that is no Python literal is taken as text."""
    name, separator, value = text.partition("=")
    if not (separator and name.isidentifier()):
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, found {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value
