"""An opened `xarray.Dataset` -> the Zarr arrays behind it, without importing xarray.

xarray opens variables lazily: the array of the store, wrapped in layers that decode or index when values are asked for.
A variable stands for samples of its array if no values were loaded or calculated, and if its layers select nothing but
samples, in the order of the store. Which samples these are is told by the layers that index.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import zarr

from zarrfeed.base.errors import ConfigError
from zarrfeed.metadata.array.cf import dimension_names
from zarrfeed.metadata.array.dask_arrays import refuse_dask

_PACKING = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")
_REOPEN = "pass what xarray.open_zarr returned, variables of it, or samples of it: isel or sel along their dimension"


class StoredArrays(NamedTuple):
    """What is behind objects of xarray.

    Attributes
    ----------
    samples, targets
        A Zarr array or a mapping of names to some; what is not xarray's, as it was given.
    decodes
        Whether they are to be decoded.
    selected
        The samples of the arrays that were selected, ascending: a slice, or a list. None: all.
    """

    samples: Any
    targets: Any
    decodes: bool
    selected: slice | npt.NDArray[np.int64] | None


def stored_arrays(
    samples: Any, targets: Any, *, sample_axis: int, sample_dim: str | None, variables: Any, decode_cf: bool | None
) -> StoredArrays:
    """Return the arrays behind `samples` and `targets`, and which of their samples were selected.

    Parameters
    ----------
    samples
        An `xarray.Dataset` or `xarray.DataArray`.
    targets
        The same, or anything else, which is returned as it is.
    sample_axis, sample_dim, variables
        As of `zarrfeed.open`.
    decode_cf
        Whether arrays are decoded. None: if they were opened so.

    Raises
    ------
    ConfigError
        If a variable is not exactly a Zarr array, or samples of one; names it and says what it is.
    """
    by_side = variables if isinstance(variables, Mapping) else {"samples": variables}
    sides = [_Side("samples", samples, sample_axis, sample_dim, by_side.get("samples"))]
    if not sides[0].is_xarray:
        refuse_dask(samples, "samples")
        raise ConfigError(
            f"samples: got a {type(samples).__name__}, must be an xarray.Dataset or an xarray.DataArray; "
            "zarrfeed.open takes anything else"
        )
    sides.append(_Side("targets", targets, 0, sample_dim, by_side.get("targets")))
    arrays = [side.arrays() for side in sides]
    raw = {name for side in sides for name in side.raw}
    decoded = {name for side in sides for name in side.decoded}
    if decode_cf is None:
        if raw and decoded:
            raise ConfigError(
                f"{', '.join(sorted(raw))} were opened as stored, {', '.join(sorted(decoded))} decoded: say decode_cf="
            )
        decode_cf = not raw
    rows = {name: rows for side in sides for name, rows in side.rows.items()}
    return StoredArrays(arrays[0], arrays[1], decode_cf, _same_rows(rows))


class _Side:
    """One argument, an xarray object or anything else."""

    def __init__(self, side: str, source: Any, sample_axis: int, sample_dim: str | None, variables: Any) -> None:
        self.side = side
        self.source = source
        self.raw: set[str] = set()
        self.decoded: set[str] = set()
        self.rows: dict[str, range | npt.NDArray[np.int64] | None] = {}  # of each variable; None: all
        self._sample_axis = sample_axis
        self._sample_dim = sample_dim
        self._variables = variables
        self._is_dataset = hasattr(source, "data_vars")
        self.is_xarray = self._is_dataset or (hasattr(source, "variable") and hasattr(source, "coords"))

    def arrays(self) -> Any:
        """Return a Zarr array, a mapping of names to them, or the source itself if it is not xarray's."""
        if not self.is_xarray:
            return self.source
        if not self._is_dataset:
            return self._array(self.side, self.source.variable)
        variables: Mapping[Any, Any] = self.source.data_vars
        if self._variables is not None:  # chosen by the dataset, coordinates among them
            variables = {str(name): self.source[name] for name in self._variables if name in self.source.variables}
        wanted = {
            str(name): one.variable
            for name, one in variables.items()
            if one.ndim > 0 and (self._variables is not None or self._sample_dim in (None, *one.dims))
        }
        if not wanted:
            where = "" if self._sample_dim is None else f" with the dimension {self._sample_dim!r}"
            raise ConfigError(f"{self.side}: the xarray.Dataset has no data variable{where}")
        return {name: self._array(f"{self.side}[{name!r}]", variable) for name, variable in wanted.items()}

    def _array(self, name: str, variable: Any) -> zarr.Array[Any]:
        if variable.dtype.kind in "mM":
            raise ConfigError(f"{name}: is decoded as {variable.dtype}; leave it out, or open with decode_times=False")
        array, keys = _unwrap(name, variable._data)  # noqa: SLF001 - xarray loads the public `data`
        stored = dimension_names(array)
        if stored is not None and tuple(variable.dims) != stored:
            raise ConfigError(f"{name}: has the dimensions {variable.dims}, stored are {stored}: {_REOPEN}")
        if keys:
            dims = tuple(variable.dims)
            axis = dims.index(self._sample_dim) if self._sample_dim in dims else self._sample_axis % len(dims)
            rows = _selected_rows(name, array.shape, axis, keys, dims)
            if len(rows) != variable.shape[axis]:  # as xarray itself counts them
                raise _is_selection(name)
            self.rows[name] = rows
        else:
            self.rows[name] = None
        if any(attribute in variable.attrs for attribute in _PACKING):
            self.raw.add(name)
        elif any(attribute in variable.encoding for attribute in _PACKING[:2]):
            self.decoded.add(name)
        return array


def _unwrap(name: str, data: Any) -> tuple[zarr.Array[Any], list[tuple[Any, ...]]]:
    """Return the Zarr array below the layers of a lazy variable, and the keys of those that index, inner first."""
    layer = data
    keys: list[tuple[Any, ...]] = []
    if hasattr(data, "__dask_graph__"):
        # where nothing was done to the chunks, the graph holds what they are cut from
        layer = data.__dask_graph__().get(f"original-{data.name}")
        layer = getattr(layer, "value", layer)
    while True:
        indexer = getattr(layer, "key", None)
        key = getattr(indexer, "tuple", ())
        if any(not isinstance(one, slice) or one != slice(None) for one in key):
            if type(indexer).__name__ not in ("BasicIndexer", "OuterIndexer"):
                raise _is_selection(name)
            keys.insert(0, key)
        stored = getattr(layer, "_array", None)
        if isinstance(stored, zarr.Array):
            return stored, keys
        if type(layer).__module__.partition(".")[0] != "xarray" or not hasattr(layer, "array"):
            break
        layer = layer.array
    if hasattr(data, "__dask_graph__"):
        raise ConfigError(
            f"{name}: is calculated, selected or cut into other chunks by dask: {_REOPEN}; without dask, as "
            "xarray.open_zarr(path, chunks=None) opens it"
        )
    raise ConfigError(f"{name}: its values are in memory, loaded or calculated: {_REOPEN}; or pass the values")


def _selected_rows(
    name: str, shape: tuple[int, ...], axis: int, keys: list[tuple[Any, ...]], dims: tuple[Any, ...]
) -> range | npt.NDArray[np.int64]:
    """Return the samples of an array that keys select, one key after the other.

    Raises
    ------
    ConfigError
        If they select along another axis, or samples in another order than that of the store.
    """
    rows: Any = range(shape[axis])
    for key in keys:
        if len(key) != len(shape):
            raise _is_selection(name)
        for i, (one, length) in enumerate(zip(key, shape, strict=True)):
            if i != axis and not (isinstance(one, slice) and one.indices(length) == (0, length, 1)):
                raise ConfigError(
                    f"{name}: is a selection of what is stored, along {dims[i]!r}: {_REOPEN}. The transform of a "
                    "dataset can crop a sample"
                )
        along = key[axis]
        if not isinstance(along, slice) and np.ndim(along) != 1:
            raise _is_selection(name)
        rows = rows[along] if isinstance(along, slice) else np.asarray(rows)[along]
    steps = np.diff(np.asarray(rows[:2] if isinstance(rows, range) else rows))
    if (steps <= 0).any():
        raise ConfigError(
            f"{name}: is a selection of what is stored in another order, or with samples twice: samples are read in "
            "the order of the store, or shuffled"
        )
    if not len(rows):
        raise ConfigError(f"{name}: is a selection of what is stored that has no sample")
    return rows if isinstance(rows, range) else rows.astype(np.int64)


def _same_rows(
    rows: Mapping[str, range | npt.NDArray[np.int64] | None],
) -> slice | npt.NDArray[np.int64] | None:
    """Return the samples that were selected of every variable.

    Raises
    ------
    ConfigError
        If they differ.
    """
    (first, chosen), *others = rows.items()
    for name, one in others:
        same = one is chosen if one is None or chosen is None else np.array_equal(one, chosen)
        if not same:
            raise ConfigError(f"{name}: is another selection of what is stored than {first}; select the same samples")
    return slice(chosen.start, chosen.stop, chosen.step) if isinstance(chosen, range) else chosen


def _is_selection(name: str) -> ConfigError:
    return ConfigError(f"{name}: is a selection of what is stored: {_REOPEN}")
