"""An opened `xarray.Dataset` -> the Zarr arrays behind it, without importing xarray.

xarray opens variables lazily: the array of the store, wrapped in layers that decode or index when values are asked for.
A variable is the array itself if none of its layers selects anything, and if no values were loaded or calculated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import zarr

from zarrfeed.base.errors import ConfigError
from zarrfeed.metadata.cf import dimension_names

_PACKING = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")
_REOPEN = "pass what xarray.open_zarr returned, or variables of it, unchanged"


def stored_arrays(
    samples: Any, targets: Any, *, sample_dim: str | None, variables: Any, decode_cf: bool | None
) -> tuple[Any, Any, bool]:
    """Return the arrays behind `samples` and `targets`, and whether they are to be decoded.

    Parameters
    ----------
    samples
        An `xarray.Dataset` or `xarray.DataArray`.
    targets
        The same, or anything else, which is returned as it is.
    sample_dim, variables
        As of `zarrfeed.open`.
    decode_cf
        Whether arrays are decoded. None: if they were opened so.

    Raises
    ------
    ConfigError
        If a variable is not exactly a Zarr array; names it and says what it is.
    """
    by_side = variables if isinstance(variables, Mapping) else {"samples": variables}
    parts = [_Part("samples", samples, sample_dim, by_side.get("samples"))]
    if not parts[0].is_xarray:
        raise ConfigError(
            f"samples: got a {type(samples).__name__}, must be an xarray.Dataset or an xarray.DataArray; "
            "zarrfeed.open takes anything else"
        )
    parts.append(_Part("targets", targets, sample_dim, by_side.get("targets")))
    arrays = [part.arrays() for part in parts]
    raw = {name for part in parts for name in part.raw}
    decoded = {name for part in parts for name in part.decoded}
    if decode_cf is None:
        if raw and decoded:
            raise ConfigError(
                f"{', '.join(sorted(raw))} were opened as stored, {', '.join(sorted(decoded))} decoded: say decode_cf="
            )
        decode_cf = not raw
    return arrays[0], arrays[1], decode_cf


class _Part:
    """One argument, an xarray object or anything else."""

    def __init__(self, part: str, source: Any, sample_dim: str | None, variables: Any) -> None:
        self.part = part
        self.source = source
        self.raw: set[str] = set()
        self.decoded: set[str] = set()
        self._sample_dim = sample_dim
        self._variables = variables
        self._is_dataset = hasattr(source, "data_vars")
        self.is_xarray = self._is_dataset or (hasattr(source, "variable") and hasattr(source, "coords"))

    def arrays(self) -> Any:
        """Return a Zarr array, a mapping of names to them, or the source itself if it is not xarray's."""
        if not self.is_xarray:
            return self.source
        if not self._is_dataset:
            return self._array(self.part, self.source.variable)
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
            raise ConfigError(f"{self.part}: the xarray.Dataset has no data variable{where}")
        return {name: self._array(f"{self.part}[{name!r}]", variable) for name, variable in wanted.items()}

    def _array(self, name: str, variable: Any) -> zarr.Array[Any]:
        if variable.dtype.kind in "mM":
            raise ConfigError(f"{name}: is decoded as {variable.dtype}; leave it out, or open with decode_times=False")
        array = _unwrap(name, variable._data)  # noqa: SLF001 - xarray loads the public `data`
        stored = dimension_names(array)
        if stored is not None and tuple(variable.dims) != stored:
            raise ConfigError(f"{name}: has the dimensions {variable.dims}, stored are {stored}: {_REOPEN}")
        if any(attribute in variable.attrs for attribute in _PACKING):
            self.raw.add(name)
        elif any(attribute in variable.encoding for attribute in _PACKING[:2]):
            self.decoded.add(name)
        return array


def _unwrap(name: str, data: Any) -> zarr.Array[Any]:
    """Return the Zarr array below the layers of a lazy variable."""
    layer = data
    if hasattr(data, "__dask_graph__"):
        # where nothing was done to the chunks, the graph holds what they are cut from
        layer = data.__dask_graph__().get(f"original-{data.name}")
        layer = getattr(layer, "value", layer)
    while True:
        key = getattr(getattr(layer, "key", None), "tuple", ())
        if any(not isinstance(one, slice) or one != slice(None) for one in key):
            raise ConfigError(f"{name}: is a selection of what is stored: {_REOPEN}; Data.select selects samples")
        stored = getattr(layer, "_array", None)
        if isinstance(stored, zarr.Array):
            return stored
        if type(layer).__module__.partition(".")[0] != "xarray" or not hasattr(layer, "array"):
            break
        layer = layer.array
    if hasattr(data, "__dask_graph__"):
        raise ConfigError(f"{name}: is calculated or selected by dask: {_REOPEN}")
    raise ConfigError(f"{name}: its values are in memory, loaded or calculated: {_REOPEN}; or pass the values")
