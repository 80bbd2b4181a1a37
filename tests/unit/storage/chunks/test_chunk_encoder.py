"""Encoded chunks and shards: zarr-python reads them with the metadata that it makes of the same `Encoding`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from zarrfeed import ConfigError
from zarrfeed.storage.chunks.chunk_encoder import Encoding, join_shard

pytestmark = pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")

CODECS = ["none", "lz4", "lz4hc-3", "zstd-1-bitshuffle", "zstd-9-noshuffle", "blosclz", "zlib-2", "plain-zstd-19"]


@pytest.mark.whole_product
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("dtype", ["u1", "<i2", ">f4", "f8", "M8[s]", "c16", "?"])
def test_zarr_python_reads_encoded_chunks(codec: str, dtype: str, tmp_path: Path) -> None:
    rows = (np.arange(60) % 7).astype("i8").astype(dtype).reshape(12, 5)
    encoding = Encoding.parse(codec, rows.dtype.itemsize)
    created: Any = zarr.create_array
    array = created(
        tmp_path / "x.zarr",
        shape=rows.shape,
        dtype=rows.dtype.newbyteorder("="),
        chunks=(4, 5),
        compressors=encoding.zarr_compressors(rows.dtype.itemsize) or None,
    )
    native = np.ascontiguousarray(rows.astype(rows.dtype.newbyteorder("=")))
    for number in range(3):
        path = tmp_path / "x.zarr" / "c" / str(number) / "0"
        path.parent.mkdir(parents=True)
        path.write_bytes(encoding.encode(native[4 * number : 4 * number + 4]))
    assert np.array_equal(array[...], rows)


def test_zarr_python_reads_joined_shards(tmp_path: Path) -> None:
    rows = np.arange(60, dtype="i4").reshape(12, 5)
    encoding = Encoding.parse("lz4", 4)
    created: Any = zarr.create_array
    array = created(
        tmp_path / "x.zarr",
        shape=rows.shape,
        dtype="i4",
        chunks=(2, 5),
        shards=(12, 5),
        compressors=encoding.zarr_compressors(4),
        fill_value=7,
    )
    chunks: list[Any] = [encoding.encode(rows[n : n + 2]) for n in range(0, 12, 2)]
    chunks[2] = None  # missing
    path = tmp_path / "x.zarr" / "c" / "0" / "0"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"".join(join_shard(chunks)))
    rows[4:6] = 7
    assert np.array_equal(array[...], rows)


@pytest.mark.parametrize(
    ("text", "item_bytes", "made"),
    [
        ("none", 4, Encoding()),
        ("lz4", 4, Encoding("lz4", 5, "shuffle")),
        ("lz4", 1, Encoding("lz4", 5, "noshuffle")),
        ("zstd-7", 2, Encoding("zstd", 7, "shuffle")),
        ("zstd-7-bitshuffle", 1, Encoding("zstd", 7, "bitshuffle")),
        ("plain-zstd-22", 8, Encoding("plain-zstd", 22)),
    ],
)
def test_a_text_names_an_encoding_and_an_encoding_has_that_text(text: str, item_bytes: int, made: Encoding) -> None:
    assert Encoding.parse(text, item_bytes) == made
    assert Encoding.parse(str(made), item_bytes) == made


@pytest.mark.parametrize(
    "text", ["", "gzip", "none-1", "lz4-0", "lz4-10", "zstd-", "zstd-3-sorted", "plain-zstd-3-shuffle", "LZ4", "lz4 "]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"codec = .*must be"):
        Encoding.parse(text)
