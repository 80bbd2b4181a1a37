"""`ObjectIterableDataset`: the objects of a bucket or a folder as a stream, one a sample.

The order, the ranks, the workers and the states are those of `ZarrIterableDataset`: the same `Session`, with runs of
objects as blocks. What is different is the reader: it asks for objects in the order in which batches need them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from zarrfeed.engine.batch_arrays import BatchArrays
from zarrfeed.engine.object_decoders import Decode, Decoder
from zarrfeed.engine.object_fetcher import ObjectFetcher
from zarrfeed.engine.object_reader import ObjectReader
from zarrfeed.engine.reader_pool import EpochReader
from zarrfeed.metadata.group.objects import Objects
from zarrfeed.plan.order.order import Order
from zarrfeed.plan.order.weighted_order import WeightedOrder
from zarrfeed.plan.samples.expected_counts import ExpectedCounts
from zarrfeed.plan.samples.selection import Selection
from zarrfeed.plan.schedule.epoch_plan import Schedule
from zarrfeed.plan.schedule.resources import Resources
from zarrfeed.plan.schedule.schedule_options import ScheduleOptions
from zarrfeed.plan.shares.affinity import Affinity
from zarrfeed.plan.shares.partition import Even
from zarrfeed.report.object_explain import ObjectExplanation, explain_objects
from zarrfeed.spec.arrays.sharding import Requests
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.spec.description.feeding import Mixing, as_options
from zarrfeed.spec.fields.field import Field, FieldSet, IndexField, ObjectField
from zarrfeed.torch.batches.object_batch import ObjectAssembler, makes_tensors, name_of, open_and_decode
from zarrfeed.torch.batches.transform import Transform
from zarrfeed.torch.datasets.options import StreamOptions
from zarrfeed.torch.datasets.streaming import StreamingDataset
from zarrfeed.torch.passes.session import Session
from zarrfeed.torch.passes.session_options import SessionOptions
from zarrfeed.torch.ranks.distributed import RankLike

#: Blocks of an epoch: all of them are permuted together, so their number changes nothing but the work of planning.
_BLOCKS = 4096


@dataclass(frozen=True, kw_only=True)
class _WeightedObjects(WeightedOrder, unfolds=True):
    """The order of weighted objects: one block, whose objects are permuted together, as often as they come."""

    @property
    def by_block(self) -> Order:
        """The order by whose blocks objects are replaced: that of the objects that may come, each once."""
        rows = max(1, self.num_samples // _BLOCKS)
        selection = Selection.of_samples(self.each_once.listed(), rows)
        return Order(self.num_samples, rows, shuffle=self.shuffle, seed=self.seed, lanes=1, selection=selection)


class _ObjectSession(Session):
    """The epochs of objects in one process."""

    def __init__(
        self, schedule: Schedule, options: SessionOptions, objects: Objects, decoder: Decoder | None, decode: str
    ) -> None:
        self._objects = objects
        self._decoder = decoder
        self._decode = decode
        super().__init__(schedule, options)

    def _make_reader(self, schedule: Schedule, resources: Resources, arrays: BatchArrays) -> EpochReader:  # noqa: ARG002
        objects, policy = self._objects, self.options.policy
        fetcher = ObjectFetcher(
            objects.source,
            objects.stored,
            objects.listing,
            self._decoder,
            num_threads=resources.memory.num_threads,
            policy=policy,
        )
        return ObjectReader(
            fetcher,
            objects.listing,
            batch_size=schedule.engine_batch_size,
            budget=resources.memory.budget - resources.memory.plan_bytes,
            with_index=len(schedule.fields.fields) > 1,
            policy=policy,
        )

    def explain_objects(self) -> ObjectExplanation:
        """Describe how this rank reads an epoch, without workers."""
        rank_info, plan = self._rank_in_node(), self.plan_of_rank(0)
        schedule = self._schedule_of(rank_info)
        resources = schedule.resources(plan.order, rank_info, rank_info.consumer())
        return explain_objects(
            self._objects, plan.listed(), resources, batch_size=schedule.engine_batch_size, decode=self._decode
        )


class ObjectIterableDataset(StreamingDataset):
    """Stream the objects of a bucket, a web server or a folder: one object a sample, shuffled, batched, resumable.

    Parameters
    ----------
    source
        The objects, as `zarrfeed.objects.open` returns them; or a source of which all objects are read: a URL such as
        "s3://bucket/train", the path of a folder, a store of obstore, a mapper of fsspec.
    decode
        The decoder: a function of the bytes (a read-only memoryview), or of the bytes and the key. It runs in threads,
        several at once, and its results are delivered as they are. Or a name: "image" (uint8 of shape (channels,
        height, width), by Pillow), "npy" (files of `numpy.save`), "zarr-chunk" (chunks of the Zarr array at the
        source), "bytes" (a copy, as bytes). None: uint8 tensors of shape (bytes,) over the memory that was read,
        without a copy.
    batch_size
        Objects of a batch. None yields single objects.
    shuffle, seed, drop_last, rank, world_size, even, affinity
        Arguments of `ZarrIterableDataset`, with the same meaning. Objects are independent, so they are shuffled fully:
        every order is possible.
    return_index
        If True, add the numbers of the objects in `objects.listing` (int64).
    num_threads
        Threads that decode. None: the cores, shared by ranks and their workers.
    memory_budget
        Bytes, or text such as "2GiB", of objects that all readers of a machine have asked for ahead of their batches;
        one batch comes on top. None: a quarter of the memory that the job may use on the machine, and at least 1 GiB.
    transform
        A function of a batch, as in `ZarrIterableDataset`; torch's `default_collate` makes one tensor of objects of one
        shape.
    faults
        The error policy, as in `ZarrIterableDataset`, where an object is a chunk: with {"on_error": "skip"}, an object
        that cannot be read or decoded is replaced by another one, the same on every rank.

    Yields
    ------
    A list of objects; with `return_index` a tuple (list, index).

    Raises
    ------
    ConfigError, StoreReadError, UnsupportedError
        At construction, if an argument is wrong, or the source cannot be listed.
    StoreReadError, CorruptChunkError
        From the iteration, for an object that cannot be read or decoded; the message names it.

    Notes
    -----
    Large objects are read in ranges side by side; one that is replaced meanwhile is an error.

    Examples
    --------
    >>> import pathlib, tempfile, zarrfeed.objects
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for i in range(4):
    ...         _ = pathlib.Path(folder, f"{i}.bin").write_bytes(bytes([i] * (i + 1)))
    ...     with zarrfeed.objects.ObjectIterableDataset(folder, batch_size=2) as dataset:
    ...         [[object.tolist() for object in batch] for batch in dataset]
    [[[0], [1, 1]], [[2, 2, 2], [3, 3, 3, 3]]]
    """

    def __init__(
        self,
        source: Any,
        *,
        decode: Decode = None,
        batch_size: int | None = None,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        return_index: bool = False,
        rank: RankLike = None,
        world_size: int | None = None,
        even: Even | None = None,
        affinity: Affinity | None = None,
        num_threads: int | None = None,
        memory_budget: int | str | None = None,
        transform: Transform | None = None,
        faults: Faults | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        faults = as_options(Faults, "faults", faults)
        given = StreamOptions(
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            return_index=return_index,
            rank=rank,
            world_size=world_size,
            even=even,
            affinity=affinity,
            num_threads=num_threads,
            memory_budget=memory_budget,
            transform=transform,
        )
        options = given.schedule(Mixing(), Requests())
        objects, decoder = open_and_decode(source, decode, faults)
        self._objects = objects
        fields: list[Field] = [ObjectField(len(objects), objects.listing.digest, objects.mean_bytes)]
        if return_index:
            fields.append(IndexField(len(objects)))
        rows = max(1, len(objects) // _BLOCKS)
        field_set = FieldSet(tuple(fields), (None,) * len(fields), None, rows)
        assembler = ObjectAssembler(field_set, as_tensors=makes_tensors(decode))
        session_options = given.session(faults, assembler, pin_memory=False)
        schedule = _schedule(field_set, options, objects.expected, shuffle=shuffle, seed=seed)
        self._session = _ObjectSession(schedule, session_options, objects, decoder, name_of(decode))

    _session: _ObjectSession

    @property
    def objects(self) -> Objects:
        """The objects that this dataset reads."""
        return self._objects

    def explain(self) -> ObjectExplanation:
        """Describe how the objects are read, and whether they would be read faster as one Zarr store.

        The figures are attributes of what is returned; `str()` of it is a page for people.
        """
        return self._session.explain_objects()

    def __repr__(self) -> str:
        order = self._session.schedule.order
        return f"ObjectIterableDataset({self._objects!r}, batch_size={self.batch_size}, shuffle={order.shuffle})"


def _schedule(
    fields: FieldSet, options: ScheduleOptions, expected: ExpectedCounts | None, *, shuffle: bool, seed: int
) -> Schedule:
    """Return the schedule of objects: one lane, in which all blocks are permuted together."""
    length, rows = fields.num_samples, fields.block_rows if expected is None else fields.num_samples
    order = Order(
        num_samples=length,
        block_rows=rows,
        shuffle=shuffle,
        seed=seed,
        lanes=1,
        mix=-(-length // rows) if shuffle else 1,
    )
    if expected is not None:
        order = replace(_WeightedObjects.of(order, expected), repeats=expected.total)
    return Schedule(fields, order, replace(options, lanes=1, mix=order.mix, limit=None))
