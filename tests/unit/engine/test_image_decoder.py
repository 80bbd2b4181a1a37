"""Images as pixels: what Pillow makes of them."""

from __future__ import annotations

import io
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from tests.support.examples import tries
from tests.support.pictures import encoded, picture
from zarrfeed import ConfigError
from zarrfeed.base.native import core
from zarrfeed.base.optional_pillow import check_pillow
from zarrfeed.engine import image_decoder
from zarrfeed.engine.image_decoder import pixels_of
from zarrfeed.plan.order.image_crops import ImageDraw
from zarrfeed.spec.fields.images import Crop, Images

#: The modes that files have.
KINDS = {
    "png": ("L", "RGB", "RGBA", "P", "1", "LA"),
    "jpeg": ("L", "RGB", "CMYK"),
    "tiff": ("L", "RGB", "RGBA", "P", "1", "LA", "CMYK", "YCbCr"),
}


def plain(data: bytes, images: Images) -> npt.NDArray[np.uint8]:
    """Decode, convert and resize an image by Pillow, from its full size: (channels, height, width)."""
    image: Image.Image = Image.open(io.BytesIO(data))
    image = image.convert(images.mode or (image.mode if image.mode in ("L", "RGB", "RGBA") else "RGB"))
    if images.size is not None:
        image = image.resize(images.size[::-1], Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)


@pytest.mark.whole_product
@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", None])
@pytest.mark.parametrize(("kind", "stored"), [(kind, mode) for kind, modes in KINDS.items() for mode in modes])
def test_any_mode_becomes_the_wanted_one(kind: str, stored: str, mode: Any) -> None:
    data = encoded(picture(3, 20, 30).convert(stored), kind)
    assert np.array_equal(pixels_of(data, Images(mode)), plain(data, Images(mode)))
    if mode is not None:
        small = Images(mode, (7, 9))
        assert np.array_equal(pixels_of(data, small), plain(data, small))


def test_large_jpegs_are_decoded_at_a_fraction_and_look_the_same() -> None:
    smooth = encoded(picture(1, 480, 640), "jpeg", quality=95)
    for size in ((30, 40), (60, 80), (120, 160), (33, 47)):
        images = Images("RGB", size)
        difference = np.abs(pixels_of(smooth, images).astype(int) - plain(smooth, images))
        assert difference.mean() < 2, size
        assert difference.max() > 0, size  # it was


@pytest.mark.parametrize("values", [np.uint16, np.int32, np.float32])
def test_more_than_8_bits_are_refused(values: Any) -> None:
    data = encoded(Image.fromarray(np.full((4, 5), 40_000, values)), "tiff")
    with pytest.raises(ValueError, match=r"more than 8 bits a channel \(mode (I;16|I|F)\)"):
        pixels_of(data, Images("RGB"))


@pytest.mark.parametrize("kind", ["jpeg", "png"])
def test_what_is_broken_is_an_error(kind: str) -> None:
    data = encoded(picture(2, 40, 50), kind)
    for broken in (b"", data[:2], data[:30], data[: len(data) // 2], b"\0" * 40, b"\xff\xd8" + b"\0" * 40):
        with pytest.raises((OSError, SyntaxError, ValueError)):
            pixels_of(broken, Images("RGB"))


def test_bytes_behind_a_jpeg_do_no_harm() -> None:
    data = encoded(picture(2, 40, 50), "jpeg")
    assert np.array_equal(pixels_of(data + b"more", Images()), plain(data, Images()))
    assert np.array_equal(pixels_of(memoryview(data), Images()), plain(data, Images()))


def test_without_pillow_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ConfigError, match=r"decode\('image'\) needs Pillow: pip install pillow"):
        check_pillow("decode('image')")


def test_pixels_are_resized_to_the_bits_of_pillow() -> None:
    rng = np.random.default_rng(0)
    for number in range(tries(300, 20_000)):
        most = 200 if number % 20 == 0 else 40
        height, width = rng.integers(1, most, 2).tolist()
        left, top = rng.integers(0, (width, height)).tolist()
        right, bottom = (rng.integers((left, top), (width, height)) + 1).tolist()
        box = (left, top, right, bottom)
        size = rng.integers(1, most, 2).tolist()
        stored = rng.integers(0, 256, (height, width, 3 if number % 3 else 1), dtype=np.uint8)
        found = np.empty((stored.shape[2], *size), np.uint8)
        core.resize_pixels(found, stored, box, mirrored=number % 2 == 0)
        image = Image.fromarray(stored.squeeze(2) if stored.shape[2] == 1 else stored)
        expected = np.asarray(image.crop(box).resize(size[::-1], Image.Resampling.BILINEAR)).reshape(*size, -1)
        expected = expected[:, ::-1] if number % 2 == 0 else expected
        assert np.array_equal(found, np.moveaxis(expected, -1, 0)), (stored.shape, box, size)


@pytest.mark.parametrize(
    ("box", "out"), [((0, 0, 6, 4), 3), ((2, 0, 2, 4), 3), ((-1, 0, 2, 2), 3), ((0, 0, 2, 2), 1), ((0, 3, 2, 2), 3)]
)
def test_a_box_outside_of_the_image_is_refused(box: tuple[int, int, int, int], out: int) -> None:
    with pytest.raises(ConfigError, match="the box must lie in the image"):
        core.resize_pixels(np.zeros((out, 2, 2), np.uint8), np.zeros((4, 5, 3), np.uint8), box, mirrored=False)


def both(data: bytes, images: Images, monkeypatch: pytest.MonkeyPatch, draw: ImageDraw | None = None) -> list[Any]:
    """Return the pixels, or the class of the error, with simplejpeg and without."""
    found: list[Any] = []
    for module in (image_decoder._simplejpeg(), None):
        monkeypatch.setattr(image_decoder, "_simplejpeg", lambda module=module: module)
        try:
            found.append(pixels_of(data, images, draw))
        except Exception as error:  # noqa: BLE001 (of any class)
            found.append(type(error))
        monkeypatch.undo()
    return found


@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("progressive", [False, True])
def test_simplejpeg_makes_the_pixels_of_pillow(
    subsampling: int, progressive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("simplejpeg")
    for height, width in ((187, 249), (17, 9), (1, 1)):
        for mode in ("RGB", "L"):
            options: dict[str, Any] = {"quality": 80, "progressive": progressive}
            options |= {"subsampling": subsampling} if mode == "RGB" else {}
            data = encoded(picture(3, height, width).convert(mode), "jpeg", **options)
            for images in (Images("RGB"), Images("L"), *(Images("RGB", (n, n)) for n in (11, 23, 46))):
                ours, theirs = both(data, images, monkeypatch)
                assert np.array_equal(ours, theirs), (height, width, mode, images)


def test_pillow_says_what_is_broken_and_decodes_what_simplejpeg_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("simplejpeg")
    data = encoded(picture(2, 40, 50), "jpeg")
    cmyk = encoded(picture(2, 40, 50).convert("CMYK"), "jpeg")
    rng = np.random.default_rng(0)
    changes = zip(rng.integers(0, len(data), 60).tolist(), rng.bytes(60), strict=True)
    altered = [data[:at] + bytes([byte]) + data[at + 1 :] for at, byte in changes]
    for broken in (cmyk, data[:-20], data[: len(data) // 2], data + b"more", *altered):
        ours, theirs = both(broken, Images("RGB"), monkeypatch)
        assert ours is theirs if isinstance(theirs, type) else np.array_equal(ours, theirs)


def random_jpeg(rng: np.random.Generator) -> bytes:
    """Return a JPEG of any kind that Pillow writes."""
    mode = "L" if rng.random() < 0.3 else "RGB"
    options: dict[str, Any] = {"quality": int(rng.integers(20, 98)), "progressive": bool(rng.random() < 0.2)}
    options |= {"subsampling": int(rng.integers(3))} if mode == "RGB" else {}
    options |= {"restart_marker_blocks": int(rng.integers(1, 20))} if rng.random() < 0.2 else {}
    return encoded(picture(int(rng.integers(99)), *rng.integers(1, 300, 2).tolist()).convert(mode), "jpeg", **options)


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """Return a JPEG with one fault: other bytes, a marker that does not belong there, a hole, an early end, or more."""
    at = int(rng.integers(2, len(data)))
    return [
        data[:at] + rng.bytes(2) + data[at + 2 :],
        data[:at] + b"\xff" + rng.bytes(4) + data[at:],
        data[:at] + data[at + int(rng.integers(1, 99)) :],
        data[:at],
        data + rng.bytes(9),
    ][int(rng.integers(5))]


@pytest.fixture
def rows_of_tops(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list of what `_decode_top` returns from now on."""
    found: list[int] = []
    decode_top = image_decoder._decode_top

    def noted(*arguments: Any) -> int:
        found.append(decode_top(*arguments))
        return found[-1]

    monkeypatch.setattr(image_decoder, "_decode_top", noted)
    return found


def test_crops_by_simplejpeg_are_those_of_pillow_also_of_damaged_files(rows_of_tops: list[int]) -> None:
    pytest.importorskip("simplejpeg")
    rng = np.random.default_rng(0)
    for number in range(tries(60, 3000)):
        data = random_jpeg(rng)
        crop = Crop("random", (0.08, 1)) if number % 3 else Crop("center", (0.3, 0.3))
        size = (int(rng.integers(1, 80)), int(rng.integers(1, 80)))
        images = Images("RGB" if number % 4 else "L", size, crop, 0.5)
        for one in (data, *(damaged(data, rng) for _ in range(3))):
            with pytest.MonkeyPatch.context() as patches:
                ours, theirs = both(one, images, patches, ImageDraw(images, seed=0, epoch=0, sample=number))
            assert ours is theirs if isinstance(theirs, type) else np.array_equal(ours, theirs), number
    assert any(rows_of_tops), "a crop is decoded down to its last row"
    assert not all(rows_of_tops)


def test_a_crop_costs_no_rows_below_it(rows_of_tops: list[int]) -> None:
    pytest.importorskip("simplejpeg")
    images = Images("RGB", (16, 16), Crop("center", (0.1, 0.1)))
    draw = ImageDraw(images, seed=0, epoch=0, sample=0)
    for options in ({}, {"progressive": True}, {"restart_marker_blocks": 2}):
        pixels_of(encoded(picture(1, 160, 160), "jpeg", **options), images, draw)
    assert draw.box(160, 160)[3] == 105
    assert rows_of_tops == [112, 0, 0], "one of several passes, or with marks between blocks, is decoded as a whole"


def test_results_do_not_share_memory_with_each_other() -> None:
    data = [encoded(picture(i, 40, 50).convert(mode), "jpeg") for i in range(2) for mode in ("RGB", "L")]
    for images in (Images(None), Images("RGB", (40, 50)), Images("L", (40, 50)), Images("RGBA", (30, 40))):
        found = [pixels_of(one, images) for one in data]
        assert all(np.array_equal(pixels, plain(one, images)) for one, pixels in zip(data, found, strict=True))
