"""Rows of faults of input and output, and all of them as one, for the tests: each process takes seconds to start."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.faults.harness.row import Row, Try, UnspecifiedError
from tests.faults.io import changed, checkpoint, full, local, others, skip, store, verify, web
from tests.faults.io.shim import preloaded

ROWS = (
    *(*local.ROWS, *changed.ROWS, *skip.ROWS, *store.ROWS, *full.ROWS),
    *(*verify.ROWS, *web.ROWS, *checkpoint.ROWS, *others.ROWS),
)

_SHORT = tuple((row, number) for row in ROWS for number in range(row.short_runs))


def each(attempt: Try) -> str:
    """Make one of the tries that each row makes in the tests."""
    row, number = _SHORT[attempt.number]
    try:
        return row.attempt(replace(attempt, number=number, random=random.Random(f"{row.name}/{number}")))
    except UnspecifiedError as error:
        raise UnspecifiedError(f"try {number} of {row.name}: {error}") from error


TOGETHER = Row(
    "io",
    "faults of input and output, a few of each",
    "as each row says",
    each,
    len(_SHORT),
    len(_SHORT),
    timeout_s=max(row.timeout_s for row in ROWS),
    variables=lambda: {**preloaded(), **web.ENVIRONMENT},
)
