"""The anonymous shared block: create, map, let go. Knows nothing of what lies in it.

A block has no name, so nothing can leak, collide or be unlinked by somebody else; its
memory goes with its last mapping, also when all its processes are killed.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

_LARGE: Final = 1 << 26
"""Bytes from which on a look at the limits is worth its time."""


class SharedMemoryError(MemoryError):
    """There is not enough memory for a block."""


class Block:
    """``size`` bytes of zeroed memory, shared through ``fd`` (-1 = this process only).

    Arrays made over ``buffer`` keep the mapping alive; it is never closed by hand.
    """

    __slots__ = ("buffer", "fd", "size")

    def __init__(self, fd: int, size: int, buffer: Any) -> None:
        self.fd = fd
        self.size = size
        self.buffer = buffer

    @classmethod
    def private(cls, size: int) -> Block:
        """Memory for a pool whose environments live in this process."""
        size = max(size, 1)
        try:
            return cls(-1, size, mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        except OSError as error:
            raise _not_enough(size, error) from error

    @classmethod
    def shared(cls, size: int) -> Block:
        """Memory that other processes can map once they have been sent ``fd``."""
        size = max(size, 1)
        fd = anonymous_file()
        try:
            _reserve(fd, size)
            return cls(fd, size, _map(fd, size))
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def received(cls, fd: int, size: int) -> Block:
        """Map a block that came from another process; takes over ``fd`` and closes it."""
        try:
            return cls(-1, size, _map(fd, size))
        finally:
            os.close(fd)

    def close(self) -> None:
        """Give the descriptor back; the memory stays while an array looks at it."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
        self.buffer = None


def anonymous_file() -> int:
    """A descriptor of an empty file that has no name and that no child inherits."""
    if hasattr(os, "memfd_create"):
        return above_standard(os.memfd_create("swm_async", os.MFD_CLOEXEC))
    fd, path = tempfile.mkstemp(prefix="swm_async")
    os.unlink(path)
    return above_standard(fd)


def above_standard(fd: int, least: int = 3) -> int:
    """The same file under a number that is no standard stream's; takes over ``fd``.

    A process whose standard streams are closed is given their numbers for whatever it opens,
    and somebody will write lines of text to them.
    """
    if fd >= least:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, least)
    finally:
        os.close(fd)


def _reserve(fd: int, size: int) -> None:
    """Claim the pages now, so that lack of memory is an error here and no SIGBUS later."""
    if size >= _LARGE:
        _check_limits(size)
    try:
        os.ftruncate(fd, size)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)
    except OSError as error:
        raise _not_enough(size, error) from error


def _check_limits(size: int) -> None:
    """Reserved pages beyond what the machine or the control group has kill, they do not fail."""
    free = min([*_free_of_machine(), *_free_of_group()], default=size)
    if size > free:
        raise SharedMemoryError(
            f"cannot reserve {size:,} bytes of shared memory for the pool's arrays: only "
            f"{free:,} are left. Use fewer environments or smaller infos."
        )


def _free_of_machine() -> list[int]:
    """Bytes that Linux calls available."""
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return [int(line.split()[1]) * 1024]
    return []


def _free_of_group() -> list[int]:
    """Bytes left to this process's control group and to those around it (version 2)."""
    free = []
    for line in _lines("/proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        group = Path("/sys/fs/cgroup") / path.lstrip("/") if controllers == "" else None
        while group is not None and group.is_relative_to("/sys/fs/cgroup"):
            limit, used = _lines(group / "memory.max"), _lines(group / "memory.current")
            if limit and used and limit[0] != "max":
                cache = [int(text.split()[1]) for text in _lines(group / "memory.stat")
                         if text.startswith("inactive_file ")]  # fmt: skip
                free.append(int(limit[0]) - int(used[0]) + sum(cache))
            group = group.parent
    return free


def _lines(path: str | Path) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _map(fd: int, size: int) -> mmap.mmap:
    # The mapping of Python 3.13 can do without a descriptor of its own.
    extra: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}
    try:
        return mmap.mmap(fd, size, **extra)
    except OSError as error:
        raise _not_enough(size, error) from error


def _not_enough(size: int, error: OSError) -> Exception:
    if error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
        return SharedMemoryError(
            f"cannot reserve {size:,} bytes of shared memory for the pool's arrays: "
            f"{os.strerror(error.errno)}. Use fewer environments or smaller infos."
        )
    return error
