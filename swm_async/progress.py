"""Progress bars on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm


@contextmanager
def progress_bar(total: int, description: str, *, shown: bool) -> Iterator[Callable[[int], object]]:
    """Yield a function that moves a bar of `total` episodes on by so many."""
    if not shown:
        yield _ignore
        return
    with tqdm(total=total, desc=description, unit="episode") as bar:
        yield bar.update


def _ignore(count: int) -> None:
    """Show nothing."""
