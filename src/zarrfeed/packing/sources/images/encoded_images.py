"""Encoded images of a source: their bytes as they are, or pixels, as `Data.decode("image", size=)` makes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import CorruptChunkError, printable
from zarrfeed.base.optional_pillow import check_pillow
from zarrfeed.engine.image_decoder import pixels_of
from zarrfeed.packing.sources.source import SourceField, SourceOptions, objects_of
from zarrfeed.spec.fields.images import Images


class EncodedImages:
    """The encoded images of a source, kept as bytes or decoded.

    Parameters
    ----------
    options
        Options of the source. With a `size`, images are decoded to RGB and resized.

    Raises
    ------
    ConfigError
        If there is no such size, or Pillow is not installed.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._images = None if options.size is None else Images.parse("RGB", options.size)
        if self._images is not None:
            check_pillow(f"size = {self._images.size}")

    def field(self, name: str, mean_bytes: int) -> SourceField:
        """Return the field of images that are `mean_bytes` long."""
        if self._images is None:
            return SourceField(name, np.dtype(object), kind="bytes", dims=("sample",), mean_bytes=mean_bytes)
        dims = ("sample", "channel", "y", "x")
        return SourceField(name, np.dtype(np.uint8), self._images.shape, dims=dims)

    def rows(self, encoded: Sequence[bytes], name_of: Callable[[int], str]) -> npt.NDArray[Any]:
        """Return the samples of encoded images; `name_of` returns the name of one of them, for messages.

        Raises
        ------
        CorruptChunkError
            If one cannot be decoded; the message begins with its name.
        """
        if self._images is None:
            return objects_of(encoded)
        made = np.empty((len(encoded), *self._images.shape), np.uint8)
        for i, data in enumerate(encoded):
            try:
                made[i] = pixels_of(data, self._images)
            except Exception as error:  # of any class
                raise CorruptChunkError(f"{printable(name_of(i))}: cannot be decoded as an image: {error}") from error
        return made
