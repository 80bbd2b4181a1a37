"""All rows, in the order of the table."""

from __future__ import annotations

from faults import io_changed, io_full, io_local
from faults.row import Row

#: Modules of rows are added here, each with its `ROWS`.
ROWS: tuple[Row, ...] = (*io_local.ROWS, *io_changed.ROWS, *io_full.ROWS)


def row_named(name: str) -> Row:
    """Return the row of that name; KeyError if there is none."""
    return {row.name: row for row in ROWS}[name]
