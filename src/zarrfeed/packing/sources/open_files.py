"""`OpenFiles`: some of many files are open, those that were used last."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class _Entry(Generic[T]):
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.opened: list[T] = []  # none: not opened yet
        self.users = 0


class OpenFiles(Generic[T]):
    """Files by their numbers; any thread may call it, and several threads share an opened file.

    Invariant: a file is closed only while no thread uses it, and at most `most` unused files are open.

    Parameters
    ----------
    opener
        Opens the file with a number.
    closer
        Closes an opened file.
    most
        Files that stay open.
    """

    def __init__(self, opener: Callable[[int], T], closer: Callable[[T], None], most: int = 16) -> None:
        self._open, self._close, self._most = opener, closer, most
        self._lock = threading.Lock()
        self._entries: dict[int, _Entry[T]] = {}  # the one that was used last is last

    @contextmanager
    def use(self, number: int) -> Iterator[T]:
        """Give an open file for a while. An error of `opener` is raised, and the next call opens again."""
        with self._lock:
            entry = self._entries.pop(number, None) or _Entry()
            self._entries[number] = entry
            entry.users += 1
        try:
            with entry.lock:
                if not entry.opened:
                    entry.opened.append(self._open(number))
            yield entry.opened[0]
        finally:
            with self._lock:
                entry.users -= 1
                self._close_idle(self._most)

    def close(self) -> None:
        """Close all files that no thread uses."""
        with self._lock:
            self._close_idle(0)

    def _close_idle(self, most: int) -> None:
        idle = [number for number, entry in self._entries.items() if not entry.users]
        for number in idle[: max(0, len(self._entries) - most)]:
            for opened in self._entries.pop(number).opened:
                self._close(opened)
