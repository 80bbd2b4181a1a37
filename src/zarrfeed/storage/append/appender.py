"""`Appender`: batches in, whole chunks out, the shape last, so that a store can be read while it is written.

Invariants, for any number of writing processes, and whichever of them is killed at whatever time:

  - A sample that the shape covers was written completely before the shape was, and never changes afterwards. On the
    disk as well: units are synced before the journal counts them, the journal before the shape, and the journal before
    what it no longer names is deleted. So a power failure loses what a killed process would have lost, and no more.
  - The shape grows and never shrinks. It covers units (runs of whole stored objects) from the first on without a gap.
  - Samples of one `append` keep their order and stay together, as far as they lie in one unit. Samples of a process
    that is killed are lost as far as they were not written; no other sample is.
"""

from __future__ import annotations

import itertools
import math
import os
import secrets
import shutil
import threading
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import zarr
from zarr.storage import LocalStore

from zarrfeed.base.durable_files import sync_folder, sync_tree
from zarrfeed.base.errors import ClosedError, ConfigError, UnsupportedError
from zarrfeed.base.per_process import OwnerProcess
from zarrfeed.base.suggestions import checks_option_names
from zarrfeed.base.validate import check_flags, check_int
from zarrfeed.storage.access.group_members import arrays_of
from zarrfeed.storage.access.local_files import check_metadata_files
from zarrfeed.storage.access.zarr_internals import regular_chunk_shape, with_length
from zarrfeed.storage.append.append_journal import Entries, Journal, check_written, new_rest, owner_of, side_directory
from zarrfeed.storage.append.append_rows import (
    RowBuffer,
    Rows,
    check_rows,
    joined,
    length_of,
    load_rows,
    rows_of,
    save_rows,
)
from zarrfeed.storage.append.appended import ATTRIBUTE, Marks, change_metadata, length_in, marks_of, new_marks
from zarrfeed.storage.append.eviction import forget_deleted
from zarrfeed.storage.append.synced_store import SyncedStore
from zarrfeed.storage.chunks.codec_configs import as_meant

_INT64_MAX = 2**63 - 1
_UNIT_BYTES = 4 << 20


class Appender:
    """Append samples to a store on this machine that others read, and other processes append to, at the same time.

    Chunks are written first and the shape last, so that readers find complete samples only. Each process makes an
    `Appender` of its own for the same path. The first batch makes the store, if there is none: an array, or for batches
    that are mappings a group of arrays.

    Parameters
    ----------
    path
        Path of the store, a directory. Beside it, `<path>.zarrfeed` has the locks of writers and readers.
    chunk_rows
        Samples of a chunk, for a new store. None: about 4 MiB of all arrays together.
    shard_rows
        Samples of a shard, a multiple of `chunk_rows`, for a new store. None: each chunk is an object of its own.
    compressors
        Compression of a new store, as `zarr.create_array` takes it: "auto", None for stored bytes as they are, or
        codecs.
    zarr_format
        2 or 3, for a new store.
    disposable
        True declares the store disposable: readers with `evict` may then delete the oldest samples for ever. It can be
        declared only when the store is made.

    Raises
    ------
    ConfigError
        If an option is wrong, or the store that is there does not fit.

    Notes
    -----
    Samples become visible in whole units: a chunk, or a shard (of several arrays, a common multiple). The samples of
    several processes alternate unit by unit. Samples that do not fill a unit become visible when the last `Appender` is
    closed, as a short last chunk that the next one fills; with shards they wait for the next one. If a process is
    killed, another one writes the units that it left. Samples that readers could see outlast a power failure, and so do
    all samples that were appended before `close()` returned. Each unit costs some waits for the disk: on a disk, make
    units large.

    Examples
    --------
    >>> import numpy as np, tempfile, zarrfeed
    >>> path = tempfile.mkdtemp() + "/runs.zarr"
    >>> with zarrfeed.Appender(path, chunk_rows=4) as appender:
    ...     for step in range(3):
    ...         appender.append({"x": np.full((3, 2), step, "f4"), "step": np.full(3, step)})
    ...     appender.flush()
    8
    >>> len(zarrfeed.open(path, refresh="epoch"))
    9
    """

    @checks_option_names
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        chunk_rows: int | None = None,
        shard_rows: int | None = None,
        compressors: Any = "auto",
        zarr_format: Literal[2, 3] = 3,
        disposable: bool = False,
    ) -> None:
        for name, rows in (("chunk_rows", chunk_rows), ("shard_rows", shard_rows)):
            if rows is not None:
                check_int(name, rows, 1, _INT64_MAX)
        check_int("zarr_format", zarr_format, 2, 3)
        check_flags(disposable=disposable)
        if shard_rows is not None and (chunk_rows is None or shard_rows % chunk_rows or zarr_format == 2):
            raise ConfigError(f"shard_rows = {shard_rows}, must be a multiple of chunk_rows = {chunk_rows}, format 3")
        if not isinstance(path, str | os.PathLike) or "://" in str(path):
            raise ConfigError(f"path = {path!r}, must be the path of a directory on this machine")
        self._path = Path(path).resolve()
        self._chunk_rows, self._shard_rows = chunk_rows, shard_rows
        self._compressors, self._format, self._disposable = compressors, zarr_format, disposable
        self._arrays: dict[str, zarr.Array[Any]] = {}
        self._buffer = RowBuffer()
        self._unit_rows = 0
        self._closed = False
        self._owner = OwnerProcess()
        self._lock = threading.RLock()
        self._journal = Journal(side_directory(self._path), owner_of(self._path))
        try:
            with self._journal.lock():
                if _is_there(self._path):
                    self._open()
                else:
                    self._forget_store()
        except BaseException:
            self._journal.leave()
            raise

    def append(self, batch: npt.ArrayLike | Mapping[str, npt.ArrayLike]) -> None:
        """Append samples, and write all whole units that there are.

        Parameters
        ----------
        batch
            An array (a CPU tensor, too) whose first axis is samples, or a mapping of names to such arrays of one
            length. Arrays are used until they are written: do not change them before `flush()`, or pass copies.

        Raises
        ------
        ConfigError
            If names, dtypes or shapes are not those of the store.
        OSError
            If the file system does not take them.
        """
        self._check_open()
        rows = rows_of(batch)
        with self._lock:
            self._append(rows)

    def _append(self, rows: Rows) -> None:
        if not self._arrays:
            with self._journal.lock():
                if not _is_there(self._path):
                    self._create(rows)
                self._open()
        check_rows(rows, self._arrays)
        self._buffer.add(rows)
        while self._buffer.length >= self._unit_rows:
            self._write_unit()

    def flush(self) -> int:
        """Copy pending samples, so that the caller may reuse its arrays; return the number of samples that readers see.

        Pending samples fill no unit yet. They stay in memory until later ones fill it, or until `close()`.
        """
        self._check_open()
        with self._lock:
            self._buffer.own()
        return self.num_samples

    @property
    def num_samples(self) -> int:
        """Number of samples that readers can see."""
        with self._journal.lock():
            entries = self._journal.read()
        return 0 if entries is None else entries.num_samples

    def close(self) -> None:
        """Write the samples that are left, and end being a writer. Without effect after a call that returned.

        Raises
        ------
        OSError
            If the file system does not take what is left. The Appender stays open and keeps it: call `close()` again
            when there is room; it raises as long as something is not written.
        """
        if self._closed or not self._owner.is_here:
            return
        with self._lock:
            self._close()

    def _close(self) -> None:
        with self._journal.lock():
            if self._arrays:
                entries = self._entries()
                if self._buffer.length:
                    self._save_rest(self._buffer.all(), entries)
                    self._buffer.clear()
                    self._journal.sync()
                if not self._journal.others_live():
                    self._tidy_up(entries)
            self._closed = True
            self._journal.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Appender({str(self._path)!r})"

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this Appender was closed")
        if not self._owner.is_here:
            raise ClosedError("this Appender was made by the process that forked this one: each process makes its own")

    # The store

    def _create(self, rows: Rows) -> None:
        """Make the store of a first batch, which appears as a whole."""
        made = self._journal.directory / f"new-{secrets.token_hex(8)}"
        chunk_rows = self._chunk_rows
        if chunk_rows is None:
            of_sample = sum(values[:1].nbytes for values in rows.values()) or 1
            chunk_rows = max(1, _UNIT_BYTES // of_sample)
        attributes = new_marks(depth=int("" not in rows), disposable=self._disposable)
        try:
            if "" not in rows:
                zarr.create_group(LocalStore(made), zarr_format=self._format)
            for name, values in rows.items():
                shape = values.shape[1:]
                zarr.create_array(
                    LocalStore(made),
                    name=name or None,
                    shape=(0, *shape),
                    chunks=(chunk_rows, *(max(1, n) for n in shape)),
                    shards=None if self._shard_rows is None else (self._shard_rows, *(max(1, n) for n in shape)),
                    dtype=values.dtype,
                    compressors=self._compressors,
                    zarr_format=self._format,
                    attributes=dict(attributes),
                )
            check_rows(rows, {name: zarr.open_array(made / name, mode="r") for name in rows})
            sync_tree(made)
            made.rename(self._path)
            sync_folder(self._path.parent)
        finally:
            shutil.rmtree(made, ignore_errors=True)

    def _open(self) -> None:
        """Open the arrays; begin a journal where there is none. Under the lock."""
        check_metadata_files(self._path)
        node = zarr.open(SyncedStore(self._path), mode="r+")
        found = {"": node} if isinstance(node, zarr.Array) else arrays_of(node)
        arrays = {name: as_meant(array, f"{self._path}/{name}".rstrip("/")) for name, array in found.items()}
        if not arrays:
            raise ConfigError(f"{self._path}: is a group without arrays; give it arrays of length 0, or another path")
        stored = {name: regular_chunk_shape(array.metadata, f"{self._path}/{name}") for name, array in arrays.items()}
        for name, array in arrays.items():
            if array.dtype.hasobject or array.dtype.kind == "T":
                raise UnsupportedError(f"{self._path}/{name}: dtype {array.dtype}, must be numbers")
        self._check_declared(arrays, stored)
        self._arrays = {name: with_length(array, _INT64_MAX // 2**20) for name, array in arrays.items()}
        self._unit_rows = math.lcm(*(shape[0] for shape in stored.values()))
        self._is_sharded = any(array.shards is not None for array in arrays.values())
        entries = self._journal.read()
        marks = marks_of(next(iter(arrays.values())))
        if entries is None or marks is None or entries.store != marks.store:
            entries = self._adopt(arrays, marks)
        elif entries.unit_rows != self._unit_rows:
            raise ConfigError(f"{self._path}: has units of {self._unit_rows} samples, had {entries.unit_rows}")
        self._cover_shown(entries, arrays)
        check_written(entries, self._path, arrays, stored)
        self._publish(entries)  # a writer may have been killed before it did

    def _cover_shown(self, entries: Entries, arrays: Mapping[str, Any]) -> None:
        """Count the samples that the shape shows, if the journal is older: they must not be written again.

        Under the lock. Writers do not leave a journal behind the shape: it was restored from a copy, or another program
        appended.
        """
        shown = min(array.shape[0] for array in arrays.values())
        if shown <= entries.num_samples:
            return
        if self._journal.others_live():
            raise self._changed_meanwhile(shown, entries)
        if shown % self._unit_rows and self._is_sharded:
            raise ConfigError(f"{self._path}: has {shown} samples, must be whole shards of {self._unit_rows}")
        entries.cover(shown)
        self._journal.write(entries)

    def _adopt(self, arrays: Mapping[str, Any], marks: Marks | None) -> Entries:
        """Begin a journal for a store that has none. Under the lock."""
        if self._journal.read() is not None and self._journal.others_live():
            raise ConfigError(f"{self._path}: was replaced by another store while writers of the former one are alive")
        shortest = min(array.shape[0] for array in arrays.values())
        complete, tail = divmod(shortest, self._unit_rows)
        if tail and self._is_sharded:
            raise ConfigError(f"{self._path}: has {shortest} samples, must be whole shards of {self._unit_rows}")
        if marks is None:
            made = new_marks(depth=int("" not in arrays), disposable=False)
            for name in arrays:
                change_metadata(self._path / name, attributes=made)
            store = str(made[ATTRIBUTE]["store"])
        else:
            store = marks.store
        forget_deleted(self._path)
        entries = Entries(store, self._unit_rows, end=complete, tail=tail)
        self._journal.write(entries)
        return entries

    def _check_declared(self, arrays: Mapping[str, Any], stored: Mapping[str, tuple[int, ...]]) -> None:
        """Refuse a store that contradicts the options."""
        for name, array in arrays.items():
            where = f"{self._path}/{name}" if name else str(self._path)
            if self._chunk_rows is not None and array.chunks[0] != self._chunk_rows:
                raise ConfigError(f"{where}: chunk_rows = {self._chunk_rows}, but its chunks have {array.chunks[0]}")
            if self._shard_rows is not None and stored[name][0] != self._shard_rows:
                raise ConfigError(f"{where}: shard_rows = {self._shard_rows}, but it has {stored[name][0]}")
            marks = marks_of(array)
            if self._disposable and not (marks and marks.disposable):
                raise ConfigError(f"{where}: was not declared disposable when it was made, and cannot be afterwards")

    def _forget_store(self) -> None:
        """Forget the journal of a store that was deleted. Under the lock."""
        if not self._journal.others_live():
            self._journal.forget_entries()
            forget_deleted(self._path)

    def _publish(self, entries: Entries) -> None:
        """Let readers see the samples that are complete. Under the lock."""
        self._journal.sync()  # another writer may have replaced it last
        for name in self._arrays:
            change_metadata(self._path / name, length=entries.num_samples)

    # Rows

    def _write_unit(self) -> None:
        """Claim a unit, write it, and let readers see all samples that are complete then."""
        journal = self._journal
        with journal.lock():
            entries = self._entries()
            unit = journal.claim(entries)
            head = entries.tail if unit == entries.complete else 0
            room = self._unit_rows - head
            taken: dict[str, Rows] = {}
            free = [file for file, taker in entries.rests.items() if journal.is_free(taker)]
            for file, rest in self._load_rests(entries, free):
                if length_of(rest) <= room:
                    room -= length_of(rest)
                    taken[file] = rest
            entries.rests |= dict.fromkeys(taken, journal.writer)
            journal.write(entries)
        rows = self._buffer.take(room) if room else None  # rests may fill a unit
        try:
            parts = [self._read_rows(unit, head)] if head else []
            parts += [*taken.values(), *([] if rows is None else [rows])]
            self._write_rows(unit, joined(parts))
            with journal.lock():
                entries = self._entries()
                if unit == entries.complete:
                    entries.tail = 0
                del entries.open[unit]
                for file in taken:
                    del entries.rests[file]
                journal.write(entries)
                rows = None  # they are in a unit that is written, whatever fails from here on
                self._publish(entries)
        except BaseException:
            if rows is not None:  # for the same unit: what this writer has open is its own again
                self._buffer.put_back(rows)
            raise
        self._delete_rests(taken)

    def _entries(self) -> Entries:
        entries = self._journal.read()
        if entries is None or not _is_there(self._path):
            what = "store" if entries else "journal of the store"
            raise ConfigError(f"{self._path}: the {what} was deleted while this Appender was open; nothing is written")
        shown = min(length_in(self._path / name) for name in self._arrays)
        if shown > entries.num_samples:
            raise self._changed_meanwhile(shown, entries)
        return entries

    def _changed_meanwhile(self, shown: int, entries: Entries) -> ConfigError:
        return ConfigError(
            f"{self._path}: has {shown} samples, and its writers know of {entries.num_samples}: something else changed "
            "it while they were open; end them, and open a new Appender, which goes on from what the store has"
        )

    def _write_rows(self, unit: int, rows: Rows) -> None:
        """Write the first samples of a unit, which are on the disk when this returns."""
        begin = unit * self._unit_rows
        for name, values in rows.items():
            self._arrays[name][begin : begin + len(values)] = values
        for store in {id(array.store_path.store): array.store_path.store for array in self._arrays.values()}.values():
            store.sync_folders()  # type: ignore[attr-defined]  # `_open` makes them

    def _read_rows(self, unit: int, count: int) -> Rows:
        begin = unit * self._unit_rows
        return {name: np.asarray(array[begin : begin + count]) for name, array in self._arrays.items()}

    def _save_rest(self, rows: Rows, entries: Entries) -> None:
        """Keep samples that do not fill a unit for another writer. Under the lock."""
        file = new_rest()
        save_rows(self._journal.directory / file, rows)
        self._journal.sync()
        entries.rests[file] = None
        self._journal.write(entries)

    def _load_rests(self, entries: Entries, files: Iterable[str]) -> list[tuple[str, Rows]]:
        """Return rests with their samples; the journal forgets one that is gone or damaged, with a warning."""
        found = [(file, load_rows(self._journal.directory / file, self._arrays)) for file in files]
        for file, rows in found:
            if rows is None:
                del entries.rests[file]
                warnings.warn(
                    f"{self._journal.directory / file}: held samples of an Appender that was closed, and is gone or "
                    "damaged: these samples are lost; appending goes on without them",
                    stacklevel=4,
                )
        return [(file, rows) for file, rows in found if rows is not None]

    def _delete_rests(self, files: Iterable[str]) -> None:
        """Delete rests which the journal on the disk no longer names."""
        for file in files:
            (self._journal.directory / file).unlink(missing_ok=True)

    def _tidy_up(self, entries: Entries) -> None:
        """Close the gaps that dead writers left, and write all rests, as the only writer. Under the lock.

        Until the journal counts a unit no more, the unit stays as it is. So whatever ends the process, the next one
        finds all samples, and does the same again.
        """
        if not entries.open and not entries.rests:
            self._publish(entries)
            return
        rests = self._load_rests(entries, list(entries.rests))
        buffer = RowBuffer()
        for rows in [self._read_rows(entries.complete, entries.tail), *(rows for _, rows in rests)]:
            buffer.add(rows)
        end = entries.end_without_gaps(buffer.length)
        last = [self._read_rows(n, self._unit_rows) for n in range(end, entries.end) if n not in entries.open]
        entries.open = {unit: writer for unit, writer in entries.open.items() if unit < end}
        entries.end = end
        if last:
            moved = joined(last)
            self._save_rest(moved, entries)
            self._journal.sync()
            buffer.add(moved)
        done = Entries(entries.store, self._unit_rows, end=end)
        for unit in itertools.chain(sorted(entries.open), itertools.count(end)):
            if buffer.length < self._unit_rows:
                break
            self._write_rows(unit, buffer.take(self._unit_rows))
            done.end = max(done.end, unit + 1)
        if buffer.length and self._is_sharded:
            self._save_rest(buffer.all(), done)  # which writes the journal
        else:
            if buffer.length:
                self._write_rows(done.end, buffer.all())
                done.tail = buffer.length
            self._journal.write(done)
        self._publish(done)
        self._delete_rests(file for file in entries.rests if file not in done.rests)


def _is_there(path: Path) -> bool:
    return any((path / name).exists() for name in ("zarr.json", ".zarray", ".zgroup"))
