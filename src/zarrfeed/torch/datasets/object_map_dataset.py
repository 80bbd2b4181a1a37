"""`ObjectDataset`: the objects of a bucket or a folder by index, many at once, for any `Sampler`."""

from __future__ import annotations

import operator
import os
import threading
from collections.abc import Mapping
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt
import torch
import torch.utils.data

from zarrfeed.base.errors import ClosedError, ConfigError
from zarrfeed.base.system import usable_cores
from zarrfeed.base.validate import check_num_threads
from zarrfeed.engine.object_decoders import Decode
from zarrfeed.engine.object_fetcher import Fetched, ObjectFetcher
from zarrfeed.engine.stats import Stats
from zarrfeed.metadata.group.objects import Objects
from zarrfeed.plan.schedule.batch_request import positions_of
from zarrfeed.spec.error_policy import Faults
from zarrfeed.spec.feeding import as_options
from zarrfeed.torch.batches.object_batch import as_tensor, makes_tensors, open_and_decode


class ObjectDataset(torch.utils.data.Dataset[Any]):
    r"""Read the objects of a bucket, a web server or a folder by index, many at once, for any `Sampler`.

    Parameters
    ----------
    source, decode
        As of `ObjectIterableDataset`.
    num_threads
        Threads that decode. None: the cores that this process may use, shared by the workers of a DataLoader.
    faults
        As of `ZarrDataset`: an object that cannot be read is an error.

    Raises
    ------
    ConfigError, StoreReadError, UnsupportedError
        At construction, for what cannot work.
    StoreReadError, CorruptChunkError
        From reading; the message names the object.

    Notes
    -----
    `dataset[i]` is an object, `dataset[[3, 1, 3]]` a list of them. A `DataLoader(dataset, batch_size=64, sampler=...)`
    asks for all objects of a batch at once; nothing is read ahead of a batch, so `ObjectIterableDataset` is faster.
    Any thread may read; requests of several threads wait for each other.

    Examples
    --------
    >>> import pathlib, tempfile, zarrfeed.objects
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for i in range(4):
    ...         _ = pathlib.Path(folder, f"{i}.bin").write_bytes(bytes([i] * (i + 1)))
    ...     dataset = zarrfeed.objects.ObjectDataset(folder, decode="bytes")
    ...     dataset[1], dataset[[3, 0]]
    (b'\x01\x01', [b'\x03\x03\x03\x03', b'\x00'])
    """

    def __init__(
        self,
        source: Any,
        *,
        decode: Decode = None,
        num_threads: int | None = None,
        faults: Faults | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._policy = as_options(Faults, "faults", faults)
        if self._policy.skips:
            raise ConfigError("on_error = 'skip', must be 'raise': an object that was asked for cannot be replaced")
        check_num_threads(num_threads)
        self._num_threads = num_threads
        self._objects, self._decoder = open_and_decode(source, decode, self._policy)
        self._as_tensors = makes_tensors(decode)
        self._closed = False
        self._reset_process()

    def _reset_process(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._fetcher: ObjectFetcher | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_pid", "_lock", "_fetcher")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset_process()

    @property
    def objects(self) -> Objects:
        """The objects that this dataset reads."""
        return self._objects

    def __len__(self) -> int:
        """Return the number of objects."""
        return len(self._objects)

    def __getitem__(self, index: SupportsIndex | npt.ArrayLike) -> Any:
        """Return one object, or for a sequence of indices a list of them.

        Raises
        ------
        IndexError
            If an index is out of range; negative ones count from the end.
        """
        try:
            one = operator.index(index)  # type: ignore[arg-type]
        except TypeError:
            return self.__getitems__(index)  # type: ignore[arg-type]
        return self.__getitems__([one])[0]

    def __getitems__(self, indices: npt.ArrayLike) -> list[Any]:
        """Return the objects at some indices."""
        found = self._read(positions_of(np.asarray(indices), len(self)))
        return [as_tensor(one.value) for one in found] if self._as_tensors else [one.value for one in found]

    def stats(self) -> Stats:
        """Return counters since this dataset was made (in this process); an object counts as a chunk."""
        self._check_process()
        return Stats() if self._fetcher is None else self._fetcher.stats()

    def close(self) -> None:
        """Stop all threads. May be called twice; reading is over after it."""
        self._check_process()
        with self._lock:
            self._closed = True
            if self._fetcher is not None:
                self._fetcher.close()

    def __repr__(self) -> str:
        return f"ObjectDataset({self._objects!r})"

    def _check_process(self) -> None:
        if os.getpid() != self._pid:  # forked: the lock may be held, and the threads are not here
            self._reset_process()

    def _read(self, indices: npt.NDArray[np.int64]) -> list[Fetched]:
        self._check_process()
        with self._lock:
            if self._closed:
                raise ClosedError("this dataset was closed")
            if self._fetcher is None:
                self._fetcher = self._make_fetcher()
            try:
                self._fetcher.open()
                found = self._fetcher.fetch(indices)
                self._fetcher.wait(found)
            finally:
                self._fetcher.close()
        for one in found:
            if one.error is not None:
                raise one.error
        return found

    def _make_fetcher(self) -> ObjectFetcher:
        info = torch.utils.data.get_worker_info()
        threads = self._num_threads or max(1, usable_cores() // (1 if info is None else info.num_workers))
        objects = self._objects
        return ObjectFetcher(
            objects.source, objects.stored, objects.listing, self._decoder, num_threads=threads, policy=self._policy
        )
