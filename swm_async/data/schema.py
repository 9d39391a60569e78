"""The columns of a whole file: their forms, and the rows that nobody reported; no I/O.

Letters: `T` = rows of an episode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from swm_async.data.columns import Array, Column, Form, converted, filled_rows, widened


class Schema:
    """What a file holds once an episode has been added, and how its rows are to be brought there.

    Attributes:
        forms: The form of each column.
        rows: Rows of all episodes together.
    """

    def __init__(self, forms: Mapping[str, Form] | None = None, rows: int = 0) -> None:
        """Begin with what a file holds already; all of its rows count as reported."""
        self.forms: dict[str, Form] = dict(forms or {})
        self.rows = rows
        self._filled: dict[str, list[tuple[int, int]]] = {}

    def changes(
        self, columns: Mapping[str, Column], stored: Callable[[str], Iterable[Array]]
    ) -> dict[str, Form]:
        """Return the columns that are new or need a wider form, with that form.

        Args:
            columns: Those of an episode.
            stored: Gives the values of a stored column, in pieces.
        """
        changed = {}
        for name, column in columns.items():
            form = self.forms.get(name)
            wanted = column.form if form is None else widened(form, column, stored(name))
            if wanted != form:
                changed[name] = wanted
        return changed

    def adopt(self, changed: Mapping[str, Form]) -> None:
        """Take note that the stored columns have these forms now; new ones have filled rows."""
        for name, form in changed.items():
            if name not in self.forms and self.rows:
                self._filled[name] = [(0, self.rows)]
            self.forms[name] = form

    def filled(self, name: str, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the ranges of a column that nobody reported, counted from row `start`."""
        if name not in self.forms:
            return [(0, stop - start)] if stop > start else []
        ranges = self._filled.get(name, ())
        return [
            (max(a, start) - start, min(b, stop) - start)
            for a, b in ranges
            if a < stop and b > start
        ]

    def values(self, columns: Mapping[str, Column], name: str, length: int) -> Array:
        """Return what an episode's rows hold of a stored column, `(T, ...)` in the file's form."""
        form = self.forms[name]
        column = columns.get(name)
        if column is None:
            return filled_rows(form, length)
        before = [(0, column.first)] if column.first else []
        try:
            return converted(column.values, column.form, form, before)
        except TypeError as error:
            raise TypeError(f"column {name!r} cannot be recorded: {error}") from error

    def note(self, columns: Mapping[str, Column], length: int) -> None:
        """Take note of an episode that has been stored behind the others."""
        for name in self.forms:
            column = columns.get(name)
            count = length if column is None else column.first
            if not count:
                continue
            ranges = self._filled.setdefault(name, [])
            if ranges and ranges[-1][1] == self.rows:
                ranges[-1] = (ranges[-1][0], self.rows + count)
            else:
                ranges.append((self.rows, self.rows + count))
        self.rows += length


def reformed(
    values: Array, name: str, form: Form, wanted: Form, filled: list[tuple[int, int]]
) -> Array:
    """Bring stored values into a wider form; see `converted`."""
    try:
        return converted(values, form, wanted, filled)
    except TypeError as error:
        raise TypeError(f"column {name!r} cannot be recorded: {error}") from error
