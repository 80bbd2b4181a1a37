"""All rows of processes, and in what processes their short form runs."""

from __future__ import annotations

from tests.faults.harness.row import Row, Try, UnspecifiedError
from tests.faults.process import consumer, exits, hosts, kills, parties, signals
from tests.support import warm

ROWS: tuple[Row, ...] = (
    *signals.ROWS,
    *kills.ROWS,
    *exits.ROWS,
    *consumer.ROWS,
    *parties.ROWS,
    *hosts.ROWS,
)


def _together(rows: tuple[Row, ...]) -> tuple[tuple[Row, int], ...]:
    return tuple((row, number) for row in rows for number in range(row.short_runs))


_HERE = _together((*signals.ROWS, *consumer.ROWS, *parties.ROWS, *hosts.ROWS))
_ELSEWHERE = _together((*kills.ROWS, *exits.ROWS))


def _attempt(tries: tuple[tuple[Row, int], ...], attempt: Try) -> str:
    row, number = tries[attempt.number % len(tries)]
    try:
        outcome = row.attempt(Try(number, attempt.random, attempt.directory, attempt.shared))
    except UnspecifiedError as error:
        raise UnspecifiedError(f"try {number} of {row.name}: {error}") from error
    return f"{row.name}: {outcome}"


def here(attempt: Try) -> str:
    """Make a try of a row that reads in the row's own process."""
    return _attempt(_HERE, attempt)


def elsewhere(attempt: Try) -> str:
    """Make a try of a row that reads in processes which it starts."""
    return _attempt(_ELSEWHERE, attempt)


def _longest(rows: tuple[Row, ...]) -> float:
    return max(row.timeout_s for row in rows)


#: Importing torch takes longer than most tries.
SHORT = (
    Row(
        "consumer",
        "what interrupts and holds up a consumer",
        "as each row says",
        here,
        len(_HERE),
        len(_HERE),
        _longest((*signals.ROWS, *consumer.ROWS, *parties.ROWS, *hosts.ROWS)),
        modules=warm.LIGHTNING,
    ),
    Row(
        "processes",
        "processes that end and fork",
        "as each row says",
        elsewhere,
        len(_ELSEWHERE),
        len(_ELSEWHERE),
        _longest((*kills.ROWS, *exits.ROWS)),
    ),
)
