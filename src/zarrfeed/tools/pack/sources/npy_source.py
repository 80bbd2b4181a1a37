"""`NpySource`: samples in NumPy's files, .npy and .npz."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.tools.pack.sources.file_source import FileSource, data_files, same_in_all
from zarrfeed.tools.pack.sources.items import Item, converted, item_of
from zarrfeed.tools.pack.sources.npy_files import NpyArray, arrays_in
from zarrfeed.tools.pack.sources.source import Constant, Rows, SourceField, SourceOptions, chosen

#: What members of compressed .npz files may need, all together: they are kept in memory.
MOST_KEPT_BYTES = 4 << 30
_PAGE_BYTES = 4096


class _Part(NamedTuple):
    """A field: an array, by its place among those of a file, or one part of its structured items."""

    array: int
    part: str | None
    item: Item


class NpySource(FileSource):
    """Arrays of .npy files of one shape, but for the number of samples; or members of .npz files.

    Parameters
    ----------
    paths
        Files, or folders of them. The array of an .npy is called "data", and a part of structured items "data.name".
    options
        `variables` chooses members, `sample_axis` is the axis of samples.

    Raises
    ------
    ConfigError
        If a file is none of NumPy's, has other arrays than the first one, or needs too much memory.
    """

    kind = "npy"

    def __init__(self, paths: Sequence[str], options: SourceOptions) -> None:
        super().__init__()
        files = data_files(paths, self.kind, (".npy", ".npz"))
        self._arrays: list[list[NpyArray]] = []  # of each file
        left, lengths = MOST_KEPT_BYTES, []
        for file in files:
            found = arrays_in(file, options.variables if file.path.suffix == ".npz" else None, left)
            names = chosen([_name(array) for array in found], options, str(file))
            arrays = [array for array in found if _name(array) in names]
            left -= sum(array.num_bytes for array in arrays if array.kept is not None)
            first = self._arrays[0] if self._arrays else arrays
            same_in_all(file, "the list of its arrays", names, [_name(array) for array in first])
            for array, other in zip(arrays, first, strict=True):
                same_in_all(file, f"{_name(array)!r}", _told(array, options), _told(other, options))
            lengths.append(_num_samples(arrays, options.sample_axis))
            self._arrays.append(arrays)
        self._axis = options.sample_axis
        self._parts: list[_Part] = []
        fields: list[SourceField] = []
        constants: list[Constant] = []
        runs = [1]
        for number, array in enumerate(self._arrays[0]):
            if not array.shape:
                constants.append(Constant(_name(array), array.whole()))
                continue
            axis = self._axis % len(array.shape)
            run = array.run_bytes(axis)
            runs.append(1 if run is None else _PAGE_BYTES // max(1, run))
            for part, dtype in _dtypes(array):
                shape = (*array.shape[:axis], *array.shape[axis + 1 :], *dtype.shape)
                name = _name(array) if part is None else f"{_name(array)}.{part}"
                item = item_of(dtype.base, shape, f"{array.file}: {name!r}")
                self._parts.append(_Part(number, part, item))
                field = SourceField(
                    name, item.dtype, shape, item.kind, attributes=item.attributes, mean_bytes=dtype.itemsize
                )
                fields.append(field)
        self._describe(
            files, lengths, fields, block_samples=max(runs), constants=constants, layout=[options.sample_axis]
        )

    def _read_file(self, number: int, begin: int, end: int) -> list[Rows]:
        made = []
        rows: dict[int, Any] = {}  # of each array
        for index, part, item in self._parts:
            if index not in rows:
                array = self._arrays[number][index]
                rows[index] = array.rows(self._axis % len(array.shape), begin, end)
            made.append(converted(rows[index] if part is None else rows[index][part], item))
        return made


def _name(array: NpyArray) -> str:
    return array.member or "data"


def _dtypes(array: NpyArray) -> list[tuple[str | None, np.dtype[Any]]]:
    """Return the dtypes of the fields that an array makes, with the names of the parts of structured items."""
    if array.dtype.names is None:
        return [(None, array.dtype)]
    return [(name, array.dtype[name]) for name in array.dtype.names]


def _told(array: NpyArray, options: SourceOptions) -> str:
    """Return what must be the same in all files, as a message has it."""
    if not array.shape:
        return f"{array.whole()[()]!r}"
    shape: list[int | str] = list(array.shape)
    if -len(shape) <= options.sample_axis < len(shape):
        shape[options.sample_axis] = "samples"
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
