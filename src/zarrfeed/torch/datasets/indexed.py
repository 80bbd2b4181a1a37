"""`IndexedDataset`: the base of all datasets whose samples are asked for by index, many at once.

Invariants: one request is read at a time in a process; threads wait for each other. Each process has a reader of its
own, so nothing of an engine crosses a fork or a pickle.
"""

from __future__ import annotations

import copy
import operator
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, Protocol, SupportsIndex, TypeVar

import numpy as np
import numpy.typing as npt
import torch.utils.data

from zarrfeed.base.errors import ClosedError, ConfigError
from zarrfeed.base.per_process import PerProcess
from zarrfeed.base.system import usable_cores
from zarrfeed.base.validate import check_num_threads
from zarrfeed.engine.stats import Stats
from zarrfeed.plan.samples.selection import Int64
from zarrfeed.plan.schedule.batch_request import positions_of
from zarrfeed.spec.description.error_policy import Faults

V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)


class RequestReader(Protocol[V_co]):
    """Reads the requests of one process; who calls it holds its lock."""

    @property
    def lock(self) -> threading.Lock:
        """Held while a request is read."""

    def read(self, wanted: Int64, asked: Any) -> V_co:
        """Return the samples at some positions; `asked` are the indices as the user gave them."""

    def stats(self) -> Stats:
        """Return the counters."""

    def close(self) -> None:
        """Stop threads and free memory."""


class IndexedDataset(torch.utils.data.Dataset[Any], ABC, Generic[V]):
    """A dataset whose samples are asked for by index, many at once; constructors of subclasses call `_read_with`."""

    _own: PerProcess[RequestReader[V]]
    _closed = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_own": copy.copy(self._own)}  # a copy has a reader of its own, too

    def _read_with(self, make: Callable[[], RequestReader[V]]) -> None:
        """Read with the reader that a function makes in each process."""
        self._own = PerProcess(make)

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples."""

    @abstractmethod
    def _one(self, found: V) -> Any:
        """Return the only sample that was read, which owns its memory."""

    @abstractmethod
    def _many(self, found: V) -> Any:
        """Return the samples that were read, as one batch."""

    def __getitem__(self, index: SupportsIndex | npt.ArrayLike) -> Any:
        """Return one sample, which owns its memory, or a batch for a sequence of indices.

        Raises
        ------
        IndexError
            If an index is out of range; negative ones count from the end.
        """
        try:
            one = operator.index(index)  # type: ignore[arg-type]
        except TypeError:
            return self._many(self._read(index))
        return self._one(self._read(np.array([one])))

    def stats(self) -> Stats:
        """Return counters since this dataset was made (in this process); an object counts as a chunk."""
        return self._own.here.stats()

    def close(self) -> None:
        """Stop all threads, and free memory. May be called twice; reading is over after it."""
        reader = self._own.here
        with reader.lock:
            self._closed = True
            reader.close()

    def _read(self, indices: Any) -> V:
        """Return the samples at some indices."""
        wanted = positions_of(np.asarray(indices), len(self))
        reader = self._own.here
        with reader.lock:
            if self._closed:
                raise ClosedError("this dataset was closed")
            return reader.read(wanted, indices)


def check_requests(faults: Faults, num_threads: int | None, *, what: str) -> None:
    """Raise ConfigError unless requests can be read with these options; `what` is asked for by index."""
    if faults.skips:
        raise ConfigError(f"on_error = 'skip', must be 'raise': {what} that was asked for cannot be replaced")
    check_num_threads(num_threads)


def share_of_worker(num_threads: int | None) -> tuple[int, int]:
    """Return the threads of this process, and how many DataLoader workers share the machine; 1 outside of them."""
    info = torch.utils.data.get_worker_info()
    workers = 1 if info is None else info.num_workers
    return num_threads or max(1, usable_cores() // workers), workers
