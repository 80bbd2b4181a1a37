"""`TiffImage`: one image of a TIFF file, of any number of axes, whose tiles or strips are the chunks of an array.

tifffile reads the tags, and says which page is which plane. Invariant: the items of an array are those that tifffile
reads of the image. The engine decodes a chunk where codecs say exactly how the file encodes it; elsewhere tifffile does
(JPEG, packed bits, floats with a predictor, ...).
"""

from __future__ import annotations

import errno
import math
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from zarrfeed.base.errors import StoreReadError, UnsupportedError
from zarrfeed.storage.files.chunk_table import ChunkTable, Int64, chunk_grid, chunks_of_rows
from zarrfeed.storage.files.data_file import AnyFile, DataFile, FarFile
from zarrfeed.storage.files.table_store import array_document, plain_dtype

#: An image that lies in one piece is read in rows of its first axis, unless one has more bytes.
_MOST_ROW_BYTES = 1 << 20
_NO_COMPRESSION = 1
_NO_PREDICTOR, _HORIZONTAL = 1, 2
#: Number of a compression -> the codec.
_COMPRESSORS: dict[int, dict[str, Any]] = {
    5: {"id": "zarrfeed.lzw"},
    8: {"id": "zlib", "level": 6},
    32946: {"id": "zlib", "level": 6},
    50000: {"id": "zstd", "level": 3},
}
#: Unsigned and signed integers, floats, complex numbers of floats.
_FORMATS = (1, 2, 3, 6)


class TiffImage:
    """An image: a level of a series of tifffile.

    Parameters
    ----------
    level
        The `TiffPageSeries`.
    byte_order
        That of the file, as NumPy has it.

    Attributes
    ----------
    is_plane
        True if the file has one plane, so that the array has an axis of one image in front: files of planes are read
        as many images, and not as the rows of many.
    page
        The page whose tags hold for all of them.
    by_library
        True if tifffile decodes the tiles, since no codecs do.
    is_raw
        True if each page lies in the file as it is, in one piece.
    segment
        Depth, length, width and samples of what is read at once: of a tile or a strip, or of some rows of a raw page.
    page_axes
        The number of axes, the last ones, that a page has, once the chunks are known.
    """

    page_axes = 0

    def __init__(self, level: Any, byte_order: Literal["<", ">"]) -> None:
        self.level, self.page = level, level.keyframe
        self.is_plane = set(str(level.axes).lower()) <= set("yxs")
        self.shape = (*(1,) * self.is_plane, *(int(n) for n in level.shape))
        plain = plain_dtype(np.dtype(level.dtype))
        self.by_library = not _has_codecs(self.page, plain)
        self.is_raw = bool(self.page.is_final) and not self.by_library
        self.dtype = plain if self.by_library else plain.newbyteorder(byte_order)
        self.segment = self._segment()
        self.row_bytes = math.prod(self.segment[2:]) * plain.itemsize
        self.segment_bytes = math.prod(self.segment) * plain.itemsize

    def _segment(self) -> tuple[int, int, int, int]:
        page = self.page
        samples = int(page.samplesperpixel if page.planarconfig == 1 else 1)
        if self.is_raw:
            (rows, _) = chunks_of_rows((page.imagelength, page.imagewidth * samples), self.dtype.itemsize)
            return 1, min(rows, page.imagelength), page.imagewidth, samples
        if page.is_tiled:
            return page.tiledepth, page.tilelength, page.tilewidth, samples
        return 1, min(page.rowsperstrip, page.imagelength), page.imagewidth, samples

    @property
    def dims(self) -> list[str]:
        """The names of the axes, as OME-Zarr has them; "" where tifffile knows none."""
        axes = str(self.level.axes).lower()
        return [*[""] * self.is_plane, *("" if one in "qi_" or axes.count(one) > 1 else one for one in axes)]

    @cached_property
    def begin(self) -> int | None:
        """The offset of all pages, if they lie in one piece."""
        parents = {id(one.parent) for one in self.level.pages if one is not None} if self.is_raw else set()
        return self.level.dataoffset if len(parents) == 1 else None

    @property
    def is_rows(self) -> bool:
        """True if the image is read in rows of its first axis, which lie side by side."""
        return self.begin is not None and math.prod(self.shape[1:]) * self.dtype.itemsize <= _MOST_ROW_BYTES

    @property
    def num_pages(self) -> int:
        """Pages of the image; of a raw image as many as there would be, since ImageJ writes the tags of one alone."""
        return len(self.level.pages) if self.begin is None else math.prod(self.shape) // math.prod(self.page.shaped)

    @cached_property
    def chunks(self) -> tuple[int, ...]:
        """The shape of the chunks.

        Raises
        ------
        UnsupportedError
            If the pages are not the planes of an image of this shape.
        """
        if self.is_rows:
            return chunks_of_rows(self.shape, self.dtype.itemsize)
        chunks, axis = [1] * len(self.shape), len(self.shape)
        of_page = [one for one in zip(self.page.shaped, (1, *self.segment), strict=True) if one != (1, 1)]
        for size, chunk in reversed(of_page):
            axis -= 1
            while axis > 0 and self.shape[axis] == 1 != size:
                axis -= 1
            if axis < 0 or self.shape[axis] != size:
                raise UnsupportedError(f"its pages have shape {self.page.shaped}, the image has {self.shape}")
            chunks[axis] = chunk
        if math.prod(self.shape[: max(axis, 0)]) != self.num_pages:
            raise UnsupportedError(f"it has {self.num_pages} pages, and shape {self.shape}")
        self.page_axes = len(self.shape) - axis
        return tuple(chunks)

    @property
    def codecs(self) -> list[dict[str, Any]]:
        """The codecs of a chunk, as Zarr v2 has them, in the order of encoding."""
        if self.by_library or self.is_raw:
            return []
        page, size, codecs = self.page, self.segment_bytes, []
        if page.predictor == _HORIZONTAL:
            delta = {"id": "zarrfeed.delta", "decoded_bytes": size, "element_bytes": self.dtype.itemsize}
            is_big = self.dtype.byteorder == ">"
            codecs.append({**delta, "run_bytes": self.row_bytes, "stride": self.segment[3], "big_endian": is_big})
        if page.compression == _NO_COMPRESSION:
            return codecs
        last_rows = 0 if page.is_tiled else page.imagelength % self.segment[1]
        if last_rows:
            codecs.append({"id": "zarrfeed.short", "decoded_bytes": size, "run_bytes": last_rows * self.row_bytes})
        compressor = _COMPRESSORS[page.compression]
        is_of_file = compressor["id"].startswith("zarrfeed.")
        return [*codecs, {**compressor, "decoded_bytes": size} if is_of_file else compressor]

    def document(self) -> dict[str, Any]:
        """Return the document of Zarr v2.

        Raises
        ------
        UnsupportedError
            If tifffile cannot decode the tiles, or the pages are not the planes of the image; says why.
        """
        if self.by_library:
            try:
                self.page.decode(None, 0)
            except Exception as error:  # of any class, also where imagecodecs is missing
                raise UnsupportedError(f"tifffile cannot decode it: {error}") from error
        return array_document(self.shape, self.chunks, self.dtype, self.page.nodata, self.codecs)

    def table(self, file: AnyFile, name: str) -> ChunkTable:
        """Return where the chunks lie, in the file and in others that an OME-TIFF names.

        Raises
        ------
        StoreReadError
            If the file is damaged.
        """
        if self.is_rows:
            assert self.begin is not None
            return ChunkTable.of_rows(file, name, self.shape, self.dtype.itemsize, self.begin)
        grid = chunk_grid(self.shape, self.chunks)
        extents, paths = zip(*self._pages(file), strict=True)
        if sum(map(len, extents)) != math.prod(grid):
            what = f"{name}: has {sum(map(len, extents))} tiles or strips, must have {math.prod(grid)}: it is damaged"
            raise StoreReadError(errno.EINVAL, what)
        others = [path for path in dict.fromkeys(paths) if path != str(file)]
        files = [file, *(DataFile.of_reference(Path(path), name) for path in others)]
        number_of = {path: number for number, path in enumerate([str(file), *others])}
        indices = np.repeat(np.array([number_of[path] for path in paths], np.int32), [len(one) for one in extents])
        rows = np.concatenate(extents)
        numbers = np.flatnonzero(rows[:, 1])
        padded = self.segment_bytes if self.is_raw or self.page.compression == _NO_COMPRESSION else 0
        if self.by_library:
            padded = 0
        return ChunkTable.of_files(files, name, grid, numbers, rows[numbers], indices[numbers], padded_bytes=padded)

    def _pages(self, file: AnyFile) -> Iterator[tuple[Int64, str]]:
        """Yield the extents of the chunks of each page, in their order, and the file that they lie in."""
        page_bytes = math.prod(self.page.shaped) * self.dtype.itemsize
        if self.begin is not None:
            for number in range(self.num_pages):
                yield self._rows_from(self.begin + number * page_bytes), str(file)
            return
        per_page = math.prod(chunk_grid(self.page.shaped, (1, *self.segment)))
        for page in self.level.pages:
            if page is None:  # OME-TIFF need not have all planes
                yield np.zeros((per_page, 2), np.int64), str(file)
                continue
            path = str(file) if isinstance(file, FarFile) else str(Path(page.parent.filehandle.path).absolute())
            if self.is_raw:
                yield self._rows_from(int(page.dataoffsets[0])), path
                continue
            found = np.array([page.dataoffsets, page.databytecounts], np.int64).T
            found[found[:, 0] == 0] = 0
            if self.page.compression == _NO_COMPRESSION and not self.by_library:
                found[:, 1] = np.minimum(found[:, 1], self.segment_bytes)
            yield found, path

    def _rows_from(self, begin: int) -> Int64:
        """Return the extents of the runs of rows of a raw page."""
        (_, rows, *_), length = self.segment, self.page.imagelength
        firsts = np.arange(0, length, rows, dtype=np.int64)
        sizes = np.minimum(rows, length - firsts) * self.row_bytes
        planes = np.arange(math.prod(self.page.shaped[:2]))[:, None]
        offsets = begin + (planes * length + firsts) * self.row_bytes
        return np.stack([offsets, np.broadcast_to(sizes, offsets.shape)], axis=-1).reshape(-1, 2)


def _has_codecs(page: Any, dtype: np.dtype[Any]) -> bool:
    """Return whether codecs decode the tiles of a page."""
    if page.bitspersample != 8 * dtype.itemsize or page.sampleformat not in _FORMATS:
        return False
    if page.fillorder != 1 or page.is_subsampled:
        return False
    is_known = page.compression == _NO_COMPRESSION or page.compression in _COMPRESSORS
    is_delta = page.predictor == _HORIZONTAL and dtype.kind in "iu"
    return is_known and (page.predictor == _NO_PREDICTOR or is_delta)
