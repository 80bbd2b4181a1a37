"""All rows, in the order of the table."""

from __future__ import annotations

from tests.faults.harness.row import Row
from tests.faults.io import rows as io_rows
from tests.faults.payload import general, native
from tests.faults.process import rows as process_rows

#: Modules of rows are added here, each with its `ROWS`.
ROWS: tuple[Row, ...] = (*io_rows.ROWS, *process_rows.ROWS, *native.ROWS, *general.ROWS)

#: What the tests run in their place: a row of rows where these can share a process.
SHORT: tuple[Row, ...] = (io_rows.TOGETHER, *process_rows.SHORT, *native.SHORT, *general.ROWS)


def row_named(name: str) -> Row:
    """Return the row of that name; KeyError if there is none."""
    return {row.name: row for row in ROWS}[name]
