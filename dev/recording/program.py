"""A program under way: lines of Python that a draw writes, and the random choices that it makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

_T = TypeVar("_T")


@dataclass
class Program:
    """Lines of Python, drawn with one generator.

    Attributes
    ----------
    r
        The generator.
    lines
        The lines so far.
    """

    r: Random
    lines: list[str] = field(default_factory=list)
    _names: int = 0

    def add(self, line: str) -> None:
        """Add a line."""
        self.lines.append(line)

    def let(self, value: str, prefix: str = "a") -> str:
        """Add a line that gives a value a new name; return the name."""
        name = f"{prefix}{self._names}"
        self._names += 1
        self.add(f"{name} = {value}")
        return name

    def name(self, prefix: str = "s") -> str:
        """Return a new name of a store."""
        self._names += 1
        return f"{prefix}{self._names - 1}"

    def chance(self, share: float) -> bool:
        """Return True in a share of cases."""
        return self.r.random() < share

    def pick(self, *choices: _T) -> _T:
        """Return one of some values."""
        return self.r.choice(choices)

    def number(self, low: int, high: int) -> int:
        """Return an integer, both bounds included."""
        return self.r.randint(low, max(low, high))

    def some(self, choices: Sequence[_T], count: int) -> list[_T]:
        """Return distinct ones of some values, in random order."""
        return self.r.sample(choices, min(count, len(choices)))


@dataclass(frozen=True)
class Described:
    """A description that a program made.

    Attributes
    ----------
    n
        About how many samples it has.
    numeric
        Names of arrays that can be converted; "" for a single array.
    windowed
        Whether samples are windows.
    stream_only
        Whether only an iterable dataset reads it.
    grows
        A line that makes its store larger; "" for none.
    shards
        Whether its arrays have shards.
    patches
        How patches are sampled; "" for none.
    """

    n: int
    numeric: tuple[str, ...] = ("",)
    windowed: bool = False
    stream_only: bool = False
    grows: str = ""
    shards: bool = False
    patches: str = ""


def call(function: str, *positional: Any, **options: Any) -> str:
    """Return a call as text; options that are None are left out, and positional arguments are text already."""
    named = [f"{name}={value!r}" for name, value in options.items() if value is not None]
    return f"{function}({', '.join([*map(str, positional), *named])})"
