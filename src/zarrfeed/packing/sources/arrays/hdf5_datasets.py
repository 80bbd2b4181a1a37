"""Datasets of HDF5 files: the list of them, their axes of samples, and the form that their items take in a store."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.packing.sources.items import Item, check_scalar, converted, item_of, names_attributes
from zarrfeed.packing.sources.source import Rows, SourceOptions, chosen, library, objects_of
from zarrfeed.storage.files.data_file import DataFile
from zarrfeed.storage.files.hdf5_library import load_filters
from zarrfeed.storage.files.hdf5_names import dims_of, is_dimension_alone

_KIND = "hdf5"
_OBJECT = np.dtype(object)


@dataclass(frozen=True)
class DatasetField:
    """A dataset, or a member of its compound items, that becomes a field.

    Attributes
    ----------
    name
        Name of the field.
    member
        Name of the member of the items; None: all of an item.
    item
        The form that items take in the packed store.
    shape
        Shape of a sample.
    """

    name: str
    member: str | None
    item: Item
    shape: tuple[int, ...]

    def rows(self, dataset: Any, axis: int | None, begin: int, end: int) -> Rows:
        """Return the samples [begin, end) of a dataset of h5py; with `axis` = None, all of it is one sample."""
        load_filters(dataset)
        if axis is None:
            return self._whole(dataset)[begin:end]
        key = (*(slice(None),) * axis, slice(begin, end))
        if self.item.kind == "text":
            return np.asarray(dataset.asstr()[key], object)
        if self.item.kind == "bytes":
            return objects_of([bytes(one) if isinstance(one, bytes) else one.tobytes() for one in dataset[key]])
        rows = dataset[key] if self.member is None else dataset.fields(self.member)[key]
        return np.moveaxis(converted(rows, self.item), axis, 0)

    def _whole(self, dataset: Any) -> Rows:
        """Return all of a dataset as one sample."""
        if self.item.kind == "text":
            return objects_of([dataset.asstr()[()]])
        value = (dataset if self.member is None else dataset.fields(self.member))[()]
        if self.item.kind == "bytes":
            return objects_of([bytes(value) if isinstance(value, bytes) else value.tobytes()])
        return converted(np.asarray(value), self.item)[None]


def datasets_in(group: Any, file: DataFile, options: SourceOptions) -> dict[str, Any]:
    """Return the datasets of a file by their names, in which dots part the names of groups.

    Datasets without values are left out. Links to other files are followed; a dataset with several names has the first
    one.

    Raises
    ------
    ConfigError
        If a link leads nowhere.
    """
    return dict(_walk(group, "", file, options, set()))


def _walk(group: Any, prefix: str, file: DataFile, options: SourceOptions, seen: set[Any]) -> Iterator[tuple[str, Any]]:
    h5py = library("h5py", _KIND)
    for key in group:
        name = f"{prefix}{key}"
        if isinstance(group.get(key, getlink=True), h5py.SoftLink):
            continue  # another name for what is in the file
        try:
            node = group[key]
        except (KeyError, OSError) as error:
            if options.variables is None or name in options.variables:
                raise ConfigError(f"{file}: the link {name!r} leads nowhere: {error}") from error
            continue
        info = h5py.h5g.get_objinfo(node.id)
        if (info.fileno, info.objno) in seen:
            continue
        seen.add((info.fileno, info.objno))
        if isinstance(node, h5py.Group):
            yield from _walk(node, f"{name}.", file, options, seen)
        elif isinstance(node, h5py.Dataset) and node.shape is not None and not is_dimension_alone(node):
            yield name, node


def _names(datasets: dict[str, Any], file: DataFile, options: SourceOptions) -> list[str]:
    """Return the names of the datasets that are chosen: without `variables`, all that are no scales of others."""
    names = chosen(list(datasets), options, str(file))
    if options.variables is None:
        names = [name for name in names if not datasets[name].is_scale] or names
    return names


def _largest(datasets: dict[str, Any], names: Sequence[str], file: DataFile) -> str:
    arrays = [name for name in names if datasets[name].shape]
    if not arrays:
        raise ConfigError(f"{file}: has no dataset with an axis")
    return max(arrays, key=lambda name: math.prod(datasets[name].shape) * datasets[name].dtype.itemsize)


def sample_dim(datasets: dict[str, Any], file: DataFile, options: SourceOptions) -> str | None:
    """Return the name of the dimension of samples; None if dimensions have no names."""
    arrays = [name for name in _names(datasets, file, options) if datasets[name].shape]
    if options.sample_dim is not None or not arrays:
        return options.sample_dim
    dims = dims_of(datasets[_largest(datasets, arrays, file)])
    return dims[options.sample_axis] if -len(dims) <= options.sample_axis < len(dims) else None


def whole_axes(datasets: dict[str, Any], file: DataFile, options: SourceOptions) -> dict[str, int | None]:
    """Return the datasets of a file that is one sample, and its scales; none of them has an axis of samples."""
    names = _names(datasets, file, options)
    return {name: None for name, dataset in datasets.items() if name in names or dataset.is_scale}


def sample_axes(datasets: dict[str, Any], file: DataFile, options: SourceOptions) -> dict[str, int | None]:
    """Return along which axis chosen datasets have samples; None: along no axis, they are constants.

    If dimensions have names, the dimension of the samples is found by its name. It is `sample_dim`, or that of the
    largest dataset. Without names, samples lie along `sample_axis`, and datasets have equal lengths.

    Raises
    ------
    ConfigError
        If a dataset has neither the name nor the length.
    """
    names = _names(datasets, file, options)
    largest = _largest(datasets, names, file)
    axis, shape = options.sample_axis, datasets[largest].shape
    dim, length = options.sample_dim, None
    if dim is None and -len(shape) <= axis < len(shape):
        dim, length = dims_of(datasets[largest])[axis], shape[axis]
    found: dict[str, int | None] = {}
    for name, dataset in datasets.items():
        dims = dims_of(dataset)
        if name not in names and not (dataset.is_scale or not dims):
            continue
        if dim is not None and dim in dims:
            found[name] = dims.index(dim)
        elif not dims or dataset.is_scale or (dim is not None and None not in dims):
            found[name] = None
        elif length is None or not -len(dims) <= axis < len(dims) or dataset.shape[axis] != length:
            told = f"axis {axis}" if options.sample_dim is None else f"dimension {dim!r}, or an axis of another name"
            raise ConfigError(
                f"{file}: {name!r} has the shape {dataset.shape}, and not the {told} with the length of {largest!r}, "
                f"{shape}: choose datasets with `variables`"
            )
        else:
            found[name] = axis % len(dims)
    if not any(one is not None for one in found.values()):
        raise ConfigError(f"{file}: no dataset has the dimension {dim!r}")
    return found


def fields_of(name: str, dataset: Any, axis: int | None, file: DataFile) -> list[DatasetField]:
    """Return the fields that a dataset makes: one, or one for each member of compound items.

    Samples lie along an axis, or, with None, the dataset is one.

    Raises
    ------
    ConfigError
        If its items have no place in Zarr, or h5py lacks a filter.
    """
    if not load_filters(dataset):
        raise ConfigError(f"{file}: {name!r} has filters that h5py lacks: pip install hdf5plugin")
    dtype, shape = dataset.dtype, tuple(dataset.shape)
    if axis is not None:
        shape = (*shape[:axis], *shape[axis + 1 :])
    if dtype.names is None:
        return [DatasetField(name, None, _item(dtype, shape, f"{file}: {name!r}"), shape)]
    made = []
    for member in dtype.names:
        inner = dtype[member]
        item = _item(inner.base, (*shape, *inner.shape), f"{file}: {name}.{member!r}")
        if item.kind != "number":
            raise ConfigError(f"{file}: {name!r} has items with the text {member!r}: leave it out with `variables`")
        made.append(DatasetField(f"{name}.{member}", member, item, (*shape, *inner.shape)))
    return made


def _item(dtype: np.dtype[Any], shape: tuple[int, ...], what: str) -> Item:
    h5py = library("h5py", _KIND)
    text, vlen, enum = h5py.check_string_dtype(dtype), h5py.check_vlen_dtype(dtype), h5py.check_enum_dtype(dtype)
    if text is not None or (vlen is not None and vlen is not str and np.dtype(vlen).itemsize == 1):
        check_scalar(shape, what)
        return Item(_OBJECT, "text" if text is not None and text.encoding == "utf-8" else "bytes")
    if vlen is not None:
        raise ConfigError(
            f"{what} has lists of different lengths: pad them to one length, or leave it out with `variables`"
        )
    if enum is not None:
        names = sorted(enum, key=enum.__getitem__)
        return Item(np.dtype(dtype.str).newbyteorder("="), "number", names_attributes(names, [enum[n] for n in names]))
    return item_of(dtype, shape, what)


def values_of(dataset: Any) -> Rows:
    """Return all of a dataset, its text as str."""
    h5py = library("h5py", _KIND)
    text = h5py.check_string_dtype(dataset.dtype)
    return np.asarray(dataset.asstr()[()] if text is not None and text.encoding == "utf-8" else dataset[()])


def cache_bytes(datasets: Sequence[tuple[Any, int]], most: int) -> int:
    """Return the memory for the chunks that hold a sample, over all datasets with their axes; at most `most`."""
    largest = 1 << 20
    for dataset, axis in datasets:
        if dataset.chunks:
            sample = math.prod(dataset.shape[:axis]) * math.prod(dataset.shape[axis + 1 :]) * dataset.dtype.itemsize
            largest = max(largest, 2 * sample * dataset.chunks[axis])
    return min(largest, most)
