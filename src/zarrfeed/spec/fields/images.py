"""The decoding of encoded images to tensors: `Data.decode("image")`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.suggestions import did_you_mean
from zarrfeed.base.validate import check_choice, check_number

Mode: TypeAlias = Literal["RGB", "L", "RGBA"]
#: Pillow's names of the modes that images may be converted to -> their channels.
MODES: dict[str, int] = dict(zip(get_args(Mode), (3, 1, 4), strict=True))
CropKind: TypeAlias = Literal["random", "center"]
#: The dimensions of a decoded image, behind those of its array.
IMAGE_DIMS = ("channel", "height", "width")

#: The dtype, in messages and descriptions, of images that keep their own sizes: batches have lists of them.
RAGGED = "uint8 images"
#: Defaults of random crops, which are those of torchvision's RandomResizedCrop.
_SCALE, _RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
#: Assumed bytes of an image of unknown size when the memory is divided: 256 x 256 pixels.
_USUAL_BYTES = 3 * 256 * 256
#: Longer or wider images are no request that can be meant.
_MOST_PIXELS = 1 << 16


@dataclass(frozen=True)
class Crop:
    """The box that is cut out of each image before it is resized; `plan/order/image_crops.py` finds it.

    Attributes
    ----------
    kind
        "random": a box is drawn for each sample, anew in each epoch. "center": the box lies in the middle.
    scale
        The least and the greatest area: of random boxes as a share of the image, of the middle one as a share of the
        largest box there.
    ratio
        The least and the greatest width / height of random boxes.
    """

    kind: CropKind
    scale: tuple[float, float]
    ratio: tuple[float, float] = _RATIO

    @classmethod
    def parse(cls, kind: object, scale: object, ratio: object) -> Crop | None:
        """Check the user's arguments and return them as a `Crop`; None for none.

        Raises
        ------
        ConfigError
            If there is no such kind, or bounds are none.
        """
        if kind is None:
            for name, bounds in (("scale", scale), ("ratio", ratio)):
                if bounds is not None:
                    raise ConfigError(f"{name} = {bounds!r} is for crops: give crop='random' or crop='center', too")
            return None
        check_choice("crop", kind, get_args(CropKind))
        if kind == "random":
            return cls(
                "random", _bounds("scale", _SCALE if scale is None else scale, 1), _bounds("ratio", ratio or _RATIO)
            )
        if ratio is not None:
            raise ConfigError(f"ratio = {ratio!r} is for crop='random': crop='center' has the aspect ratio of size")
        share = _bounds("scale", (1.0 if scale is None else scale,) * 2, 1)
        return cls("center", share)

    def __str__(self) -> str:
        if self.kind == "center":
            return "cropped to the middle" + f" ({self.scale[0]:.3g} of its area)" * (self.scale[0] < 1)
        return f"cropped at random ({self.scale[0]:.3g} to {self.scale[1]:.3g} of the area)"


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
    crop
        The box that is resized. None: the whole image.
    flip
        The probability that an image is mirrored, left to right.
    """

    mode: Mode | None = "RGB"
    size: tuple[int, int] | None = None
    crop: Crop | None = None
    flip: float = 0.0

    @classmethod
    def parse(cls, mode: object, size: object, crop: Crop | None = None, flip: object = 0.0) -> Images:
        """Check the arguments as the user gives them, and return them as `Images`.

        Raises
        ------
        ConfigError
            If there is no such mode, size or probability, or images of one size may have different numbers of channels.
        """
        if mode is not None and not (isinstance(mode, str) and mode in MODES):
            known = ", ".join(map(repr, MODES))
            raise ConfigError(f"mode = {mode!r}, must be None or one of {known}{did_you_mean(mode, MODES)}")
        if crop is not None and size is None:
            raise ConfigError(f"crop = {crop.kind!r}: give the size of the crops, such as size=224")
        if _is_length(size):
            size = (size, size)
        if size is not None:
            is_pair = isinstance(size, tuple | list) and len(size) == 2
            if not is_pair or not all(map(_is_length, size)):  # type: ignore[call-overload]
                raise ConfigError(f"size = {size!r}, must be (height, width) or one number, in [1, {_MOST_PIXELS}]")
            size = (int(size[0]), int(size[1]))  # type: ignore[index]
        if mode is None and size is not None:
            raise ConfigError(
                f"mode = None and size = {size}: images of one shape need one number of channels, give a mode"
            )
        check_number("flip", flip, 0)
        if flip > 1:  # type: ignore[operator]
            raise ConfigError(f"flip = {flip!r}, must be a probability, in [0, 1]")
        return cls(mode, size, crop, float(flip))  # type: ignore[arg-type]

    @property
    def draws(self) -> bool:
        """True if images depend on a number that is drawn for each sample, anew in each epoch."""
        return self.flip > 0 or (self.crop is not None and self.crop.kind == "random")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor of one image, (channels, height, width); () if images differ."""
        return () if self.size is None or self.mode is None else (MODES[self.mode], *self.size)

    @property
    def image_pixels(self) -> int:
        """Items of one decoded image: if images differ, those of a usual one."""
        return math.prod(self.shape) if self.shape else _USUAL_BYTES

    @property
    def dtype(self) -> str:
        """Name of the dtype of a batch's items in messages and descriptions."""
        return "uint8" if self.shape else RAGGED

    def __str__(self) -> str:
        mode = "its own mode" if self.mode is None else self.mode
        size = "its own size" if self.size is None else f"resized to {self.size[0]} x {self.size[1]} (bilinear)"
        crop = "" if self.crop is None else f"{self.crop}, "
        return f"images, {mode}, {crop}{size}" + f", mirrored with probability {self.flip:g}" * (self.flip > 0)


def _bounds(name: str, bounds: Any, most: float = math.inf) -> tuple[float, float]:
    """Return the least and the greatest value of a range above 0."""
    try:
        low, high = map(float, bounds)
        fits = 0 < low <= high <= most and math.isfinite(high)
    except (TypeError, ValueError):
        fits = False
    if not fits:
        upper = "" if most == math.inf else f", at most {most:g}"
        raise ConfigError(f"{name} = {bounds!r}, must be (least, greatest), ascending and above 0{upper}")
    return low, high


def _is_length(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and 1 <= int(value) <= _MOST_PIXELS
