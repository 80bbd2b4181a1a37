"""`ObjectDataset`: the objects of a bucket or a folder by index, many at once, for any `Sampler`."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy.typing as npt

from zarrfeed.engine.object_decoders import Decode, Decoder
from zarrfeed.engine.object_fetcher import Fetched, ObjectFetcher
from zarrfeed.engine.stats import Stats
from zarrfeed.metadata.group.objects import Objects
from zarrfeed.plan.samples.selection import Int64
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.spec.description.feeding import as_options
from zarrfeed.torch.batches.object_batch import as_tensor, makes_tensors, open_and_decode
from zarrfeed.torch.datasets.indexed import IndexedDataset, check_requests, share_of_worker


class ObjectDataset(IndexedDataset[list[Fetched]]):
    r"""Read the objects of a bucket, a web server or a folder by index, many at once, for any `Sampler`.

    Parameters
    ----------
    source, decode
        The objects and their decoder, as in `ObjectIterableDataset`.
    num_threads
        Threads that decode. None: the cores that this process may use, shared by the workers of a DataLoader.
    faults
        The error policy, as in `ZarrDataset`: an object that cannot be read is an error.

    Raises
    ------
    ConfigError, StoreReadError, UnsupportedError
        At construction, if an argument is wrong, or the source cannot be listed.
    StoreReadError, CorruptChunkError
        While reading; the message names the object.

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
        policy = as_options(Faults, "faults", faults)
        check_requests(policy, num_threads, what="an object")
        self._objects, decoder = open_and_decode(source, decode, policy)
        self._objects.check_unweighted("ObjectDataset, which has no order")
        self._as_tensors = makes_tensors(decode)
        self._read_with(partial(_ObjectRequests, self._objects, decoder, policy, num_threads))

    @property
    def objects(self) -> Objects:
        """The objects that this dataset reads."""
        return self._objects

    def __len__(self) -> int:
        """Return the number of objects."""
        return len(self._objects)

    def __getitems__(self, indices: npt.ArrayLike) -> list[Any]:
        """Return the objects at some indices."""
        return self._many(self._read(indices))

    def _one(self, found: list[Fetched]) -> Any:
        return self._many(found)[0]

    def _many(self, found: list[Fetched]) -> list[Any]:
        return [as_tensor(one.value) for one in found] if self._as_tensors else [one.value for one in found]

    def __repr__(self) -> str:
        return f"ObjectDataset({self._objects!r})"


@dataclass(eq=False)
class _ObjectRequests:
    """Reads objects by their positions, in one process; nothing is read ahead.

    Attributes
    ----------
    objects
        The objects that can be requested.
    decoder
        Decodes the bytes of an object. None: the bytes are delivered.
    policy
        The error policy, which says how often a read is tried.
    num_threads
        Threads that decode. None: the cores, shared by the workers of a DataLoader.
    lock
        Lock that the reading thread holds.
    """

    objects: Objects
    decoder: Decoder | None
    policy: Faults
    num_threads: int | None
    lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _fetcher: ObjectFetcher | None = field(default=None, init=False)

    def read(self, wanted: Int64, asked: Any) -> list[Fetched]:
        """Return the objects at some positions."""
        del asked
        if self._fetcher is None:
            self._fetcher = self._make_fetcher()
        try:
            self._fetcher.open()
            found = self._fetcher.fetch(wanted)
            self._fetcher.wait(found)
        finally:
            self._fetcher.close()
        for one in found:
            if one.error is not None:
                raise one.error
        return found

    def stats(self) -> Stats:
        """Return the counters; an object counts as a chunk."""
        return Stats() if self._fetcher is None else self._fetcher.stats()

    def close(self) -> None:
        """Stop all threads."""
        if self._fetcher is not None:
            self._fetcher.close()

    def _make_fetcher(self) -> ObjectFetcher:
        threads, _ = share_of_worker(self.num_threads)
        objects = self.objects
        return ObjectFetcher(
            objects.source, objects.stored, objects.listing, self.decoder, num_threads=threads, policy=self.policy
        )
