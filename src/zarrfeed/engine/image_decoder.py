"""Encoded images become pixels, by Pillow, which releases the GIL while it decodes and resizes."""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt

from zarrfeed.spec.images import MODES, Images

#: A JPEG is decoded at a fraction of its size if that is still so many times the wanted one: as with Pillow's
#: `thumbnail`, the result can hardly be told from that of the whole image.
_REDUCING_GAP = 2
#: The modes whose values do not fit in 8 bits: Pillow would cut them off at 255.
_WIDE_MODES = ("I", "F", "I;16", "I;16L", "I;16B", "I;16N")


def library_name() -> str:
    """Return the name of the library that decodes images, with its version."""
    from PIL import __version__

    return f"Pillow {__version__}"


def pixels_of(data: bytes | memoryview, images: Images) -> npt.NDArray[np.uint8]:
    """Decode an image: uint8 of shape (channels, height, width), a view that need not be contiguous.

    Raises
    ------
    Exception
        An exception of any class, if the image cannot be decoded.
    """
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        if image.mode in _WIDE_MODES:
            raise ValueError(f"it has more than 8 bits a channel (mode {image.mode}), and uint8 has 8")
        if images.size is not None:
            image.draft(None, (_REDUCING_GAP * images.size[1], _REDUCING_GAP * images.size[0]))
        mode = images.mode or (image.mode if image.mode in MODES else "RGB")
        converted = image if image.mode == mode else image.convert(mode)
        if images.size is not None and converted.size != images.size[::-1]:
            converted = converted.resize(images.size[::-1], Image.Resampling.BILINEAR)
        pixels = np.asarray(converted)
    return pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)
