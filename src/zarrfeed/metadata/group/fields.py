"""The user's arrays -> a `FieldSet`: arrays, groups, mappings and memory, opened, named, aligned or refused."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import zarr
from zarr.abc.store import Store

from zarrfeed.base.errors import (
    ConfigError,
    UnsupportedError,
)
from zarrfeed.base.optional_torch import is_tensor
from zarrfeed.base.suggestions import did_you_mean
from zarrfeed.base.validate import check_flags, check_int
from zarrfeed.metadata.array.array import (
    ArrayLike,
    check_any_is_stored,
    check_counts,
    open_array,
    open_node,
    read_layout,
)
from zarrfeed.metadata.array.cf import data_variables, dimension_names, find_decoding, is_coordinate, named_coordinates
from zarrfeed.metadata.array.conversion import Items
from zarrfeed.metadata.array.dask_arrays import refuse_dask
from zarrfeed.metadata.array.described import Described
from zarrfeed.metadata.array.host_memory import field_in_memory
from zarrfeed.metadata.array.known_groups import (
    EPISODES,
    episodes_of,
    many_images,
    refusal,
    segments_of,
    without_arrays,
)
from zarrfeed.metadata.array.open import check_storage_options, open_source
from zarrfeed.metadata.array.own_metadata import read_own, with_own
from zarrfeed.metadata.array.values import read_stored
from zarrfeed.metadata.group import anndata
from zarrfeed.metadata.group.batch_columns import Array, Opened, OpenedField, Origin
from zarrfeed.metadata.group.coordinates import Coordinates
from zarrfeed.metadata.group.field_sources import arrays_in, check_readable, checked_mapping, leaves, naming
from zarrfeed.metadata.group.multiscale import (
    first_level,
    is_image,
    levels_of,
    warn_of_channels,
    with_levels,
)
from zarrfeed.metadata.group.nested_arrays import names_below, nested_arrays
from zarrfeed.metadata.group.sample_dims import (
    ParsedDims,
    SampleDim,
    in_words,
    lengths_of,
    names_of,
    parse_sample_dim,
    with_sample_dims,
)
from zarrfeed.metadata.group.variables import Variables, sample_dim_advice, select_variables, variables_of
from zarrfeed.plan.windows.windows import check_segment_ends
from zarrfeed.spec.arrays.array import Documented
from zarrfeed.spec.fields.field import (
    StoredField,
    VlenField,
)
from zarrfeed.spec.samples.segments import Segments
from zarrfeed.spec.values.record import select_members
from zarrfeed.storage.access.access import StoreAccess
from zarrfeed.storage.access.key_urls import is_url
from zarrfeed.storage.append.appended import marks_of
from zarrfeed.storage.files.opened_files import remedy_for

if TYPE_CHECKING:
    from obstore.store import ObjectStore as ObstoreStore

#: Largest depth to which groups are entered.
_DEEPEST = 64
#: Types of an array that a user may pass: also a tensor, or a mapper of fsspec, whose types are not imported here.
FieldSource: TypeAlias = "ArrayLike | Store | ObstoreStore | npt.NDArray[Any] | Any"
Source: TypeAlias = "FieldSource | zarr.Group | Mapping[str, FieldSource]"


def open_fields(
    samples: Source,
    targets: Source | None = None,
    *,
    sample_axis: int = 0,
    sample_dim: SampleDim | None = None,
    variables: Variables | None = None,
    multiscale: Sequence[str | int] | None = None,
    decode_cf: bool = True,
    access: StoreAccess | None = None,
    may_grow: bool = False,
    depth: int = 0,
) -> Opened:
    """Open and align all arrays that a dataset consists of. Reads metadata only.

    Parameters
    ----------
    samples, targets
        An array, a group (all arrays in it, by name; groups in it are not entered) or a mapping of names to arrays.
        An array is a path, a URL, a `zarr.Array`, a store with one at its root, a NumPy array or a tensor. Of a group
        whose arrays have named dimensions, as xarray writes them, coordinates and scalars are left out.
    sample_axis
        The sample axis of every array of `samples`; targets have theirs first.
    sample_dim
        The dimension that is the sample axis, in place of `sample_axis`: of every array of `samples`, and of targets
        that have named dimensions. Arrays of a group that lack it are left out, others refused. Or several dimensions,
        of which every combination is a sample; an array that is named may then lack some of them.
    variables
        The arrays of `samples`, a group or a mapping, that are read, in this order; coordinates may be among them. For
        an array of records: the members. Or a mapping of "samples" and "targets" to such lists. None: all.
    multiscale
        The levels of `samples`, an OME-Zarr image. None: of such an image the first one, as a single array.
    decode_cf
        If True, attributes such as `scale_factor` are heeded.
    access
        The access to stores.
    may_grow
        If True, a writer may be at work: the arrays may then have different numbers of samples for a moment.
    depth
        Depth to which groups in `samples` are entered for arrays.

    Raises
    ------
    ConfigError, UnsupportedError, StoreReadError
        For an array that cannot be read, or lengths that differ; the message names the field.
    """
    check_int("sample_axis", sample_axis, -(2**31), 2**31 - 1)
    check_flags(decode_cf=decode_cf)
    sample_dim = parse_sample_dim(sample_dim)
    if sample_dim is not None and sample_axis != 0:
        raise ConfigError(f"sample_dim = {sample_dim!r} and sample_axis = {sample_axis}: give one of them")
    access = access or StoreAccess()
    check_storage_options(access, *leaves(samples), *leaves(targets))
    reader = _SideReader("samples", sample_axis, sample_dim, decode_cf, access, may_grow)
    sides = ("samples",) if targets is None else ("samples", "targets")
    names = variables_of(sides, variables)
    check_int("depth", depth, 0, _DEEPEST)
    if depth and (names[0] is not None or multiscale is not None):
        raise ConfigError(f"depth = {depth} is for all arrays below a group: give neither variables= nor multiscale=")
    reader.read(samples, names[0], multiscale, depth)
    segment_ends, packed_ends, categories = reader.segment_ends, reader.packed_ends, reader.categories
    arrays, known, of_matrices = reader.arrays, reader.known, reader.of_matrices
    folder = "" if segment_ends is None else EPISODES
    for one in arrays:
        f = one.field
        shape = (f.num_samples, *f.sample_shape)
        if not f.is_stored and math.prod(shape) == 0:
            raise ConfigError(f"{f.name}: has the shape {shape}, must have at least one element")
    if targets is not None:
        reader = _SideReader("targets", 0, sample_dim, decode_cf, access, may_grow)
        reader.read(targets, names[1])
        arrays, known = arrays + reader.arrays, {**reader.known, **known}
        of_matrices = [*of_matrices, *reader.of_matrices]
        categories = {**reader.categories, **categories}
    grid: dict[str, int] = {}
    if isinstance(sample_dim, tuple):
        if may_grow or multiscale is not None:
            raise UnsupportedError(
                f"sample_dim = {sample_dim!r}: several sample dimensions exclude refresh= and multiscale="
            )
        grid = lengths_of(arrays, sample_dim)
        arrays = with_sample_dims(arrays, grid)
    if not may_grow:
        _check_lengths(arrays)
    num_samples = arrays[0].field.num_samples
    in_store = [one.items for one in arrays if one.stored]
    coordinates = Coordinates.of(
        [array for one in arrays for array in one.stored],
        [one.sample_axis for one in in_store],
        known,
        num_samples,
        dimensions=[one.dimensions for one in in_store],
        of_matrices=of_matrices,
        access=access,
        may_grow=may_grow,
        grid=grid,
    )
    if not may_grow and not any(
        marks.disposable for one in arrays for array in one.stored if (marks := marks_of(array))
    ):
        arrays = [replace(one, stored=()) for one in arrays]
    if packed_ends is not None and not any(one.items.sample_axis for one in arrays):
        segment_ends = np.append(packed_ends, max(num_samples, packed_ends[-1]))
    if grid:  # no window leaves the combination of the other dimensions
        *_, along = grid.values()
        ends = np.arange(along, num_samples + 1, along)
        segment_ends = ends if segment_ends is None else np.union1d(ends, segment_ends)
    if segment_ends is not None:
        segment_ends = check_segment_ends(segment_ends, num_samples)
    origin = Origin(
        segments=None if segment_ends is None else Segments.of(segment_ends, folder=folder),
        coordinates=coordinates,
        categories=categories,
    )
    return Opened(tuple(arrays), origin)


def _check_lengths(arrays: Sequence[Array]) -> None:
    first = arrays[0].field
    samples = [one.items for one in arrays if one.items.side == "samples"]
    for number, one in enumerate(arrays):
        other = one.field
        if other.num_samples != first.num_samples:
            advice = sample_dim_advice(samples) if number < len(samples) else ""
            raise ConfigError(
                f"{other.name} has {other.num_samples} samples, {first.label} has {first.num_samples}: they must be "
                f"equal{advice}"
            )


class _SideReader:
    """Reads one side of the batch: its arrays."""

    def __init__(
        self,
        side: str,
        sample_axis: int,
        sample_dim: ParsedDims,
        decode_cf: bool,
        access: StoreAccess,
        may_grow: bool,
    ) -> None:
        self.arrays: list[Array] = []
        self.of_matrices: list[zarr.Array[Any]] = []  # an array of each sparse matrix
        self.known: dict[str, zarr.Array[Any]] = {}  # by name in the group or mapping: coordinates are among them
        self._side = side
        self._sample_axis = sample_axis
        self._sample_dim = sample_dim
        self._may_grow = may_grow
        self._decode_cf = decode_cf
        self.segment_ends: npt.NDArray[Any] | None = None
        self.packed_ends: npt.NDArray[Any] | None = None  # of what was packed: others may have been appended
        self.categories: anndata.Categories = {}
        self._access = access
        self._is_fresh = False  # whether arrays that are given as such were opened by their own documents just now
        self._unproved: list[int] = []  # numbers of arrays that were not

    def read(
        self,
        source: Source,
        variables: Sequence[str] | None,
        multiscale: Sequence[str | int] | None = None,
        depth: int = 0,
    ) -> None:
        """Read all arrays."""
        if depth:
            source = open_source(source, self._access)
            if not isinstance(source, zarr.Group):
                raise ConfigError(f"depth = {depth}: {self._side} must be a group")
            variables = names_below(self._side, source, depth, names_of(self._sample_dim), self._access)
            if not variables:
                where = in_words(self._sample_dim)
                raise ConfigError(f"depth = {depth}: there is no data variable{where} in {self._side}")
        self._read(source, variables, multiscale)
        self._compare_with_own()

    def _read(self, source: Source, variables: Sequence[str] | None, multiscale: Sequence[str | int] | None) -> None:
        side, given = self._side, source
        source = open_source(source, self._access)
        of_group = isinstance(source, zarr.Group) and source.metadata.consolidated_metadata is None
        self._is_fresh = of_group or (source is not given and isinstance(source, zarr.Array))
        self.packed_ends = segments_of(source)
        if multiscale is not None or (isinstance(source, zarr.Group) and variables is None and is_image(source)):
            self._read_image(source, variables, multiscale)
            return
        coordinates: set[str] = set()
        named: Mapping[str, Any]
        if isinstance(source, zarr.Group) and anndata.is_csr(source) and variables is None:
            self._read_field(None, source)
            return
        if isinstance(source, zarr.Group) and anndata.is_root(source) and variables is not None:
            with naming(side):
                named, categorical = anndata.elements_by_path(side, source, variables)
                self.categories = anndata.categories_in(categorical)
        elif isinstance(source, zarr.Group):
            check_readable(side, source, variables)
            known = refusal(source) if variables is None else None
            if known is not None:
                with naming(side):
                    raise known
            arrays = arrays_in(side, source, self._access)
            if not arrays and (episodes_of(source) is not None or not any("/" in name for name in variables or ())):
                source, arrays = self._replay_buffer(source)
            arrays |= nested_arrays(side, source, variables, self._access)
            self.known.update(arrays)
            coordinates = named_coordinates(arrays.values(), dict(source.attrs))
            named = self._data_of(arrays, source) if variables is None else select_variables(side, arrays, variables)
        elif isinstance(source, Mapping):
            named = checked_mapping(side, source)
            named = named if variables is None else select_variables(side, named, variables)
        elif isinstance(source, zarr.Array | np.ndarray) or is_tensor(source):
            if isinstance(source, zarr.Array):
                self._check_channels(dimension_names(source) or ())
            self._read_field(None, source, variables)
            return
        else:
            refuse_dask(source, side)
            raise ConfigError(
                f"{side}: got a {type(source).__name__}, must be a path, a URL, a zarr.Array, a zarr.Group, a "
                f"store, a NumPy array, a tensor, or a mapping of names to arrays{remedy_for(source)}"
            )
        for key, array in named.items():
            with naming(f"{side}[{key!r}]"):
                self._read_field(key, array)
            for array in self.arrays[-1].stored:
                self.known[key] = array
        coordinates |= named_coordinates([array for one in self.arrays for array in one.stored], {})
        for number, one in enumerate(self.arrays):
            for array in one.stored:
                items = replace(one.items, is_coordinate=is_coordinate(array, coordinates))
                self.arrays[number] = replace(one, items=items)

    def _compare_with_own(self) -> None:
        """Compare what is known of arrays from elsewhere, such as consolidated metadata, with their own documents."""
        owns = read_own([self.arrays[number].stored[0] for number in self._unproved], self._access)
        for number, own in zip(self._unproved, owns, strict=True):
            one = self.arrays[number]
            self.arrays[number] = replace(one, field=one.field.with_specs(partial(with_own, own=own)))

    def _read_image(self, source: Any, variables: Sequence[str] | None, multiscale: Sequence[str | int] | None) -> None:
        """Read levels of an image of OME-Zarr; without names the first one, as a bare tensor."""
        if not isinstance(source, zarr.Group) or variables is not None:
            raise ConfigError(f"multiscale = {multiscale!r}: {self._side} must be an OME-Zarr image, without variables")
        self._leave_many_images(source)
        with naming(self._side):
            if multiscale is None:
                level = first_level(source)
                self._read_field(None, level.array, axes=level.axes)
                self._check_channels(level.axes, *level.kinds[:1])
                return
            levels = levels_of(source, multiscale)
            for key, level in levels.items():
                self._read_field(key, level.array, axes=level.axes)
            self.arrays = with_levels(self.arrays, levels)
            first = next(iter(levels.values()))
            self._check_channels(first.axes, *first.kinds[:1])

    def _leave_many_images(self, group: zarr.Group) -> None:
        """Raise ManyImagesError for samples that are a plate or the like, so that `zarrfeed.open` opens many stores."""
        many = many_images(group) if self._side == "samples" else None
        if many is not None:
            raise many

    def _check_channels(self, axes: Sequence[str | None], kind: str = "") -> None:
        """Warn if channels of an image are samples because nobody named a dimension."""
        if self._side == "samples" and self._sample_dim is None and self._sample_axis == 0:
            warn_of_channels(axes, kind)

    def _replay_buffer(self, group: zarr.Group) -> tuple[zarr.Group, dict[str, zarr.Array[Any]]]:
        """Return the group `data` of a replay buffer, whose root has no arrays; its episodes are segments.

        Raises
        ------
        ConfigError
            If it is no replay buffer, or its episodes are none of its data.
        """
        found = episodes_of(group)
        arrays = {} if found is None else arrays_in(self._side, found[0], self._access)
        if found is None or not arrays:
            self._leave_many_images(group)
            with naming(self._side):
                raise without_arrays(group)
        self.segment_ends = read_stored(found[1])
        return found[0], arrays

    def _data_of(self, arrays: Mapping[str, zarr.Array[Any]], group: zarr.Group) -> dict[str, zarr.Array[Any]]:
        """Return the arrays of a group that are read: data variables, with the sample dimension if it is named."""
        names = data_variables(arrays, dict(group.attrs))
        dims = names_of(self._sample_dim)
        names = [name for name in names if set(dims) <= set(dimension_names(arrays[name]) or ())]
        if not names:
            where = in_words(self._sample_dim)
            dimensions = {name: None for array in arrays.values() for name in dimension_names(array) or ()}
            described = ", ".join(f"{name}{_in_words(dimension_names(array))}" for name, array in arrays.items())
            raise ConfigError(
                f"{self._side}: the group has no data variable{where}; arrays in it: {described}"
                f"{did_you_mean(next((dim for dim in dims if dim not in dimensions), None), dimensions)}"
            )
        return {name: arrays[name] for name in names}

    def _read_field(
        self,
        key: str | None,
        source: FieldSource,
        members: Sequence[str] | None = None,
        axes: tuple[str, ...] = (),
    ) -> None:
        name = self._side if key is None else f"{self._side}[{key!r}]"
        dimensions = decoding = record = described = None
        stored: tuple[zarr.Array[Any], ...] = ()
        dtype: str | None
        if isinstance(source, np.ndarray) or is_tensor(source):
            axis = self._find_axis(name, None)
            if isinstance(source, np.ndarray) and source.dtype.names:
                record = select_members(name, source.dtype, members)
            field: OpenedField = field_in_memory(name, source, axis, record)
            dtype, shape = field.dtype_name, tuple(source.shape)
            axis %= len(shape)
        else:
            is_local = isinstance(source, str | Path) and not is_url(source)  # messages have the path as it was given
            opened: Any = source if is_local else open_source(source, self._access)
            node = open_node(opened, self._access.zarr_format) if is_local else opened
            if anndata.is_csr(node):
                self._read_matrix(key, name, node)
                return
            array = open_array(opened if isinstance(node, zarr.Group) else node, self._access.zarr_format)
            dimensions = dimension_names(array)
            if axes and not any(dimensions or ()):
                dimensions = axes
            spec = read_layout(opened, sample_axis=self._find_axis(name, dimensions), access=self._access)
            shape, axis = spec.shape, spec.sample_axis
            if not isinstance(self._sample_dim, tuple):
                check_counts(spec)
            check_any_is_stored(spec)
            if spec.item_type:
                field, dtype = VlenField(name, spec), None
            else:
                if spec.record is not None:
                    record = select_members(name, spec.record, members)
                field, dtype = StoredField(name, spec, record=record), spec.dtype.name
                if self._decode_cf:
                    with naming(spec.name):
                        decoding = find_decoding(array)
                    units = str(array.metadata.attributes.get("units", ""))
                    field = replace(field, spec=replace(spec, documented=Documented(None, True, decoding, units)))
            stored = (array,)
            if isinstance(source, zarr.Array) and not (self._is_fresh or self._may_grow):
                self._unproved.append(len(self.arrays))
            described = Described.of(array, axis, self.known, decodes=self._decode_cf)
        if members is not None and record is None:
            raise ConfigError(f"variables = {members!r}: {self._side} is an array, must be a group or a mapping")
        items = Items(self._side, key, dtype, shape, axis, dimensions, decoding, is_record=record is not None)
        self.arrays.append(Array(field, replace(items, described=described), stored=stored))

    def _read_matrix(self, key: str | None, name: str, group: zarr.Group) -> None:
        """Read a sparse matrix, whose rows are samples."""
        if self._sample_axis != 0 or self._sample_dim is not None or self._may_grow:
            raise UnsupportedError(
                f"{name}: is a csr_matrix, whose rows are samples and do not grow: sample_axis must be 0, sample_dim "
                "and refresh must be None"
            )
        field = anndata.read_csr(name, group, self._access)
        shape = (field.num_samples, field.num_columns)
        self.arrays.append(Array(field, Items(self._side, key, field.data.dtype, shape, 0)))
        self.of_matrices.append(anndata.indptr_of(group))

    def _find_axis(self, name: str, dimensions: tuple[str | None, ...] | None) -> int:
        if self._sample_dim is None:
            return self._sample_axis
        if dimensions is None:
            if self._side == "targets":
                return 0
            raise ConfigError(f"{name}: has no dimension names, sample_dim = {self._sample_dim!r} needs them")
        dims = names_of(self._sample_dim)
        named = [dim for dim in dims if dim in dimensions]
        if not named:
            raise ConfigError(
                f"{name}: sample_dim = {self._sample_dim!r}, must be one of its dimensions {dimensions}"
                f"{did_you_mean(dims[0], dimensions)}"
            )
        return dimensions.index(named[0])


def _in_words(dimensions: tuple[str | None, ...] | None) -> str:
    return "" if dimensions is None else f" ({', '.join(map(str, dimensions))})"
