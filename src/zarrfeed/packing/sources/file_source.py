"""`FileSource`: sources of several files, whose samples follow each other.

Invariant: every read checks that its file has the size and the time that it had when the source was opened, so that
samples of two versions of a file never meet in one store.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from zarrfeed.base.errors import ConfigError, StoreReadError, ZarrfeedError, printable
from zarrfeed.packing.sources.file_reading import Reading, runs_of, segments_by
from zarrfeed.packing.sources.files import check_field_name
from zarrfeed.packing.sources.same_meaning import OF_FIRST_STORE, Stored, as_one_axis, comparable, decoded_together
from zarrfeed.packing.sources.source import Constant, Int64, Rows, Source, SourceField
from zarrfeed.storage.files.data_file import DataFile


def data_files(paths: Sequence[str], kind: str, suffixes: Sequence[str]) -> list[DataFile]:
    """Return the files that paths name: files, patterns such as "data/*.nc", and folders, sorted below each path.

    In folders, only files with one of the suffixes count, and no names that begin with "." or "_".

    Raises
    ------
    ConfigError
        If a path is a URL, or names no file.
    """
    found: list[Path] = []
    for path in paths:
        if "://" in path:
            raise ConfigError(f"{printable(path)}: {kind} sources are local files; copy them to a disk first")
        path_or_pattern = Path(path).absolute()
        if path_or_pattern.is_dir():
            below = [one for one in path_or_pattern.rglob("*") if one.suffix.lower() in suffixes and one.is_file()]
            some = [one for one in below if not any(part[0] in "._" for part in one.relative_to(path_or_pattern).parts)]
        elif path_or_pattern.exists():
            some = [path_or_pattern]
        else:
            some = [Path(one) for one in glob.glob(str(path_or_pattern), recursive=True) if Path(one).is_file()]  # noqa: PTH207
        if not some:
            raise ConfigError(f"{printable(path)}: no such file, and no folder with files that end in {_any(suffixes)}")
        found += sorted(some)
    return [DataFile.of(path) for path in found]


def _any(words: Sequence[str]) -> str:
    return " or ".join(words)


class FileSource(Source):
    """A source whose samples lie in files; `_describe` says which, `_read_file` reads some of one of them.

    Attributes
    ----------
    files
        The files in the order of their samples; other attributes are those of `Source`.
    """

    files: tuple[DataFile, ...]
    #: True if names of fields are paths, such as "obs/age".
    is_nested = False

    def __init__(self) -> None:
        self.by_value: dict[str, Callable[[], Rows]] = {}
        #: Times of all files, counted alike, by the names of their fields.
        self._axes: dict[str, Rows] = {}

    def _describe(
        self,
        files: Sequence[DataFile],
        lengths: Sequence[int],
        fields: Sequence[SourceField],
        *,
        block_samples: int,
        attributes: Mapping[str, Any] | None = None,
        constants: Sequence[Constant] = (),
        layout: object = None,
        stored: Mapping[str, Sequence[Stored]] | None = None,
        reading: Reading | None = None,
        dim: str | None = None,
    ) -> None:
        """Set the attributes of `Source`.

        `layout` is JSON: what else decides which samples these are. `stored` has fields as each file has them; times
        that files count from dates of their own become one axis, by value. `reading` is what files are, and `dim` the
        name of the dimension of samples, of which a coordinate may say where runs go on.

        Raises
        ------
        ConfigError
            If there is no sample, or no field, or two fields of one name.
        """
        names = [field.name for field in fields]
        if not names:
            raise ConfigError(f"{files[0]}: has no array of samples")
        for name in names:
            for segment in name.split("/") if self.is_nested else [name]:
                check_field_name(segment, str(files[0]))
            if names.count(name) > 1:
                raise ConfigError(f"{files[0]}: two of its arrays would be called {name!r}: rename one")
        for field in fields:
            if 0 in field.shape:
                raise ConfigError(f"{files[0]}: {field.name!r} has samples of shape {field.shape}, which hold nothing")
        # (files + 1,): the number of the first sample of each file, and that of all samples
        self._starts = np.concatenate([[0], np.cumsum(np.asarray(lengths, np.int64))]).astype(np.int64)
        self.num_samples = int(self._starts[-1])
        if not self.num_samples:
            raise ConfigError(f"{files[0]}: holds no samples" + (", nor do the others" if len(files) > 1 else ""))
        self.files = tuple(files)
        self.fields = tuple(self._on_one_axis(field, (stored or {}).get(field.name, ())) for field in fields)
        if stored and len(files) > 1:
            self.not_proved = (OF_FIRST_STORE,)
        self.block_samples = max(1, min(block_samples, self.num_samples))
        self.attributes, self.constants = dict(attributes or {}), tuple(constants)
        if not self.is_nested:
            self.runs = runs_of(files, lengths, segments=self._segments(reading, (stored or {}).get(dim or "")))
        self.notes = (reading.note,) if reading is not None and reading.note else ()
        told = [[(str(file.path), file.size, file.mtime_ns) for file in files], list(map(int, lengths))]
        shapes = [(field.name, field.dtype.str, field.shape, field.kind) for field in self.fields]
        digest = hashlib.sha256(json.dumps([told, shapes, layout]).encode()).hexdigest()
        self.fingerprint = json.dumps(
            {"kind": self.kind, "files": len(files), "samples": self.num_samples, "sha256": digest}
        )

    def _segments(self, reading: Reading | None, coordinate: Sequence[Stored] | None) -> Int64 | None:
        """Return the numbers of the files whose last sample ends a segment; None if none does."""
        if reading is None or reading.files_are == "samples" or len(reading.lengths) == 1:
            return None
        values = None if coordinate is None else comparable(coordinate)
        is_of_samples = values is not None and all(one.ndim == 1 for one in values)
        return segments_by(values if is_of_samples else None, len(reading.lengths))

    def _on_one_axis(self, field: SourceField, stored: Sequence[Stored]) -> SourceField:
        """Return a field as it is packed: as the first file has it, or as times that are counted alike."""
        axis = as_one_axis(stored) if len(stored) > 1 else None
        if axis is None:
            return field
        self._axes[field.name] = axis.values
        self.by_value[field.name] = partial(decoded_together, stored)
        return SourceField(field.name, axis.values.dtype, field.shape, dims=field.dims, attributes=axis.attributes)

    def read(self, begin: int, end: int) -> list[Rows]:
        """Return the samples [begin, end) of each field, as `Source.read`."""
        if not 0 <= begin <= end <= self.num_samples:
            raise IndexError(f"samples [{begin}, {end}) are not in [0, {self.num_samples})")
        parts = [self._read_checked(*piece) for piece in self._pieces(begin, end)]
        if not parts:
            return [np.empty((0, *field.shape), field.dtype) for field in self.fields]
        columns = parts[0] if len(parts) == 1 else [np.concatenate(column) for column in zip(*parts, strict=True)]
        copied = iter(columns)
        return [self._axes[f.name][begin:end] if f.name in self._axes else next(copied) for f in self.fields]

    def take(self, samples: Int64) -> list[Rows]:
        """Return the samples of some numbers, as `Source.take`; those that follow each other are read at once."""
        if self.block_samples != 1:
            raise ValueError(f"{self.kind}: {self.block_samples} samples lie together, which `take` would read for one")
        if not len(samples):
            return self.read(0, 0)
        order = np.argsort(samples, kind="stable")
        ascending = np.asarray(samples, np.int64)[order]
        runs = np.split(ascending, np.flatnonzero(np.diff(ascending) != 1) + 1)
        parts = [self.read(int(run[0]), int(run[-1]) + 1) for run in runs]
        made = []
        for number, field in enumerate(self.fields):
            rows = np.empty((len(samples), *field.shape), field.dtype)
            rows[order] = np.concatenate([part[number] for part in parts])
            made.append(rows)
        return made

    @abstractmethod
    def _read_file(self, number: int, begin: int, end: int) -> list[Rows]:
        """Return samples [begin, end) of a file, counted from its first one, for all fields but those on `_axes`."""

    def _pieces(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield the number of each file that samples lie in, and the range of its samples."""
        number = int(np.searchsorted(self._starts, begin, "right")) - 1
        while begin < end:
            first, stop = int(self._starts[number]), int(self._starts[number + 1])
            if begin < stop:
                yield number, begin - first, min(end, stop) - first
            begin, number = max(begin, stop), number + 1

    def _read_checked(self, number: int, begin: int, end: int) -> list[Rows]:
        file = self.files[number]
        file.check()
        return guarded(f"{file}: samples [{begin}, {end})", lambda: self._read_file(number, begin, end))


def guarded(where: str, read: Callable[[], list[Rows]]) -> list[Rows]:
    """Read by a library, and turn its errors into one that names the place.

    Raises
    ------
    StoreReadError
        For every error but our own and that memory is short.
    """
    try:
        return read()
    except (ZarrfeedError, MemoryError):
        raise
    except Exception as error:
        number = error.errno if isinstance(error, OSError) and error.errno else errno.EIO
        raise StoreReadError(number, f"{where}: {os.linesep.join(str(error).splitlines()[:3])}") from error


def same_in_all(file: DataFile, what: str, got: object, first: object) -> None:
    """Raise ConfigError, which names the file, unless something is the same as in the first file."""
    if got != first:
        raise ConfigError(
            f"{file}: {what} is {got}, in the first file {first}: pack such files into stores of their own"
        )
