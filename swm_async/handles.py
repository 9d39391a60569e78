"""``pool.envs[i]``: an environment elsewhere that behaves like one that is here.

A handle names an environment, or a part of it by a path of attributes, and turns every
access into an operation that the pool carries out. It holds the pool; the pool holds no
handles, so that dropping the last reference to the pool still closes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, overload

from swm_workers import snapshot
from swm_workers.attributes import Found, Operation, Result, Verb


class Operator(Protocol):
    """What handles need of a pool."""

    num_envs: int

    def operate(self, env_index: int, operation: Operation) -> Result:
        """Carry out one operation; raises what the environment raised."""

    def handle_space(self, env_index: int, name: str) -> Any:
        """The action or observation space that belongs to this environment's handle."""


class RemotePart:
    """An object inside environment ``env_index``, reached by a path of attribute names.

    Attributes are copies where they can be pickled, else further parts; methods are called
    where the object is.
    """

    __slots__ = ("_swm_index", "_swm_path", "_swm_pool", "_swm_type")

    def __init__(self, pool: Operator, index: int, path: tuple[str, ...], kind: str) -> None:
        object.__setattr__(self, "_swm_pool", pool)
        object.__setattr__(self, "_swm_index", index)
        object.__setattr__(self, "_swm_path", path)
        object.__setattr__(self, "_swm_type", kind)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            # Protocols such as copying and pickling ask for these of the handle itself.
            raise AttributeError(name)
        operation = Operation(Verb.GET, self._swm_path, name)
        result = self._swm_pool.operate(self._swm_index, operation)
        if result.found is Found.METHOD:
            return RemoteMethod(self._swm_pool, self._swm_index, self._swm_path, name)
        if result.found is Found.PART:
            path = (*self._swm_path, name)
            return RemotePart(self._swm_pool, self._swm_index, path, result.value)
        return result.value

    def __setattr__(self, name: str, value: Any) -> None:
        operation = Operation(Verb.SET, self._swm_path, name, snapshot.dumps_by_value(value))
        self._swm_pool.operate(self._swm_index, operation)

    def __repr__(self) -> str:
        path = "".join(f".{name}" for name in self._swm_path)
        return f"<{self._swm_type} at envs[{self._swm_index}]{path}>"

    def __reduce__(self) -> Any:
        raise TypeError(f"{self!r} stays with its pool and cannot be pickled or copied")


class RemoteEnv(RemotePart):
    """Environment ``i`` of a pool.

    ``reset`` and ``step`` move this environment alone and return what it returned; the
    pool's own arrays do not change.
    """

    __slots__ = ()

    def __init__(self, pool: Operator, index: int) -> None:
        super().__init__(pool, index, (), "environment")

    @property
    def action_space(self) -> Any:
        """The environment's action space; the same object at each access."""
        return self._swm_pool.handle_space(self._swm_index, "action_space")

    @property
    def observation_space(self) -> Any:
        """The environment's observation space; the same object at each access."""
        return self._swm_pool.handle_space(self._swm_index, "observation_space")

    @property
    def unwrapped(self) -> RemotePart:
        """The innermost environment."""
        return RemotePart(self._swm_pool, self._swm_index, ("unwrapped",), "environment")


class RemoteMethod:
    """A method of an environment or of one of its parts."""

    def __init__(self, pool: Operator, index: int, path: tuple[str, ...], name: str) -> None:
        self._pool = pool
        self._index = index
        self._path = path
        self.__name__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it where it is; arguments and result travel as copies."""
        arguments = snapshot.dumps_by_value((args, kwargs))
        operation = Operation(Verb.CALL, self._path, self.__name__, arguments)
        return self._pool.operate(self._index, operation).value

    def __repr__(self) -> str:
        path = "".join(f".{name}" for name in (*self._path, self.__name__))
        return f"<method envs[{self._index}]{path}>"


class RemoteEnvs(Sequence[RemoteEnv]):
    """All environments of a pool, by index."""

    def __init__(self, pool: Operator) -> None:
        self._pool = pool

    def __len__(self) -> int:
        return self._pool.num_envs

    @overload
    def __getitem__(self, index: int) -> RemoteEnv: ...

    @overload
    def __getitem__(self, index: slice) -> list[RemoteEnv]: ...

    def __getitem__(self, index: int | slice) -> RemoteEnv | list[RemoteEnv]:
        indices = range(len(self))[index]
        if isinstance(indices, range):
            return [RemoteEnv(self._pool, i) for i in indices]
        return RemoteEnv(self._pool, indices)

    def __iter__(self) -> Iterator[RemoteEnv]:
        return (RemoteEnv(self._pool, i) for i in range(len(self)))
