"""What the command lines of the benchmarks have in common."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection
from pathlib import Path

#: A machine on which others keep more than this busy is no place to measure.
QUIET_CORES = 0.2


#: The folder of results, unless another one is named.
_RESULTS = Path(__file__).parents[1] / "results"


def add_suite_options(parser: argparse.ArgumentParser, scales: Collection[str]) -> None:
    """Add the options of all suites that time layouts: whether they time, how large data are, and where results go."""
    parser.add_argument("--checksum-only", action="store_true", help="time nothing")
    parser.add_argument("--scale", choices=tuple(scales), default="small")
    parser.add_argument("--out", type=Path, default=_RESULTS)


def names(known: Collection[str]) -> Callable[[str], list[str]]:
    """Return a parser of names with commas between them, each one of `known`."""

    def parse(text: str) -> list[str]:
        wanted = text.split(",")
        for name in wanted:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r}, must be one of {', '.join(known)}")
        return wanted

    return parse


def positive(text: str) -> int:
    """Parse an integer that is at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value}, must be at least 1")
    return value


def whole(text: str) -> int:
    """Parse an integer that is at least 0."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value}, must be at least 0")
    return value


def not_negative(text: str) -> float:
    """Parse a finite number that is at least 0."""
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{value}, must be a finite number that is at least 0")
    return value


def rate(text: str) -> float:
    """Parse a finite number above 0."""
    value = not_negative(text)
    if value == 0:
        raise argparse.ArgumentTypeError("0, must be above 0")
    return value


def share(text: str) -> float:
    """Parse a number that is at least 0 and below 1."""
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{value}, must be at least 0 and below 1")
    return value
