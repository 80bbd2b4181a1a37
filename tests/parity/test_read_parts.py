"""Samples that need little of a large chunk: only the bytes of it are read, and what arrives is zarr-python's."""

from __future__ import annotations

import itertools
import os
import warnings
from contextlib import closing
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import numpy.typing as npt
import pytest
import zarr
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec

import zarrfeed
from tests.support.counting_server import CountingServer
from tests.support.examples import tries
from zarrfeed import CorruptChunkError, Data, Stats, ZarrDataset, ZarrIterableDataset

Array = npt.NDArray[Any]

#: 24 rows of 64 KiB a chunk, of items of 4 bytes.
ROWS, ITEMS = 24, 16_384
#: What a task reads beside the blocks of its rows: the first bytes of the chunk, and gaps between blocks.
EXTRA = 2 * 16_384


def noise(shape: tuple[int, ...], dtype: str = "f4") -> Array:
    """Return items that hardly compress, so that stored chunks are large, and that say where they are."""
    count = int(np.prod(shape))
    words = np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(20)
    return np.asarray(words % np.uint64(1 << 23)).astype(dtype).reshape(shape)


def stored(path: Path, data: Array, chunks: tuple[int, ...], **options: Any) -> Path:
    array: zarr.Array[Any] = zarr.create_array(path, shape=data.shape, chunks=chunks, dtype=data.dtype, **options)
    array[...] = data
    return path


def read(data: Data, indices: Any, **options: Any) -> tuple[Any, Stats]:
    """Return samples in map style, without a cache of chunks, and what was read for them."""
    with closing(ZarrDataset(data, **{"cache": 0, "num_threads": 1} | options)) as dataset:
        return dataset[indices], dataset.stats()


def chunk_of(path: Path) -> bytes:
    """Return the stored bytes of the first chunk, or of the first inner chunk of a shard."""
    content = next(file for file in (path / "c/0/0/0", path / "c/0/0", path / "0.0") if file.is_file()).read_bytes()
    if zarr.open_array(path).shards is None:
        return content
    begin, size = np.frombuffer(content[-(2 * 16 + 4) : -4], "<u8", 2)
    return content[int(begin) : int(begin + size)]


#: Ways to store an array: compressors, and how else it is stored.
LAYOUTS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "uncompressed": ("f4", None, {}),
    "uncompressed, big-endian": (">f4", None, {"serializer": BytesCodec(endian="big")}),
    "uncompressed, inner chunks of shards": ("f4", None, {"shards": (2 * ROWS, ITEMS)}),
    "lz4": ("f4", BloscCodec(cname="lz4", shuffle="shuffle", blocksize=65_536), {}),
    "lz4 as c-blosc likes it": ("f8", BloscCodec(cname="lz4", clevel=1), {}),
    "memcpyed": ("f4", BloscCodec(cname="lz4", clevel=0, blocksize=32_768), {}),
    "zstd, bit-shuffle": ("f4", BloscCodec(cname="zstd", shuffle="bitshuffle", blocksize=65_536), {}),
    "zlib, not shuffled": ("f4", BloscCodec(cname="zlib", clevel=1, shuffle="noshuffle", blocksize=32_768), {}),
    "blosclz": ("f4", BloscCodec(cname="blosclz", shuffle="shuffle", blocksize=32_768), {}),
    "lz4hc, big-endian": (">f4", BloscCodec(cname="lz4hc", blocksize=32_768), {"serializer": BytesCodec(endian="big")}),
    "zstd, inner chunks of shards": ("f4", BloscCodec(cname="zstd", blocksize=65_536), {"shards": (2 * ROWS, ITEMS)}),
    "version 2": ("f4", numcodecs.Blosc("zstd", clevel=1, blocksize=65_536), {"zarr_format": 2}),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_few_rows_cost_their_own_bytes(layout: str, tmp_path: Path) -> None:
    dtype, codec, options = LAYOUTS[layout]
    array = noise((2 * ROWS, ITEMS), dtype)
    path = stored(tmp_path / "a", array, (ROWS, ITEMS), compressors=codec, **options)
    chunk = chunk_of(path)
    row = ITEMS * array.itemsize
    block = row if codec is None else int.from_bytes(chunk[8:12], "little")

    def cost_of(rows: list[int]) -> int:
        """Return the stored bytes of the blocks that rows lie in, roughly where they are compressed."""
        ends = [(r // ROWS, r % ROWS * row, (r % ROWS + 1) * row) for r in rows]
        touched = {(c, b) for c, begin, end in ends for b in range(begin // block, -(-end // block))}
        return int(len(touched) * block * len(chunk) / (ROWS * row) * (1 if codec is None else 1.1))

    native = array.astype(dtype[-2:])
    for data, expected in ((zarrfeed.open(path), native), (zarrfeed.open(path).cast("float64"), native.astype("f8"))):
        for rows in ([0], [11], [23, 24], [40, 3, 40, 5]):
            samples, stats = read(data, rows)
            assert np.array_equal(samples, expected[rows]), rows
            assert stats.bytes_read <= cost_of(rows) + (0 if codec is None else EXTRA * stats.chunks_read), rows
            assert stats.bytes_read < stats.stored_bytes / 2, rows
            assert stats.stored_bytes >= 0.9 * len(chunk) * stats.chunks_read, rows
        for shuffle in (True, False):
            chosen = [1, 20, 30, 31]
            with ZarrIterableDataset(data.select(chosen), batch_size=2, return_index=True, shuffle=shuffle) as epoch:
                seen = []
                for batch, index in epoch:
                    assert np.array_equal(batch, expected[index.numpy()]), shuffle
                    seen += index.tolist()
                assert sorted(seen) == chosen
                # With shuffle, lanes cut blocks of samples, so that a chunk may be read for each of its rows.
                assert epoch.stats().bytes_read <= 2 * cost_of(chosen) + 4 * EXTRA


def test_all_rows_of_a_chunk_are_read_once(tmp_path: Path) -> None:
    array = noise((2 * ROWS, ITEMS))
    for name, codec in (("raw", None), ("lz4", BloscCodec(cname="lz4", blocksize=32_768))):
        path = stored(tmp_path / name, array, (ROWS, ITEMS), compressors=codec)
        for shuffle in (False, True):
            with ZarrIterableDataset(zarrfeed.open(path), batch_size=8, shuffle=shuffle) as epoch:
                assert sum(len(batch) for batch in epoch) == len(array)
                assert epoch.stats().bytes_read == epoch.stats().stored_bytes


def test_patches_and_levels_cost_their_own_bytes(tmp_path: Path) -> None:
    volume = noise((16, 64, 1024), "u4")  # 4 MiB, a row of the inner axis is 4 KiB
    for name, codec in (("raw", None), ("lz4", BloscCodec(cname="lz4", clevel=1, shuffle="noshuffle", blocksize=8192))):
        path = stored(tmp_path / name, volume, volume.shape, compressors=codec)
        block = 4096 if codec is None else int.from_bytes(chunk_of(path)[8:12], "little")
        data = zarrfeed.open(path).patch({0: 2, 1: 4, 2: 32}, sampling="grid", border="drop")
        for way in (data, data.cast("float64")):
            (patch, index), stats = read(way, 700, return_index=True)
            z, y, x = (int(n) for n in data.locate(np.array([int(index)]))[1][0])
            assert np.array_equal(patch, volume[z : z + 2, y : y + 4, x : x + 32]), name
            assert stats.bytes_read <= 2 * (4 * 4096 + 2 * block) + EXTRA, name
        # The sample axis is stored inside of another one.
        levels = stored(
            tmp_path / f"levels {name}", volume, volume.shape, compressors=codec, dimension_names=("z", "t", "x")
        )
        sample, stats = read(zarrfeed.open(levels, sample_dim="t"), 33)
        assert np.array_equal(sample, volume[:, 33])
        assert stats.bytes_read <= 16 * (4096 + 2 * block + 16_384) + EXTRA, name
    with ZarrIterableDataset(data, batch_size=16, shuffle=True, return_index=True, memory_budget="16 MiB") as epoch:
        seen = 0
        for batch, index in epoch:
            for patch, (z, y, x) in zip(batch, data.locate(index)[1], strict=True):
                assert np.array_equal(patch, volume[z : z + 2, y : y + 4, x : x + 32])
                seen += 1
        assert seen == len(data)


def test_a_checksum_behind_the_codec_and_other_codecs_have_the_chunk_read_whole(tmp_path: Path) -> None:
    array = noise((ROWS, ITEMS))
    chains: list[Any] = [
        [BloscCodec(cname="lz4", blocksize=32_768), Crc32cCodec()],
        [Crc32cCodec()],
        [zarr.codecs.ZstdCodec(level=1)],
    ]
    for number, chain in enumerate(chains):
        sample, stats = read(zarrfeed.open(stored(tmp_path / str(number), array, (ROWS, ITEMS), compressors=chain)), 7)
        assert np.array_equal(sample, array[7])
        assert stats.bytes_read == stats.stored_bytes > ROWS * ITEMS


def test_parts_are_read_from_the_entries_of_a_node_cache(tmp_path: Path) -> None:
    array = noise((2 * ROWS, ITEMS))
    (tmp_path / "site").mkdir()
    for name, options in (("plain", {}), ("shards", {"shards": (2 * ROWS, ITEMS)})):
        codec = BloscCodec(cname="lz4", clevel=1, shuffle="noshuffle", blocksize=65_536)
        path = stored(tmp_path / "site" / name, array, (ROWS, ITEMS), compressors=codec, **options)
        for file in path.rglob("*"):  # what has just been written may be written again
            os.utime(file, (1_000_000_000, 1_000_000_000))
    for name in ("plain", "shards"):
        with CountingServer(tmp_path / "site") as server:
            data = zarrfeed.open(f"{server.url}/{name}", cache=tmp_path / f"cache of {name}")
            with closing(ZarrDataset(data, cache=0, num_threads=1)) as dataset:
                costs = []
                for row in (3, 4, 20, 9):
                    before = dataset.stats().bytes_read
                    assert np.array_equal(dataset[row], array[row])
                    costs.append(dataset.stats().bytes_read - before)
                found = dataset.stats()
        # Fetched whole; who wrote an entry reads parts of it, and need not check it whole first.
        whole = len(chunk_of(tmp_path / "site" / name))
        assert costs[0] == whole, name
        assert max(costs[1:]) < whole / 4, (name, costs)
        assert found.stored_bytes == 4 * whole, name
        assert found.cache.damaged == found.cache.unversioned == 0, name
        assert found.cache.troubles == (), name


def test_a_chunk_file_that_is_replaced_is_read_anew(tmp_path: Path) -> None:
    array = noise((ROWS, ITEMS))
    codec = BloscCodec(cname="lz4", blocksize=65_536)
    for name, options in (("plain", {}), ("shard", {"shards": (ROWS, ITEMS)})):
        first = stored(tmp_path / name, array, (ROWS, ITEMS), compressors=codec, **options)
        second = stored(tmp_path / f"other {name}", array[::-1], (ROWS, ITEMS), compressors=codec, **options)
        with closing(ZarrDataset(zarrfeed.open(first), cache=0)) as dataset:
            assert np.array_equal(dataset[2], array[2])
            (second / "c/0/0").replace(first / "c/0/0")
            for row in (2, 5, 23):
                assert np.array_equal(dataset[row], array[ROWS - 1 - row]), name


def test_damage_is_found_as_if_the_chunk_was_read_whole(tmp_path: Path) -> None:
    array = noise((2 * ROWS, ITEMS))
    path = stored(
        tmp_path / "a", array, (ROWS, ITEMS), zarr_format=2, compressors=numcodecs.Blosc("lz4", blocksize=65_536)
    )
    file = path / "0.0"
    good = file.read_bytes()
    block = int.from_bytes(good[8:12], "little")
    blocks = -(-ROWS * ITEMS * 4 // block)
    begins = np.frombuffer(good, "<u4", blocks, 16)
    of_row_10 = int(begins[10 * ITEMS * 4 // block])

    def changed(at: int, word: bytes) -> bytes:
        return good[:at] + word + good[at + 4 :]

    #: What is stored, the error, and whether it is one for those alone who want row 10.
    cases = {
        "a stream": (changed(of_row_10, b"\xff\xff\xff\x7f"), "Blosc stream", True),
        "the table": (changed(16 + 4 * (blocks - 1), b"\x03\0\0\0"), "begins outside", False),
        "the header": (changed(0, b"\x04\0\0\0"), "format version", False),
        "the end": (good[: len(good) // 2], "the chunk holds", False),
        "the beginning": (b"", "holds 0", False),
    }
    for name, (content, error, is_of_row) in cases.items():
        file.write_bytes(content)
        with closing(ZarrDataset(zarrfeed.open(path), cache=0)) as dataset:
            for row in (10, 2):
                if row == 10 or not is_of_row:
                    with pytest.raises(CorruptChunkError, match=rf"0\.0.*{error}"):
                        dataset[row]
                else:
                    assert np.array_equal(dataset[row], array[row]), name
            assert np.array_equal(dataset[30], array[30]), name
        for shuffle, wanted in itertools.product((False, True), ([2, 30, 40], [10, 30, 40])):
            options: Any = {"batch_size": 3, "shuffle": shuffle, "return_index": True, "faults": {"on_error": "skip"}}
            with ZarrIterableDataset(zarrfeed.open(path).select(wanted), **options) as epoch, warnings.catch_warnings():
                warnings.simplefilter("ignore", zarrfeed.ChunkSkippedWarning)
                for batch, index in epoch:
                    assert np.array_equal(batch, array[index.numpy()]), name
                is_bad = 10 in wanted or not is_of_row
                assert len(epoch.skipped_chunks()) == is_bad, (name, shuffle, wanted)


def test_random_arrays_arrive_as_zarr_python_has_them(tmp_path: Path) -> None:
    random = np.random.default_rng(18)
    in_parts, count = 0, tries(10, 24)
    for case in range(count):
        rows = int(random.integers(3, 60))
        shape = (int(random.integers(rows, 2 * rows + 1)), int(random.integers(1, 5)), int(random.integers(800, 5000)))
        chunks = (rows, int(random.integers(1, shape[1] + 1)), int(random.integers(700, shape[2] + 1)))
        dtype = str(random.choice(["u1", ">i2", "u2", "f4", ">f4", "f8", ">f8"]))
        codec: Any = None
        if random.random() < 0.7:
            codec = BloscCodec(
                cname=str(random.choice(["lz4", "lz4hc", "blosclz", "zstd"])),  # type: ignore[arg-type]
                clevel=int(random.integers(0, 4)),
                shuffle=str(random.choice(["noshuffle", "shuffle", "bitshuffle"])),  # type: ignore[arg-type]
                blocksize=int(random.choice([0, 4096, 10_000, 65_536])),
            )
        options: Any = {"serializer": BytesCodec(endian="big")} if dtype.startswith(">") else {}
        if random.random() < 0.4:
            options["shards"] = (2 * chunks[0], 2 * chunks[1], chunks[2])
        names = ("a", "b", "c")
        array = noise(shape, dtype)
        path = stored(tmp_path / str(case), array, chunks, compressors=codec, dimension_names=names, **options)
        data = zarrfeed.open(path, sample_dim="a")
        native = array.astype(dtype[-2:])
        starts = random.integers(0, shape[0] - 1, int(random.integers(1, 6)))
        with closing(ZarrDataset(data.window((0, 1)), cache=int(random.choice([0, 1 << 22])))) as dataset:
            for _ in range(2):
                assert np.array_equal(dataset[starts], native[starts[:, None] + np.arange(2)]), case
            in_parts += dataset.stats().bytes_read < dataset.stats().stored_bytes
        chosen = np.unique(starts)
        for shuffle in (False, True):
            with ZarrIterableDataset(
                data.select(chosen), batch_size=2, shuffle=shuffle, return_index=True, memory_budget="128 MiB"
            ) as epoch:
                for batch, index in epoch:
                    assert np.array_equal(batch, native[index.numpy()]), (case, shuffle)
    assert in_parts > count / 4


def test_chosen_items_cost_their_own_bytes(tmp_path: Path) -> None:
    """Chosen levels of a chunk that has many, in map style, in epochs, as windows that carry chunks, and as patches."""
    cube = noise((30, 16, 48, 64))  # 12 KiB a level of a row
    names = ("time", "level", "y", "x")
    for name, codec in (("raw", None), ("lz4", BloscCodec(cname="lz4", clevel=1, shuffle="noshuffle", blocksize=4096))):
        path = stored(tmp_path / name, cube, (12, 16, 48, 64), compressors=codec, dimension_names=names)
        block = 4096 if codec is None else int.from_bytes((path / "c/0/0/0/0").read_bytes()[8:12], "little")
        for levels in ([3], [12, 1], [1, 2, 3]):
            data, expected = zarrfeed.open(path).isel(level=levels), cube[:, levels]
            for rows in ([5], [11, 12], [29, 0, 29]):
                samples, stats = read(data, rows)
                assert np.array_equal(samples, expected[rows]), (name, levels, rows)
                own = len(set(rows)) * len(levels) * (48 * 64 * 4 + 2 * block + 16_384)
                assert stats.bytes_read <= own + EXTRA * stats.chunks_read, (name, levels, rows)
            for shuffle in (False, True):
                with ZarrIterableDataset(data, batch_size=4, shuffle=shuffle, return_index=True) as epoch:
                    seen = []
                    for batch, index in epoch:
                        assert np.array_equal(batch, expected[index.numpy()]), (name, levels, shuffle)
                        seen += index.tolist()
                    assert sorted(seen) == list(range(30))
                    if not shuffle and levels == [3]:
                        assert epoch.stats().bytes_read < epoch.stats().stored_bytes / 2, name
                with ZarrIterableDataset(
                    data.window((0, 1, 2)), batch_size=4, shuffle=shuffle, return_index=True
                ) as epoch:
                    for batch, index in epoch:
                        rows_of = index.numpy()[:, None] + np.arange(3)
                        assert np.array_equal(batch, expected[rows_of]), (name, levels, shuffle)
        patched = zarrfeed.open(path).isel(level=[3, 9]).patch({"y": 8, "x": 8}, sampling="grid", border="drop")
        with closing(ZarrDataset(patched, cache=0)) as dataset:
            assert dataset[0].shape[-2:] == (8, 8)
