"""`XarraySource`: samples in files that xarray opens, such as netCDF and GRIB, along a dimension.

Invariant: numbers are packed as they are stored. Scale factors, fill values, units and calendars stay in the
attributes, which mean in the packed store the same as in the file; so they must be the same in all files. Times that
files count from dates of their own are one axis, by value.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.json_attributes import json_attributes
from zarrfeed.metadata.array.cf import inherited_by_bounds
from zarrfeed.metadata.array.cf_times import is_time_unit
from zarrfeed.packing.sources.file_reading import Reading, check_no_grid, run_note, samples_note
from zarrfeed.packing.sources.file_source import FileSource, data_files, same_in_all
from zarrfeed.packing.sources.items import (
    Item,
    check_scalar,
    converted,
    item_of,
)
from zarrfeed.packing.sources.open_files import OpenFiles
from zarrfeed.packing.sources.same_meaning import Stored, check_same_constants
from zarrfeed.packing.sources.source import Constant, Rows, SourceField, SourceOptions, chosen, library
from zarrfeed.storage.access.file_kinds import kind_of_content
from zarrfeed.storage.files.data_file import DataFile

_GRIB = (".grib", ".grib2", ".grb", ".grb2")
_SUFFIXES = (".nc", ".nc4", ".cdf", ".netcdf", *_GRIB)
_OPEN_FILES = 8
#: The name of the dimension of samples where each file is one, and has no coordinate that says which.
_OF_FILES = "file"


class _Field(NamedTuple):
    """A variable with samples: along an axis, or, where a file is one sample, as a whole (None)."""

    name: str
    axis: int | None
    item: Item
    field: SourceField

    def told(self) -> str:
        """Return the properties that must be the same in all files, beside the meaning of numbers, for messages."""
        shape = ", ".join(map(str, ("samples", *self.field.shape)))
        where = "" if self.axis is None else f" along axis {self.axis}"
        is_time = self.item.kind == "number" and is_time_unit(self.field.attributes.get("units"))
        what = "times" if is_time else f"{self.item.kind} {self.item.dtype}"
        return f"{what} of shape ({shape}){where}, of {self.field.dims}"


class XarraySource(FileSource):
    """Variables of files, along the dimension of samples; variables without it are constants.

    Parameters
    ----------
    paths
        Files, or folders of them, in the order of their samples.
    options
        `variables` chooses variables. `sample_dim` is the dimension of samples; a scalar coordinate of that name makes
        each file one sample. Without it, samples lie along `sample_axis` of the variables with the most dimensions, or
        along the unlimited dimension if these differ.

    Raises
    ------
    ConfigError
        If xarray or what it needs to read the files is missing; if a file has other variables, constants, units or
        packing than the first one.
    """

    kind = "xarray"

    def __init__(self, paths: Sequence[str], options: SourceOptions) -> None:
        super().__init__()
        library("xarray", self.kind)
        self.files = tuple(data_files(paths, self.kind, _SUFFIXES))
        self._open: OpenFiles[Any] = OpenFiles(lambda number: _open(self.files[number]), _close, _OPEN_FILES)
        self._fields: list[_Field] = []
        constants: list[Constant] = []
        lengths, attributes, block_samples, dim = [], {}, 1, ""
        stored: dict[str, list[Stored]] = {}
        for number, file in enumerate(self.files):
            with self._open.use(number) as dataset:
                if not number:
                    dim = options.sample_dim or _OF_FILES
                    if options.sample_dim is None and options.files_are != "samples":
                        dim = _sample_dim(file, dataset, options.sample_axis)
                sampled = _sampled(file, dataset, dim)
                names = chosen(list(dataset.variables), options, str(file))
                found = [_field(file, dataset, name, dim) for name in sampled if name in names or name == dim]
                dims = {one for field in found for one in dataset.variables[field.name].dims}
                others = [name for name in dataset.variables if name not in sampled and (name in names or name in dims)]
                same = [_constant(dataset, name) for name in others]
                if not number:
                    self._fields, constants = found, same
                    attributes = json_attributes(dataset.attrs)
                    block_samples = max([1, *(_chunk(dataset.variables[field.name], dim) for field in found)])
                same_in_all(
                    file, "the list of variables", sorted(f.name for f in found), sorted(f.name for f in self._fields)
                )
                known = {field.name: field for field in self._fields}
                for field in found:
                    same_in_all(file, f"{field.name!r}", field.told(), known[field.name].told())
                    dtype = dataset.variables[field.name].dtype
                    read = partial(self._whole, number, field.name, field.axis)
                    one = Stored(str(file), field.name, dtype, field.field.attributes, read)
                    stored.setdefault(field.name, []).append(one)
                check_same_constants(file, same, self.files[0], constants)
                lengths.append(dataset.sizes.get(dim, 1))
        self._describe(
            self.files,
            lengths,
            [field.field for field in self._fields],
            block_samples=block_samples,
            attributes=attributes,
            constants=constants,
            layout=dim,
            stored=stored,
            reading=self._reading(lengths, dim, stored.get(dim), options),
            dim=dim,
        )
        self._dim = dim

    def _reading(
        self, lengths: list[int], dim: str, coordinate: Sequence[Stored] | None, options: SourceOptions
    ) -> Reading:
        """Return the reading of files: runs of samples, or one sample each, where all variables are taken as a whole.

        Raises
        ------
        ConfigError
            If nobody named the dimension, and all files have the same coordinates along it, such as latitudes.
        """
        count = len(self.files)
        if dim == _OF_FILES or all(field.axis is None for field in self._fields):
            return Reading("samples" if dim == _OF_FILES else "runs", lengths, samples_note(count))
        if options.sample_dim is None and options.files_are is None and count > 1:
            check_no_grid(self.files, dim, lengths, coordinate or ())
        return Reading("runs", lengths, run_note(count, repr(dim)) if count > 1 else "")

    def _read_file(self, number: int, begin: int, end: int) -> list[Rows]:
        with self._open.use(number) as dataset:
            copied = [field for field in self._fields if field.name not in self._axes]
            return [self._rows(dataset.variables[field.name], field, begin, end) for field in copied]

    def _whole(self, number: int, name: str, axis: int | None) -> Rows:
        """Return all samples of a variable of a file as they are stored."""
        self.files[number].check()
        with self._open.use(number) as dataset:
            values = np.asarray(dataset.variables[name].values)
        return values[None] if axis is None else np.moveaxis(values, axis, 0)

    def _rows(self, variable: Any, field: _Field, begin: int, end: int) -> Rows:
        if field.axis is None:
            return converted(np.asarray(variable.values), field.item)[None][begin:end]
        values = np.asarray(variable[{self._dim: slice(begin, end)}].values)
        return np.moveaxis(converted(values, field.item), field.axis, 0)

    def close(self) -> None:
        """Close the files."""
        self._open.close()


def _check_hdf5(file: DataFile) -> None:
    """Raise ConfigError for a file of HDF5 that its library does not open: h5netcdf would write a traceback, too."""
    with suppress(ImportError):
        import h5py

        try:
            if kind_of_content(file.path) == "hdf5":
                h5py.File(file.path, "r").close()
        except OSError as error:
            raise ConfigError(f"{file}: is a damaged HDF5 file: {error}") from error


def _open(file: DataFile) -> Any:
    """Open a file as it is stored: nothing is decoded, and nothing is kept in memory. Bounds have their units, too.

    Raises
    ------
    ConfigError
        If xarray does not read it; says what to install.
    """
    xarray = library("xarray", "xarray")
    _check_hdf5(file)
    is_grib = file.path.suffix.lower() in _GRIB
    # cfgrib would write an index beside the file
    more: dict[str, Any] = {"engine": "cfgrib", "backend_kwargs": {"indexpath": ""}} if is_grib else {}
    try:
        dataset = xarray.open_dataset(
            file.path,
            mask_and_scale=False,
            decode_times=False,
            decode_timedelta=False,
            decode_coords=False,
            cache=False,
            **more,
        )
    except Exception as error:
        need = "cfgrib" if is_grib else "h5netcdf netCDF4"
        told = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"{file}: xarray does not open it (does it need: pip install {need}?): {told}") from error
    for name, attributes in inherited_by_bounds({str(n): one.attrs for n, one in dataset.variables.items()}).items():
        dataset.variables[name].attrs.update(attributes)
    return dataset


def _close(dataset: Any) -> None:
    dataset.close()


def _sample_dim(file: DataFile, dataset: Any, axis: int) -> str:
    """Return the dimension at an axis of the variables that have the most; if they differ, the one without a limit.

    Raises
    ------
    ConfigError
        If there is none, or they differ.
    """
    most = max((one.ndim for one in dataset.variables.values()), default=0)
    if not most:
        raise ConfigError(f"{file}: has no variable with a dimension; the kind of source hdf5 reads groups")
    found = {one.dims[axis] for one in dataset.variables.values() if one.ndim == most and -most <= axis < most}
    unlimited = dataset.encoding.get("unlimited_dims", ())
    if len(found) > 1 and len(unlimited) == 1:  # the record dimension, as netCDF calls it
        found = set(unlimited)
    if len(found) != 1:
        told = ", ".join(map(str, dataset.sizes))
        raise ConfigError(f"{file}: sample_dim = None, must name the dimension that counts samples: {told}")
    return str(next(iter(found)))


def _sampled(file: DataFile, dataset: Any, dim: str) -> list[str]:
    """Return the names of the variables that have samples.

    If `dim` is a scalar coordinate, each file is one sample: every variable has samples, except for coordinates that
    have axes, and grid mappings.

    Raises
    ------
    ConfigError
        If the dimension is not there.
    """
    variables = dataset.variables
    if dim in dataset.sizes:
        return [name for name, one in variables.items() if dim in one.dims]
    if dim != _OF_FILES and (dim not in variables or variables[dim].ndim):
        raise ConfigError(f"{file}: sample_dim = {dim!r}, must be one of its dimensions: {', '.join(dataset.sizes)}")
    told = (str({**one.encoding, **one.attrs}.get("coordinates", "")).split() for one in variables.values())
    named = {name for names in told for name in names}
    return [
        name
        for name, one in variables.items()
        if (name not in dataset.sizes and name not in named if one.ndim else "grid_mapping_name" not in one.attrs)
    ]


def _field(file: DataFile, dataset: Any, name: str, dim: str) -> _Field:
    variable = dataset.variables[name]
    axis = variable.dims.index(dim) if dim in variable.dims else None
    shape, dims = list(variable.shape), list(variable.dims)
    if axis is not None:
        del shape[axis], dims[axis]
    what = f"{file}: {name!r}"
    if variable.dtype == object:
        check_scalar(tuple(shape), what)
        item = Item(variable.dtype, "text")
    else:
        item = item_of(variable.dtype, tuple(shape), what)
    attributes = {**item.attributes, **json_attributes(variable.attrs, variable.dtype)}
    fill = variable.attrs.get("_FillValue")
    fill_value = np.asarray(fill).reshape(-1)[0].item() if fill is not None and item.kind == "number" else None
    mean_bytes = 16 if variable.dtype == object else variable.dtype.itemsize
    field = SourceField(
        name, item.dtype, tuple(shape), item.kind, (dim, *map(str, dims)), attributes, fill_value, mean_bytes
    )
    return _Field(name, axis, item, field)


def _constant(dataset: Any, name: str) -> Constant:
    variable = dataset.variables[name]
    return Constant(
        name, np.asarray(variable.values), tuple(variable.dims), json_attributes(variable.attrs, variable.dtype)
    )


def _chunk(variable: Any, dim: str) -> int:
    """Return the number of samples in a chunk of a variable."""
    chunks = variable.encoding.get("chunksizes")
    if not chunks or len(chunks) != variable.ndim or dim not in variable.dims:
        return 1
    return int(chunks[variable.dims.index(dim)])
