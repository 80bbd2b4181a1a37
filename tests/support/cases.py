"""Name the case of a loop that fails: a test of its own for each case would cost more than the case."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def case(*values: object) -> Iterator[None]:
    """Add `values` to whatever error the body raises; pytest prints them below it."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the case {', '.join(map(repr, values))}")
        raise
