"""Taking the environment ids that the user's program registered along to the workers; no I/O."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import cloudpickle
import gymnasium
from gymnasium.envs.registration import EnvSpec

from swm_workers import snapshot


class PickledEntryPoint:
    """An entry point that is a function or class; unpickled only when it is used.

    Unpickling imports the user's module, which a worker that never makes this environment
    should not have to do.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._loaded: Any = None

    def _load(self) -> Any:
        if self._loaded is None:
            self._loaded = snapshot.loads(self._data)
        return self._loaded

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Make the environment."""
        return self._load()(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Attributes such as ``metadata`` are those of the entry point itself."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._load(), name)


class Unavailable:
    """The entry point of an id that could not be taken along: making it says why."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __call__(self, **kwargs: Any) -> Any:
        """Raise the reason."""
        raise RuntimeError(self._reason)


def collect() -> bytes:
    """Pickle every registered id."""
    specs: dict[str, bytes] = {}
    for env_id, spec in gymnasium.registry.items():
        try:
            specs[env_id] = _pickle(spec)
        except Exception as error:  # whatever an argument's own pickling raises
            reason = f"the registration of {env_id!r} cannot be pickled: {error}"
            specs[env_id] = pickle.dumps(EnvSpec(env_id, entry_point=Unavailable(reason)))
    return pickle.dumps(specs)


def _pickle(spec: EnvSpec) -> bytes:
    if isinstance(spec.entry_point, str) or spec.entry_point is None:
        return bytes(cloudpickle.dumps(spec))
    light = dataclasses.replace(spec, entry_point=None)
    return pickle.dumps((bytes(cloudpickle.dumps(spec.entry_point)), cloudpickle.dumps(light)))


def restore(data: bytes) -> None:
    """Register in this process what ``collect`` found in another."""
    for env_id, pickled in pickle.loads(data).items():
        try:
            spec = snapshot.loads(pickled)
            if isinstance(spec, tuple):
                entry_point, light = spec
                spec = snapshot.loads(light)
                spec.entry_point = PickledEntryPoint(entry_point)
        except Exception as error:  # loading imports user code, which may raise anything
            reason = f"the registration of {env_id!r} cannot be loaded: {error!r}"
            spec = EnvSpec(env_id, entry_point=Unavailable(reason))
        gymnasium.registry[env_id] = spec
