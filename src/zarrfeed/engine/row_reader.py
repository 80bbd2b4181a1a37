"""`RowReader`: samples by their positions, as NumPy arrays, decoded on the thread that asks; without torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from zarrfeed.engine.batch_arrays import ByteArrays, raw_dtype
from zarrfeed.engine.reader import Reader
from zarrfeed.plan.budget.field_needs import FieldNeeds
from zarrfeed.plan.budget.memory import plan_memory
from zarrfeed.plan.samples.selection import Int64
from zarrfeed.plan.schedule.batch_request import Requests
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.spec.fields.field import FieldSet, streamed

#: Memory for chunks that a thread decodes and fetches, beside the rows that it returns.
_BUDGET = 256 << 20
_DEFAULT_POLICY = Faults()


class RowReader:
    """Reads samples of some fields. Threads that read at once need a reader each.

    Parameters
    ----------
    fields
        The fields of the samples.
    requests
        Makes the plan of a request.
    policy
        The error policy: the treatment of a chunk that cannot be read.

    Notes
    -----
    The chunks in which a request ends are cached for the next request, which decodes none of them again if it goes on
    there.
    """

    def __init__(self, fields: FieldSet, requests: Requests, policy: Faults = _DEFAULT_POLICY) -> None:
        self._fields, self._requests, self._policy = fields.fields, requests, policy
        self._cache_bytes = sum(f.spec.decoded_bytes * f.spec.num_cells for f in streamed(self._fields))
        self._reader: Reader | None = None
        self._capacity = 0

    def read(self, positions: Int64) -> list[npt.NDArray[Any]]:
        """Return the samples at some positions, in their order.

        Returns
        -------
        For each field an array of shape (positions, *shape of a sample): of numbers; of dtype object for text and for
        bytes of any length.

        Raises
        ------
        CorruptChunkError, StoreReadError
            For a chunk that cannot be decoded or read.
        """
        reader = self._reader_for(len(positions))
        try:
            reader.start(self._requests.plan(positions), 1)
            batch = reader.next()
        except BaseException:
            self.close()
            raise
        finally:
            reader.stop()
        assert batch is not None
        return [_as_array(field, values) for field, values in zip(self._fields, batch, strict=True)]

    def close(self) -> None:
        """Free the memory; a further request takes it again."""
        self._reader = None

    def _reader_for(self, rows: int) -> Reader:
        if self._reader is None or rows > self._capacity:
            self._capacity = rows
            least = 2 * self._cache_bytes + rows * sum(f.sample_bytes for f in self._fields)
            needs = FieldNeeds.of(self._fields)
            memory = plan_memory(needs, batch_size=rows, num_threads=1, budget=_BUDGET + least, min_open_batches=1)
            self._reader = Reader(
                self._fields,
                batch_size=rows,
                num_threads=1,
                memory=memory,
                arrays=ByteArrays(),
                cache_bytes=self._cache_bytes,
                caller_runs=True,
                policy=self._policy,
            )
        return self._reader


def _as_array(field: Any, values: Any) -> npt.NDArray[Any]:
    if field.item_type:
        items = np.empty(len(values), object)
        items[:] = values
        return items
    array: npt.NDArray[Any] = values.view(raw_dtype(field.dtype_name))
    return array.reshape(len(values), *field.sample_shape)
