"""Samples that need few Blosc blocks of a chunk: only those are decoded, and what arrives is zarr-python's."""

from __future__ import annotations

import itertools
import warnings
from contextlib import closing
from pathlib import Path
from typing import Any

import numcodecs
import numcodecs.blosc
import numpy as np
import numpy.typing as npt
import pytest
import zarr
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, TransposeCodec

import zarrfeed
from tests.support.examples import tries
from zarrfeed import CorruptChunkError, Data, ZarrDataset, ZarrIterableDataset

Array = npt.NDArray[Any]

ROWS, ITEMS = 24, 2048
#: Decoded bytes of a Blosc block. Of the compressors only zstd makes blocks as small as it is asked to.
BLOCK = 4096
ZSTD = BloscCodec(cname="zstd", shuffle="shuffle", blocksize=BLOCK)


def numbers(shape: tuple[int, ...], dtype: str = "f4") -> Array:
    """Return items that differ from their neighbours, and compress."""
    count = np.arange(np.prod(shape)).reshape(shape)
    if dtype.startswith("b"):
        return np.asarray(count % 3 == 0)
    return np.asarray(count if dtype.startswith("M") else count % 50_021).astype(dtype)


def stored(path: Path, data: Array, chunks: tuple[int, ...], **options: Any) -> Path:
    options.setdefault("compressors", ZSTD)
    array: zarr.Array[Any] = zarr.create_array(path, shape=data.shape, chunks=chunks, dtype=data.dtype, **options)
    array[...] = data
    return path


def blocks_of(ranges: list[tuple[int, int]], size: int, block: int = BLOCK) -> int:
    """Return the bytes of the blocks of a chunk of `size` bytes that ranges of its bytes touch."""
    touched = {b for begin, end in ranges for b in range(begin // block, (end - 1) // block + 1)}
    return sum(min(block, size - b * block) for b in touched)


def decoded(data: Data, indices: Any) -> tuple[Any, int]:
    """Return samples in map style, without a cache, and how many bytes were decoded for them."""
    with closing(ZarrDataset(data, cache=0)) as dataset:
        return dataset[indices], dataset.stats().bytes_decoded


ROW = 4 * ITEMS


def blosc(cname: str, shuffle: int) -> numcodecs.Blosc:
    return numcodecs.Blosc(cname, shuffle=shuffle, blocksize=16_384)


#: Ways to store an array of rows of 256 KiB: items, what makes the Blosc blocks, and how else it is stored.
LAYOUTS: dict[str, tuple[str, numcodecs.Blosc, dict[str, Any]]] = {
    "zstd": ("f4", blosc("zstd", 1), {}),
    "big-endian": (">f4", blosc("zstd", 1), {}),
    "bit-shuffle": ("f4", blosc("zstd", 2), {}),
    "big-endian, bit-shuffle": (">f4", blosc("lz4", 2), {}),
    "no shuffle": ("f4", blosc("zlib", 0), {}),
    "lz4": ("f4", blosc("lz4", 1), {}),
    "blosclz": ("f4", blosc("blosclz", 1), {}),
    "inner chunks of shards": ("f4", blosc("lz4hc", 1), {"shards": (2 * ROWS, 32 * ITEMS)}),
    "version 2": ("f4", blosc("lz4", 1), {"zarr_format": 2}),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_row_costs_its_blocks_and_no_others(layout: str, tmp_path: Path) -> None:
    dtype, codec, options = LAYOUTS[layout]
    array = numbers((2 * ROWS, 32 * ITEMS), dtype)
    size, row_bytes = ROWS * 32 * ROW, 32 * ROW
    block = int.from_bytes(codec.encode(array[:ROWS])[8:12], "little")
    assert block <= row_bytes
    if "zarr_format" not in options:
        shuffle: Any = ("noshuffle", "shuffle", "bitshuffle")[codec.shuffle]
        options["compressors"] = BloscCodec(cname=codec.cname, shuffle=shuffle, blocksize=codec.blocksize)
    else:
        options["compressors"] = codec
    data = zarrfeed.open(stored(tmp_path / "a", array, (ROWS, 32 * ITEMS), **options))
    for row in (0, 11, 46):
        at = row % ROWS * row_bytes
        for name, way in (("as stored", data), ("cast", data.cast("float64"))):
            sample, cost = decoded(way, row)
            assert np.array_equal(sample, array[row].astype("f8")), (name, row)
            assert cost == blocks_of([(at, at + row_bytes)], size, block), (name, row)
        window, cost = decoded(data.cast("float64").window((0, 1)), row)
        assert np.array_equal(window, array[row : row + 2].astype("f8")), row
        assert cost == blocks_of([(at, at + 2 * row_bytes)], size, block), row


def test_short_rows_and_rows_that_lie_scattered_cost_their_blocks(tmp_path: Path) -> None:
    short = numbers((40_000, 3))  # rows of 12 bytes, 1365.3 a block
    data = zarrfeed.open(stored(tmp_path / "short", short, (20_000, 3)))
    for rows in ([7], [19_999, 0, 3], list(range(5000, 9000)), [39_999] * 70):
        samples, cost = decoded(data, rows)
        assert np.array_equal(samples, short[rows])
        of_chunks = [[(r % 20_000 * 12, r % 20_000 * 12 + 12) for r in rows if r // 20_000 == c] for c in range(2)]
        assert cost == sum(blocks_of(ranges, 240_000) for ranges in of_chunks), rows[:3]
    # The sample axis is stored inside of another one: a row is a run of bytes for each level.
    levels = numbers((9, 30, 1100))
    path = stored(tmp_path / "levels", levels, (9, 30, 1100), dimension_names=("level", "time", "x"))
    sample, cost = decoded(zarrfeed.open(path, sample_dim="time"), 17)
    assert np.array_equal(sample, levels[:, 17])
    row = 4 * 1100
    assert cost == blocks_of([((z * 30 + 17) * row, (z * 30 + 18) * row) for z in range(9)], 9 * 30 * row)
    # The same by a codec that transposes, in chunks that cut the row, the last of which is filled up.
    turned = stored(tmp_path / "turned", levels, (9, 30, 800), filters=TransposeCodec(order=(2, 0, 1)))
    sample, cost = decoded(zarrfeed.open(turned), 4)
    assert np.array_equal(sample, levels[4])
    runs = [[((x * 9 + 4) * 120, (x * 9 + 5) * 120) for x in range(n)] for n in (800, 300)]
    # Every block of them has items of the row, so they are decoded whole; of the last chunk, what the array has.
    assert cost in (
        sum(blocks_of(r, 9 * 30 * 3200) for r in runs),
        blocks_of(runs[0], 9 * 30 * 3200) + blocks_of(runs[1], 9 * 30 * 3200),
    )


def test_a_patch_costs_the_blocks_that_it_touches(tmp_path: Path) -> None:
    volume = numbers((12, 40, 1024))  # a row of the inner axis is a block
    path = stored(tmp_path / "v", volume, (12, 40, 1024))
    data = zarrfeed.open(path).patch({0: 2, 1: 3, 2: 100}, sampling="grid", border="drop")
    rows = [((z * 40 + y) * 4096, (z * 40 + y + 1) * 4096) for z, y in itertools.product(range(2), range(3))]
    for way in (data, data.cast("float64")):
        sample, cost = decoded(way, 0)
        assert np.array_equal(sample, volume[:2, :3, :100])
        assert cost == blocks_of(rows, volume.nbytes)
    # Listed items of an axis that is not cut: what lies between them is not decoded.
    chosen = zarrfeed.open(path).patch({0: 1, 2: 8}, sampling="grid", border="drop", isel={1: [0, 39, 20]})
    sample, cost = decoded(chosen, 0)
    assert np.array_equal(sample, volume[:1, [0, 39, 20], :8])
    assert cost == 3 * 4096


def test_an_uncompressed_chunk_costs_the_bytes_of_its_rows(tmp_path: Path) -> None:
    array = numbers((4 * ROWS, ITEMS))
    data = zarrfeed.open(stored(tmp_path / "a", array, (ROWS, ITEMS), compressors=None))
    sample, cost = decoded(data.cast("float64"), 30)
    assert np.array_equal(sample, array[30])
    assert cost == ROW
    patch, cost = decoded(data.patch({0: 3, 1: 5}, sampling="grid", border="drop"), 0)
    assert np.array_equal(patch, array[:3, :5])
    assert cost == 60


def test_a_checksum_behind_blosc_has_the_chunk_decoded_whole(tmp_path: Path) -> None:
    array = numbers((4 * ROWS, ITEMS))
    codecs = [ZSTD, Crc32cCodec()]
    path = stored(tmp_path / "a", array, (ROWS, ITEMS), compressors=codecs, serializer=BytesCodec(endian="big"))
    sample, cost = decoded(zarrfeed.open(path), 30)
    assert np.array_equal(sample, array[30])
    assert cost == ROWS * ROW


def test_a_chunk_is_cached_once_it_is_wanted_again_and_costs_a_row_before(tmp_path: Path) -> None:
    array = numbers((4 * ROWS, ITEMS))
    path = stored(tmp_path / "a", array, (ROWS, ITEMS))
    for data in (zarrfeed.open(path), zarrfeed.open(path).cast("float64")):
        with closing(ZarrDataset(data)) as dataset:
            costs = []
            for row in (5, 6, 7, 30, 5):
                assert np.array_equal(dataset[row], array[row])
                costs.append(dataset.stats().bytes_decoded)
            dataset[range(2 * ROWS, 3 * ROWS)]  # most of a chunk: cached at once
            costs.append(dataset.stats().bytes_decoded)
            dataset[50]
            costs.append(dataset.stats().bytes_decoded)
        chunk = ROWS * ROW
        assert np.diff([0, *costs]).tolist() == [ROW, chunk, 0, ROW, 0, chunk, 0]


def test_chunks_that_threads_wrote_have_the_same_rows(tmp_path: Path) -> None:
    """Their blocks lie in the order in which threads ended them."""
    array = numbers((2 * ROWS, 40 * ITEMS))
    paths = []
    before = numcodecs.blosc.set_nthreads(8)
    use_threads = numcodecs.blosc.use_threads
    try:
        for threads in (False, True):
            numcodecs.blosc.use_threads = threads
            codec = numcodecs.Blosc("zstd", clevel=5, shuffle=1, blocksize=16_384)
            chunks = [codec.encode(array[i * ROWS : (i + 1) * ROWS]) for i in range(2)]
            path = stored(tmp_path / str(threads), array, (ROWS, 40 * ITEMS), zarr_format=2, compressors=codec)
            for i, chunk in enumerate(chunks):
                (path / f"{i}.0").write_bytes(chunk + b"behind it")
            paths.append(path)
    finally:
        numcodecs.blosc.use_threads = use_threads
        numcodecs.blosc.set_nthreads(before)
    tables = [np.frombuffer((path / "0.0").read_bytes(), "<u4", 40 * ITEMS * 4 * ROWS // 16_384, 16) for path in paths]
    assert np.all(np.diff(tables[0].astype(int)) > 0)
    for path in paths:
        for data in (zarrfeed.open(path), zarrfeed.open(path).cast("float64")):
            samples, cost = decoded(data, [3, 40, 17])
            assert np.array_equal(samples, array[[3, 40, 17]])
            assert cost == 3 * 40 * ROW


def test_damage_harms_those_alone_who_want_the_block(tmp_path: Path) -> None:
    array = numbers((2 * ROWS, ITEMS))
    path = stored(
        tmp_path / "a", array, (ROWS, ITEMS), zarr_format=2, compressors=numcodecs.Blosc("zstd", blocksize=BLOCK)
    )
    chunk = bytearray((path / "0.0").read_bytes())
    blocks = ROWS * ROW // BLOCK
    (begin,) = np.frombuffer(chunk, "<u4", blocks, 16)[[21]].tolist()  # of row 10
    chunk[begin : begin + 4] = b"\xff\xff\xff\x7f"
    (path / "0.0").write_bytes(chunk)
    patched = zarrfeed.open(path).patch({0: 2, 1: 64}, sampling="grid", border="drop")
    for data in (zarrfeed.open(path), zarrfeed.open(path).cast("float64")):
        with closing(ZarrDataset(data, cache=0)) as dataset:
            for row in (*range(10), *range(11, ROWS)):
                assert np.array_equal(dataset[row], array[row])
            with pytest.raises(CorruptChunkError, match=r"0\.0.*Blosc stream"):
                dataset[10]
    with closing(ZarrDataset(patched, cache=0)) as dataset:
        assert np.array_equal(dataset[0], array[:2, :64])
    chunk[16:20] = b"\x03\0\0\0"  # an entry of the table: bad for all
    (path / "0.0").write_bytes(chunk)
    for data in (zarrfeed.open(path), zarrfeed.open(path).cast("float64"), patched):
        with closing(ZarrDataset(data, cache=0)) as dataset, pytest.raises(CorruptChunkError, match="begins outside"):
            dataset[0]


def random_data(random: np.random.Generator, path: Path) -> tuple[Data, Array, int]:
    """Write a random array with Blosc chunks of small blocks; return it opened, and its sample axis."""
    ndim = int(random.integers(1, 4))
    shape = tuple(int(n) for n in random.integers(1, 3000 if ndim == 1 else 34, ndim))
    chunks = tuple(int(random.integers(1, n + 1)) for n in shape)
    dtype = str(random.choice(["b1", "i1", ">i2", "u2", "f4", ">f4", "f8", ">f8", "c16", "M8[s]"]))
    array = numbers(shape, dtype)
    axis = int(random.integers(ndim))
    names = [f"d{a}" for a in range(ndim)]
    filters: Any = TransposeCodec(order=tuple(int(a) for a in random.permutation(ndim))) if ndim > 1 else None
    codec = BloscCodec(
        cname=str(random.choice(["lz4", "lz4hc", "blosclz", "zstd", "zlib"])),  # type: ignore[arg-type]
        clevel=int(random.integers(0, 10)),
        shuffle=str(random.choice(["noshuffle", "shuffle", "bitshuffle"])),  # type: ignore[arg-type]
        blocksize=int(random.choice([0, 128, 256, 1000, 4096])),
    )
    if filters is None or random.random() < 0.5:
        stored(path, array, chunks, compressors=codec, dimension_names=names)
    else:
        stored(path, array, chunks, compressors=codec, dimension_names=names, filters=filters)
    return zarrfeed.open(path, sample_dim=names[axis]), np.moveaxis(array, axis, 0), ndim


def test_random_arrays_arrive_as_zarr_python_has_them(tmp_path: Path) -> None:
    random = np.random.default_rng(8)
    for case in range(tries(20, 60)):
        data, array, ndim = random_data(random, tmp_path / str(case))
        array = np.asarray(zarr.open_array(tmp_path / str(case))[...]) if ndim == 1 else array
        if array.dtype.kind == "M":
            array = array.view("i8")
        native = array.astype(array.dtype.newbyteorder("="))
        if native.dtype.kind in "iuf" and random.random() < 0.4:
            data, native = data.cast("float64"), native.astype("f8")
        length = 1
        if random.random() < 0.4:
            length = int(random.integers(1, min(4, len(native)) + 1))
        starts = random.integers(0, len(native) - length + 1, int(random.integers(1, 9)))
        chosen = np.unique(starts)
        ways = [one.window(range(length), rows="all") if length > 1 else one for one in (data, data.select(chosen))]
        cache = int(random.choice([0, 1 << 14, 1 << 22]))
        with closing(ZarrDataset(ways[0], cache=cache)) as dataset:
            for _ in range(2):
                found = np.asarray(dataset[starts])
                rows = native[starts[:, None] + np.arange(length)] if length > 1 else native[starts]
                assert np.array_equal(found.reshape(rows.shape), rows), case
        for shuffle in (False, True):
            options: Any = {"batch_size": 3, "shuffle": shuffle, "return_index": True, "memory_budget": "64 MiB"}
            with ZarrIterableDataset(ways[1], **options) as epoch:
                seen = []
                for batch, index in epoch:
                    at = index.numpy()
                    rows = native[at[:, None] + np.arange(length)] if length > 1 else native[at]
                    assert np.array_equal(np.asarray(batch).reshape(rows.shape), rows), (case, shuffle)
                    seen += at.tolist()
                assert sorted(seen) == chosen.tolist(), (case, shuffle)


def test_random_patches_are_slices_of_the_volume(tmp_path: Path) -> None:
    """In map style, and in epochs whose lanes carry crops of chunks; with contexts that draw from the same array."""
    random = np.random.default_rng(9)
    few, count = 0, tries(4, 12)
    for case in range(count):
        shape = tuple(int(n) for n in random.integers(20, 40, 3))
        chunks = tuple(int(n) for n in random.integers(5, 21, 3))
        array = (np.arange(np.prod(shape)) % 50_021).reshape(shape).astype(str(random.choice(["u2", ">i4", "f8"])))
        path = tmp_path / str(case)
        codec = BloscCodec(cname="zstd", shuffle="bitshuffle" if case % 2 else "shuffle", blocksize=512)
        stored(path, array, chunks, compressors=codec)
        size = tuple(int(n) for n in random.integers(1, 7, 3))
        native = array.astype(array.dtype.newbyteorder("="))
        opened = zarrfeed.open(path)
        if native.dtype.itemsize < 8 and case % 3:
            opened, native = opened.cast("float64"), native.astype("f8")
        data = opened.patch(dict(enumerate(size)), sampling="grid", border="drop")
        whole = int(np.prod(np.ceil(np.array(shape) / chunks))) * int(np.prod(chunks)) * array.itemsize

        def check(patch: Any, start: Any, size: tuple[int, ...] = size, native: Array = native) -> None:
            at = tuple(slice(int(s), int(s) + n) for s, n in zip(start, size, strict=True))
            assert np.array_equal(np.asarray(patch), native[at])

        with closing(ZarrDataset(data, cache=0, return_index=True)) as dataset:
            for wanted in random.integers(0, len(dataset), (4, 2)):
                before = dataset.stats()
                patches, index = dataset[wanted]
                for patch, start in zip(patches, data.locate(index)[1], strict=True):
                    check(patch, start)
                after = dataset.stats()
                chunk = int(np.prod(chunks)) * array.itemsize
                few += after.bytes_decoded - before.bytes_decoded < (after.chunks_read - before.chunks_read) * chunk
        for shuffle in (False, True):
            options: Any = {"batch_size": 8, "shuffle": shuffle, "return_index": True, "memory_budget": "8 MiB"}
            with ZarrIterableDataset(data, **options) as epoch:
                seen = 0
                for batch, index in epoch:
                    for patch, start in zip(batch, data.locate(index)[1], strict=True):
                        check(patch, start)
                        seen += 1
                assert seen == len(data)
                assert 0 < epoch.stats().bytes_decoded <= 3 * whole
    assert few > 2 * count


def test_a_bad_block_is_skipped_where_it_is_wanted_alone(tmp_path: Path) -> None:
    array = numbers((2 * ROWS, ITEMS))
    codec = numcodecs.Blosc("zstd", blocksize=BLOCK)
    path = stored(tmp_path / "a", array, (ROWS, ITEMS), zarr_format=2, compressors=codec)
    chunk = bytearray((path / "0.0").read_bytes())
    (begin,) = np.frombuffer(chunk, "<u4", ROWS * ROW // BLOCK, 16)[[21]].tolist()  # of row 10
    chunk[begin : begin + 4] = b"\xff\xff\xff\x7f"
    (path / "0.0").write_bytes(chunk)
    for cast, shuffle, wanted in itertools.product((False, True), (False, True), ([1, 9, 11, 30], [1, 10, 11, 30])):
        data = zarrfeed.open(path).select(wanted)
        data = data.cast("float64") if cast else data
        options: Any = {"batch_size": 2, "shuffle": shuffle, "return_index": True, "faults": {"on_error": "skip"}}
        with ZarrIterableDataset(data, memory_budget="64 MiB", **options) as epoch, warnings.catch_warnings():
            warnings.simplefilter("ignore", zarrfeed.ChunkSkippedWarning)
            seen: list[int] = []
            for batch, index in epoch:
                assert np.array_equal(batch, array[index.numpy()].astype(batch.numpy().dtype))
                seen += index.tolist()
            case = (cast, shuffle, wanted)
            assert len(epoch.skipped_chunks()) == (10 in wanted), case
            # Lanes may cut the block of samples, so that a good row comes without the bad one.
            assert len(seen) == 4, case
            assert {30} <= set(seen) <= set(wanted) - {10}, case
            assert 10 in wanted or sorted(seen) == wanted, case


def test_channels_and_targets_of_one_array_cost_the_blocks_of_all(tmp_path: Path) -> None:
    array = numbers((2 * ROWS, ITEMS))
    path = stored(tmp_path / "a", array, (ROWS, ITEMS))
    data = zarrfeed.open({"x": path, "y": path}, targets={"z": path}).cast({"y": "float64", "z": "float64"})
    data = data.window({"x": (0, 1), "y": 3, "z": 3})
    (samples, targets), cost = decoded(data, 4)
    assert np.array_equal(samples["x"], array[4:6])
    assert np.array_equal(samples["y"], array[7])
    assert np.array_equal(targets["z"], array[7])
    assert cost == 3 * ROW
    stacked = (
        zarrfeed.open({"u": path, "v": path}).cast("float64").window({"u": 0, "v": 2}).stack(["u", "v"], name="uv")
    )
    (sample, cost) = decoded(stacked, 4)
    found = sample["uv"] if isinstance(sample, dict) else sample
    assert np.array_equal(np.asarray(found).reshape(2, ITEMS), array[[4, 6]])
    assert cost == 2 * ROW
