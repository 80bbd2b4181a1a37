"""Ray Data's `Datasource` over zarrfeed: whatever `zarrfeed.open` reads becomes a `ray.data.Dataset`.

    dataset = ray.data.read_datasource(ZarrfeedDatasource("train.zarr"))

The package ray comes with `pip install "ray[data]"`. Ray's own `read_zarr` needs zarr-python 2, which reads no Zarr v3.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

try:
    import ray
    from ray.data import DataContext
    from ray.data.block import Block, BlockAccessor, BlockMetadata
    from ray.data.datasource import Datasource, ReadTask
except ImportError as error:
    raise ImportError(
        f"zarrfeed.compat.ray needs Ray Data ({error}): pip install 'ray[data]'", name=error.name
    ) from error

from zarrfeed.base.errors import ConfigError, UnsupportedError
from zarrfeed.metadata.face.data import Data
from zarrfeed.metadata.group.fields import Source
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.torch.datasets.map_dataset import ZarrDataset

Int64: TypeAlias = npt.NDArray[np.int64]

#: Bytes of a block of Ray, at most, if its context names no size: the default of that context.
_BLOCK_BYTES = 128 << 20
#: Bytes that a text, or bytes of any length, are assumed to take when blocks are cut. Ray cuts larger blocks itself.
_TEXT_BYTES = 1 << 10
#: A description that takes more than this, for arrays in memory, is sent to Ray's object store once for all tasks.
_LARGE_BYTES = 1 << 20


class ZarrfeedDatasource(Datasource):  # type: ignore[misc]
    """Read samples of Zarr arrays into a `ray.data.Dataset`: a row for each sample, a column for each field.

    Each of Ray's read tasks has a run of samples. Runs end where chunks end, so that each chunk is decoded by one task.
    A task yields Arrow tables of at most the context's `target_max_block_size` (128 MiB). Tensors are columns of Ray's
    tensor type, which `iter_batches` and `map_batches` deliver as NumPy arrays.

    Parameters
    ----------
    data
        A `Data`, as `zarrfeed.open` returns it, which describes the samples; or whatever `zarrfeed.open` takes as
        `samples`.
    targets
        Arrays with as many samples along axis 0, as `targets` of `zarrfeed.open`; only if `data` is no `Data`.
    return_index
        If True, rows have the global sample index (int64), in a column "index".
    return_coords
        Names of coordinates, such as ("time", "member"), as in `ZarrDataset`: rows have a column for each.
    num_threads
        Decode threads of each read task; Ray runs one task for each core, unless `num_cpus` says otherwise.
    cache
        Bytes, or text such as "1GiB", of decoded chunks that each task keeps for its next block, as windows, patches,
        and chunks of more than 128 MiB need it.
    faults
        A `Faults`, or a mapping such as {"retries": 10}, as in `ZarrDataset`. Chunks cannot be skipped.

    Raises
    ------
    ConfigError, UnsupportedError, StoreReadError
        At construction, if an argument is wrong or the data cannot be read; also for a mixture, which is an order and
        no table.
    CorruptChunkError, StoreReadError
        In a read task, for a chunk that cannot be decoded or read. Ray raises it on the driver, as the cause of an
        error of its own.

    Notes
    -----
    Columns have the names of `Data.fields`: "samples" and "targets" for single arrays. A member of records is
    "name.member". Rows come in the order of the array, as far as Ray keeps the order of blocks
    (`DataContext.execution_options.preserve_order`). A store on a local disk has to be there on each node.

    Examples
    --------
    >>> import numpy as np
    >>> from zarrfeed.compat.ray import ZarrfeedDatasource
    >>> source = ZarrfeedDatasource({"t2m": np.zeros((128, 4, 8), "f4")}, return_index=True)
    >>> source.estimate_inmemory_data_size()
    17408
    >>> [task.metadata.num_rows for task in source.get_read_tasks(2)]
    [64, 64]
    """

    def __init__(
        self,
        data: Data | Source,
        targets: Source | None = None,
        *,
        return_index: bool = False,
        return_coords: Sequence[str] | str | None = None,
        num_threads: int = 1,
        cache: int | str = "64MiB",
        faults: Faults | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._runs = runs = _Runs(
            data,
            targets,
            return_index=return_index,
            return_coords=return_coords,
            num_threads=num_threads,
            cache=cache,
            faults=faults,
        )
        fields, stored = runs.data.fields, runs.data.resolved.fields
        names = [field.name for field in fields] + ["index"] * return_index
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(
                f"two columns would be named {twice!r}: open an array under another name, {{name: array}}"
            )
        for field in fields:
            if field.dtype == "bfloat16":
                raise UnsupportedError(f"{field.name}: Arrow has no bfloat16; use Data.cast('float32')")
            if field.dtype.startswith("sparse_csr"):
                raise UnsupportedError(f"{field.name}: Arrow has no sparse matrices; use Data.dense()")
        statics = (one.source for one in runs.data.resolved.statics)
        self._row_bytes = sum(f.sample_bytes for f in (*stored, *statics)) + 8 * return_index
        self._texts = sum(bool(field.item_type) and field.images is None for field in stored)

    def estimate_inmemory_data_size(self) -> int | None:
        """Return the bytes of all rows; None where there is text, whose length is not known before it is read."""
        return None if self._texts else len(self._runs) * self._row_bytes

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: DataContext | None = None
    ) -> list[ReadTask]:
        """Return tasks that read all samples: `parallelism` of them, or fewer where there are fewer chunks."""
        context = data_context or DataContext.get_current()
        row_bytes = self._row_bytes + _TEXT_BYTES * self._texts
        rows = max(1, (context.target_max_block_size or _BLOCK_BYTES) // max(1, row_bytes))
        edges = self._runs.chunk_edges()
        cuts = nearest_edges(edges, parallelism)
        schema = self._runs.schema()
        is_small = len(pickle.dumps(self._runs)) < _LARGE_BYTES
        runs = self._runs if is_small else ray.put(self._runs)
        tasks = []
        for begin, end in pairwise(cuts):
            ends = block_ends(edges, begin, end, rows)
            size = None if self._texts else (end - begin) * self._row_bytes
            metadata = BlockMetadata(num_rows=end - begin, size_bytes=size, input_files=None, exec_stats=None)
            read = partial(_read, runs, begin, ends, per_task_row_limit)
            tasks.append(ReadTask(read, metadata, schema=schema, per_task_row_limit=per_task_row_limit))
        return tasks


class _Runs(ZarrDataset):
    """Samples as tables, a run of them at a time. In a process that it is pickled to, it starts afresh."""

    _resident_room = 0  # every task would read resident arrays whole

    def block(self, begin: int, end: int) -> Block:
        """Return a run of samples as a table."""
        return BlockAccessor.batch_to_block(self._columns(begin, end))

    def schema(self) -> Any:
        """Return the names and types of the columns; None if only the values tell, as for text."""
        none = self._columns(0, 0)
        if not all(isinstance(values, np.ndarray) for values in none.values()):
            return None
        one = {name: np.zeros((1, *values.shape[1:]), values.dtype) for name, values in none.items()}
        return BlockAccessor.batch_to_block(one).schema

    def _columns(self, begin: int, end: int) -> dict[str, Any]:
        batch = self[np.arange(begin, end)]
        parts = batch if isinstance(batch, tuple) else (batch,)
        names = [*dict.fromkeys(field.part for field in self.data.fields), "index"]
        columns: dict[str, Any] = {}
        for name, part in zip(names, parts, strict=False):
            columns |= _flat(part) if isinstance(part, Mapping) else {name: _values(part)}
        return columns

    def chunk_edges(self) -> Int64:
        """Return the positions of samples at which chunks of the primary array begin, and their number at the end."""
        fields, selection = self._fields, self._selection
        if self.data.resolved.patching is not None:  # a patch touches several chunks
            return np.arange(len(self) + 1)
        if selection is not None:
            return np.concatenate(([0], np.cumsum(selection.rows)))
        if fields.edges is not None:
            return np.asarray(fields.edges)
        return np.minimum(np.arange(fields.num_blocks + 1) * fields.block_rows, fields.num_samples)


def nearest_edges(edges: Int64, count: int) -> list[int]:
    """Return the cuts of samples into at most `count` parts of about the same length, none of them empty.

    >>> nearest_edges(np.array([0, 50, 100, 150, 200, 203]), 4), nearest_edges(np.array([0, 8]), 3)
    ([0, 50, 100, 150, 203], [0, 8])
    """
    wanted = edges[-1] * np.arange(count + 1) // max(1, count)
    after = np.searchsorted(edges, wanted)
    before = np.maximum(after - 1, 0)
    nearest = np.where(wanted - edges[before] < edges[after] - wanted, before, after)
    return [int(edges[number]) for number in np.unique(nearest)]


def block_ends(edges: Int64, begin: int, end: int, rows: int) -> list[int]:
    """Return the ends of blocks of at most `rows` samples: at ends of chunks, if a chunk ends in time.

    >>> block_ends(np.array([0, 4, 8, 12, 14]), 4, 14, 9), block_ends(np.array([0, 4, 8]), 0, 8, 3)
    ([12, 14], [3, 4, 7, 8])
    """
    ends = []
    while begin < end:
        last = int(edges[np.searchsorted(edges, begin + rows, side="right") - 1])
        begin = min(end, last if last > begin else begin + rows)
        ends.append(begin)
    return ends


def _read(runs: _Runs | ray.ObjectRef[_Runs], begin: int, ends: Sequence[int], limit: int | None) -> Iterator[Block]:
    """Read samples from `begin` on, a block up to each of `ends`, at most `limit` samples of them."""
    found: _Runs = runs if isinstance(runs, _Runs) else ray.get(runs)
    last = ends[-1] if limit is None else min(ends[-1], begin + limit)
    for end in ends:
        if begin < last:
            yield found.block(begin, min(end, last))
            begin = end


def _flat(part: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return the columns of a dict, in which those of records are dicts again."""
    columns: dict[str, Any] = {}
    for name, values in part.items():
        columns |= (
            _flat(values, f"{before}{name}.") if isinstance(values, Mapping) else {before + name: _values(values)}
        )
    return columns


def _values(values: Any) -> Any:
    """Return tensors, and those in lists, as NumPy arrays."""
    if isinstance(values, list):
        return [_values(value) for value in values]
    return values.numpy() if hasattr(values, "numpy") else values
