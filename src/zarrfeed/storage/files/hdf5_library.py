"""h5py, which reads HDF5 files: its import, files that it opens, and datasets by their paths."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from typing import Any

from zarrfeed.base.errors import ConfigError, StoreReadError, UnsupportedError
from zarrfeed.storage.files.chunk_table import chunks_of_rows
from zarrfeed.storage.files.data_file import AnyFile, DataFile, name_in
from zarrfeed.storage.files.hdf5_filters import Filter
from zarrfeed.storage.files.hdf5_names import DIMENSION_NUMBER, link_to

#: An item of text counts as so many bytes where chunks are cut: strings have no fixed size.
_TEXT_BYTES = 64
#: Lengths of dimensions that are kept: each needs a look at all variables along it.
_MOST_LENGTHS = 4096
_lengths: dict[tuple[tuple[int, int], tuple[int, int]], int] = {}


def library() -> Any:
    """Return h5py.

    Raises
    ------
    ConfigError
        If it is not installed.
    """
    try:
        return import_module("h5py")
    except ImportError as error:
        raise ConfigError('HDF5 and NetCDF4 files are read by h5py: pip install "zarrfeed[hdf5]"') from error


@contextmanager
def opened_file(file: AnyFile, path: str = "") -> Iterator[Any]:
    """Open a file with h5py; its errors, of any class, become StoreReadError, which names the dataset at `path`."""
    h5py = library()
    try:
        with ExitStack() as stack:
            source = file.path if isinstance(file, DataFile) else stack.enter_context(file.open())
            # h5py's own lock, from open to close: threads that close a file while others use it crashed
            stack.enter_context(h5py._objects.phil)  # noqa: SLF001
            yield stack.enter_context(h5py.File(source, "r"))
    except (ConfigError, StoreReadError, UnsupportedError):
        raise
    except Exception as error:
        what = f"{name_in(file, path)}: HDF5 cannot read it, it is damaged, incomplete or being written: {error}"
        raise StoreReadError(getattr(error, "errno", None) or errno.EINVAL, what) from error


def address_of(node: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the number of the file that a group or a dataset lies in, and where it lies there.

    `h5o.get_info` would count the nodes of all indices of chunks, too: slow, and a crash if they are damaged.
    """
    info = library().h5g.get_objinfo(node.id)
    return info.fileno, info.objno


def dataset_at(file: Any, path: str) -> Any:
    """Return the dataset that the store calls by a path."""
    node = file
    for name in path.split("/"):
        node = node[link_to(node, name)]
    return node


def is_text(dataset: Any) -> bool:
    """Return whether items are text of any length."""
    text = library().check_string_dtype(dataset.dtype)
    return text is not None and text.length is None


def chunks_of(dataset: Any) -> tuple[int, ...]:
    """Return the shape of the chunks in which a dataset is read."""
    item_bytes = _TEXT_BYTES if is_text(dataset) else dataset.dtype.itemsize
    return dataset.chunks or chunks_of_rows(dataset.shape, item_bytes)


def shape_of(dataset: Any) -> tuple[int, ...]:
    """Return the shape of a dataset, along a dimension of NetCDF that may grow as long as that is.

    HDF5 has fewer items where other variables were written further; those of NetCDF have the fill value there.
    """
    shape: list[int] = list(dataset.shape)
    for axis, most in enumerate(dataset.maxshape):
        if most is None:
            scales = [dataset] if dataset.is_scale else dataset.dims[axis].values()[:1]
            shape[axis] = max(shape[axis], *map(_length_of, scales), 0)
    return tuple(shape)


def _length_of(scale: Any) -> int:
    """Return the length of a dimension of NetCDF that may grow, that of the longest variable along it; 0 for others."""
    if DIMENSION_NUMBER not in scale.attrs:
        return 0
    key = address_of(scale)  # HDF5 numbers the files that it opens
    found = _lengths.get(key)
    if found is None:
        if len(_lengths) >= _MOST_LENGTHS:
            _lengths.clear()
        found = _lengths[key] = _longest_along(scale)
    return found


def _longest_along(scale: Any) -> int:
    used = scale.attrs.get("REFERENCE_LIST", ())
    lengths = [int(scale.file[reference].shape[int(axis)]) for reference, axis in used if reference]
    longest: int = max(*scale.shape, *lengths, 0)
    return longest


def filters_of(dataset: Any) -> list[Filter]:
    """Return the filters of a dataset, in the order of encoding."""
    created = dataset.id.get_create_plist()
    filters = [created.get_filter(number) for number in range(created.get_nfilters())]
    return [Filter(one[0], one[2], one[3].decode("utf-8", "replace")) for one in filters]


def load_filters(dataset: Any) -> bool:
    """Return whether the library has the filters of a dataset, those of hdf5plugin too, imported if needed."""
    numbers, available = [one.number for one in filters_of(dataset)], library().h5z.filter_avail
    if not all(map(available, numbers)):
        with suppress(ImportError):
            import_module("hdf5plugin")
    return all(map(available, numbers))
