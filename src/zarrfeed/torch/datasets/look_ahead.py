"""Batches of indices that announce the batches after them, so that a `ZarrDataset` decodes a chunk once for many.

A DataLoader asks for one batch after another, and a dataset does not see the sampler behind it. `LookAhead` stands
between both: it takes a window of batches from the sampler, and each batch that it hands on carries the window's
indices. The dataset then reads those batches of the window that its worker will be asked for, as one plan.

Invariants: the batches, their order and the sampler's random numbers are the same as without `LookAhead`. A batch that
the dataset did not expect, such as after an epoch that ended early, is read as if nothing was known.
"""

from __future__ import annotations

import contextlib
import operator
import secrets
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
import torch.utils.data

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.validate import check_counts
from zarrfeed.engine.reader import Reader
from zarrfeed.plan.samples.selection import Int64
from zarrfeed.torch.batches.batch import Values

_BATCHES = 64
_INT64_MAX = 2**63 - 1


@dataclass(frozen=True, eq=False)
class Window:
    """Batches of an epoch that follow each other.

    Attributes
    ----------
    key
        A number that no other window has.
    first
        The number in the epoch of its first batch.
    indices
        The sample indices of all batches, one batch after the other.
    ends
        The end of each batch in `indices`.
    """

    key: int
    first: int
    indices: Int64
    ends: Int64

    @classmethod
    def of(cls, first: int, batches: Sequence[Iterable[Any]]) -> Window:
        """Return the window of some batches. Raises as `integers_of` does."""
        taken = [integers_of(batch) for batch in batches]
        return cls(secrets.randbits(63), first, np.concatenate(taken), np.cumsum([len(batch) for batch in taken]))

    def batch(self, number: int) -> Int64:
        """Return the indices of the batch with this number in the epoch."""
        at = number - self.first
        return self.indices[self.ends[at - 1] if at else 0 : self.ends[at]]

    def numbers(self, begin: int, step: int) -> range:
        """Return the numbers of every `step`-th batch from one on."""
        return range(begin, self.first + len(self.ends), step)


def integers_of(batch: Iterable[Any]) -> Int64:
    """Return the indices of one batch, whatever integers its sampler yields; none for an empty batch.

    Raises
    ------
    ConfigError
        If there is anything but integers in it.
    """
    given = batch if hasattr(batch, "__len__") else [*batch]
    found = np.asarray(given)
    if found.ndim == 1 and found.dtype.kind in "fO" and not hasattr(given, "dtype"):
        with contextlib.suppress(TypeError):  # NumPy makes floats of no integers, and of integers of several kinds
            found = np.array([min(operator.index(one), _INT64_MAX) for one in given], np.int64)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise ConfigError(f"LookAhead: batches of dtype {found.dtype}, must be lists of ints")
    if found.dtype == np.uint64:  # beyond any index, and not negative
        found = np.minimum(found, np.uint64(_INT64_MAX))
    return found.astype(np.int64)


class PlannedIndices(list[int]):
    """The indices of a batch, with the window that it is in.

    Parameters
    ----------
    window
        The window.
    number
        The number of the batch in the epoch.
    """

    def __init__(self, window: Window, number: int) -> None:
        super().__init__(window.batch(number).tolist())
        self.window = window
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return PlannedIndices, (self.window, self.number)


class LookAhead(torch.utils.data.Sampler[list[int]]):
    """Tell a `ZarrDataset` the coming batches of a sampler, so that many batches share one decode of a chunk.

    Wraps a `BatchSampler`, or whatever yields lists of indices. The batches, their order and the random numbers that
    the sampler draws are the same without it. The dataset reads as many of the coming batches at once as half of its
    `cache` has room for; with workers, each has its share of the cache, and reads its own batches.

    Parameters
    ----------
    batch_sampler
        An iterable of lists of indices, such as `torch.utils.data.BatchSampler(sampler, batch_size, drop_last)`.
    batches
        Number of batches to look ahead, those of all workers together. The sampler is asked for so many at a time.

    Raises
    ------
    ConfigError
        If `batches` is no positive number; when iterating, if a batch has anything but integers.

    Examples
    --------
    >>> import numpy as np, torch, zarrfeed
    >>> from torch.utils.data import BatchSampler, DataLoader, RandomSampler
    >>> dataset = zarrfeed.ZarrDataset(np.arange(100))
    >>> random = RandomSampler(dataset, generator=torch.Generator().manual_seed(0))
    >>> batches = zarrfeed.LookAhead(BatchSampler(random, batch_size=32, drop_last=False))
    >>> [len(batch) for batch in DataLoader(dataset, batch_sampler=batches)]
    [32, 32, 32, 4]
    """

    def __init__(self, batch_sampler: Iterable[Sequence[int]], batches: int = _BATCHES) -> None:
        check_counts(batches=batches)
        self.batch_sampler = batch_sampler
        self.batches = batches

    @property
    def sampler(self) -> Any:
        """The sampler of the wrapped `BatchSampler`, whose `set_epoch` a training loop may look for."""
        return self.batch_sampler.sampler  # type: ignore[attr-defined]

    @property
    def batch_size(self) -> Any:
        """The samples of a batch of the wrapped `BatchSampler`."""
        return self.batch_sampler.batch_size  # type: ignore[attr-defined]

    @property
    def drop_last(self) -> Any:
        """True if the wrapped `BatchSampler` leaves a last, smaller batch out."""
        return self.batch_sampler.drop_last  # type: ignore[attr-defined]

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self.batch_sampler)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[list[int]]:
        source = iter(self.batch_sampler)
        first = 0
        failure: Exception | None = None
        while failure is None:
            batches: list[Int64] = []
            try:
                batches.extend(map(integers_of, islice(source, self.batches)))
            except Exception as error:  # noqa: BLE001 - raised behind the batches that came before it
                failure = error
            if not batches:
                break
            window = Window.of(first, batches)
            first += len(batches)
            for number in window.numbers(first - len(batches), 1):
                yield PlannedIndices(window, number)
        if failure is not None:
            raise failure


class ReadAhead:
    """Batches of a window that a reader delivers, one after another, in the order of their numbers.

    Parameters
    ----------
    key
        The key of the window.
    numbers
        The numbers of the batches that were started.
    reader
        The reader that delivers the batches.
    """

    def __init__(self, key: int, numbers: Iterable[int], reader: Reader) -> None:
        self.key = key
        self._coming = deque(numbers)
        self._ready: dict[int, tuple[Values, ...]] = {}
        self._reader = reader

    def has(self, wanted: PlannedIndices) -> bool:
        """Return whether this batch is the next one to be taken."""
        if wanted.window.key != self.key:
            return False
        return wanted.number in self._ready or (bool(self._coming) and self._coming[0] == wanted.number)

    def is_over(self) -> bool:
        """Return whether all batches of the window were taken."""
        return not self._coming and not self._ready

    def take(self, number: int) -> tuple[Values, ...]:
        """Return the values of a batch, which must be a batch of the window."""
        return self._ready.pop(number) if number in self._ready else self._next()

    def finish(self) -> None:
        """Take the batches that the reader has not delivered yet, so that it can read another window."""
        while self._coming:
            number = self._coming[0]
            self._ready[number] = self._next()
        self._reader.stop()

    def _next(self) -> tuple[Values, ...]:
        values = self._reader.next()
        assert values is not None
        self._coming.popleft()
        if not self._coming:
            self._reader.stop()
        return values
