"""Values of one process: threads, locks, engines and files do not live on in a forked child, or in a pickle."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Generic, TypeVar

from zarrfeed.base.process_lock import ProcessLock

T = TypeVar("T")

#: Held while a value is made, so that two threads of a process never make two.
_making = ProcessLock()


class PerProcess(Generic[T]):
    """A value that each process makes for itself, when it first asks for it.

    A forked child forgets the value that it inherited and makes another one. A pickle or a copy carries the function
    alone. Any thread may ask.

    Parameters
    ----------
    make
        Returns a new value.

    Examples
    --------
    >>> import pickle
    >>> found = PerProcess(dict)
    >>> found.here["one"] = 1
    >>> found.here, pickle.loads(pickle.dumps(found)).here
    ({'one': 1}, {})
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: tuple[int, T] | None = None

    @property
    def here(self) -> T:
        """The value of this process."""
        made, pid = self._made, os.getpid()
        if made is None or made[0] != pid:
            with _making.held:
                made = self._made
                if made is None or made[0] != pid:
                    made = self._made = pid, self._make()
        return made[1]

    def __reduce__(self) -> tuple[type[PerProcess[T]], tuple[Callable[[], T]]]:
        return PerProcess, (self._make,)


class OwnerProcess:
    """The process that made an object, which checks with it that its threads, files and temporary data are its own.

    Pickles and copies belong to the process that makes them.
    """

    __slots__ = ("_pid",)

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def is_here(self) -> bool:
        """True if this process made the object; False in a child that was forked since."""
        return self._pid == os.getpid()

    def __reduce__(self) -> tuple[type[OwnerProcess], tuple[()]]:
        return OwnerProcess, ()
