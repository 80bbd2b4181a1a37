"""Encoded images become pixels, by Pillow and simplejpeg, which release the GIL while they decode and resize.

Invariant: Pillow says what an image is and what is broken. simplejpeg, if it is installed, decodes JPEGs to the
same bits in three fifths of the time; what it refuses is for Pillow. Both decode with libjpeg-turbo.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrfeed.plan.order.image_crops import ImageDraw
from zarrfeed.spec.images import MODES, Images

if TYPE_CHECKING:
    from PIL import Image

Pixels: TypeAlias = npt.NDArray[np.uint8]
#: Resizes pixels of shape (height, width, 3) to a (height, width), bilinear with antialiasing.
Resize: TypeAlias = Callable[[Pixels, tuple[int, int]], Pixels]

#: A JPEG is decoded at a fraction of its size if that is still so many times the wanted one: as with Pillow's
#: `thumbnail`, the result can hardly be told from that of the whole image.
_REDUCING_GAP = 2
#: The modes whose values do not fit in 8 bits: Pillow would cut them off at 255.
_WIDE_MODES = ("I", "F", "I;16", "I;16L", "I;16B", "I;16N")
#: Pillow's modes of JPEGs that simplejpeg decodes -> its names of them.
_COLORSPACES = {"RGB": "RGB", "L": "GRAY"}


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
    data: bytes | memoryview, images: Images, draw: ImageDraw | None = None, resize: Resize | None = None
) -> Pixels:
    """Decode an image: uint8 of shape (channels, height, width), a view that need not be contiguous.

    Parameters
    ----------
    data
        The encoded image.
    images
        The mode, the size and the crop of the pixels.
    draw
        The numbers that its sample draws. None: images are neither cropped nor mirrored.
    resize
        Resizes crops of RGB. None: Pillow does.

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
        if images.size is not None:
            box = _reduce(image, box, images.size)
        decoded = _decode_jpeg(data, image, reduced=image.size != (width, height))
        is_whole = box == (0, 0, *image.size)
        if resize is not None and images.crop is not None and mode == image.mode == "RGB":
            left, top, right, bottom = box
            pixels = np.array(image) if decoded is None else decoded
            pixels = pixels[top:bottom, left:right]
            assert images.size is not None
            if pixels.shape[:2] != images.size:
                pixels = resize(pixels, images.size)
        elif decoded is not None and is_whole and mode == image.mode and images.size in (None, image.size[::-1]):
            pixels = decoded
        else:
            whole = image if decoded is None else Image.fromarray(decoded)
            cropped = whole if is_whole else whole.crop(box)
            converted = cropped if cropped.mode == mode else cropped.convert(mode)
            if images.size is not None and converted.size != images.size[::-1]:
                converted = converted.resize(images.size[::-1], Image.Resampling.BILINEAR)
            pixels = np.asarray(converted)
    pixels = pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)
    return pixels[:, :, ::-1] if draw is not None and draw.mirrors else pixels


def _reduce(image: Image.Image, box: tuple[int, int, int, int], size: tuple[int, int]) -> tuple[int, int, int, int]:
    """Let a large JPEG be decoded at 1/2, 1/4 or 1/8 of its size; return the box in pixels of that size."""
    width, height = image.size
    left, top, right, bottom = box
    least = (
        -(-_REDUCING_GAP * size[1] * width // (right - left)),
        -(-_REDUCING_GAP * size[0] * height // (bottom - top)),
    )
    drafted = image.draft(None, least)
    if drafted is None or image.size == (width, height):
        return box
    if box == (0, 0, width, height):
        return 0, 0, *image.size
    factor = round(width / drafted[1][2])
    return tuple(round(edge / factor) for edge in box)  # type: ignore[return-value]


def _decode_jpeg(data: bytes | memoryview, image: Image.Image, *, reduced: bool) -> Pixels | None:
    """Decode a JPEG by simplejpeg, of shape (height, width) or (height, width, 3); None if it is for Pillow."""
    jpegs = _simplejpeg()
    if jpegs is None or image.format != "JPEG" or image.mode not in _COLORSPACES:
        return None
    width, height = image.size
    least = {"min_width": width, "min_height": height, "min_factor": 1} if reduced else {}
    try:
        pixels: Pixels = jpegs.decode_jpeg(data, _COLORSPACES[image.mode], **least)
    except ValueError:
        return None
    if pixels.shape[:2] != (height, width):
        return None
    return pixels if image.mode == "RGB" else pixels[:, :, 0]


def resized_by_pillow(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    """Resize pixels of shape (height, width, 3)."""
    from PIL import Image

    return np.asarray(Image.fromarray(pixels).resize(size[::-1], Image.Resampling.BILINEAR))
