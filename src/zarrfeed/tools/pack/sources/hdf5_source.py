"""`Hdf5Source`: samples in the datasets of HDF5 files, read by h5py.

The HDF5 library reads and decodes under one lock, in one thread at a time, whoever calls it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.metadata.cf_times import is_time_unit
from zarrfeed.tools.pack.sources.file_source import DataFile, FileSource, data_files, same_in_all
from zarrfeed.tools.pack.sources.hdf5_datasets import (
    Part,
    attributes_of,
    cache_bytes,
    datasets_in,
    dims_of,
    parts_of,
    sample_axes,
    values_of,
)
from zarrfeed.tools.pack.sources.open_files import OpenFiles
from zarrfeed.tools.pack.sources.same_meaning import Stored, check_same_constants
from zarrfeed.tools.pack.sources.source import Constant, Rows, SourceField, SourceOptions, library

#: HDF5 keeps decoded chunks of each dataset up to this size, of as many files.
MOST_CACHE_BYTES = 64 << 20
_OPEN_FILES = 4


@dataclass(frozen=True)
class _Array:
    """A dataset with samples, as it is in all files."""

    path: str
    axis: int
    parts: tuple[Part, ...]


@dataclass
class _Layout:
    """What the first file has, and all others must have."""

    arrays: list[_Array]
    fields: list[SourceField]
    constants: list[Constant]
    told: dict[str, str]  # of each dataset with samples, as messages have it


class Hdf5Source(FileSource):
    """Datasets of HDF5 files, along their axis of samples.

    Datasets of groups are called "group.name", and members of compound items "name.member". Scales and scalars
    without samples are constants. Encoded images in lists of bytes (vlen uint8) are bytes.

    Parameters
    ----------
    paths
        Files, or folders of them.
    options
        `variables` chooses datasets; `sample_dim` is the dimension of samples, where dimensions have names, and
        `sample_axis` their axis elsewhere.

    Raises
    ------
    ConfigError
        If a file is no HDF5, or has other datasets or constants than the first one; if datasets have different
        lengths, or items without a place in Zarr; if h5py is missing.
    """

    kind = "hdf5"

    def __init__(self, paths: Sequence[str], options: SourceOptions) -> None:
        super().__init__()
        library("h5py", self.kind)
        self.files = tuple(data_files(paths, self.kind, (".h5", ".hdf5", ".he5", ".hdf", ".nc", ".nc4", ".mat")))
        self._cache_bytes, block_samples = 1 << 20, 1
        self._open: OpenFiles[Any] = OpenFiles(self._opened, lambda opened: opened[""].close(), _OPEN_FILES)
        first, lengths, attributes = None, [], {}
        stored: dict[str, list[Stored]] = {}
        for number, file in enumerate(self.files):
            with _open(file) as opened:
                datasets = datasets_in(opened, file, options)
                axes = sample_axes(datasets, file, options)
                layout = _layout(file, datasets, axes)
                if first is None:
                    first, attributes = layout, attributes_of(opened)
                    sampled = [(datasets[name], axis) for name, axis in axes.items() if axis is not None]
                    chunked = [dataset.chunks[axis] for dataset, axis in sampled if dataset.chunks]
                    block_samples = max([1, *chunked])
                    self._cache_bytes = cache_bytes(sampled, MOST_CACHE_BYTES)
                _check_same(file, layout, self.files[0], first)
                for field in layout.fields:
                    if field.kind == "number":
                        read = partial(self._whole, number, field.name)
                        one = Stored(str(file), field.name, field.dtype, field.attributes, read)
                        stored.setdefault(field.name, []).append(one)
                found = {name: datasets[name].shape[axis] for name, axis in axes.items() if axis is not None}
                if len(set(found.values())) > 1:
                    raise ConfigError(f"{file}: its datasets have different numbers of samples: {found}")
                lengths.append(next(iter(found.values())))
        assert first is not None  # there is a file, or `data_files` had raised
        self._arrays = first.arrays
        self._describe(
            self.files,
            lengths,
            first.fields,
            block_samples=block_samples,
            attributes=attributes,
            constants=first.constants,
            layout=[[array.path, array.axis] for array in first.arrays],
            stored=stored,
        )

    def _opened(self, number: int) -> dict[str, Any]:
        """Return the datasets of a file by their paths, and the file itself as "": an open dataset keeps its chunks."""
        opened = _open(self.files[number], rdcc_nbytes=self._cache_bytes, rdcc_nslots=10_007)
        return {"": opened, **{array.path: opened[array.path] for array in self._arrays}}

    def _read_file(self, number: int, begin: int, end: int) -> list[Rows]:
        with self._open.use(number) as datasets:
            return [
                part.rows(datasets[array.path], array.axis, begin, end)
                for array in self._arrays
                for part in array.parts
                if part.name not in self._axes
            ]

    def _whole(self, number: int, name: str) -> Rows:
        """Return all samples of a field of a file as they are stored."""
        self.files[number].check()
        array, part = next((array, part) for array in self._arrays for part in array.parts if part.name == name)
        with self._open.use(number) as datasets:
            dataset = datasets[array.path]
            values = np.asarray((dataset if part.member is None else dataset.fields(part.member))[()])
        return np.moveaxis(values, array.axis, 0)

    def close(self) -> None:
        """Close the files."""
        self._open.close()


def _open(file: DataFile, **options: Any) -> Any:
    try:
        return library("h5py", "hdf5").File(file.path, "r", **options)
    except OSError as error:
        with file.path.open("rb") as stream:
            if stream.read(3) == b"CDF":
                raise ConfigError(f"{file}: is netCDF of version 3, which the kind of source xarray reads") from error
        raise ConfigError(f"{file}: is no HDF5 file, or a damaged one: {error}") from error


def _layout(file: DataFile, datasets: dict[str, Any], axes: dict[str, int | None]) -> _Layout:
    made = _Layout([], [], [], {})
    for name, axis in axes.items():
        dataset = datasets[name]
        if axis is None:
            attributes = attributes_of(dataset, dataset.dtype)
            made.constants.append(Constant(name, values_of(dataset), dims_of(dataset), attributes))
            continue
        parts = parts_of(name, dataset, axis, file)
        made.arrays.append(_Array(dataset.name, axis, tuple(parts)))
        dims = dims_of(dataset)
        dims = (dims[axis], *dims[:axis], *dims[axis + 1 :])
        for part in parts:
            attributes = {**part.item.attributes, **attributes_of(dataset, part.item.dtype)}
            is_whole = part.member is None and part.item.kind == "number" and dataset.dtype.kind not in "Mm"
            made.fields.append(
                SourceField(
                    part.name,
                    part.item.dtype,
                    part.shape,
                    part.item.kind,
                    dims if any(dims) and part.member is None else None,
                    attributes,
                    np.asarray(dataset.fillvalue).item() if is_whole and dataset.fillvalue else None,
                    dataset.dtype.itemsize if part.item.kind == "number" else _mean_bytes(dataset, part, axis),
                )
            )
            shape = f"({', '.join(map(str, ('samples', *part.shape)))})"
            is_time = part.item.kind == "number" and is_time_unit(attributes.get("units"))
            what = "times" if is_time else f"{part.item.kind} {part.item.dtype}"
            told = f"{what} of shape {shape} along axis {axis}, of {dims}"
            made.told[part.name] = told
    return made


def _mean_bytes(dataset: Any, part: Part, axis: int) -> int:
    """Return about how many bytes a sample has, of bytes and text, as some of the first tell."""
    some = part.rows(dataset, axis, 0, min(dataset.shape[axis], 16))
    return sum(len(one) for one in some) // max(1, len(some))


def _check_same(file: DataFile, layout: _Layout, first_file: DataFile, first: _Layout) -> None:
    """Raise ConfigError if a file has not what the first one has."""
    same_in_all(file, "the list of datasets with samples", sorted(layout.told), sorted(first.told))
    for name, told in layout.told.items():
        same_in_all(file, f"{name!r}", told, first.told[name])
    check_same_constants(file, layout.constants, first_file, first.constants)
