"""Images as pixels: what Pillow makes of them."""

from __future__ import annotations

import io
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from tests.support.pictures import encoded, picture
from zarrfeed import ConfigError
from zarrfeed.base.optional_pillow import check_pillow
from zarrfeed.engine import image_decoder
from zarrfeed.engine.image_decoder import pixels_of
from zarrfeed.spec.images import Images

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


def both(data: bytes, images: Images, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the pixels, or the class of the error, with simplejpeg and without."""
    found: list[Any] = []
    for module in (image_decoder._simplejpeg(), None):
        monkeypatch.setattr(image_decoder, "_simplejpeg", lambda module=module: module)
        try:
            found.append(pixels_of(data, images))
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
