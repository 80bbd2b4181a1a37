"""What becomes of the bytes of an object, by names and by functions."""

from __future__ import annotations

import io
import threading
import time
from typing import Any

import numpy as np
import pytest
from PIL import Image

from zarrfeed import ConfigError
from zarrfeed.engine.object_decoders import DECODER_NAMES, Decode, decode_image, decode_npy, make_decoder
from zarrfeed.storage.chunks.zarr_decoder import ChunkDecoder

PIXELS = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)


def no_chunks() -> ChunkDecoder:
    raise AssertionError("there is no array")


def called(decode: Decode, data: bytes, key: str = "k") -> Any:
    decoder = make_decoder(decode, no_chunks)
    assert decoder is not None
    return decoder(memoryview(data), key)


def png(pixels: np.ndarray[Any, Any], mode: str | None = None) -> bytes:
    image = Image.fromarray(pixels)
    file = io.BytesIO()
    (image if mode is None else image.convert(mode)).save(file, "png")
    return file.getvalue()


def test_images_are_channels_first() -> None:
    assert np.array_equal(called("image", png(PIXELS)), np.moveaxis(PIXELS, -1, 0))
    grey = called("image", png(PIXELS[:, :, 0]))
    assert grey.shape == (1, 4, 6)
    assert np.array_equal(grey[0], PIXELS[:, :, 0])
    assert called("image", png(PIXELS, "RGBA")).shape == (4, 4, 6)
    assert called("image", png(PIXELS, "P")).shape == (3, 4, 6)
    assert decode_image(memoryview(png(PIXELS))).flags.c_contiguous


def test_npy_is_what_numpy_saved() -> None:
    array = np.arange(12, dtype=">i4").reshape(3, 4)
    file = io.BytesIO()
    np.save(file, array)
    assert np.array_equal(called("npy", file.getvalue()), array)


def test_npy_runs_no_code_and_refuses_archives() -> None:
    file = io.BytesIO()
    np.save(file, np.array([{}], object), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle"):
        decode_npy(memoryview(file.getvalue()))
    file = io.BytesIO()
    np.savez(file, a=np.zeros(1))
    with pytest.raises(ValueError, match="archive of several arrays"):
        decode_npy(memoryview(file.getvalue()))


def test_threads_parse_one_header_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.BytesIO()
    np.save(file, np.arange(3))
    load, running, most, failed = np.load, [0], [0], []

    def counted(*arguments: Any, **options: Any) -> Any:
        running[0] += 1
        most[0] = max(most[0], running[0])
        time.sleep(0.001)  # so that others would come in between
        try:
            return load(*arguments, **options)
        finally:
            running[0] -= 1

    def work() -> None:
        try:
            for _ in range(25):
                assert decode_npy(memoryview(file.getvalue())).tolist() == [0, 1, 2]
        except BaseException as error:  # noqa: BLE001 (the test says what it was)
            failed.append(error)

    monkeypatch.setattr(np, "load", counted)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert failed == []
    assert most == [1]


def test_functions_of_the_bytes_or_of_bytes_and_key() -> None:
    assert called(len, b"abc") == 3
    assert called(lambda data: bytes(data), b"abc") == b"abc"
    assert called(lambda data, key: (bytes(data), key), b"abc") == (b"abc", "k")
    assert called(lambda data, scale=2: len(data) * scale, b"abc") == 6
    assert called(lambda *parts: len(parts), b"abc") == 1
    assert called(bytes, b"abc") == b"abc"
    assert called("bytes", b"abc") == b"abc"
    assert make_decoder(None, no_chunks) is None


def test_the_bytes_cannot_be_written() -> None:
    def write(data: memoryview) -> None:
        data[0] = 1

    with pytest.raises(TypeError):
        called(write, b"abc")


@pytest.mark.parametrize(
    ("decode", "text"),
    [
        ("jpeg", "decode = 'jpeg', must be a function or one of 'bytes', 'image', 'npy', 'zarr-chunk'"),
        ("images", "did you mean 'image'"),
        (3, "decode = 3, must be a function"),
        (lambda: 1, "decode: the function requires 0 arguments"),
    ],
)
def test_what_cannot_decode(decode: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        make_decoder(decode, no_chunks)


def test_names_are_told() -> None:
    assert set(DECODER_NAMES) == {"bytes", "image", "npy", "zarr-chunk"}
