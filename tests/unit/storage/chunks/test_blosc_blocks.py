"""The size of Blosc blocks, read from stores that numcodecs wrote, and from headers that are damaged."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec

import zarrfeed
from zarrfeed import CorruptChunkError, StoreReadError
from zarrfeed.storage.chunks.blosc_blocks import stored_block_bytes

ROWS, WIDTH = 4, 30_000
#: c-blosc makes this of 64 KiB for items of 4 bytes, as lz4 has a stream for each byte of an item.
BLOCK = 256 << 10


def create(
    path: Path, *, blocksize: int = 64 << 10, shards: bool = False, zarr_format: Any = 3, chunks: int = 70
) -> Any:
    compressor: Any = BloscCodec(cname="lz4", blocksize=blocksize)
    if zarr_format == 2:
        compressor = numcodecs.Blosc(cname="lz4", blocksize=blocksize)
    return zarr.create_array(
        path,
        shape=(ROWS * chunks, WIDTH),
        chunks=(ROWS, WIDTH),
        shards=(2 * ROWS, WIDTH) if shards else None,
        dtype="f4",
        compressors=compressor,
        zarr_format=zarr_format,
    )


def found(path: Path) -> int | None:
    (field,) = zarrfeed.open(path).resolved.fields
    return stored_block_bytes(field.layouts[0])


def declared(stored: bytes) -> int:
    return int(np.frombuffer(stored[8:12], dtype="<u4")[0])


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_the_header_of_the_first_chunk_that_is_stored_counts(tmp_path: Path, zarr_format: int) -> None:
    array = create(tmp_path / "x", zarr_format=zarr_format)
    array[ROWS * 3 : ROWS * 4] = np.arange(ROWS * WIDTH, dtype="f4").reshape(ROWS, WIDTH)
    stored = (tmp_path / "x" / ("3.0" if zarr_format == 2 else "c/3/0")).read_bytes()
    assert found(tmp_path / "x") == declared(stored) == BLOCK


def test_an_inner_chunk_has_its_own_header(tmp_path: Path) -> None:
    array = create(tmp_path / "x", shards=True)
    array[ROWS : 2 * ROWS] = np.random.default_rng(0).integers(0, 99, (ROWS, WIDTH))
    assert found(tmp_path / "x") == BLOCK  # the first inner chunk of the first shard is not stored


def test_nothing_is_known_where_no_early_chunk_is_stored(tmp_path: Path) -> None:
    array = create(tmp_path / "x")
    assert found(tmp_path / "x") is None
    array[ROWS * 64 : ROWS * 65] = 1
    assert found(tmp_path / "x") is None  # looking for a chunk ends after 64
    array[ROWS * 63 : ROWS * 64] = 1
    assert found(tmp_path / "x") is not None


@pytest.mark.parametrize("damage", ["short", "no_blocks", "too_long", "huge_block"])
def test_a_header_that_cannot_be_is_an_error(tmp_path: Path, damage: str) -> None:
    create(tmp_path / "x")[:ROWS] = 1
    path = tmp_path / "x" / "c" / "0" / "0"
    stored = bytearray(path.read_bytes())
    size = ROWS * WIDTH * 4
    if damage == "short":
        stored = stored[:15]
    elif damage == "no_blocks":
        stored[8:12] = bytes(4)
    elif damage == "too_long":
        stored[4:8] = (size + 4).to_bytes(4, "little")
    else:
        stored[8:12] = (size + 1).to_bytes(4, "little")
    path.write_bytes(stored)
    with pytest.raises(CorruptChunkError, match=r"chunk c/0/0: .*Blosc header"):
        found(tmp_path / "x")


def test_a_shard_whose_index_is_damaged_is_an_error(tmp_path: Path) -> None:
    create(tmp_path / "x", shards=True)[: 2 * ROWS] = 1
    path = tmp_path / "x" / "c" / "0" / "0"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(CorruptChunkError, match="inner chunk 0"):
        found(tmp_path / "x")


@pytest.mark.skipif(os.getuid() == 0, reason="root may read any file")
def test_a_file_that_nobody_may_read_is_an_error_and_not_missing(tmp_path: Path) -> None:
    create(tmp_path / "x")[:ROWS] = 1
    (tmp_path / "x" / "c" / "0" / "0").chmod(0)
    with pytest.raises(StoreReadError) as raised:
        found(tmp_path / "x")
    assert raised.value.errno == errno.EACCES


def test_a_directory_in_place_of_a_chunk_is_an_error(tmp_path: Path) -> None:
    create(tmp_path / "x")
    (tmp_path / "x" / "c" / "0" / "0").mkdir(parents=True)
    (field,) = zarrfeed.open(tmp_path / "x").resolved.fields
    with pytest.raises(StoreReadError, match="c/0/0"):
        stored_block_bytes(field.layouts[0])


def test_the_first_of_several_stores_is_asked(tmp_path: Path) -> None:
    for number, blocksize in enumerate((32 << 10, 64 << 10)):
        create(tmp_path / str(number), blocksize=blocksize, chunks=3)[:] = 1
    data = zarrfeed.concat([zarrfeed.open(tmp_path / "0"), zarrfeed.open(tmp_path / "1")])
    (field,) = data.resolved.fields
    assert stored_block_bytes(field.layouts[0]) == BLOCK // 2
