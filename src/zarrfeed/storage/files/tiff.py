"""TIFF files (OME-TIFF, ImageJ, BigTIFF, GeoTIFF, ...) as a `TableStore`, by tifffile.

A file with one image is an array. One with several resolutions is an image of OME-Zarr: a group of levels. One with
several images is a group of such, as bioformats2raw writes it.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from zarrfeed.base.errors import ConfigError, CorruptChunkError, StoreReadError, UnsupportedError
from zarrfeed.storage.files.chunk_table import ChunkTable
from zarrfeed.storage.files.data_file import AnyFile, DataFile, FarFile, file_of, name_in
from zarrfeed.storage.files.table_store import TableStore
from zarrfeed.storage.files.tiff_image import TiffImage

#: First bytes of classic TIFF and of BigTIFF, in both byte orders.
_MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
#: Names a file that planes of an OME-TIFF lie in.
_FILE_NAME = re.compile(r'\bFileName="([^"]*)"')
#: The bit of the tag NewSubfileType that says that an image is the mask of another one.
_MASK = 4
_KIND_OF_AXIS = {"t": "time", "c": "channel", "z": "space", "y": "space", "x": "space"}


def is_tiff(path: Path | FarFile) -> bool:
    """Return whether a file is a TIFF, by its content.

    Raises
    ------
    OSError
        If it cannot be read.
    """
    with path.open("rb") as file:
        return file.read(4) in _MAGIC


def is_tiff_array(path: Path) -> bool:
    """Return whether a TIFF is more than a picture: several pages, axes that have names, or items that are not 8 bits.

    False if tifffile is not installed. Raises as `open_tiff`.
    """
    if find_spec("tifffile") is None:
        return False
    with _opened(DataFile.of(path.absolute())) as tiff:
        page = tiff.pages.first
        is_picture = page.dtype == np.uint8 and page.samplesperpixel in (1, 3, 4)
        return bool(tiff.is_ome or tiff.is_imagej or not is_picture or _has_second_page(tiff))


def _has_second_page(tiff: Any) -> bool:
    """Return whether a file has several pages; their number would be found by reading where each of them lies."""
    try:
        tiff.pages[1]
    except IndexError:
        return False
    return True


def open_tiff(path: Path | FarFile) -> TableStore:
    """Return a TIFF file as a store.

    Raises
    ------
    ConfigError
        If tifffile is not installed.
    StoreReadError
        If the file is damaged.
    UnsupportedError
        If its only image cannot be read.
    """
    file = file_of(path)
    store = TableStore(file, "TIFF", read_table, read_values=read_values)
    store.lists_decoded = True
    with _opened(file) as tiff:
        found = _images_of(tiff)
        if not found:
            raise StoreReadError(errno.EINVAL, f"{file}: it has no image")
        if len(found) == 1:
            _add_series(store, "", found[0], tiff.byteorder)
        else:
            store.add_group("", {"bioformats2raw.layout": 3})
            for number, series in enumerate(found):
                _add_series(store, str(number), series, tiff.byteorder)
    store.check_readable("")
    return store


def read_table(file: AnyFile, path: str) -> ChunkTable:
    """Return where the chunks of an image lie.

    Raises
    ------
    StoreReadError
        If the file is damaged.
    """
    with _opened(file, path) as tiff:
        return _image_at(tiff, path).table(file, name_in(file, path))


def read_values(file: AnyFile, path: str, index: Sequence[int]) -> bytes | None:
    """Return the items of a tile that tifffile decodes, padded to the shape of a chunk; None if it was never written.

    Raises
    ------
    CorruptChunkError
        If the tile does not decode.
    """
    tiles = _tiles_of(file, path)
    extent = tiles.table.find(index)
    if extent is None:
        return None
    page_grid = tiles.table.grid[len(tiles.table.grid) - tiles.page_axes :]
    number = int(np.ravel_multi_index(tuple(index[len(index) - tiles.page_axes :]), page_grid)) if page_grid else 0
    try:
        far = tiles.table.far_file_of(extent)
        content = tiles.table.read(extent) if far is None else far.read(extent.offset, extent.length)
        values, _, _ = tiles.decode(content, number, **tiles.options)
    except OSError:
        raise
    except Exception as error:  # of any class
        raise CorruptChunkError(f"{tiles.table.name} chunk {tuple(index)}: {error}") from error
    padded = np.zeros(tiles.segment, tiles.dtype)
    padded[tuple(map(slice, values.shape))] = values
    return padded.tobytes()


class _Tiles(NamedTuple):
    """The tiles of an image, and the function of tifffile that decodes one of a page, with its options."""

    table: ChunkTable
    page_axes: int
    segment: tuple[int, ...]
    dtype: np.dtype[Any]
    decode: Any
    options: dict[str, Any]


@lru_cache(maxsize=8)
def _tiles_of(file: AnyFile, path: str) -> _Tiles:
    with _opened(file, path) as tiff:
        image = _image_at(tiff, path)
        page = image.page
        options = {"jpegtables": page.jpegtables, "jpegheader": page.jpegheader}
        table = image.table(file, name_in(file, path))
        return _Tiles(table, image.page_axes, image.segment, image.dtype, page.decode, options)


@contextmanager
def _opened(file: AnyFile, path: str = "") -> Iterator[Any]:
    """Open a file with tifffile; its errors, of any class, become StoreReadError, which names the image at `path`."""
    try:
        tifffile = import_module("tifffile")
    except ImportError as error:
        raise ConfigError(f'{file}: TIFF files are read by tifffile: pip install "zarrfeed[tiff]"') from error
    try:
        with tifffile.TiffFile(file.path if isinstance(file, DataFile) else file.open()) as tiff:
            if isinstance(file, FarFile) and len(set(_FILE_NAME.findall(tiff.ome_metadata or ""))) > 1:
                raise UnsupportedError(f"{file}: its planes lie in several files, which must be local")
            yield tiff
    except (ConfigError, StoreReadError, UnsupportedError):
        raise
    except Exception as error:
        what = f"{name_in(file, path)}: tifffile cannot read it, it is damaged or incomplete: {error}"
        raise StoreReadError(getattr(error, "errno", None) or errno.EINVAL, what) from error


def _images_of(tiff: Any) -> list[Any]:
    """Return the series of a file, without the masks of GDAL, which say where another series is valid."""
    images = [one for one in tiff.series if not int(one.keyframe.subfiletype) & _MASK]
    return images or list(tiff.series)


def _add_series(store: TableStore, path: str, series: Any, byte_order: Literal["<", ">"]) -> None:
    """Add an image: as an array if it is the only one and has one resolution, otherwise as a group of levels."""
    if not path and len(series.levels) == 1:
        _add_level(store, "", series, byte_order)
        return
    image, sizes = TiffImage(series, byte_order), np.array(series.shape)
    axes = [{"name": one or f"axis_{n}", "type": _KIND_OF_AXIS.get(one, "other")} for n, one in enumerate(image.dims)]
    in_front = [1.0] * image.is_plane
    scales = [in_front + (sizes / np.array(level.shape)).tolist() for level in series.levels]
    levels = [
        {"path": str(number), "coordinateTransformations": [{"type": "scale", "scale": scale}]}
        for number, scale in enumerate(scales)
    ]
    store.add_group(path, {"multiscales": [{"version": "0.4", "axes": axes, "datasets": levels}]})
    for number, level in enumerate(series.levels):
        _add_level(store, f"{path}/{number}".lstrip("/"), level, byte_order)


def _add_level(store: TableStore, path: str, level: Any, byte_order: Literal["<", ">"]) -> None:
    try:
        image = TiffImage(level, byte_order)
        document = image.document()
    except UnsupportedError as error:
        store.refused[path] = str(error)
        return
    named = {"_ARRAY_DIMENSIONS": image.dims} if any(image.dims) else {}
    store.add_array(path, document, named, by_library=image.by_library)


def _image_at(tiff: Any, path: str) -> TiffImage:
    """Return the image at a path: of a level, of a series and a level, or the only one."""
    numbers = [int(one) for one in path.split("/") if one]
    found = _images_of(tiff)
    series = found[numbers.pop(0)] if len(found) > 1 else found[0]
    return TiffImage(series.levels[numbers[0]] if numbers else series, tiff.byteorder)
