"""Rows of sparse matrices as the samples of a batch: their element blocks are read by an engine, batches ahead.

The plan says which rows come next, and `indptr` which element blocks they have. So an engine of its own decodes whole
blocks in the order in which batches need them, in threads without the GIL, and one thread of Python copies the rows of
a batch out of the blocks (`engine/element_blocks.py`), a few batches before it is wanted (`engine/ahead.py`).

Invariants: batches ahead are made one after another, in the order of the plan, so that blocks are loaded in that order.
Any other batch is made when it is wanted, by readers of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrfeed.base import errors
from zarrfeed.base.errors import ClosedError, StoreReadError, ZarrfeedError
from zarrfeed.base.native import core
from zarrfeed.engine.ahead import AheadReader
from zarrfeed.engine.batch_arrays import Array, BatchArrays, raw_dtype
from zarrfeed.engine.element_blocks import BadBlock, BlockMemory, MakeReader
from zarrfeed.engine.sample_lookup import skipped_alone
from zarrfeed.engine.stats import Stats
from zarrfeed.engine.substitution import Skipped, SkippedField, SkippedPart
from zarrfeed.plan.budget.element_loads import keep_batches, plan_loads, split_rows
from zarrfeed.plan.order.unfolding import ReadPlan
from zarrfeed.plan.samples.selection import Int64, block_of
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.spec.fields.sparse import CsrField
from zarrfeed.spec.values.dtypes import decode_bfloat16, encode_bfloat16


@dataclass
class _Batch:
    """The rows of one batch: its tensor, and the blocks that could not be read."""

    array: Array
    bad: list[BadBlock] = field(default_factory=list)


class CsrReader(AheadReader[_Batch, BadBlock]):
    """Reads the rows of one field.

    Parameters
    ----------
    field
        The field, a sparse matrix.
    batch_size
        Rows of a batch.
    num_threads
        Number of threads that decode.
    cache_bytes
        Memory for decoded blocks that are cached for requests in any order.
    spare_bytes
        Memory of each engine that reads blocks, beyond the least that it needs.
    arrays
        The array library that batches are made with.
    make_reader
        Makes a reader of arrays.
    """

    def __init__(
        self,
        field: CsrField,
        *,
        batch_size: int,
        num_threads: int,
        cache_bytes: int,
        spare_bytes: int,
        arrays: BatchArrays,
        policy: Faults,
        make_reader: MakeReader,
    ) -> None:
        super().__init__(batch_size=batch_size, num_threads=1, threads_name="zarrfeed-csr")
        self._field = field
        self._converter = None if field.after is None else core.Converter(field.after.to_core())
        self._arrays = arrays
        self._edges = field.find_edges()
        made = partial(
            BlockMemory,
            num_threads=num_threads,
            spare_bytes=spare_bytes,
            policy=policy,
            make_reader=make_reader,
        )
        sides = list(enumerate(field.sides))
        self._ahead_of_time = [made(side, columns_of=None if number else field) for number, side in sides]
        share = cache_bytes // sum(len(side[0].layouts) for _, side in sides)
        self._at_once = [made(side, columns_of=None if number else field, cache_bytes=share) for number, side in sides]
        self._lock = threading.Lock()  # batches that are made when they are wanted

    @property
    def source(self) -> None:
        """None: the readers of the matrix's arrays report their stores."""

    def _begin(self, plan: ReadPlan, max_open_batches: int) -> Iterator[Int64]:  # noqa: ARG002 - of other kinds
        if plan.steps <= self._batch_size:
            return iter(())
        order, size = core.sample_order(plan.to_core()), self._batch_size
        keep = keep_batches(plan, size)
        for memory in self._ahead_of_time:
            memory.start(plan_loads(memory.elements, self._field.indptr, order, size, keep))
        self._start_threads()
        return (order[first : first + size] for first in range(0, len(order), size))

    def _stop(self) -> None:
        for memory in (*self._ahead_of_time, *self._at_once):
            memory.stop()

    def _hand_out(self, made: _Batch) -> tuple[Any, list[BadBlock]]:
        """Return a sparse matrix of shape (samples, columns), or a dense one; rows in bad blocks lack elements."""
        return made.array, made.bad

    def skippable(self, number: int, name: str) -> dict[int, SkippedField]:
        """Map the skip ids of array `number` to its blocks of rows; `~number` is the id of single rows."""
        return {number: SkippedField(name, self._find_blocks, (0,)), ~number: skipped_alone(name)}

    def skipped(self, number: int, index: Int64, errors: list[BadBlock]) -> Skipped:
        """Return the slots of a batch that lack their row, because element blocks could not be read.

        Rows that begin in a bad element block are skipped as one block. A row that begins before it is skipped alone.
        """
        begin, end = self._field.indptr[index], self._field.indptr[index + 1]
        bad = np.zeros(len(index), dtype=bool)
        parts: list[SkippedPart] = []
        for one in errors:
            first, stop = one.elements.range_of(np.array([one.block]))
            touched = (begin < stop) & (end > first) & (end > begin)
            inside = touched & (begin >= first)
            parts += [(number, int(unit), *one.part) for unit in np.unique(self._find_blocks(index[inside], 0))]
            parts += [(~number, int(row), *one.part) for row in np.unique(index[touched & ~inside])]
            bad |= touched
        slots = np.flatnonzero(bad)
        return slots.tolist(), index[slots].tolist(), parts

    def stats(self) -> Stats:
        """Return the counters since this reader was made."""
        return sum((memory.stats() for memory in (*self._ahead_of_time, *self._at_once)), Stats())

    def _find_blocks(self, samples: Int64, offset: int) -> Int64:
        """Return the block of rows of the row at an offset from each sample."""
        return block_of(samples + offset, 1, self._edges)

    def _make_ahead(self, index: Int64, number: int, epoch: int) -> Future[_Batch]:
        if self._threads is None:
            raise ClosedError("this dataset was closed")
        return self._threads.submit(self._made_ahead, index, number, epoch)

    def _pass_over(self, batch: Future[_Batch]) -> None:
        """Let the batch be made all the same, since blocks are loaded in order."""

    def _made_ahead(self, index: Int64, number: int, epoch: int) -> _Batch:
        """Make a batch of the plan; on the thread that makes batches."""
        for memory in self._ahead_of_time:
            if epoch != self._epoch:
                raise CancelledError
            memory.load_for(number)
        batch = self._gather(self._ahead_of_time, index)
        for memory in self._ahead_of_time:
            memory.drop_after(number)
        return batch

    def _make_now(self, index: Int64) -> _Batch:
        """Make a batch while the caller waits."""
        with self._lock:
            for memory in self._at_once:
                memory.start(plan_loads(memory.elements, self._field.indptr, index, max(1, len(index)), 1))
                memory.load_for(0)
            return self._gather(self._at_once, index)

    def _gather(self, memories: list[BlockMemory], index: Int64) -> _Batch:
        """Copy rows out of blocks."""
        field = self._field
        begin, end = field.indptr[index], field.indptr[index + 1]
        lengths = end - begin
        ends = np.concatenate(([0], np.cumsum(lengths)))
        total = (int(ends[-1]),)
        bad: list[BadBlock] = []
        pieces = []
        for memory in memories:
            _, block, offset, count = split_rows(memory.elements, begin, end)
            pieces.append((block, offset, count))
            bad += memory.bad_among(block)
        if field.dense:
            columns, values = np.empty(total, np.int64), np.empty(total, raw_dtype(field.dtype_name))
        else:
            crow, memory_of_crow = self._arrays.empty_items((len(index) + 1,), field.index_dtype)
            memory_of_crow[:] = ends
            column_array, columns = self._arrays.empty_items(total, field.index_dtype)
            value_array, values = self._arrays.empty_items(total, field.dtype_name)
        memories[0].copy(0, *pieces[0], columns)
        decoded = np.empty(total, raw_dtype(field.data.dtype)) if self._converter is not None else values
        memories[-1].copy(len(memories[-1].arrays) - 1, *pieces[-1], decoded)
        if self._converter is not None:
            put_divided(values, decoded, lengths, field, self._converter)
        if not field.dense:
            shape = (len(index), field.num_columns)
            return _Batch(self._arrays.csr(crow, column_array, value_array, shape), bad)
        array, dense = self._arrays.empty_items((len(index), field.num_columns), field.dtype_name)
        dense[...] = 0
        if bad:  # blocks that could not be had hold anything
            np.clip(columns, 0, field.num_columns - 1, out=columns)
        columns += np.repeat(np.arange(len(index)) * field.num_columns, lengths)
        put_elements(dense.reshape(-1), columns, values, field.dtype_name)
        return _Batch(array, bad)

    def _error_of(self, bad: BadBlock) -> ZarrfeedError:
        """Return the error of a block, with its rows."""
        _, name, code, message = bad.part
        first, stop = (int(end[0]) for end in bad.elements.range_of(np.array([bad.block])))
        indptr = self._field.indptr
        low = int(np.searchsorted(indptr, first, side="right")) - 1
        high = int(np.searchsorted(indptr, stop, side="left")) - 1
        text = f"{message} (rows {low} to {high} of {self._field.path})"
        kind: Any = getattr(errors, name)
        made: ZarrfeedError = kind(code, text) if issubclass(kind, StoreReadError) else kind(text)
        return made


def put_divided(
    values: npt.NDArray[Any], decoded: npt.NDArray[Any], lengths: Int64, field: CsrField, converter: core.Converter
) -> None:
    """Put elements in `values`, divided so that each row has one total, and converted; rows of zeros stay zeros.

    Source of the formula: `scanpy.pp.normalize_total`, here in float64.

    Parameters
    ----------
    values, decoded
        The values of a batch's elements, as they are delivered and as they were decoded, shape (elements,) both.
    lengths
        The elements of each row, shape (rows,).
    field
        The field, which says the total.
    converter
        Converts the divided values, which are float64.
    """
    assert field.row_total is not None
    numbers = decode_bfloat16(decoded) if field.data.dtype == "bfloat16" else decoded
    row = np.repeat(np.arange(len(lengths)), lengths)
    with np.errstate(all="ignore"):  # blocks that could not be read hold anything
        totals = np.bincount(row, weights=numbers, minlength=len(lengths))
        shares = np.where(totals == 0, 1.0, totals) / field.row_total
        divided = numbers / shares[row]
    converter.convert(values, divided, 0)


def put_elements(dense: npt.NDArray[Any], indices: Int64, values: npt.NDArray[Any], dtype: str) -> None:
    """Put values at their indices in an array of zeros; those of one index are added in their order, as scipy does.

    Parameters
    ----------
    dense
        Array of zeros, shape (items,), which gets the elements.
    indices, values
        The index and the value of each element, shape (elements,) both.
    dtype
        The name of the dtype of values, which may be bits of it (`raw_dtype`).
    """
    if np.all(indices[1:] > indices[:-1]):  # nearly all matrices: columns ascend, and there is no second value
        dense[indices] = values
        return
    with np.errstate(all="ignore"):  # sums may overflow, as scipy's do
        if dtype != "bfloat16":
            np.add.at(dense, indices, values)
            return
        distinct, number = np.unique(indices, return_inverse=True)
        sums = np.zeros(len(distinct), np.float32)
        np.add.at(sums, number, decode_bfloat16(values))
        dense[distinct] = encode_bfloat16(sums)
