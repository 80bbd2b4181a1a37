"""`Remembered`: a few things that are made again if they are forgotten, and that no pickle carries."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")

#: Number of values: for the pass under way, and for the next one or a state.
_FEW = 2


class Remembered(Generic[T]):
    """The last few things that were made, by their keys. Any thread may ask; two that ask at once may make two.

    Examples
    --------
    >>> squares = Remembered()
    >>> [squares.get(one, lambda: print("made", one) or one * one) for one in (2, 2, 3, 4, 2)]
    made 2
    made 3
    made 4
    made 2
    [4, 4, 9, 16, 4]
    """

    def __init__(self) -> None:
        self._found: dict[Hashable, T] = {}

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the value that is remembered under a key, or make it and forget the oldest."""
        made = self._found.get(key)
        if made is None:
            made = make()
            for oldest in list(self._found)[: len(self._found) + 1 - _FEW]:
                self._found.pop(oldest, None)
            self._found[key] = made
        return made

    def __reduce__(self) -> tuple[type[Remembered[T]], tuple[()]]:
        return Remembered, ()
