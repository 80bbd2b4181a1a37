"""Pictures for tests, and arrays of them in Zarr."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import zarr
from PIL import Image

from tests.support.oracle import ZarrFormat


def picture(seed: int, height: int, width: int) -> Image.Image:
    """Return a smooth picture in colours, as photographs are."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str = "png", **options: Any) -> bytes:
    """Return the bytes of a file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def numbered_png(number: int, height: int = 3, width: int = 4) -> bytes:
    """Return a PNG whose pixels are (number mod 256, number div 256, 7)."""
    return encoded(Image.new("RGB", (width, height), (number % 256, number // 256, 7)))


def image_array(
    store: Any,
    items: Sequence[bytes],
    shape: tuple[int, ...] | None = None,
    *,
    zarr_format: ZarrFormat = 2,
    **options: Any,
) -> zarr.Array[Any]:
    """Store encoded images as bytes of any length, in C order of `shape`."""
    values = np.empty(len(items), dtype=object)
    values[:] = list(items)
    values = values.reshape(shape or (len(items),))
    array: zarr.Array[Any] = zarr.create_array(
        store, shape=values.shape, dtype=zarr.dtype.VariableLengthBytes(), zarr_format=zarr_format, **options
    )
    array[...] = values
    return array
