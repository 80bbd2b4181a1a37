"""`WebDatasetSource`: the samples in tar archives that are written as WebDataset has them.

The name of a field is the part of a file's name behind the first dot; its last suffix tells the content of the file, as
in WebDataset.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError, CorruptChunkError, printable
from zarrfeed.engine.object_decoders import decode_npy
from zarrfeed.packing.sources.files import (
    fingerprint_of,
    opened,
    read_at,
    some_of,
)
from zarrfeed.packing.sources.images.encoded_images import EncodedImages
from zarrfeed.packing.sources.images.tar_samples import FileRanges, TarSamples
from zarrfeed.packing.sources.source import (
    Int64,
    Rows,
    Source,
    SourceField,
    SourceOptions,
    chosen,
    objects_of,
)
from zarrfeed.storage.access.file_kinds import IMAGE_SUFFIXES

_INTEGERS = frozenset(("cls", "cls2", "class", "count", "index", "inx", "id"))
_TEXTS = frozenset(("txt", "text", "transcript", "json", "jsn"))


class WebDatasetSource(Source):
    """Samples in tar archives, one archive after the other; its fields are the extensions of the files, and `key`.

    Files .cls, .index and so on are int64; .txt and .json are text; .npy are arrays of one shape; others are bytes.

    Parameters
    ----------
    paths
        Paths of the archives.
    options
        `size` decodes all images to uint8 of shape (3, height, width), as `Data.decode("image", size=)` does; else
        their bytes are kept.

    Raises
    ------
    ConfigError, CorruptChunkError, OSError
        As in `members_of`.
    ConfigError
        If no sample is there, one lacks a field that others have, or there is no such size or field.

    Attributes
    ----------
    notes
        Sentences about files that were left out.
    """

    kind = "webdataset"

    def __init__(self, paths: Sequence[str], options: SourceOptions) -> None:
        self._paths = tuple(paths)
        status = [Path(path).stat() for path in paths]
        self._states = [(one.st_size, one.st_mtime_ns) for one in status]
        self._images = EncodedImages(options)
        index = TarSamples()
        for number, path in enumerate(paths):
            index.add_archive(path, number)
        if not index.keys:
            raise ConfigError(f"{some_of(paths)}: no sample is there; files must be called as in 0001.jpg, 0001.cls")
        self.num_samples = len(index.keys)
        self._keys = index.keys
        self._archives = np.array(index.archives, np.int64)
        names = [*index.ranges, "key"]
        if "key" in index.ranges:
            raise ConfigError(
                f"{some_of(paths)}: files .key cannot be a field: the field key holds the keys of samples"
            )
        wanted = chosen(names, options, printable(paths[0]))
        self._offsets: dict[str, Int64] = {}
        self._sizes: dict[str, Int64] = {}
        for name in wanted[: len(wanted) - ("key" in wanted)]:
            self._check_all_have(name, index.ranges[name])
            self._offsets[name] = np.array(index.ranges[name].offsets, np.int64)
            self._sizes[name] = np.array(index.ranges[name].sizes, np.int64)
        if options.size is not None and not any(_is_image(name) for name in self._offsets):
            raise ConfigError(f"size = {options.size}: none of the fields {', '.join(wanted)} is an image")
        self.fields = tuple(map(self._describe, wanted))
        files = ((path, *state) for path, state in zip(paths, self._states, strict=True))
        self.fingerprint = fingerprint_of(self.kind, paths, files)
        left_out = f"{len(index.left_out)} files that belong to no sample are left out: {some_of(index.left_out)}"
        self.notes = (left_out,) if index.left_out else ()

    def _check_all_have(self, name: str, ranges: FileRanges) -> None:
        if len(ranges.samples) == self.num_samples:
            return
        have = np.zeros(self.num_samples, bool)
        have[ranges.samples] = True
        sample = int(np.flatnonzero(~have)[0])
        advice = "files of a sample must be next to each other; variables chooses fields that all samples have"
        raise ConfigError(f"{self._name(sample)} has no file .{name}, which others have; {advice}")

    def _name(self, sample: int, field: str = "") -> str:
        dot = "." if field else ""
        return f"{printable(self._paths[self._archives[sample]])}: {printable(self._keys[sample])}{dot}{field}"

    def _describe(self, name: str) -> SourceField:
        if name == "key":
            mean = sum(map(len, self._keys)) // self.num_samples
            return SourceField("key", np.dtype(object), kind="text", dims=("sample",), mean_bytes=mean)
        mean, last = int(self._sizes[name].mean()), name.rpartition(".")[2]
        if _is_image(name):
            empty = np.flatnonzero(self._sizes[name] == 0)
            if len(empty):
                raise ConfigError(f"{self._name(int(empty[0]), name)}: is empty, and {len(empty) - 1} more are")
            return self._images.field(name, mean)
        if last in _INTEGERS:
            return SourceField(name, np.dtype(np.int64), dims=("sample",))
        if last == "npy":
            (data,) = self._bytes_of(name, np.zeros(1, np.int64))
            first = self._decoded(decode_npy, memoryview(data), 0, name)
            if first.dtype.kind not in "biufc":
                raise ConfigError(f"{self._name(0, name)}: has the dtype {first.dtype}, must be numbers")
            dims = ("sample", *(f"{name}_{axis}" for axis in range(1, 1 + first.ndim)))
            return SourceField(name, first.dtype, first.shape, dims=dims)
        kind: Any = "text" if last in _TEXTS else "bytes"
        return SourceField(name, np.dtype(object), kind=kind, dims=("sample",), mean_bytes=mean)

    def take(self, samples: Int64) -> list[Rows]:
        """Return some samples, by their numbers.

        Raises
        ------
        OSError
            If an archive cannot be read.
        StoreReadError
            If an archive has changed since the source was opened.
        CorruptChunkError
            If a file is not what its extension says; the message names it.
        """
        return [self._rows(one, samples) for one in self.fields]

    def _rows(self, field: SourceField, samples: Int64) -> Rows:
        name, numbers = field.name, samples.tolist()
        if name == "key":
            return objects_of([self._keys[i] for i in numbers])
        data = self._bytes_of(name, samples)
        if _is_image(name):
            return self._images.rows(data, lambda row: self._name(numbers[row], name))
        if field.kind == "bytes":
            return objects_of(data)
        if field.kind == "text":
            decode: Callable[..., Any] = bytes.decode
            return objects_of([self._decoded(decode, one, i, name) for i, one in zip(numbers, data, strict=True)])
        made: npt.NDArray[Any] = np.empty((len(data), *field.shape), field.dtype)
        is_array = name.rpartition(".")[2] == "npy"
        for row, (i, one) in enumerate(zip(numbers, data, strict=True)):
            if not is_array:
                made[row] = self._decoded(_integer, one, i, name)
                continue
            array = self._decoded(decode_npy, memoryview(one), i, name)
            if (array.dtype, array.shape) != (field.dtype, field.shape):
                has = f"has {array.dtype} of shape {array.shape}, the first sample {field.dtype} of {field.shape}"
                raise CorruptChunkError(f"{self._name(i, name)}: {has}")
            made[row] = array
        return made

    def _decoded(self, decode: Callable[..., Any], data: Any, sample: int, name: str) -> Any:
        try:
            return decode(data)
        except Exception as error:  # of any class
            raise CorruptChunkError(f"{self._name(sample, name)}: cannot be decoded: {error}") from error

    def _bytes_of(self, name: str, samples: Int64) -> list[bytes]:
        """Return the files of one field, each archive opened once."""
        made = [b""] * len(samples)
        archives, offsets, sizes = self._archives[samples], self._offsets[name][samples], self._sizes[name][samples]
        for archive in np.unique(archives).tolist():
            path = self._paths[archive]
            with opened(path, *self._states[archive]) as descriptor:
                for i in np.flatnonzero(archives == archive).tolist():
                    made[i] = read_at(descriptor, int(offsets[i]), int(sizes[i]), path)
        return made


def _is_image(name: str) -> bool:
    return f".{name.rpartition('.')[2]}" in IMAGE_SUFFIXES


def _integer(data: bytes) -> int:
    number = int(data)
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{number} does not fit in int64")
    return number
