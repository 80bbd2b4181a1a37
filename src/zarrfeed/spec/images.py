"""The decoding of encoded images to tensors: `Data.decode("image")`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.suggestions import did_you_mean

Mode: TypeAlias = Literal["RGB", "L", "RGBA"]
#: Pillow's names of the modes that images may be converted to -> their channels.
MODES: dict[str, int] = dict(zip(get_args(Mode), (3, 1, 4), strict=True))

#: Assumed bytes of an image of unknown size when the memory is divided: 256 x 256 pixels.
_USUAL_BYTES = 3 * 256 * 256
#: Longer or wider images are no request that can be meant.
_MOST_PIXELS = 1 << 16


@dataclass(frozen=True)
class Images:
    """The mode and the size that each image of a field is decoded to.

    Attributes
    ----------
    mode
        Mode of the pixels, as Pillow names it: "RGB", "L" (grey) or "RGBA". None: the mode of the image if it is one of
        these, else RGB.
    size
        (height, width) to which images are resized. None: each keeps its size.
    """

    mode: Mode | None = "RGB"
    size: tuple[int, int] | None = None

    @classmethod
    def parse(cls, mode: object, size: object) -> Images:
        """Check `mode` and `size` as the user gives them, and return them as `Images`.

        Raises
        ------
        ConfigError
            If there is no such mode or size, or images of one size may have different numbers of channels.
        """
        if mode is not None and not (isinstance(mode, str) and mode in MODES):
            known = ", ".join(map(repr, MODES))
            raise ConfigError(f"mode = {mode!r}, must be None or one of {known}{did_you_mean(mode, MODES)}")
        if size is not None:
            is_pair = isinstance(size, tuple | list) and len(size) == 2
            if not is_pair or not all(map(_is_length, size)):  # type: ignore[call-overload]
                raise ConfigError(f"size = {size!r}, must be (height, width), integers in [1, {_MOST_PIXELS}]")
            size = (int(size[0]), int(size[1]))  # type: ignore[index]
        if mode is None and size is not None:
            raise ConfigError(
                f"mode = None and size = {size}: images of one shape need one number of channels, give a mode"
            )
        return cls(mode, size)  # type: ignore[arg-type]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor of one image, (channels, height, width); () if images differ."""
        return () if self.size is None or self.mode is None else (MODES[self.mode], *self.size)

    @property
    def image_bytes(self) -> int:
        """Bytes of one decoded image: if images differ, those of a usual one."""
        return math.prod(self.shape) if self.shape else _USUAL_BYTES

    @property
    def dtype(self) -> str:
        """Name of the dtype of a batch's items in messages and descriptions."""
        return "uint8" if self.shape else "uint8 images"

    def __str__(self) -> str:
        mode = "its own mode" if self.mode is None else self.mode
        size = "its own size" if self.size is None else f"resized to {self.size[0]} x {self.size[1]} (bilinear)"
        return f"images, {mode}, {size}"


def _is_length(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and 1 <= int(value) <= _MOST_PIXELS
