"""What a row of the table is: one kind of fault, and how one try of it is made and judged."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


class UnspecifiedError(AssertionError):
    """A try that did not end as specified."""


@dataclass(frozen=True)
class Try:
    """One try of a fault.

    Attributes
    ----------
    number
        From 0; what is random in a try follows from it alone, so that a try can be repeated.
    random
        A generator that was seeded with the row's name and the number.
    directory
        An empty directory of this try, removed after it.
    shared
        A directory of the row's process, kept between its tries: for stores that are made once.
    """

    number: int
    random: random.Random
    directory: Path
    shared: Path


def _no_variables() -> Mapping[str, str]:
    return {}


@dataclass(frozen=True)
class Row:
    """One kind of fault.

    Attributes
    ----------
    name
        Short, in the table and on the command line.
    fault
        What is done.
    expected
        What is specified to come of it.
    attempt
        A function of a module; makes one try, in a process that makes many. Returns the outcome in a word or two, which
        are counted ("error", "right"), or raises: `UnspecifiedError`, or anything else, says that the try did not end
        as specified.
    runs, short_runs
        How often in the table, and in the tests.
    timeout_s
        After so long without a result a try is a hang, and its process is killed.
    variables
        Returns what the process has in its environment, such as LD_PRELOAD. Called in the process that starts it.
    modules
        Modules that the process finds imported, besides those of all warm processes.
    """

    name: str
    fault: str
    expected: str
    attempt: Callable[[Try], str]
    runs: int
    short_runs: int = 2
    timeout_s: float = 60.0
    variables: Callable[[], Mapping[str, str]] = field(default=_no_variables)
    modules: tuple[str, ...] = ()
