"""`ZarrDataset`: samples of Zarr arrays by index, many at once, for any `Sampler`.

It uses the engine of the streaming datasets with the plan of a request (`batch_request.py`): samples are grouped by
chunk, each chunk is decoded once, by many threads, and one batch comes out.

Invariants: a batch owns its memory. One request is read at a time in a process; threads wait for each other. Nothing of
an engine crosses a fork or a pickle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy.typing as npt
import torch
import torch.utils.data
from torch.utils.data._utils.collate import default_collate_fn_map

from zarrfeed.base.errors import (
    ConfigError,
)
from zarrfeed.base.suggestions import knows_arguments_of_others
from zarrfeed.base.units import parse_bytes
from zarrfeed.base.validate import check_flags
from zarrfeed.metadata.face.data import Data
from zarrfeed.metadata.group.fields import Source
from zarrfeed.metadata.stores.growth import disposable_in, hold_opened
from zarrfeed.plan.schedule.batch_request import Requests, RowRequests
from zarrfeed.plan.schedule.schedule_options import DEFAULT_BUDGET
from zarrfeed.report.describe import describe
from zarrfeed.report.notebook import random_access_html
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.spec.description.feeding import as_options
from zarrfeed.torch.batches.batch import Batch, BatchAssembler, Values
from zarrfeed.torch.batches.host_rows import with_shared_rows
from zarrfeed.torch.batches.static_tensors import StaticTensors
from zarrfeed.torch.datasets.array_requests import ArrayRequests
from zarrfeed.torch.datasets.indexed import IndexedDataset, check_requests
from zarrfeed.torch.datasets.options import MOVED_TO_DATA, MOVED_TO_DATALOADER, as_data, faults_for
from zarrfeed.torch.ranks.callers import collates_by_default

DEFAULT_CACHE = 256 << 20


class ZarrDataset(IndexedDataset[tuple[Values, ...]]):
    """Read samples of Zarr arrays by index, in any order and as often as wanted.

    Parameters
    ----------
    data
        A `Data`, as `zarrfeed.open` returns it, which describes the samples; or whatever `zarrfeed.open` takes as
        `samples`. `dataset[i]` is its i-th sample, in the order of the array, or in that of `select(keep_order=True)`;
        `return_index` adds the sample's index there. If samples are patches, `dataset[i]` is the one at the i-th
        position of the list, or the i-th of the grid, in C order, volume by volume.
    targets
        Arrays with as many samples along axis 0, as `targets` of `zarrfeed.open`; only if `data` is no `Data`.
    return_index
        If True, add the global sample index (int64) as the last tensor.
    return_coords
        Names of coordinates, such as ("time", "member"), whose values come with each batch, as a dict before the index.
        A name is one that `Data.sel` knows: a dimension of samples, another coordinate along these, a column of
        segments. Numbers are tensors, text is a list. Dates are int64 nanoseconds since 1970, and spans of time
        nanoseconds: `values.numpy().view("M8[ns]")`, "m8[ns]". A window has those of its own sample.
    num_threads
        Decode threads. None: the cores that this process may use, shared by the workers of a DataLoader.
    cache
        Bytes, or text such as "2GiB", of a cache of the decoded chunks that were used last; the workers of a DataLoader
        share them. A cached chunk is neither read nor decoded again. Once the cache is full, a chunk is cached when it
        is wanted for the second time in a while; so is, on a local disk, a Blosc chunk of which a request needs few
        Blosc blocks. Of such a chunk that is not cached, only these blocks are decoded. 0: no cache.
    faults
        A `Faults`, or a mapping such as {"missing": "raise"}, as in `ZarrIterableDataset`. Chunks cannot be skipped: a
        sample that was asked for cannot be replaced.

    Raises
    ------
    ConfigError, UnsupportedError, StoreReadError
        At construction, if an argument is wrong, or the data cannot be read.
    MemoryBudgetError
        If the job may not use so much memory, at construction or for a request.
    CorruptChunkError, StoreReadError
        From reading, for a chunk that cannot be decoded or read; the message names array and chunk.

    Notes
    -----
    `dataset[i]` is a sample, `dataset[[3, 1, 3]]` a batch. A `DataLoader(dataset, batch_size=64, sampler=...)` asks for
    all samples of a batch at once, and its default `collate_fn` takes the batch as it was decoded: nothing is copied,
    in workers neither. A `collate_fn` of your own gets a list of samples of plain types, which are views of the batch;
    `torch.save` of a view saves the whole batch, so `clone()` it first. Samplers of torch, such as DistributedSampler
    or WeightedRandomSampler, work as they are. With `batch_size=None, sampler=BatchSampler(...)` the batch is not cut
    into samples in between, which saves about a microsecond each. Around a batch sampler in random order, `LookAhead`
    has each chunk decoded once for many batches.
    For training over all samples `ZarrIterableDataset` is several times faster, since it decodes every chunk once.
    Parts of windows that torch's `random_split` makes share rows: use `Data.split` instead.

    The stored arrays must not change: decoded chunks, indices of shards and the absence of chunks are remembered. A
    batch is not bounded but by the request. Any thread may read; requests of several threads wait for each other.

    Examples
    --------
    >>> import numpy as np, zarr, zarrfeed
    >>> dataset = zarrfeed.ZarrDataset(zarrfeed.open(np.arange(10) * 10).select(slice(2, None)))
    >>> dataset[0], dataset[[3, 1, 3]]
    (tensor(20), tensor([50, 30, 50]))

    Patches at positions, in any order:

    >>> image = zarr.array(np.arange(36).reshape(6, 6), chunks=(3, 3))
    >>> patches = zarrfeed.open(image).patch({0: 2, 1: 2}, sampling="positions", positions=[(0, 0), (2, 3)])
    >>> zarrfeed.ZarrDataset(patches)[[1, 0]].tolist()
    [[[15, 16], [21, 22]], [[0, 1], [6, 7]]]
    """

    #: Bytes that small arrays take in memory, which are read as a whole.
    _resident_room = DEFAULT_BUDGET // 16

    @knows_arguments_of_others(MOVED_TO_DATA | MOVED_TO_DATALOADER)
    def __init__(
        self,
        data: Data | Source,
        targets: Source | None = None,
        *,
        return_index: bool = False,
        return_coords: Sequence[str] | str | None = None,
        num_threads: int | None = None,
        cache: int | str = DEFAULT_CACHE,
        faults: Faults | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._policy = as_options(Faults, "faults", faults)
        check_requests(self._policy, num_threads, what="a sample")
        cache_bytes = parse_bytes(cache, "cache", least=0)
        check_flags(return_index=return_index)
        self._data = with_shared_rows(as_data(data, targets, self._policy, return_coords), self._policy)
        if self._data.resolved.blend is not None:
            raise ConfigError(
                "a mixture has an order, and ZarrDataset has none: use ZarrIterableDataset, or zarrfeed.concat"
            )
        if self._data.resolved.expected is not None:
            raise ConfigError(
                f"samples are {self._data.resolved.expected.state}, drawn anew in each epoch, and ZarrDataset has no "
                "epochs: use ZarrIterableDataset"
            )
        if any(one.images is not None and one.images.draws for one in self._data.resolved.fields):
            raise ConfigError(
                "crop='random' and flip= are drawn anew in each epoch, and ZarrDataset has none: use "
                "ZarrIterableDataset, or crop='center'"
            )
        self._policy = faults_for(self._data, self._policy)
        disposable = disposable_in(one.array for one in self._data.resolved.columns)
        self._leases = hold_opened(self._data.resolved, disposable, self._data.version)
        self._fields, self._selection = self._data.resolved.planned(
            return_index=bool(return_index),
            room=0 if disposable else self._resident_room,
        )
        patching, fields = self._data.resolved.patching, self._fields
        self._requests: Requests = (
            RowRequests(fields.num_samples, fields.block_rows, self._selection, self._data.resolved.given)
            if patching is None
            else patching.requests()
        )
        statics = StaticTensors.read(self._data.resolved.statics, self._policy)
        self._assembler = BatchAssembler(self._fields, statics)
        looks = self._data.version is None
        of_process = partial(
            ArrayRequests, fields.fields, self._requests, self._policy, num_threads, cache_bytes, looks=looks
        )
        of_process().resources(1)  # options with which no request can be read are refused here
        self._read_with(of_process)

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._requests)

    def _one(self, found: tuple[Values, ...]) -> Batch:
        rows = [values[0] for values in found]  # a view would keep the whole buffer
        return self._assembler.assemble_sample([row.clone() if isinstance(row, torch.Tensor) else row for row in rows])

    def _many(self, found: tuple[Values, ...]) -> Batch:
        return self._assembler.assemble(found)

    def __getitems__(self, indices: npt.ArrayLike) -> list[Any]:
        """Return the samples at some indices as a list; a DataLoader's default `collate_fn` gets them as one batch."""
        return _samples_or_batch(self._assembler, self._read(indices))

    def close(self) -> None:
        """Free the cache. May be called twice; reading is over after it."""
        super().close()
        self._leases = ()

    @property
    def data(self) -> Data:
        """The samples that this dataset reads."""
        return self._data

    def __repr__(self) -> str:
        return f"ZarrDataset({describe(self._fields, self._selection, self._assembler.statics.fields)})"

    def _repr_html_(self) -> str:
        return random_access_html(self._fields, self._selection, self._assembler.statics.fields)


class _WholeBatch:
    """A batch in the place of its samples, as it was decoded: torch's `default_collate` takes it out without a copy."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch


def _samples_or_batch(assembler: BatchAssembler, values: Sequence[Values]) -> list[Any]:
    """Return the samples of a batch; for torch's `default_collate`, the batch itself in their place.

    A DataLoader hands what `__getitems__` returned to its `collate_fn`. If that is `default_collate`, and nobody else
    sees the samples in between, this is a list with one object of a type that is registered with torch. Everybody else
    gets a list of samples of plain types, which `default_collate` stacks like any other.

    Parameters
    ----------
    assembler
        Makes samples of the values of their fields.
    values
        One tensor a field, of shape (samples, *sample_shape), or a list of the samples.
    """
    unpacked = assembler.unpack(values)
    if not len(unpacked[0]) or not collates_by_default():
        return list(assembler.samples_of(unpacked))
    batch = assembler.assemble(unpacked)
    return [_WholeBatch(list(batch) if isinstance(batch, tuple) else batch)]  # default_collate makes lists of tuples


def _take_out(samples: Sequence[_WholeBatch], *, collate_fn_map: Any = None) -> Batch:  # noqa: ARG001 - torch gives it
    (whole,) = samples
    return whole.batch


default_collate_fn_map[_WholeBatch] = _take_out
