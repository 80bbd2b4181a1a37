"""An opened `xarray.Dataset` -> the Zarr arrays behind it, without importing xarray.

xarray opens variables lazily: the array of the store, wrapped in layers that decode or index when values are asked for.
A variable stands for a selection of its array if no values were loaded or calculated. The layers that index tell what
was selected along each axis of the array: samples, in the order of the store, and items of other axes in any order.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import zarr

from zarrfeed.base.errors import ConfigError
from zarrfeed.metadata.array.array import open_array
from zarrfeed.metadata.array.cf import dimension_names
from zarrfeed.metadata.array.dask_arrays import refuse_dask
from zarrfeed.metadata.array.dask_selection import NotASelectionError, selection_of
from zarrfeed.metadata.group.sample_dims import ParsedDims, in_words, names_of
from zarrfeed.spec.arrays.item_choice import AxisChoice, Positions, positions_of
from zarrfeed.storage.files.manifests import is_virtual_dataset

_PACKING = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")
_REOPEN = (
    "pass what xarray.open_zarr or open_dataset returned, variables of it, or what isel or sel chose of it along each "
    "dimension"
)


class StoredArrays(NamedTuple):
    """The stored arrays behind objects of xarray.

    Attributes
    ----------
    samples, targets
        A Zarr array or a mapping of names to some; what is not xarray's, as it was given.
    decodes
        True if they are to be decoded.
    selected
        The samples of the arrays that were selected, ascending: a slice, or a list. None: all.
    items
        The items that were selected along other dimensions, by name or number of the axis, as `Data.isel` takes them.
    """

    samples: Any
    targets: Any
    decodes: bool
    selected: slice | npt.NDArray[np.int64] | None
    items: dict[str | int, Any]


def stored_arrays(
    samples: Any,
    targets: Any,
    *,
    sample_axis: int,
    sample_dim: ParsedDims,
    variables: Any,
    decode_cf: bool | None,
) -> StoredArrays:
    """Return the arrays behind `samples` and `targets`, and which of their samples were selected.

    Parameters
    ----------
    samples
        An `xarray.Dataset` or `xarray.DataArray`.
    targets
        An object of xarray, or anything else, which is returned as it is.
    sample_axis, sample_dim, variables
        The arguments of `zarrfeed.open`.
    decode_cf
        If True, arrays are decoded. None: if they were opened so.

    Raises
    ------
    ConfigError
        If a variable is not exactly a Zarr array, or samples of one; names it and says what it is.
    """
    by_side = variables if isinstance(variables, Mapping) else {"samples": variables}
    sides = [_Side("samples", samples, sample_axis, sample_dim, by_side.get("samples"))]
    if is_virtual_dataset(samples):
        raise ConfigError("samples: has references and no values: zarrfeed.open(dataset, sample_dim=...) reads them")
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
                f"{', '.join(sorted(raw))} were opened without decoding, {', '.join(sorted(decoded))} with it: "
                "give decode_cf="
            )
        decode_cf = not raw
    rows = {name: rows for side in sides for name, rows in side.rows.items()}
    items = {name: items for side in sides for name, items in side.items.items()}
    return StoredArrays(arrays[0], arrays[1], decode_cf, _same_rows(rows), _same_items(items))


class _Side:
    """One argument, an xarray object or anything else."""

    def __init__(self, side: str, source: Any, sample_axis: int, sample_dim: ParsedDims, variables: Any) -> None:
        self.side = side
        self.source = source
        self.raw: set[str] = set()
        self.decoded: set[str] = set()
        self.rows: dict[str, range | npt.NDArray[np.int64] | None] = {}  # of each variable; None: all
        self.items: dict[str, dict[str | int, AxisChoice | None]] = {}  # of each variable, by the dimension; None: all
        self._sample_axis = sample_axis
        self._sample_dims = names_of(sample_dim)
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
            if one.ndim > 0 and (self._variables is not None or set(self._sample_dims) <= set(one.dims))
        }
        if not wanted:
            where = in_words(self._sample_dims)
            raise ConfigError(f"{self.side}: the xarray.Dataset has no data variable{where}")
        return {name: self._array(f"{self.side}[{name!r}]", variable) for name, variable in wanted.items()}

    def _array(self, name: str, variable: Any) -> zarr.Array[Any]:
        if variable.dtype.kind in "mM":
            raise ConfigError(f"{name}: is decoded as {variable.dtype}; leave it out, or open with decode_times=False")
        lazy = variable._data  # noqa: SLF001 - xarray loads the public `data`
        array, keys = _unwrap(name, lazy, self.source.encoding.get("source"))
        dims, stored = tuple(variable.dims), dimension_names(array)
        named = [stored.index(dim) for dim in self._sample_dims if stored is not None and dim in stored]
        is_named = bool(named)
        sample_axis = named[0] if is_named else self._sample_axis % len(array.shape)
        selected = _selected_along(name, array.shape, keys, sample_axis)
        kept = [axis for axis, one in enumerate(selected) if not one.dropped]
        if (
            sample_axis not in kept
            or len(kept) != len(dims)
            or (stored is not None and dims != tuple(stored[axis] for axis in kept))
        ):
            raise ConfigError(f"{name}: has the dimensions {dims}, stored are {stored}: {_REOPEN}")
        if variable.shape != tuple(len(selected[axis].positions) for axis in kept):  # as xarray itself counts them
            raise _is_selection(name)
        axis = sample_axis
        if not is_named and axis != kept[self._sample_axis % len(dims)]:
            raise ConfigError(
                f"{name}: has the dimensions {dims}, stored are {stored}, so axis {self._sample_axis} is another one; "
                "name the dimension of samples: sample_dim="
            )
        rows, *_ = [_selected_rows(name, selected[one].positions) for one in named or [axis]]
        several = len(self._sample_dims) > 1  # samples are then chosen along each of them
        self.rows[name] = None if several or len(rows) == array.shape[axis] else rows
        self.items[name] = {
            number if stored is None or stored[number] is None else str(stored[number]): (
                None if one.positions == range(length) and not one.dropped else one
            )
            for number, (one, length) in enumerate(zip(selected, array.shape, strict=True))
            if several or number != axis
        }
        if any(attribute in variable.attrs for attribute in _PACKING):
            self.raw.add(name)
        elif any(attribute in variable.encoding for attribute in _PACKING[:2]):
            self.decoded.add(name)
        return array


def _unwrap(name: str, data: Any, path: Any) -> tuple[zarr.Array[Any], list[tuple[Any, ...]]]:
    """Return the Zarr array below the layers of a lazy variable, and the keys of those that index, inner first."""
    layer = data
    keys: list[tuple[Any, ...]] = []
    if hasattr(data, "__dask_graph__"):
        try:
            layer, selected = selection_of(data)
        except NotASelectionError as error:
            raise ConfigError(f"{name}: {error}: {_REOPEN}{_by_path(path)}") from None
        keys.append(selected)
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
        if hasattr(layer, "datastore") and hasattr(layer, "variable_name"):
            return _in_file(name, layer), keys
        if type(layer).__module__.partition(".")[0] != "xarray" or not hasattr(layer, "array"):
            break
        layer = layer.array
    raise ConfigError(
        f"{name}: its values are in memory, loaded or calculated: {_REOPEN}; or pass the values{_by_path(path)}"
    )


def _by_path(path: Any) -> str:
    """Return the end of an error that names the call that works, where the path of the store is known."""
    return f"; or name the store: zarrfeed.open({path!r}).sel(...), and calculate with transform=" if path else ""


def _in_file(name: str, layer: Any) -> zarr.Array[Any]:
    """Return the array of a file that xarray reads by netCDF4, h5netcdf or scipy.

    Raises
    ------
    ConfigError
        If the file has no path, such as one in memory. And as in `open_array`.
    """
    of_file = layer.datastore
    path = getattr(of_file, "_filename", None) or getattr(getattr(of_file, "ds", None), "filename", None)
    if not isinstance(path, str | Path):
        raise ConfigError(f"{name}: its file has no path: {_REOPEN}; or pass the values")
    group = (getattr(of_file, "_group", None) or "").strip("/")
    return open_array("/".join(part for part in (str(path), group, layer.variable_name) if part))


def _selected_along(
    name: str, shape: tuple[int, ...], keys: list[tuple[Any, ...]], sample_axis: int
) -> list[AxisChoice]:
    """Return the choice that keys make along each axis of an array, one key after the other.

    Raises
    ------
    ConfigError
        If they select several axes together, or nothing.
    """
    selected = [AxisChoice(range(length)) for length in shape]
    for key in keys:
        kept = [axis for axis, one in enumerate(selected) if not one.dropped]
        if len(key) != len(kept):
            raise _is_selection(name)
        for axis, one in zip(kept, key, strict=True):
            before = selected[axis].positions
            if isinstance(one, slice):
                selected[axis] = AxisChoice(before[one])
                continue
            if np.ndim(one) > 1:
                raise _is_selection(name)
            chosen = np.atleast_1d(np.asarray(before, dtype=np.int64)[one])
            selected[axis] = AxisChoice(positions_of(chosen), dropped=np.ndim(one) == 0)
    for axis, choice in enumerate(selected):
        if not len(choice.positions):
            what = "sample" if axis == sample_axis else f"items along axis {axis}"
            raise ConfigError(f"{name}: selects no {what} of the stored array")
    return selected


def _selected_rows(name: str, positions: Positions) -> range | npt.NDArray[np.int64]:
    """Return the samples of an array that were selected.

    Raises
    ------
    ConfigError
        If they are in another order than that of the store.
    """
    if (isinstance(positions, range) and positions.step > 0) or (np.diff(positions) > 0).all():
        return positions if isinstance(positions, range) else np.array(positions, dtype=np.int64)
    raise ConfigError(
        f"{name}: selects samples in another order than the store, or some twice; select them in order, each once: a "
        "dataset shuffles them"
    )


def _same_items(items: Mapping[str, Mapping[str | int, AxisChoice | None]]) -> dict[str | int, Any]:
    """Return the items that were selected along each dimension of every variable, as `Data.isel` takes them.

    Raises
    ------
    ConfigError
        If they differ.
    """
    found: dict[str | int, tuple[str, AxisChoice | None]] = {}
    for name, of_dims in items.items():
        for dim, one in of_dims.items():
            first, chosen = found.setdefault(dim, (name, one))
            if chosen != one:
                raise ConfigError(f"{name} and {first} select different items along {dim!r}; select the same items")
    return {dim: _indexer_of(one) for dim, (_, one) in found.items() if one is not None}


def _indexer_of(one: AxisChoice) -> Any:
    if one.dropped:
        return one.positions[0]
    if not isinstance(one.positions, range):
        return list(one.positions)
    stop = one.positions.stop
    return slice(
        one.positions.start, None if stop < 0 else stop, None if one.positions.step == 1 else one.positions.step
    )


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
            raise ConfigError(f"{name} and {first} select different samples; select the same samples")
    return slice(chosen.start, chosen.stop, chosen.step) if isinstance(chosen, range) else chosen


def _is_selection(name: str) -> ConfigError:
    return ConfigError(f"{name}: selects items of the stored array in a way that zarrfeed cannot read: {_REOPEN}")
