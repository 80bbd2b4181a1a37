"""All rows, in the order of the table."""

from __future__ import annotations

from faults import process_consumer, process_exits, process_kills, process_signals
from faults.row import Row

#: Modules of rows are added here, each with its `ROWS`.
ROWS: tuple[Row, ...] = (*process_signals.ROWS, *process_kills.ROWS, *process_exits.ROWS, *process_consumer.ROWS)


def row_named(name: str) -> Row:
    """Return the row of that name; KeyError if there is none."""
    return {row.name: row for row in ROWS}[name]
