"""`NpySource`: samples in NumPy's files, .npy and .npz."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.packing.sources.file_reading import choose_reading
from zarrfeed.packing.sources.file_source import FileSource, data_files, same_in_all
from zarrfeed.packing.sources.items import Item, converted, item_of
from zarrfeed.packing.sources.source import Constant, Rows, SourceField, SourceOptions, chosen
from zarrfeed.storage.files.data_file import DataFile
from zarrfeed.storage.files.npy_arrays import NpyArray, arrays_in

#: Bytes that members of compressed .npz files may need, all together: they are kept in memory.
MOST_DECOMPRESSED_BYTES = 4 << 30
_PAGE_BYTES = 4096


class _ArrayField(NamedTuple):
    """A field of samples: the n-th array of a file, or one named member of its structured items."""

    array: int
    member: str | None
    item: Item


class NpySource(FileSource):
    """Arrays of .npy files, or members of .npz files; a file is a run of samples along an axis, or one sample.

    Parameters
    ----------
    paths
        Files, or folders of them. The array of an .npy is called "data", and a member of structured items "data.name".
    options
        `variables` chooses members, `sample_axis` is the axis of samples. `files_are` says the meaning of files, which
        is unknown where they could be samples or runs.

    Raises
    ------
    ConfigError
        If a file is none of NumPy's, has other arrays than the first one, or needs too much memory; if files could be
        samples and runs of samples, and `files_are` does not say which.
    """

    kind = "npy"

    def __init__(self, paths: Sequence[str], options: SourceOptions) -> None:
        super().__init__()
        files = data_files(paths, self.kind, (".npy", ".npz"))
        self._arrays: list[list[NpyArray]] = []  # of each file
        left = MOST_DECOMPRESSED_BYTES
        for file in files:
            found = arrays_in(file, options.variables if file.path.suffix == ".npz" else None, left)
            names = chosen([_name(array) for array in found], options, str(file))
            arrays = [array for array in found if _name(array) in names]
            left -= sum(array.num_bytes for array in arrays if array.decompressed is not None)
            first = self._arrays[0] if self._arrays else arrays
            same_in_all(file, "the list of its arrays", names, [_name(array) for array in first])
            self._arrays.append(arrays)
        reading = choose_reading(
            files,
            {_name(array): array.shape for array in self._arrays[0]},
            options,
            as_samples=lambda: _check_alike(files, self._arrays, None),
            as_runs=lambda: _lengths_of_runs(files, self._arrays, options.sample_axis),
        )
        #: The axis of samples; None: each file is one.
        self._axis = None if reading.files_are == "samples" else options.sample_axis
        self._array_fields: list[_ArrayField] = []
        fields: list[SourceField] = []
        constants: list[Constant] = []
        runs = [1]
        for number, array in enumerate(self._arrays[0]):
            if self._axis is not None and not array.shape:
                constants.append(Constant(_name(array), array.whole()))
                continue
            shape_of_sample = array.shape
            if self._axis is not None:
                axis = self._axis % len(array.shape)
                run = array.run_bytes(axis)
                runs.append(1 if run is None else _PAGE_BYTES // max(1, run))
                shape_of_sample = (*array.shape[:axis], *array.shape[axis + 1 :])
            for member, dtype in _dtypes(array):
                shape = (*shape_of_sample, *dtype.shape)
                name = _name(array) if member is None else f"{_name(array)}.{member}"
                item = item_of(dtype.base, shape, f"{array.file}: {name!r}")
                self._array_fields.append(_ArrayField(number, member, item))
                field = SourceField(
                    name, item.dtype, shape, item.kind, attributes=item.attributes, mean_bytes=dtype.itemsize
                )
                fields.append(field)
        self._describe(
            files,
            reading.lengths,
            fields,
            block_samples=max(runs),
            constants=constants,
            layout=[options.sample_axis, *(["samples"] if self._axis is None else [])],
            reading=reading,
        )

    def _read_file(self, number: int, begin: int, end: int) -> list[Rows]:
        made = []
        rows: dict[int, Any] = {}  # of each array
        for index, member, item in self._array_fields:
            if index not in rows:
                array = self._arrays[number][index]
                whole = self._axis is None
                rows[index] = array.whole()[None][begin:end] if whole else array.rows(self._axis_of(array), begin, end)
            made.append(converted(rows[index] if member is None else rows[index][member], item))
        return made

    def _axis_of(self, array: NpyArray) -> int:
        assert self._axis is not None
        return self._axis % len(array.shape)


def _name(array: NpyArray) -> str:
    return array.member or "data"


def _dtypes(array: NpyArray) -> list[tuple[str | None, np.dtype[Any]]]:
    """Return the dtypes of the fields that an array makes, with the names of the members of structured items."""
    if array.dtype.names is None:
        return [(None, array.dtype)]
    return [(name, array.dtype[name]) for name in array.dtype.names]


def _lengths_of_runs(files: Sequence[DataFile], arrays: Sequence[Sequence[NpyArray]], axis: int) -> list[int]:
    """Return the number of samples of each file along an axis.

    Raises
    ------
    ConfigError
        If files differ by more than that.
    """
    _check_alike(files, arrays, axis)
    return [_num_samples(of_file, axis) for of_file in arrays]


def _check_alike(files: Sequence[DataFile], arrays: Sequence[Sequence[NpyArray]], axis: int | None) -> None:
    """Raise ConfigError, which names the file, unless arrays have equal dtypes and, but for the axis, shapes."""
    for file, of_file in zip(files, arrays, strict=True):
        for array, other in zip(of_file, arrays[0], strict=True):
            same_in_all(file, f"{_name(array)!r}", _told(array, axis), _told(other, axis))


def _told(array: NpyArray, axis: int | None) -> str:
    """Return the properties that must be the same in all files, as a message has them."""
    if not array.shape and axis is not None:
        return f"{array.whole()[()]!r}"
    shape: list[int | str] = list(array.shape)
    if axis is not None and -len(shape) <= axis < len(shape):
        shape[axis] = "samples"
    return f"{array.dtype.newbyteorder('=')} of shape ({', '.join(map(str, shape))})"


def _num_samples(arrays: Sequence[NpyArray], axis: int) -> int:
    """Return the samples of a file's arrays.

    Raises
    ------
    ConfigError
        If they have not the same number.
    """
    lengths = {}
    for array in arrays:
        if not array.shape:
            continue
        if not -len(array.shape) <= axis < len(array.shape):
            raise ConfigError(
                f"{array}: has the shape {array.shape}, and no axis {axis}: choose others with `variables`"
            )
        lengths[_name(array)] = array.shape[axis]
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise ConfigError(f"{arrays[0].file}: its arrays have different lengths ({told}): choose some with `variables`")
    return next(iter(lengths.values()), 0)
