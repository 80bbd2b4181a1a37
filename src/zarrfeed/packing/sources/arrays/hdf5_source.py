"""`Hdf5Source`: samples in the datasets of HDF5 files, read by h5py.

The HDF5 library reads and decodes under one lock, in one thread at a time, whoever calls it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.metadata.array.cf import inherited_by_bounds
from zarrfeed.metadata.array.cf_times import is_time_unit
from zarrfeed.packing.sources.arrays.hdf5_datasets import (
    DatasetField,
    cache_bytes,
    datasets_in,
    fields_of,
    sample_axes,
    sample_dim,
    values_of,
    whole_axes,
)
from zarrfeed.packing.sources.file_reading import check_no_grid, choose_reading
from zarrfeed.packing.sources.file_source import FileSource, data_files, same_in_all
from zarrfeed.packing.sources.open_files import OpenFiles
from zarrfeed.packing.sources.same_meaning import Stored, check_same_constants
from zarrfeed.packing.sources.source import Constant, Rows, SourceField, SourceOptions, library
from zarrfeed.storage.files.data_file import DataFile
from zarrfeed.storage.files.hdf5_names import attributes_of, dims_of

#: Most bytes of decoded chunks that HDF5 keeps for each dataset, and the number of files whose chunks it keeps.
MOST_CACHE_BYTES = 64 << 20
_OPEN_FILES = 4


@dataclass(frozen=True)
class _Array:
    """A dataset with samples, as it is in all files: along an axis; None: as a whole, where a file is one sample."""

    path: str
    axis: int | None
    fields: tuple[DatasetField, ...]


@dataclass
class _Layout:
    """The arrays of the first file, which all other files must have."""

    arrays: list[_Array]
    fields: list[SourceField]
    constants: list[Constant]
    told: dict[str, str]  # of each dataset with samples, as messages have it


@dataclass
class _Scan:
    """Findings of all files."""

    layout: _Layout
    block_samples: int
    cache_bytes: int
    lengths: list[int] = field(default_factory=list)
    stored: dict[str, list[Stored]] = field(default_factory=dict)


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
        `sample_axis` their axis elsewhere. `files_are` says the meaning of files, where dimensions have no names.

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
        if options.variables is not None:  # paths name datasets, too: no name in HDF5 has a slash
            options = replace(options, variables=tuple(name.strip("/").replace("/", ".") for name in options.variables))
        self.files = tuple(data_files(paths, self.kind, (".h5", ".hdf5", ".he5", ".hdf", ".nc", ".nc4", ".mat")))
        self._cache_bytes = 1 << 20
        self._open: OpenFiles[Any] = OpenFiles(self._opened, lambda opened: opened[""].close(), _OPEN_FILES)
        with _open(self.files[0]) as opened:
            attributes = attributes_of(opened)
            datasets = datasets_in(opened, self.files[0], options)
            dim = sample_dim(datasets, self.files[0], options) if options.files_are != "samples" else None
            shapes = {name: datasets[name].shape for name in whole_axes(datasets, self.files[0], options)}
        reading = choose_reading(
            self.files,
            shapes,
            options if dim is None else replace(options, files_are="runs"),
            as_samples=lambda: self._scan(options, whole=True),
            as_runs=lambda: self._scan(options, whole=False).lengths,
        )
        scan = self._scan(options, whole=reading.files_are == "samples")
        if dim is not None and options.sample_dim is None and options.files_are is None and len(self.files) > 1:
            check_no_grid(self.files, dim, scan.lengths, scan.stored.get(dim, ()))
        self._arrays, self._cache_bytes = scan.layout.arrays, scan.cache_bytes
        self._describe(
            self.files,
            scan.lengths,
            scan.layout.fields,
            block_samples=scan.block_samples,
            attributes=attributes,
            constants=scan.layout.constants,
            layout=[[array.path, array.axis] for array in self._arrays],
            stored=scan.stored,
            reading=reading,
            dim=dim,
        )

    def _scan(self, options: SourceOptions, *, whole: bool) -> _Scan:
        """Scan all files, where each is one sample (`whole`), or a run of samples.

        Raises
        ------
        ConfigError
            If a file has not what the first one has, or its datasets have different lengths.
        """
        made: _Scan | None = None
        for number, file in enumerate(self.files):
            with _open(file) as opened:
                datasets = datasets_in(opened, file, options)
                axes = whole_axes(datasets, file, options) if whole else sample_axes(datasets, file, options)
                layout = _layout(file, datasets, axes, whole=whole)
                if made is None:
                    sampled = [(datasets[name], axis) for name, axis in axes.items() if axis is not None]
                    chunked = [dataset.chunks[axis] for dataset, axis in sampled if dataset.chunks]
                    made = _Scan(layout, max([1, *chunked]), cache_bytes(sampled, MOST_CACHE_BYTES))
                _check_same(file, layout, self.files[0], made.layout)
                for field in layout.fields:
                    if field.kind == "number":
                        read = partial(self._whole, number, field.name)
                        one = Stored(str(file), field.name, field.dtype, field.attributes, read)
                        made.stored.setdefault(field.name, []).append(one)
                found = {name: datasets[name].shape[axis] for name, axis in axes.items() if axis is not None}
                if len(set(found.values())) > 1:
                    raise ConfigError(f"{file}: its datasets have different numbers of samples: {found}")
                made.lengths.append(next(iter(found.values()), 1))
        assert made is not None  # there is a file, or `data_files` had raised
        return made

    def _opened(self, number: int) -> dict[str, Any]:
        """Return the datasets of a file by their paths, and the file itself as "": an open dataset keeps its chunks."""
        opened = _open(self.files[number], rdcc_nbytes=self._cache_bytes, rdcc_nslots=10_007)
        return {"": opened, **{array.path: opened[array.path] for array in self._arrays}}

    def _read_file(self, number: int, begin: int, end: int) -> list[Rows]:
        with self._open.use(number) as datasets:
            return [
                f.rows(datasets[array.path], array.axis, begin, end)
                for array in self._arrays
                for f in array.fields
                if f.name not in self._axes
            ]

    def _whole(self, number: int, name: str) -> Rows:
        """Return all samples of a field of a file as they are stored."""
        self.files[number].check()
        array, f = next((array, f) for array in self._arrays for f in array.fields if f.name == name)
        with self._open.use(number) as datasets:
            dataset = datasets[array.path]
            values = np.asarray((dataset if f.member is None else dataset.fields(f.member))[()])
        return values[None] if array.axis is None else np.moveaxis(values, array.axis, 0)

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


def _layout(file: DataFile, datasets: dict[str, Any], axes: dict[str, int | None], *, whole: bool) -> _Layout:
    made = _Layout([], [], [], {})
    inherited = inherited_by_bounds({dataset.name: attributes_of(dataset) for dataset in datasets.values()})
    for name, axis in axes.items():
        dataset = datasets[name]
        if axis is None and (not whole or dataset.is_scale):
            attributes = attributes_of(dataset, dataset.dtype) | inherited.get(dataset.name, {})
            made.constants.append(Constant(name, values_of(dataset), dims_of(dataset), attributes))
            continue
        fields = fields_of(name, dataset, axis, file)
        made.arrays.append(_Array(dataset.name, axis, tuple(fields)))
        dims = dims_of(dataset)
        dims = (None, *dims) if axis is None else (dims[axis], *dims[:axis], *dims[axis + 1 :])
        for f in fields:
            attributes = {**f.item.attributes, **attributes_of(dataset, f.item.dtype)}
            attributes |= inherited.get(dataset.name, {})
            is_whole = f.member is None and f.item.kind == "number" and dataset.dtype.kind not in "Mm"
            made.fields.append(
                SourceField(
                    f.name,
                    f.item.dtype,
                    f.shape,
                    f.item.kind,
                    dims if any(dims) and f.member is None else None,
                    attributes,
                    np.asarray(dataset.fillvalue).item() if is_whole and dataset.fillvalue else None,
                    dataset.dtype.itemsize if f.item.kind == "number" else _mean_bytes(dataset, f, axis),
                )
            )
            shape = f"({', '.join(map(str, ('samples', *f.shape)))})"
            is_time = f.item.kind == "number" and is_time_unit(attributes.get("units"))
            what = "times" if is_time else f"{f.item.kind} {f.item.dtype}"
            along = "" if axis is None else f" along axis {axis}"
            told = f"{what} of shape {shape}{along}, of {dims}"
            made.told[f.name] = told
    return made


def _mean_bytes(dataset: Any, f: DatasetField, axis: int | None) -> int:
    """Return the mean bytes of a sample of bytes or text, estimated from the first samples."""
    some = f.rows(dataset, axis, 0, 1 if axis is None else min(dataset.shape[axis], 16))
    return sum(len(one) for one in some) // max(1, len(some))


def _check_same(file: DataFile, layout: _Layout, first_file: DataFile, first: _Layout) -> None:
    """Raise ConfigError if the layout of a file is not that of the first one."""
    same_in_all(file, "the list of datasets with samples", sorted(layout.told), sorted(first.told))
    for name, told in layout.told.items():
        same_in_all(file, f"{name!r}", told, first.told[name])
    check_same_constants(file, layout.constants, first_file, first.constants)
