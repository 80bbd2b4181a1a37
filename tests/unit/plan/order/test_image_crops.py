"""Boxes of images: the distribution of torchvision's `RandomResizedCrop`, drawn by seed, epoch and sample."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from zarrfeed.plan.order.image_crops import Box, ImageDraw
from zarrfeed.spec.fields.images import Crop, Images

RANDOM = Images("RGB", (224, 224), Crop("random", (0.08, 1.0)), flip=0.25)


def torchvision_box(width: int, height: int, numbers: random.Random) -> Box:
    """Draw a box by the text of torchvision's `RandomResizedCrop.get_params`."""
    for _ in range(10):
        area = width * height * numbers.uniform(0.08, 1.0)
        ratio = math.exp(numbers.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            top, left = numbers.randint(0, height - h), numbers.randint(0, width - w)
            return left, top, left + w, top + h
    ratio = width / height
    w, h = width, height
    if ratio < 3 / 4:
        h = round(w / (3 / 4))
    elif ratio > 4 / 3:
        w = round(h * (4 / 3))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def draw(sample: int, epoch: int = 0, seed: int = 0, images: Images = RANDOM) -> ImageDraw:
    return ImageDraw(images, seed=seed, epoch=epoch, sample=sample)


@pytest.mark.parametrize(("width", "height"), [(500, 375), (160, 400)])
def test_boxes_have_the_distribution_of_torchvision(width: int, height: int) -> None:
    count = 4000
    ours = np.array([draw(sample).box(width, height) for sample in range(count)])
    numbers = random.Random(1)
    theirs = np.array([torchvision_box(width, height, numbers) for _ in range(count)])
    measures: list[Callable[[Any], Any]] = [
        lambda box: (box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1]),
        lambda box: (box[:, 2] - box[:, 0]) / (box[:, 3] - box[:, 1]),
        lambda box: box[:, 0],
        lambda box: box[:, 1],
    ]
    for of in measures:
        both = np.sort(np.concatenate([of(ours), of(theirs)]))
        shares = [np.searchsorted(np.sort(of(boxes)), both, side="right") / count for boxes in (ours, theirs)]
        # the limit of Kolmogorov and Smirnov at a level of 0.0001, for two series of this length
        assert np.abs(shares[0] - shares[1]).max() < 2.23 * math.sqrt(2 / count)


@pytest.mark.parametrize(("width", "height"), [(1000, 10), (10, 1000), (1, 1), (3, 2)])
def test_boxes_lie_in_the_image_and_those_that_do_not_fit_are_the_middle(width: int, height: int) -> None:
    boxes = {draw(sample).box(width, height) for sample in range(50)}
    for left, top, right, bottom in boxes:
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
    if max(width, height) == 1000:
        assert boxes == {torchvision_box(width, height, random.Random(0))}


def test_draws_depend_on_seed_epoch_and_sample_alone() -> None:
    assert draw(5, 1, 7).box(500, 375) == draw(5, 1, 7).box(500, 375)
    assert len({draw(s, e, k).box(500, 375) for s in (4, 5) for e in (0, 1) for k in (0, 7)}) == 8
    mirrored = [draw(sample).mirrors for sample in range(4000)]
    assert 0.22 < np.mean(mirrored) < 0.28
    # whether an image is mirrored says nothing about its box
    left = np.array([draw(sample).box(500, 375)[0] for sample in range(4000)])
    assert abs(np.corrcoef(left, mirrored)[0, 1]) < 0.06
    assert not any(draw(sample, images=Images("RGB", (4, 4), RANDOM.crop)).mirrors for sample in range(50))


def test_the_middle_is_that_of_resize_and_center_crop() -> None:
    whole = Images("RGB", (224, 224), Crop("center", (1.0, 1.0)))
    assert draw(0, images=whole).box(500, 375) == (62, 0, 437, 375)
    assert draw(0, images=whole).box(375, 500) == (0, 62, 375, 437)
    wide = Images("RGB", (100, 300), Crop("center", (1.0, 1.0)))
    assert draw(0, images=wide).box(600, 600) == (0, 200, 600, 400)
    share = (224 / 256) ** 2
    part = Images("RGB", (224, 224), Crop("center", (share, share)))
    assert draw(0, images=part).box(512, 256) == (144, 16, 368, 240)  # Resize(256) leaves it as it is
