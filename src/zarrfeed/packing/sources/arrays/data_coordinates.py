"""The coordinates of a selection: those beside its arrays that xarray would keep, cut like these.

Invariant: these arrays go along, from each folder that an array of the selection lies in: the coordinates of its
dimensions, the coordinates that attributes name, and the arrays that these name in turn, such as bounds. An array goes
along if all of its dimensions are some of the arrays', so a selection of some variables leaves the coordinates of
others out.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from zarrfeed.base.errors import ConfigError, StoreReadError
from zarrfeed.metadata.array.cf import attributes_of, coordinate_attributes, dimension_names, inherited_by_bounds
from zarrfeed.metadata.array.cf_times import is_time_unit
from zarrfeed.metadata.group.beside import open_beside, sibling
from zarrfeed.metadata.group.field_sources import arrays_in
from zarrfeed.packing.sources.same_meaning import Stored, check_same_constants, comparable, differing_values
from zarrfeed.packing.sources.source import Constant, Rows
from zarrfeed.packing.sources.stored_rows import array_attributes
from zarrfeed.spec.arrays.array import ArraySpec
from zarrfeed.spec.arrays.item_choice import AxisChoice
from zarrfeed.storage.access.access import StoreAccess
from zarrfeed.storage.access.checked_nodes import node_name
from zarrfeed.storage.chunks.codec_configs import as_meant

#: Attributes that name arrays; those with dimensions of their own, as bounds have, are named by the first two.
_OF_BOUNDS = ("bounds", "climatology")
_NAMING = (*_OF_BOUNDS, "coordinates", "grid_mapping")


#: The dimension of packed samples that several dimensions number.
SAMPLE = "sample"


@dataclass(frozen=True, eq=False)
class StoreCoordinates:
    """The coordinates of the samples of one store.

    Attributes
    ----------
    along_samples
        The coordinates with a value for each sample, selected or not, by name.
    dims
        The names of their dimensions, that of the samples first.
    constants
        The coordinates without samples, cut to the selected items.
    scalars
        Names of coordinates that no dimension has: of constants whose dimension has a single selected item, and of all
        along samples that several dimensions number.
    attributes
        Attributes of the group.
    """

    along_samples: dict[str, Stored] = field(default_factory=dict)
    dims: dict[str, tuple[str | None, ...]] = field(default_factory=dict)
    constants: list[Constant] = field(default_factory=list)
    scalars: list[str] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)


class CoordinateReader:
    """Reads the coordinates beside arrays.

    Parameters
    ----------
    access
        Options, retries and timeout for requests to stores.
    taken
        Names of the arrays of the selection, which are no coordinates.
    others
        Names of further arrays without samples that go along.
    takes_all
        True if all arrays of the group without samples go along.
    """

    def __init__(self, access: StoreAccess, taken: Sequence[str], others: Sequence[str], *, takes_all: bool) -> None:
        self._access, self._taken, self._others, self._takes_all = access, set(taken), others, takes_all

    def read(
        self, arrays: Sequence[tuple[zarr.Array[Any], ArraySpec]], num_samples: int, grid: Mapping[str, int]
    ) -> StoreCoordinates:
        """Return the coordinates of one store's arrays, which have `num_samples` samples, over all of its folders.

        `grid` are the sample dimensions and their lengths, where there are several.

        Raises
        ------
        ConfigError
            If folders have other coordinates of one name.
        StoreReadError, CorruptChunkError
            If one cannot be read.
        """
        folders: dict[str, list[tuple[zarr.Array[Any], ArraySpec]]] = {}
        for array, spec in arrays:
            folders.setdefault(str(sibling(array, "")), []).append((array, spec))
        made = [self._read_folder(of_folder, num_samples, grid) for of_folder in folders.values()]
        whole = made[0]
        for where, other in zip(list(folders)[1:], made[1:], strict=True):
            known = {one.name: one for one in whole.constants}
            both = [one for one in other.constants if one.name in known]
            check_same_constants(where, both, next(iter(folders)), [known[one.name] for one in both])
            whole.constants.extend(one for one in other.constants if one.name not in known)
            for name, stored in other.along_samples.items():
                first = whole.along_samples.setdefault(name, stored)
                whole.dims.setdefault(name, other.dims[name])
                told = "" if first is stored else differing_values(*comparable((stored, first)))
                if told:
                    raise ConfigError(
                        f"{stored.where} has other values than {first.where}: it {told}, so one sample would have two "
                        "coordinates: bring the arrays together by zarrfeed.join, or pack such stores each by itself"
                    )
            whole.scalars.extend(name for name in other.scalars if name not in whole.scalars)
        return whole

    def _read_folder(
        self, arrays: Sequence[tuple[zarr.Array[Any], ArraySpec]], num_samples: int, grid: Mapping[str, int]
    ) -> StoreCoordinates:
        chosen: dict[str, AxisChoice | None] = {}
        sample_dim = None
        for of_field, spec in arrays:
            for axis, dim in enumerate(_axes_of(of_field, spec, grid)):
                if dim is None or axis == spec.sample_axis:
                    sample_dim = dim if axis == spec.sample_axis and dim is not None else sample_dim
                    continue
                one = None if spec.choice is None else spec.choice.axes[axis]
                if chosen.setdefault(dim, one) != one:
                    raise ConfigError(f"{node_name(of_field)}: has other items along {dim!r} than the arrays beside it")
        lengths = grid or ({} if sample_dim is None else {sample_dim: num_samples})
        first = arrays[0][0]
        group = self._beside(first, "")
        made = StoreCoordinates(attributes=dict(group.attrs) if isinstance(group, zarr.Group) else {})
        found = self._named(first, [dict(one.attrs) for one, _ in arrays], made.attributes, lengths, chosen)
        if self._takes_all and isinstance(group, zarr.Group):
            for name, member in arrays_in("", group, self._access).items():
                if {*lengths, sample_dim}.isdisjoint(dimension_names(member) or (sample_dim,)) and (
                    name not in self._taken
                ):
                    found.setdefault(name, member)
        inherited = inherited_by_bounds({name: attributes_of(array) for name, array in found.items()})
        for name, array in found.items():
            dims = dimension_names(array) or (None,) * len(array.shape)
            attributes = {**array_attributes(array), **inherited.get(name, {})}
            along = [dim for dim in lengths if dim in dims]
            if not along:
                values, left = _cut(self._read(array), dims, chosen)
                made.constants.append(Constant(name, values, left, attributes))
                if not left and dims:
                    made.scalars.append(name)
                continue
            others = tuple(dim for dim in dims if dim not in along)
            for dim in along:
                count = array.shape[dims.index(dim)]
                if count < lengths[dim]:
                    raise ConfigError(f"{node_name(array)}: has {count} values, there are {lengths[dim]} samples")
            read = partial(self._read_along, array, dims, lengths, chosen)
            if is_time_unit(attributes.get("units")) and "_FillValue" not in coordinate_attributes(array):
                attributes.pop("_FillValue", None)
            made.along_samples[name] = Stored(node_name(array), name, np.dtype(array.dtype), attributes, read)
            dropped = {dim for dim, choice in chosen.items() if choice is not None and choice.dropped}
            made.dims[name] = (SAMPLE if grid else along[0], *(dim for dim in others if dim not in dropped))
            if grid:
                made.scalars.append(name)
        return made

    def _named(
        self,
        first: zarr.Array[Any],
        attributes: Sequence[Mapping[str, Any]],
        of_group: Mapping[str, Any],
        sample_dims: Iterable[str],
        chosen: Mapping[str, Any],
    ) -> dict[str, zarr.Array[Any]]:
        """Return the arrays beside one that dimensions and attributes name, and those that their attributes name."""
        known_dims = {*chosen, *sample_dims}
        names = [*known_dims, *self._others, *_names_in(of_group, _NAMING)]
        free = set(self._others)
        for own in attributes:
            names += _names_in(own, _NAMING)
        found: dict[str, zarr.Array[Any]] = {}
        for name in names:  # which grows
            if name in found or name in self._taken:
                continue
            array = self._beside(first, name)
            if not isinstance(array, zarr.Array):
                continue
            dims = dimension_names(array)
            if name not in free and (dims is None or not set(dims) <= known_dims):
                continue
            found[name] = array
            own = dict(array.attrs)
            free.update(_names_in(own, _OF_BOUNDS))
            names += [one for one in _names_in(own, _NAMING) if one not in names]
        return {name: found[name] for name in sorted(found)}

    def _beside(self, array: zarr.Array[Any], name: str) -> Any:
        """Return the node beside an array under a name; None if there is nothing."""
        location = sibling(array, name)
        if location is None:
            return None
        try:
            return open_beside(location, self._access)
        except StoreReadError as error:
            if error.errno in (errno.ENOENT, errno.EACCES, errno.EPERM):  # so some servers say that there is none
                return None
            raise

    def _read(self, array: zarr.Array[Any]) -> npt.NDArray[Any]:
        array = as_meant(array, node_name(array))
        return np.asarray(self._access.ask(lambda: array.async_array.getitem(...), node_name(array)))

    def _read_along(
        self,
        array: zarr.Array[Any],
        dims: Sequence[str | None],
        lengths: Mapping[str, int],
        chosen: Mapping[str, AxisChoice | None],
    ) -> Rows:
        """Return the values of all samples, as they are stored."""
        along = [dim for dim in lengths if dim in dims]
        values = np.moveaxis(self._read(array), [dims.index(dim) for dim in along], range(len(along)))
        values = values[tuple(slice(lengths[dim]) for dim in along)]
        rows = values.shape[len(along) :]
        values = values.reshape(*(lengths[dim] if dim in along else 1 for dim in lengths), *rows)
        values = np.broadcast_to(values, (*lengths.values(), *rows)).reshape(math.prod(lengths.values()), *rows)
        return _cut(values, (None, *(dim for dim in dims if dim not in along)), chosen)[0]


def _axes_of(array: zarr.Array[Any], spec: ArraySpec, grid: Mapping[str, int]) -> Sequence[str | None]:
    """Return the names of the axes of a layout, in which those of samples may be one."""
    names = dimension_names(array) or ()
    if spec.merged is None:
        return names
    others = [name for name in names if name not in grid]
    return (*others[: spec.sample_axis], *list(grid)[-1:], *others[spec.sample_axis :])


def _names_in(attributes: Mapping[str, Any], keys: Sequence[str]) -> list[str]:
    """Return the names of arrays in some attributes."""
    texts = [attributes[key] for key in keys if isinstance(attributes.get(key), str)]
    return [name for text in texts for name in text.replace(":", " ").split() if "/" not in name]


def _cut(
    values: npt.NDArray[Any], dims: Sequence[str | None], chosen: Mapping[str, AxisChoice | None]
) -> tuple[npt.NDArray[Any], tuple[str | None, ...]]:
    """Return the chosen items of an array, and the names of the axes that are left."""
    left = list(dims)
    for axis in reversed(range(len(dims))):
        one = chosen.get(str(dims[axis]))
        if one is not None:
            values = np.take(values, one.positions[0] if one.dropped else np.asarray(one.positions), axis)
            if one.dropped:
                del left[axis]
    return np.asarray(values), tuple(left)
