"""Attributes and methods of one environment, reached through its wrappers; no I/O.

An operation names a way from the environment (a path of attribute names, empty = the
environment itself) and what to do there. At the environment itself names are looked up
through all wrappers, as ``gymnasium.Env.get_wrapper_attr`` does.
"""

from __future__ import annotations

import copy
import enum
import functools
import inspect
from typing import Any, NamedTuple

import gymnasium

from swm_workers import snapshot


class Verb(enum.Enum):
    """What an operation does."""

    GET = "get"
    SET = "set"
    CALL = "call"
    APPLY = "apply"


class Operation(NamedTuple):
    """One thing to do with an environment, or with a part of it."""

    verb: Verb
    path: tuple[str, ...]
    name: str
    arguments: bytes | None = None
    """Pickled: ``(args, kwargs)`` of a call, the value to set, or the function to apply."""


class Found(enum.Enum):
    """In what form a result comes back."""

    VALUE = "value"
    METHOD = "method"
    PART = "part"
    """An object that cannot be copied: it stays where it is and is reached by its path."""


class Result(NamedTuple):
    """What an operation gave."""

    found: Found
    value: Any
    """The value, or for parts the name of its type."""


def perform(env: Any, operation: Operation) -> bytes:
    """Carry out an operation; returns a pickled ``Result``.

    Raises:
        AttributeError: there is no such attribute.
        TypeError: a call's result cannot be pickled.
        BaseException: whatever the environment's own code raises.
    """
    target = env
    for name in operation.path:
        target = _get(target, name)
    if operation.verb is Verb.GET:
        return _describe(_get(target, operation.name))
    # Unpickled here, for each environment: no two environments share an argument.
    arguments: Any = snapshot.loads(operation.arguments) if operation.arguments else None
    if operation.verb is Verb.SET:
        _set(target, operation.name, arguments)
        return snapshot.dumps(Result(Found.VALUE, None))
    if operation.verb is Verb.APPLY:
        return _pickled_result(arguments(target), operation.name)
    args, kwargs = arguments
    value = _get(target, operation.name)
    if not callable(value) and not args and not kwargs:
        return _pickled_result(value, operation.name)
    return _pickled_result(value(*args, **kwargs), operation.name)


def _get(target: Any, name: str) -> Any:
    if isinstance(target, gymnasium.Env):
        return target.get_wrapper_attr(name)
    return getattr(target, name)


def _set(target: Any, name: str, value: Any) -> None:
    if isinstance(target, gymnasium.Env):
        target.set_wrapper_attr(name, value)
    else:
        setattr(target, name, value)


def _describe(value: Any) -> bytes:
    if inspect.isroutine(value) or isinstance(value, functools.partial):
        return snapshot.dumps(Result(Found.METHOD, None))
    part = Result(Found.PART, type(value).__qualname__)
    if isinstance(value, gymnasium.Env):
        return snapshot.dumps(part)
    try:
        return snapshot.dumps(Result(Found.VALUE, value))
    except Exception:  # whatever its pickling raises, it stays where it is
        return snapshot.dumps(part)


def _pickled_result(value: Any, name: str) -> bytes:
    try:
        return snapshot.dumps(Result(Found.VALUE, value))
    except Exception as error:
        raise TypeError(
            f"{name}() returned a {type(value).__qualname__}, which cannot be pickled: {error}"
        ) from error


def variation_space(env: Any) -> Any:
    """The environment's ``variation_space`` as it is now, None where there is none.

    Functions that constrain its values stay behind: they may hold anything.
    """
    try:
        space = _get(env, "variation_space")
    except AttributeError:
        return None
    return _without_functions(copy.copy(space))


def set_outermost(env: Any, name: str, value: Any) -> None:
    """Set an attribute of the outermost wrapper, also where one underneath has it already."""
    setattr(env, name, value)


def has_wrapper(env: Any, class_name: tuple[str, str], pickled: bytes) -> bool:
    """Whether a wrapper of the environment is an instance of a class.

    Args:
        env: the environment.
        class_name: the class's module and name; the qualified one gets lost where a class
            travels by value.
        pickled: the class itself, unpickled only where one of that name is met, since that may
            import heavy modules.
    """
    while isinstance(env, gymnasium.Wrapper):
        names = [(each.__module__, each.__name__) for each in type(env).__mro__]
        if class_name in names and isinstance(env, snapshot.loads(pickled)):
            return True
        env = env.env
    return False


def _without_functions(space: Any) -> Any:
    parts = getattr(space, "spaces", None)
    if isinstance(parts, dict):
        space.spaces = {name: _without_functions(copy.copy(part)) for name, part in parts.items()}
    elif isinstance(parts, (tuple, list)):
        space.spaces = type(parts)(_without_functions(copy.copy(part)) for part in parts)
    for name, value in list(vars(space).items()):
        if inspect.isroutine(value) or isinstance(value, functools.partial):
            setattr(space, name, None)
    return space
