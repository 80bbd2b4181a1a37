"""The work of a process on a unit: read samples, encode chunks, write stored objects, note that it is done.

Invariant: a unit depends on the job alone, and on the first pass where there is one. So it may be done by any process,
and done again: it writes the same bytes to the same names.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
from numcodecs.vlen import VLenBytes

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.waits import result_of
from zarrfeed.packing.sources.source import Int64, Rows, Source, as_bytes, objects_of
from zarrfeed.packing.targets.pack_layout import FieldLayout, SparseLayout
from zarrfeed.packing.targets.packed_values import as_packed, fill_of
from zarrfeed.packing.work.digest import MODULUS, digest_rows
from zarrfeed.packing.work.job import Gathering, PackJob, PartOfStore, Unit
from zarrfeed.packing.work.sparse_rows import element_parts, packed_indptr, read_elements
from zarrfeed.packing.work.spill import read_spill, spill_parts
from zarrfeed.packing.work.work_folder import UnitRecord, WorkFolder
from zarrfeed.storage.chunks.chunk_encoder import join_shard

Result = TypeVar("Result")


class UnitWorker:
    """Does the units of one job. Several threads may, at once.

    Parameters
    ----------
    job
        The job that the units belong to.
    source
        The source of the job. None: it is opened when it is first needed.

    Raises
    ------
    ConfigError
        If the source is not what it was when the job was made.
    """

    def __init__(self, job: PackJob, source: Source | None = None) -> None:
        self._job = job
        self.folder = WorkFolder(Path(job.out))
        self._lock = threading.Lock()
        self._source = source
        self._indptrs: dict[tuple[int, str], Int64] = {}

    def close(self) -> None:
        """Let go of the source."""
        with self._lock:
            if self._source is not None:
                self._source.close()

    @property
    def source(self) -> Source:
        """The source, opened when it is first needed."""
        with self._lock:
            if self._source is None:
                self._source = source = self._job.source.open()
                if source.fingerprint != self._job.fingerprint:
                    raise ConfigError(f"{', '.join(self._job.source.paths)}: has changed since it began to be packed")
            return self._source

    @cached_property
    def fills(self) -> list[bytes]:
        """The fill value of each array, as the bytes of an item."""
        return [fill_of(f, layout).tobytes() for f, layout in zip(self.source.fields, self._job.layouts, strict=True)]

    def deal(self, number: int) -> UnitRecord:
        """Do a unit of the first pass: read a run of the source, and write its samples for the units they go to."""
        job, record = self._job, UnitRecord()
        begin = number * job.source_rows
        end = min(begin + job.source_rows, job.num_samples)
        assert job.order is not None
        positions = job.order.positions(np.arange(begin, end))
        units = job.units_of(positions)
        parts = spill_parts(self.source.read(begin, end), positions, units, len(job.units))
        self.folder.keep(record, f"spill/{number}", parts)
        self.folder.finish_unit("deal", number, record)
        return record

    def write(self, number: int) -> UnitRecord:
        """Do a unit: write its stored objects, and the rows of arrays whose objects have samples of several units."""
        unit, record = self._job.units[number], UnitRecord([0] * len(self._job.layouts))
        gathered: list[list[Rows]] = [[] for _ in self._job.layouts]
        for begin, numbers, rows in self._read(unit):
            for field, (layout, of_field) in enumerate(zip(self._job.layouts, rows, strict=True)):
                record.digests[field] = (record.digests[field] + digest_rows(of_field, numbers)) % MODULUS
                if layout.leaves_rows:
                    gathered[field].append(of_field)
                else:
                    fill, first = self.fills[field], begin - unit.part.begin
                    self._write_objects(record, unit.part.name, layout, fill, first, of_field)
        for field, pieces in enumerate(gathered):
            if pieces:
                whole, layout = np.concatenate(pieces), self._job.layouts[field]
                content = element_parts(whole, layout.sparse) if layout.sparse else [pack_rows(whole, layout)]
                self.folder.keep(record, rows_name(unit, field), content)
        self.folder.finish_unit("write", number, record)
        return record

    def gather(self, number: int) -> UnitRecord:
        """Write a stored object whose samples several units left in files of their own."""
        one, record = self._job.gatherings[number], UnitRecord()
        layout, pieces = self._job.layouts[one.field], list[Rows]()
        if layout.sparse is not None:
            self._gather_elements(record, one, layout.sparse)
            self.folder.finish_unit("gather", number, record)
            return record
        first, last = self._job.units_of(np.array([one.begin, one.end - 1])).tolist()
        for unit in self._job.units[first : last + 1]:
            rows = unpack_rows((self.folder.path / rows_name(unit, one.field)).read_bytes(), layout)
            pieces.append(rows[max(0, one.begin - unit.begin) : one.end - unit.begin])
        fill, begin = self.fills[one.field], one.begin - one.part.begin
        self._write_objects(record, one.part.name, layout, fill, begin, np.concatenate(pieces))
        self.folder.finish_unit("gather", number, record)
        return record

    def _gather_elements(self, record: UnitRecord, one: Gathering, sparse: SparseLayout) -> None:
        """Write a stored object of the values of a sparse matrix and one of the columns, or where its rows begin."""
        indptr = self._indptr(one.field, one.part)
        if one.of_pointers:
            written = [(sparse.indptr, indptr.astype(sparse.indptr.item))]
        else:
            rows_at_ends = np.searchsorted(indptr, [one.begin, one.end - 1], side="right") - 1
            first, last = self._job.units_of(one.part.begin + rows_at_ends).tolist()
            units = self._job.units[first : last + 1]
            files = [(unit, self.folder.path / rows_name(unit, one.field)) for unit in units]
            data, indices = read_elements(files, sparse, indptr, one.begin, one.end)
            written = [(sparse.data, data), (sparse.indices, indices)]
        for layout, rows in written:
            fill = bytes(layout.item.itemsize) if layout is sparse.data else None  # zeros may be columns, too
            self._write_objects(record, one.part.name, layout, fill, one.begin, rows)

    def _indptr(self, field: int, part: PartOfStore) -> Int64:
        """Return the beginnings of the rows of a part, which all of its gatherings need."""
        source = self.source
        with self._lock:
            if (field, part.name) not in self._indptrs:
                self._indptrs.clear()  # gatherings of one part follow each other
                numbers = self._job.numbers(part.begin, part.end)
                self._indptrs[field, part.name] = packed_indptr(source.fields[field], numbers)
            return self._indptrs[field, part.name]

    def _read(self, unit: Unit) -> Iterator[tuple[int, Int64, list[Rows]]]:
        """Yield the samples of a unit step by step: the first position, their numbers, and of each array the rows."""
        job = self._job
        for begin in range(unit.begin, unit.end, job.step_rows):
            end = min(unit.end, begin + job.step_rows)
            numbers = job.numbers(begin, end)
            if job.source_rows:
                rows = self._dealt(unit)
            elif job.order is None:
                rows = self.source.read(begin, end)
            else:
                rows = self.source.take(numbers)
            yield begin, numbers, [as_packed(r, layout) for r, layout in zip(rows, job.layouts, strict=True)]

    def _dealt(self, unit: Unit) -> list[Rows]:
        """Return the samples of a unit that the first pass dealt to it, in the order of positions."""
        dtypes = [f.dtype for f in self.source.fields]
        found = [
            read_spill(self.folder.path / "spill" / str(n), self._job.layouts, dtypes, unit.number)
            for n in range(self._job.num_source_units)
        ]
        positions = np.concatenate([of_file for of_file, _ in found])
        by_position = np.argsort(positions)
        assert np.array_equal(positions[by_position], np.arange(unit.begin, unit.end))
        columns = zip(*(rows for _, rows in found), strict=True)
        return [np.concatenate(pieces)[by_position] for pieces in columns]

    def _write_objects(
        self, record: UnitRecord, part: str, layout: FieldLayout, fill: bytes | None, begin: int, rows: Rows
    ) -> None:
        """Write samples of one array as chunks or shards; `begin` is the first one's index in the part.

        Chunks of nothing but `fill` are left out; with None, all are there, and one that is not is known to be lost.
        """
        folder = "/".join(filter(None, ("store", part, layout.name)))
        for first in range(0, len(rows), layout.shard_rows):
            of_object = rows[first : first + layout.shard_rows]
            chunks = [
                self._encoded(of_object[row : row + layout.chunk_rows], layout, fill)
                for row in range(0, len(of_object), layout.chunk_rows)
            ]
            if all(chunk is None for chunk in chunks):
                continue
            index = [(begin + first) // layout.shard_rows, *([0] * len(layout.shape))]
            name = f"{folder}/c/{'/'.join(map(str, index))}"
            if layout.chunks_per_shard > 1:
                missing = [None] * (layout.chunks_per_shard - len(chunks))
                self.folder.keep(record, name, join_shard([*chunks, *missing]))
            else:
                assert chunks[0] is not None
                self.folder.keep(record, name, [chunks[0]])

    def _encoded(self, rows: Rows, layout: FieldLayout, fill: bytes | None) -> bytes | memoryview | None:
        """Return a stored chunk; None for one of nothing but the fill value, which Zarr leaves out."""
        if layout.kind != "number":
            items = np.full(layout.chunk_rows, b"", object)
            items[: len(rows)] = _bytes_of_rows(rows)
            return layout.encoding.encode(bytes(VLenBytes().encode(items)))
        if fill is not None and _is_all(rows, fill):
            return None
        if len(rows) < layout.chunk_rows:
            whole = np.empty((layout.chunk_rows, *layout.shape), rows.dtype)
            whole[: len(rows)] = rows
            whole[len(rows) :] = 0 if fill is None else np.frombuffer(fill, rows.dtype)[0]
            rows = whole
        return layout.encoding.encode(np.ascontiguousarray(rows))


def pack_rows(rows: Rows, layout: FieldLayout) -> bytes | memoryview:
    """Return the rows of an array whose objects have samples of several units, for a file of one unit."""
    if layout.kind == "number":
        return np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
    return bytes(VLenBytes().encode(_bytes_of_rows(rows)))


def unpack_rows(content: bytes, layout: FieldLayout) -> Rows:
    """Undo `pack_rows`; text comes as its bytes."""
    if layout.kind == "number":
        return np.frombuffer(content, layout.item).reshape(-1, *layout.shape)
    items: Rows = VLenBytes().decode(content)
    return items


def _bytes_of_rows(rows: Rows) -> Rows:
    return objects_of([as_bytes(item) for item in rows])


def rows_name(unit: Unit, field: int) -> str:
    """Return the name of the file with a unit's rows of an array."""
    return f"rows/{unit.number}-{field}"


def off_main_thread(function: Callable[[], Result]) -> Result:
    """Call a function on a thread that is not the main one, where Blosc would take threads of its own."""
    if threading.current_thread() is not threading.main_thread():
        return function()
    with ThreadPoolExecutor(1) as pool:
        return result_of(pool.submit(function))


def _is_all(rows: Rows, fill: bytes) -> bool:
    """Return whether each item of some rows has the bytes of the fill value."""
    items = np.ascontiguousarray(rows).reshape(-1)
    one = np.frombuffer(fill, items.dtype)
    if not len(items) or items[:1].tobytes() != fill:
        return False
    width = next(width for width in (8, 4, 2, 1) if items.dtype.itemsize % width == 0)
    words = items.view(f"u{width}").reshape(len(items), -1)
    return bool((words == one.view(f"u{width}")).all())


def make_worker(job: PackJob, source: Source | None = None) -> UnitWorker:
    """Return the worker of a job in this process, made once."""
    with _workers_lock:
        known = _workers.get(job.run)
        if known is None:
            known = _workers[job.run] = UnitWorker(job, source)
            while len(_workers) > _MOST_WORKERS:  # those of runs of other processes, which do not say that they ended
                _workers.pop(next(iter(_workers))).close()
        return known


def drop_worker(job: PackJob) -> None:
    """Forget the worker of a job that ended."""
    with _workers_lock:
        known = _workers.pop(job.run, None)
    if known is not None:
        known.close()


_workers: dict[str, UnitWorker] = {}
#: Runs whose sources a process has open.
_MOST_WORKERS = 8
_workers_lock = threading.Lock()


def do_unit(job: PackJob, stage: str, number: int) -> tuple[str, int, UnitRecord]:
    """Do a unit in this process; executors call this function."""
    worker = make_worker(job)
    does = {"deal": worker.deal, "write": worker.write, "gather": worker.gather}[stage]
    return stage, number, off_main_thread(lambda: does(number))
