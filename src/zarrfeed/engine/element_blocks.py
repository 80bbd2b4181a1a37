"""Element blocks of sparse matrices in memory: loaded in the order of a plan, each to a slot of its own.

Invariants: a block is in its slot from `load_for` of the first batch that needs it until `drop_after` of the last one.
The engine delivers blocks in the order of the loads, so each is copied once, from the engine's batch to its slot.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ClosedError
from zarrfeed.base.native import core
from zarrfeed.engine.batch_arrays import ByteArrays, raw_dtype
from zarrfeed.engine.stats import Stats
from zarrfeed.plan.budget.element_loads import BlockLoads, element_fields, plan_chunks
from zarrfeed.plan.budget.field_needs import FieldNeeds
from zarrfeed.plan.budget.memory import plan_elements
from zarrfeed.plan.samples.selection import Int64
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.spec.fields.sparse import CsrField, Elements, marked_fill

#: Makes a reader of arrays: `engine.reader.Reader`, which looks rows up with this module.
MakeReader: TypeAlias = Callable[..., Any]


@dataclass(frozen=True)
class BadBlock:
    """An element block that could not be read or decoded: its chunk's key, class of the error, errno, message."""

    elements: Elements
    block: int
    part: tuple[str, str, int, str]


class BlockMemory:
    """The blocks of one array of elements, or of two whose blocks hold the same elements.

    Parameters
    ----------
    sides
        The arrays.
    columns_of
        The matrix whose columns the first array has, which are checked; None: the arrays have values alone.
    num_threads
        Number of threads that decode.
    spare_bytes
        Memory of each reader beyond the least that it needs.
    policy
        The error policy of reads. Chunks that cannot be read are remembered as bad blocks under every policy.
    make_reader
        Makes a reader of arrays.
    cache_bytes
        Memory for decoded chunks, for many small plans. None: there is one plan an epoch.

    Attributes
    ----------
    arrays
        For each side, the elements of all slots, one slot after another, shape (slots * block items,).
    """

    def __init__(
        self,
        sides: Sequence[Elements],
        *,
        columns_of: CsrField | None,
        num_threads: int,
        spare_bytes: int,
        policy: Faults,
        make_reader: MakeReader,
        cache_bytes: int | None = None,
    ) -> None:
        self.elements = sides[0]
        self.arrays: list[npt.NDArray[Any]] = [np.empty(0, raw_dtype(one.dtype)) for one in sides]
        self._sides = sides
        self._matrix = columns_of
        self._num_threads = num_threads
        self._spare_bytes = spare_bytes
        self._policy = replace(policy, on_error="skip", max_errors=2**31 - 1)
        self._make_reader = make_reader
        self._cache_bytes = cache_bytes
        self._items = int(self.elements.block_items.max())
        self._readers: dict[int, tuple[Any, int]] = {}  # by layout: the reader, and how many blocks it reads ahead
        self._running: set[int] = set()
        self._loads = BlockLoads(*(np.empty(0, np.int64),) * 3)
        self._next_load = 0
        self._slot_of = np.empty(0, np.int64)  # of each block; -1: it is not in memory
        self._free: list[int] = []
        self._drops: dict[int, list[int]] = {}  # last batch -> blocks
        self._bad: dict[int, BadBlock] = {}

    def start(self, loads: BlockLoads) -> None:
        """Begin to read blocks, in the order of their loads."""
        self.stop()
        if not len(self._slot_of):
            self._slot_of = np.full(self.elements.num_blocks, -1, dtype=np.int64)
        slots = loads.most_at_once
        if slots * self._items > len(self.arrays[0]):
            self.arrays = [np.empty(slots * self._items, array.dtype) for array in self.arrays]
        self._free = list(range(len(self.arrays[0]) // self._items))
        self._loads = loads
        self._layout, chunk = self.elements.chunk_of(loads.block)
        for layout in np.unique(self._layout).tolist():
            reader, blocks_ahead = self._reader_of(layout)
            num_chunks = self.elements.layouts[layout].spec.num_samples
            self._running.add(layout)
            reader.start(plan_chunks(chunk[self._layout == layout], num_chunks), blocks_ahead)

    def stop(self) -> None:
        """End reading; blocks are forgotten, and memory stays."""
        for layout in sorted(self._running):
            self._readers[layout][0].stop()
        self._running.clear()
        self._slot_of[self._slot_of >= 0] = -1
        self._next_load = 0
        self._loads = BlockLoads(*(np.empty(0, np.int64),) * 3)
        self._drops.clear()
        self._bad.clear()

    def load_for(self, batch: int) -> None:
        """Wait for the blocks that a batch needs and that are not in memory."""
        loads = self._loads
        while self._next_load < len(loads.block) and loads.first_batch[self._next_load] == batch:
            number = self._next_load
            block, layout = int(loads.block[number]), int(self._layout[number])
            found = self._readers[layout][0].next_arrays()
            if found is None:
                raise ClosedError("this dataset was closed")
            delivered, skipped = found
            slot = self._free.pop()
            first, end = (int(one[0]) for one in self.elements.range_of(loads.block[number : number + 1]))
            if skipped is not None:
                self._bad[block] = BadBlock(self.elements, block, skipped[2][0][2:])
            for array, one, side in zip(self.arrays, delivered, self._sides, strict=True):
                values = one.reshape(-1).view(raw_dtype(side.dtype_of(layout)))
                array[slot * self._items : slot * self._items + end - first] = values[: end - first]
            if self._matrix is not None and skipped is None:
                columns = self.arrays[0][slot * self._items : slot * self._items + end - first]
                self._check_columns(self._matrix, block, layout, columns)
            self._slot_of[block] = slot
            self._drops.setdefault(int(loads.last_batch[number]), []).append(block)
            self._next_load += 1

    def drop_after(self, batch: int) -> None:
        """Give the slots of blocks back that no later batch needs."""
        for block in self._drops.pop(batch, ()):
            self._free.append(int(self._slot_of[block]))
            self._slot_of[block] = -1
            self._bad.pop(block, None)

    def copy(self, side: int, block: Int64, offset: Int64, count: Int64, out: npt.NDArray[Any]) -> None:
        """Copy pieces of blocks of one array to `out`, one after another: from an offset on, so many elements each."""
        array = self.arrays[side]
        begin = self._slot_of[block] * self._items + offset
        if array.dtype == out.dtype:
            core.copy_runs(array, begin, count, item_bytes=array.itemsize, out=out)
            return
        same = np.empty(len(out), array.dtype)
        core.copy_runs(array, begin, count, item_bytes=array.itemsize, out=same)
        out[:] = same

    def bad_among(self, block: Int64) -> list[BadBlock]:
        """Return the bad blocks among some blocks."""
        return [one for number, one in sorted(self._bad.items()) if np.any(block == number)] if self._bad else []

    def stats(self) -> Stats:
        """Return the counters of reading."""
        read = sum((reader.stats() for reader, _ in list(self._readers.values())), Stats())
        return replace(
            read,
            batches=0,
            samples=0,
            batch_memory_bytes=read.batch_memory_bytes + sum(array.nbytes for array in self.arrays),
            idle_memory_s=0.0,
            idle_other_s=0.0,
            consumer_wait_s=0.0,
            consumer_busy_s=0.0,
            concurrency=0,
        )

    def _check_columns(self, matrix: CsrField, block: int, layout: int, columns: npt.NDArray[Any]) -> None:
        """Remember a block as bad if the store lacks its columns, or if one of them is none of the matrix."""
        spec, parts = self.elements.layouts[layout].spec, self.elements.layouts[layout].parts
        dtype = np.dtype(spec.dtype.name)
        first, end = (int(one[0]) for one in self.elements.range_of(np.array([block])))
        chunk, name = int(self.elements.chunk_of(np.array([block]))[1][0]), spec.name
        if parts is not None:  # of many stores, one after another
            store = int(parts.part_of(np.array([chunk]))[0])
            chunk, name = chunk - int(parts.begin[store]), parts.names[store]
        marker = int(np.frombuffer(spec.fill, dtype)[0])
        low, high = int(columns.min()), int(columns.max())
        if low == high == marker:
            if not matrix.may_be_absent(first, end):
                message = f"{name}: chunk {chunk} is missing from the store, and says which columns values have"
                self._bad[block] = BadBlock(self.elements, block, (str(chunk), "StoreReadError", errno.ENOENT, message))
                return
            columns[...] = low = high = marked_fill(marker, dtype, matrix.num_columns)
        if low < 0 or high >= matrix.num_columns:
            wrong = int(columns.argmin() if low < 0 else columns.argmax())
            message = (
                f"{name}: chunk {chunk}: row {matrix.row_of(first + wrong)} has the column {columns[wrong]}, must "
                f"be in [0, {matrix.num_columns - 1}]"
            )
            self._bad[block] = BadBlock(self.elements, block, (str(chunk), "CorruptChunkError", 0, message))

    def _reader_of(self, layout: int) -> tuple[Any, int]:
        """Return the reader of a layout, and how many blocks it reads ahead."""
        if layout not in self._readers:
            fields = element_fields(self._sides, layout)
            memory = plan_elements(FieldNeeds.of(fields), num_threads=self._num_threads, spare=self._spare_bytes)
            reader = self._make_reader(
                fields,
                batch_size=1,
                num_threads=memory.plan.num_threads,
                memory=memory.plan,
                arrays=ByteArrays(),
                cache_bytes=self._cache_bytes or 0,
                caller_runs=self._cache_bytes is not None,
                policy=self._policy,
            )
            self._readers[layout] = reader, memory.blocks_ahead
        return self._readers[layout]
