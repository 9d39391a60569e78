"""Turning exceptions into records that always survive the way to the pool; no I/O."""

from __future__ import annotations

import traceback

from swm_workers import snapshot
from swm_workers.protocol import Failure


def capture(env_index: int, command: str, error: BaseException) -> Failure:
    """Record an exception that an environment raised.

    The exception itself is kept only if it can be pickled and rebuilt: classes whose
    constructors take other arguments than they store cannot, and are kept by name and text.
    """
    type_name = f"{type(error).__module__!s}.{type(error).__qualname__}".removeprefix("builtins.")
    return Failure(
        env_index, command, type_name, _text(error), _traceback(error, type_name), _pickled(error)
    )


def _text(error: BaseException) -> str:
    try:
        return _plain(str(error))
    except BaseException as second:  # a user's __str__ may do anything
        return f"<text of the exception not available: {type(second).__name__}>"


def _traceback(error: BaseException, type_name: str) -> str:
    try:
        lines = traceback.format_exception(type(error), error, error.__traceback__)
    except BaseException:  # a SyntaxError with odd attributes is enough
        lines = [*traceback.format_tb(error.__traceback__), f"{type_name}: {_text(error)}"]
    return _plain("".join(lines))


def _plain(text: str) -> str:
    """Exactly a string: one of a class of the user's might not leave this process."""
    return str.__str__(text)


def _pickled(error: BaseException) -> bytes | None:
    try:
        data = snapshot.dumps(error)
        rebuilt = snapshot.loads(data)
    except BaseException:  # a user's reduction may raise anything, SystemExit included
        return None
    return data if isinstance(rebuilt, BaseException) else None
