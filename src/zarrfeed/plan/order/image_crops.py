"""The box of each image that `Data.decode("image", crop=...)` resizes, and whether the image is mirrored.

Invariant: both follow from (seed, epoch, sample) and the size of the image alone. So all images of a sample that have
one size, such as the frames of a window or a picture and its mask, have the same box.

Random boxes have the distribution of torchvision's `RandomResizedCrop`: an area that is uniform in `scale`, a ratio
whose logarithm is uniform, ten tries to lie inside the image, and else the largest box in the middle with a ratio in
bounds.
"""

from __future__ import annotations

import math
from typing import TypeAlias

from zarrfeed.plan.order.keyed_random import WORD, KeyedRandom
from zarrfeed.spec.fields.images import Crop, Images

#: The first and the last pixel of a box, the last one excluded: (left, top, right, bottom).
Box: TypeAlias = tuple[int, int, int, int]

#: A word of the key, so that crops share no draws with the order.
_DOMAIN_TAG = 0x6372_6F70
_TRIES = 10


class ImageDraw:
    """The numbers that one sample draws in one epoch."""

    def __init__(self, images: Images, *, seed: int, epoch: int, sample: int) -> None:
        self._images = images
        self._key = seed, epoch, sample

    @property
    def mirrors(self) -> bool:
        """True if the images of the sample are mirrored, left to right."""
        return self._images.flip > 0 and _uniform(KeyedRandom(_DOMAIN_TAG, *self._key), 0, 1) < self._images.flip

    def box(self, width: int, height: int) -> Box:
        """Return the box of an image of a size in pixels."""
        crop, size = self._images.crop, self._images.size
        if crop is None or size is None:
            return 0, 0, width, height
        if crop.kind == "center":
            return _center_box(width, height, size[1] / size[0], crop.scale[0])
        return _random_box(width, height, crop, KeyedRandom(_DOMAIN_TAG + 1, *self._key))


def _random_box(width: int, height: int, crop: Crop, random: KeyedRandom) -> Box:
    low, high = map(math.log, crop.ratio)
    for _ in range(_TRIES):
        area = width * height * _uniform(random, *crop.scale)
        ratio = math.exp(_uniform(random, low, high))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        left, top = _uniform(random, 0, 1), _uniform(random, 0, 1)
        if 0 < w <= width and 0 < h <= height:
            left, top = int(left * (width - w + 1)), int(top * (height - h + 1))
            return left, top, left + w, top + h
    return _center_box(width, height, min(max(width / height, crop.ratio[0]), crop.ratio[1]), 1.0)


def _center_box(width: int, height: int, ratio: float, share: float) -> Box:
    """Return the box in the middle with a width / height, and a share of the area of the largest one there."""
    side = math.sqrt(share)
    w = max(1, min(width, round(min(width, height * ratio) * side)))
    h = max(1, min(height, round(min(height, width / ratio) * side)))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def _uniform(random: KeyedRandom, low: float, high: float) -> float:
    """Return a number in [low, high)."""
    return low + (high - low) * (random.word() >> 11) / ((WORD >> 11) + 1)
