"""Encoded images become pixels: Pillow and simplejpeg decode, and the core resizes, all without the GIL.

Invariant: Pillow says what an image is and what is broken. simplejpeg, if it is installed, decodes JPEGs to the
same bits in less time, and a crop only down to its last row; what it refuses is for Pillow. Both decode with
libjpeg-turbo. The core resizes to the bits of Pillow 13.
"""

from __future__ import annotations

import io
import math
import re
import threading
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrfeed.base.native import core
from zarrfeed.plan.order.image_crops import Box, ImageDraw
from zarrfeed.spec.fields.images import MODES, Images

if TYPE_CHECKING:
    from PIL import Image

Pixels: TypeAlias = npt.NDArray[np.uint8]

#: A JPEG is decoded at a fraction of its size if that is still so many times the wanted one: as with Pillow's
#: `thumbnail`, the result can hardly be told from that of the whole image.
_REDUCING_GAP = 2
#: The modes whose values do not fit in 8 bits: Pillow would cut them off at 255.
_WIDE_MODES = ("I", "F", "I;16", "I;16L", "I;16B", "I;16N")
#: Pillow's modes of JPEGs that simplejpeg decodes -> its names of them.
_COLORSPACES = {"RGB": "RGB", "L": "GRAY"}
#: The decoder's complaint of rows that are left.
_ROWS_LEFT = re.compile(r"Corrupt JPEG data: \d+ extraneous bytes before marker 0xd9")
#: Larger images are decoded to memory that is not kept.
_MOST_HELD_BYTES = 1 << 23
#: Rows of pixels that JPEGs are encoded together in, at most.
_ROWS_OF_BLOCKS = 16


@cache
def _simplejpeg() -> Any:
    """Return the module, or None if it is not installed."""
    try:
        import simplejpeg
    except ImportError:
        return None
    return simplejpeg


def library_name() -> str:
    """Return the names of the libraries that decode images, with their versions."""
    from PIL import __version__

    jpegs = _simplejpeg()
    return f"Pillow {__version__}" + ("" if jpegs is None else f", JPEGs by simplejpeg {jpegs.__version__}")


def pixels_of(
    data: bytes | memoryview, images: Images, draw: ImageDraw | None = None, out: Pixels | None = None
) -> Pixels:
    """Decode an image: uint8 of shape (channels, height, width), `out` or a view that need not be contiguous.

    Parameters
    ----------
    data
        The encoded image.
    images
        The mode, the size and the crop of the pixels.
    draw
        The numbers that its sample draws. None: images are neither cropped nor mirrored.
    out
        Contiguous memory for the pixels; only with a size.

    Raises
    ------
    Exception
        An exception of any class, if the image cannot be decoded.
    """
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        if image.mode in _WIDE_MODES:
            raise ValueError(f"it has more than 8 bits a channel (mode {image.mode}), and uint8 has 8")
        mode = images.mode or (image.mode if image.mode in MODES else "RGB")
        width, height = image.size
        box = (0, 0, width, height) if draw is None else draw.box(width, height)
        factor = 1
        if images.size is not None:
            box, factor = _reduce(image, box, images.size)
        decoded = _decode_jpeg(data, image, box, factor, memory=_own if images.size is None else _room.of)
        is_mirrored = draw is not None and draw.mirrors
        if decoded is None or mode != image.mode:
            whole = image if decoded is None else Image.fromarray(decoded)
            cropped = whole if box == (0, 0, *whole.size) else whole.crop(box)
            made = cropped if cropped.mode == mode else cropped.convert(mode)
            if images.size is not None and mode == "RGBA" and made.size != images.size[::-1]:
                made = made.resize(images.size[::-1], Image.Resampling.BILINEAR)  # weighs colours by their opacity
            decoded, box = np.asarray(made), (0, 0, *made.size)
    decoded = decoded[:, :, None] if decoded.ndim == 2 else decoded
    if images.size is None or mode == "RGBA":
        pixels = np.moveaxis(decoded, -1, 0)
        pixels = pixels[:, :, ::-1] if is_mirrored else pixels
        if out is None:
            return pixels
        out[...] = pixels
    else:
        out = np.empty(images.shape, np.uint8) if out is None else out
        core.resize_pixels(out, decoded, box, mirrored=is_mirrored)
    return out


def _reduce(image: Image.Image, box: Box, size: tuple[int, int]) -> tuple[Box, int]:
    """Let a large JPEG be decoded at 1/2, 1/4 or 1/8 of its size; return the box there, and 1, 2, 4 or 8."""
    width, height = image.size
    left, top, right, bottom = box
    least = (
        -(-_REDUCING_GAP * size[1] * width // (right - left)),
        -(-_REDUCING_GAP * size[0] * height // (bottom - top)),
    )
    drafted = image.draft(None, least)
    if drafted is None or image.size == (width, height):
        return box, 1
    factor = round(width / drafted[1][2])
    if box == (0, 0, width, height):
        return (0, 0, *image.size), factor
    return tuple(round(edge / factor) for edge in box), factor  # type: ignore[return-value]


class _Room(threading.local):
    """Memory of each thread for the pixels of an image until it is resized: fresh memory takes a tenth of the time."""

    def __init__(self) -> None:
        self._pixels = np.empty(0, np.uint8)

    def of(self, shape: tuple[int, ...]) -> Pixels:
        """Return memory until the thread asks again. That for a large image is not kept."""
        count = math.prod(shape)
        if count > _MOST_HELD_BYTES:
            return _own(shape)
        if count > len(self._pixels):
            self._pixels = np.empty(count, np.uint8)
        return self._pixels[:count].reshape(shape)


_room = _Room()


def _own(shape: tuple[int, ...]) -> Pixels:
    return np.empty(shape, np.uint8)


def _decode_jpeg(
    data: bytes | memoryview, image: Image.Image, box: Box, factor: int, memory: Callable[[tuple[int, ...]], Pixels]
) -> Pixels | None:
    """Decode a JPEG by simplejpeg at 1 / factor, down to the last row of the box at least; None if it is for Pillow.

    The result has the shape (height, width) or (height, width, 3), and lies in memory that `memory` returned.
    """
    jpegs = _simplejpeg()
    if jpegs is None or image.format != "JPEG" or image.mode not in _COLORSPACES:
        return None
    width, height = image.size
    channels = 3 if image.mode == "RGB" else 1
    options: dict[str, Any] = {"colorspace": _COLORSPACES[image.mode]}
    if factor > 1:
        options |= {"min_width": width, "min_height": height, "min_factor": 1}
    buffer = memory((height, width, channels))
    rows = _decode_top(jpegs, data, box[3], buffer, factor, options)
    if rows == 0:
        try:
            rows, columns, _ = jpegs.decode_jpeg(data, buffer=buffer, **options).shape
        except ValueError:
            return None
        if (rows, columns) != (height, width):
            return None
    return buffer[:rows] if channels == 3 else buffer[:rows, :, 0]


def _decode_top(
    jpegs: Any, data: bytes | memoryview, bottom: int, buffer: Pixels, factor: int, options: dict[str, Any]
) -> int:
    """Decode the rows of a JPEG above `bottom`; return how many, 0 if that saves nothing, or something may be wrong.

    The decoder gets the file with a lower height in its header. It must complain of nothing but the data of the other
    rows, which lie between those that it wants and the mark of the end; it does so when all rows are there.
    """
    # the rows below have a part in the colours of the last row
    rows = -(-(bottom + 2) * factor // _ROWS_OF_BLOCKS) * _ROWS_OF_BLOCKS
    if rows > (len(buffer) - 1) * factor - _ROWS_OF_BLOCKS or (at := _height_at(data)) is None:
        return 0
    lower = bytearray(data)
    lower[at : at + 2] = rows.to_bytes(2, "big")
    rows //= factor
    if factor > 1:
        options = {**options, "min_height": rows}
    try:
        jpegs.decode_jpeg(lower, buffer=buffer[:rows], **options)
    except ValueError as error:
        return rows if _ROWS_LEFT.fullmatch(str(error)) else 0
    return 0


def _height_at(data: bytes | memoryview) -> int | None:
    """Return the position of the height in a JPEG that has all of a row of blocks in one place; None in another."""
    at, found, channels = 2, None, 0
    while at + 9 < len(data) and data[at] == 0xFF:
        kind, length = data[at + 1], data[at + 2] << 8 | data[at + 3]
        if kind == 0xDA:  # the first pixels, of some channels or all
            return found if data[at + 4] == channels else None
        if kind in (0xC0, 0xC1):  # not progressive
            found, channels = at + 5, data[at + 9]
        elif not (
            kind in (0xC4, 0xDB, 0xFE) or 0xE0 <= kind <= 0xEF
        ):  # tables and notes; 0xDD promises marks in pixels
            return None
        at += 2 + length
    return None
