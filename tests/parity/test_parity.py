"""Every sample that is delivered equals zarr-python's, byte for byte: format x codec x dtype x chunk grid x edge."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import warm
from tests.support.examples import examples
from tests.support.oracle import (
    CODECS,
    DTYPES,
    NUMCODECS_WARNING,
    ZARR_FORMATS,
    AnyArray,
    Layout,
    ZarrFormat,
    assert_parity,
    assert_rows_equal,
    chunk_files,
    drop_from_page_cache,
    numbered,
    read_all,
)
from tests.support.paths import ROOT
from zarrfeed import ZarrIterableDataset

pytestmark = pytest.mark.filterwarnings(NUMCODECS_WARNING)


def check(layout: Layout, path: Path, **options: Any) -> ZarrIterableDataset:
    array = layout.write(path, **options)
    expected = read_all(array, sample_axis=layout.sample_axis)
    return assert_parity(path, expected, sample_axis=layout.sample_axis)


# --- codecs -----------------------------------------------------------------------------------------------------

CODEC_CASES = [
    (zarr_format, name)
    for zarr_format, name in itertools.product(ZARR_FORMATS, CODECS)
    if (CODECS[name].v2 if zarr_format == 2 else CODECS[name].v3) is not None
]


@pytest.mark.parametrize(("zarr_format", "codec"), CODEC_CASES)
def test_every_codec_decodes_what_zarr_python_wrote(zarr_format: ZarrFormat, codec: str, tmp_path: Path) -> None:
    # 2.5 chunks of 16 x 16 x 12 items of 4 bytes: several Blosc blocks in some, and a short last chunk
    layout = Layout(zarr_format, (40, 16, 12), (16, 16, 12), codec=codec, period=24)
    dataset = check(layout, tmp_path / "a")
    assert dataset.stats().chunks_missing == 0


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("codec", ["blosc-lz4-bitshuffle", "blosc-zstd-shuffle", "zstd", "lz4", "zlib"])
def test_items_that_do_not_compress_decode_too(zarr_format: ZarrFormat, codec: str, tmp_path: Path) -> None:
    layout = Layout(zarr_format, (40, 37), (16, 37), "u8", codec=codec)
    noise = np.random.default_rng(3).integers(0, 2**64, layout.shape, np.uint64)
    array = layout.write(tmp_path / "a", noise)
    assert_parity(tmp_path / "a", read_all(array))


@pytest.mark.whole_product
@pytest.mark.parametrize("typesize", [1, 2, 3, 5, 6, 7, 9, 11, 13, 16, 17])
@pytest.mark.parametrize("items", [7, 8, 40, 1021])
def test_bit_shuffled_chunks_that_are_no_multiple_of_typesize_are_not_silently_wrong(
    typesize: int, items: int, tmp_path: Path
) -> None:
    """blosc2 4.14.1 decodes such Blosc 1 chunks to other bytes, without an error."""
    data = numbered((3 * items,), "u2")
    codec = zarr.codecs.BloscCodec(cname="lz4", shuffle="bitshuffle", typesize=typesize)
    array: zarr.Array[Any] = zarr.create_array(
        tmp_path / "a", shape=data.shape, chunks=(items,), dtype="u2", compressors=codec
    )
    array[...] = data
    assert_parity(tmp_path / "a", read_all(array))


# --- dtypes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "blosc-lz4-shuffle"])
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("big_endian", [False, True], ids=["little", "big"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_arrives_bit_for_bit_in_native_byte_order(
    dtype: str, big_endian: bool, zarr_format: ZarrFormat, codec: str, tmp_path: Path
) -> None:
    layout = Layout(zarr_format, (11, 3, 5), (4, 2, 5), dtype, big_endian=big_endian, codec=codec)
    check(layout, tmp_path / "a")


# zarr-python compares what it writes with the fill value, and NumPy 2.5 warns of signalling NaNs in complex numbers
@pytest.mark.filterwarnings("ignore:invalid value encountered in equal:RuntimeWarning")
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("big_endian", [False, True], ids=["little", "big"])
def test_signalling_nans_and_negative_zeros_keep_their_bits(
    dtype: str, zarr_format: ZarrFormat, big_endian: bool, tmp_path: Path
) -> None:
    layout = Layout(zarr_format, (16, 8), (5, 8), dtype, big_endian=big_endian)
    unit = f"u{np.dtype(dtype).itemsize // (2 if dtype[0] == 'c' else 1)}"
    bits = 8 * np.dtype(unit).itemsize
    mantissa = {16: 10, 32: 23, 64: 52}[bits]
    exponent = ((1 << (bits - 1)) - 1) >> mantissa << mantissa
    sign = 1 << (bits - 1)
    patterns = np.array(
        [exponent | 1, sign | exponent | 1, exponent | 1 << (mantissa - 1), sign, exponent, 1, 0, sign | 5],
        dtype=unit,
    )
    words = np.random.default_rng(1).choice(patterns, 16 * 8 * (2 if dtype[0] == "c" else 1))
    array = layout.write(tmp_path / "a", words.view(dtype).reshape(layout.shape))
    assert_parity(tmp_path / "a", read_all(array))


def test_a_resident_bfloat16_tensor_is_a_target_without_loss(tmp_path: Path) -> None:
    """The installed zarr (3.1.6) has no bfloat16: only targets in memory can be."""
    layout = Layout()
    array = layout.write(tmp_path / "a")
    bits = numbered((23, 6), "u2")
    as_array = bits.view(ml_dtypes.bfloat16)
    as_tensor = torch.from_numpy(bits.copy()).view(torch.bfloat16)
    for targets in (as_tensor, as_array):
        with ZarrIterableDataset(tmp_path / "a", targets, batch_size=5, shuffle=True, return_index=True) as dataset:
            for rows, target, index in dataset:
                assert target.dtype == torch.bfloat16
                assert_rows_equal(target.view(torch.uint16), index, bits)
                assert_rows_equal(rows, index, read_all(array))


# --- chunk grids ------------------------------------------------------------------------------------------------

GRIDS: dict[str, Layout] = {
    "sample axis only": Layout(shape=(23, 4, 5), chunks=(5, 4, 5)),
    "sample axis only, even": Layout(shape=(24, 4, 5), chunks=(6, 4, 5)),
    "other axes": Layout(shape=(23, 7, 5), chunks=(23, 3, 2)),
    "all axes, short everywhere": Layout(shape=(23, 7, 5), chunks=(5, 3, 2)),
    "all axes, even": Layout(shape=(24, 6, 4), chunks=(4, 3, 2)),
    "one sample a chunk": Layout(shape=(9, 4, 5), chunks=(1, 4, 5)),
    "one item a chunk": Layout(shape=(5, 2, 3), chunks=(1, 1, 1)),
    "one chunk": Layout(shape=(23, 4, 5), chunks=(23, 4, 5)),
    "longer than the array": Layout(shape=(7, 3, 2), chunks=(10, 5, 4)),
    "longer on the sample axis": Layout(shape=(7, 4, 4), chunks=(10, 2, 4)),
    "one sample": Layout(shape=(1, 4, 5), chunks=(3, 4, 5)),
    "1-d": Layout(shape=(101,), chunks=(8,)),
    "1-d, one chunk": Layout(shape=(5,), chunks=(8,)),
    "2-d": Layout(shape=(50, 13), chunks=(8, 5)),
    "axes of length one": Layout(shape=(12, 1, 5, 1), chunks=(5, 1, 2, 1)),
    "samples of one item": Layout(shape=(31, 1, 1), chunks=(4, 1, 1)),
    "5-d": Layout(shape=(6, 3, 4, 2, 3), chunks=(4, 2, 3, 1, 2)),
    "sample axis 1": Layout(shape=(6, 23, 5), chunks=(4, 5, 2), sample_axis=1),
    "sample axis 1, whole samples": Layout(shape=(6, 23, 5), chunks=(6, 5, 5), sample_axis=1),
    "sample axis last": Layout(shape=(6, 4, 23), chunks=(4, 3, 5), sample_axis=2),
    "sample axis last, whole samples": Layout(shape=(6, 4, 23), chunks=(6, 4, 5), sample_axis=2),
    "sample axis -1": Layout(shape=(6, 23), chunks=(4, 5), sample_axis=-1),
    "sample axis -3": Layout(shape=(23, 6, 2), chunks=(5, 4, 2), sample_axis=-3),
    "1-d, sample axis -1": Layout(shape=(23,), chunks=(5,), sample_axis=-1),
}


@pytest.mark.parametrize("variant", ["v2", "v2-F", "v3"])
@pytest.mark.parametrize("grid", GRIDS)
def test_every_chunk_grid_gives_whole_samples(grid: str, variant: str, tmp_path: Path) -> None:
    layout = GRIDS[grid].but(zarr_format=3 if variant == "v3" else 2, order=variant[-1] if variant == "v2-F" else "C")
    check(layout.but(codec="zstd"), tmp_path / "a")


@pytest.mark.parametrize("grid", ["sample axis only, even", "all axes, short everywhere", "sample axis last"])
@pytest.mark.parametrize("batch_size", [None, 1, 3, 8, 1000])
@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_of_every_size_hold_the_same_samples(
    grid: str, batch_size: int | None, shuffle: bool, tmp_path: Path
) -> None:
    layout = GRIDS[grid]
    array = layout.write(tmp_path / "a")
    expected = read_all(array, sample_axis=layout.sample_axis)
    assert_parity(tmp_path / "a", expected, batch_size=batch_size, shuffle=shuffle, sample_axis=layout.sample_axis)


def test_chunks_in_stored_order_are_decoded_straight_into_the_batch(tmp_path: Path) -> None:
    layout = Layout(shape=(64, 6, 5), chunks=(8, 6, 5), codec="blosc-lz4-shuffle")
    array = layout.write(tmp_path / "a")
    assert_parity(tmp_path / "a", read_all(array), batch_size=16, shuffle=False)


def test_chunks_of_many_cells_and_of_more_than_a_claim_are_shared_by_the_threads(tmp_path: Path) -> None:
    layout = Layout(shape=(24, 64, 256), chunks=(4, 32, 128), dtype="f8", codec="blosc-lz4-shuffle")
    array = layout.write(tmp_path / "a")
    assert_parity(tmp_path / "a", read_all(array), num_threads=4)


def test_chunks_that_are_not_in_the_page_cache_are_the_same(disk_path: Path) -> None:
    layout = Layout(shape=(64, 16, 16), chunks=(4, 8, 16), codec="zstd")
    array = layout.write(disk_path / "a")
    expected = read_all(array)
    removed = chunk_files(disk_path / "a")[5]
    drop_from_page_cache(chunk_files(disk_path / "a"))
    removed.unlink()
    expected = expected.copy()
    cell = [int(part) for part in removed.relative_to(disk_path / "a" / "c").parts]
    box = tuple(slice(i * c, (i + 1) * c) for i, c in zip(cell, layout.chunks, strict=True))
    expected[box] = 0
    dataset = assert_parity(disk_path / "a", expected)
    assert dataset.stats().chunks_missing >= 1


_COLD_EPOCHS_SCRIPT = """
import sys
from pathlib import Path

from tests.support.oracle import chunk_files, drop_from_page_cache
from zarrfeed import ZarrIterableDataset

array = Path(sys.argv[1])
for num_threads in (1, 2, 4):
    print(num_threads, "threads", flush=True)
    with ZarrIterableDataset(array, batch_size=4, num_threads=num_threads, return_index=True) as dataset:
        for _ in range(int(sys.argv[2])):
            drop_from_page_cache(chunk_files(array))
            index = [i for _, part in dataset for i in part.tolist()]
            assert index == list(range(64)), index
"""


def test_epochs_that_begin_with_nothing_in_the_page_cache_do_not_crash(
    disk_path: Path, pytestconfig: pytest.Config
) -> None:
    """A decode thread added the fetch threads to the list to which start() was still adding decode threads.

    One cold epoch in about 40 ended in a segmentation fault, or in a RuntimeError out of the join of a thread that was
    lost; hence a process of its own.
    """
    Layout(shape=(64, 600), chunks=(4, 600)).write(disk_path / "a")
    script = [
        *warm.command(),
        "-c",
        _COLD_EPOCHS_SCRIPT,
        str(disk_path / "a"),
        "300" if pytestconfig.getoption("--large") else "100",
    ]
    run = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("options", [{"lanes": 1}, {"lanes": 5}, {"lanes": 64}, {"mix": 3}, {"mix": 100}])
@pytest.mark.parametrize("num_threads", [1, 5])
def test_lanes_mix_and_threads_do_not_change_what_a_sample_is(
    options: dict[str, Any], num_threads: int, tmp_path: Path
) -> None:
    layout = Layout(shape=(64, 3, 5), chunks=(5, 2, 5), codec="blosc-lz4-shuffle")
    array = layout.write(tmp_path / "a")
    assert_parity(tmp_path / "a", read_all(array), num_threads=num_threads, seed=2**64 - 1, **options)


# --- storage order ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sample_axis", [0, 1, 2])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_transpose_is_undone_and_not_applied_twice(order: tuple[int, ...], sample_axis: int, tmp_path: Path) -> None:
    layout = Layout(shape=(7, 11, 13), chunks=(3, 4, 5), transposes=(order,), sample_axis=sample_axis)
    check(layout, tmp_path / "a")


@pytest.mark.parametrize(
    "orders",
    [
        ((1, 2, 0), (0, 2, 1)),
        ((0, 2, 1), (1, 2, 0)),
        ((1, 2, 0), (1, 2, 0)),
        ((2, 0, 1), (1, 0, 2)),
        ((1, 2, 0), (2, 0, 1)),
        ((1, 2, 0), (1, 2, 0), (2, 1, 0)),
    ],
)
@pytest.mark.parametrize("sample_axis", [0, 1])
def test_two_transposes_are_composed_in_the_right_order(
    orders: tuple[tuple[int, ...], ...], sample_axis: int, tmp_path: Path
) -> None:
    layout = Layout(shape=(7, 11, 13), chunks=(3, 4, 5), transposes=orders, sample_axis=sample_axis)
    check(layout.but(codec="zstd", big_endian=True), tmp_path / "a")


@pytest.mark.parametrize("order", [(1, 3, 0, 2), (3, 0, 1, 2), (2, 3, 1, 0), (0, 3, 1, 2)])
@pytest.mark.parametrize("dtype", ["u1", "f2", "c16"])
def test_a_transpose_of_four_axes_works_for_items_of_every_size(
    order: tuple[int, ...], dtype: str, tmp_path: Path
) -> None:
    layout = Layout(shape=(9, 4, 5, 6), chunks=(4, 3, 5, 4), dtype=dtype, transposes=(order,))
    check(layout.but(big_endian=True), tmp_path / "a")


# --- keys -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("zarr_format", "keys"),
    [
        (2, ("v2", ".")),
        (2, ("v2", "/")),
        (3, ("default", "/")),
        (3, ("default", ".")),
        (3, ("v2", ".")),
        (3, ("v2", "/")),
    ],
)
@pytest.mark.parametrize("shape", [(23,), (23, 7, 5)])
def test_chunks_are_found_under_every_key_encoding(
    zarr_format: ZarrFormat, keys: tuple[str, str], shape: tuple[int, ...], tmp_path: Path
) -> None:
    layout = Layout(zarr_format, shape, (2, 3, 2)[: len(shape)], keys=keys)
    dataset = check(layout, tmp_path / "a")
    assert dataset.stats().chunks_missing == 0


# --- ways to open -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("how", ["str", "Path", "url", "Array", "relative", "array in a group"])
def test_an_array_is_opened_by_path_url_or_array(
    how: str, zarr_format: ZarrFormat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout(zarr_format)
    store = tmp_path / "a store with ünusual#name%20.zarr"
    group = zarr.create_group(store, zarr_format=2 if zarr_format == 2 else 3)
    group.create_group("deep")
    array = layout.write(store / "deep" / "samples")
    monkeypatch.chdir(tmp_path)
    source: Any = {
        "str": str(store / "deep" / "samples"),
        "Path": store / "deep" / "samples",
        "url": (store / "deep" / "samples").as_uri(),
        "Array": array,
        "relative": f"{store.name}/deep/samples",
        "array in a group": zarr.open_group(store, mode="r")["deep/samples"],
    }[how]
    assert_parity(source, read_all(array))


def test_a_relative_path_means_where_it_was_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = Layout().write(tmp_path / "a")
    monkeypatch.chdir(tmp_path)
    dataset = ZarrIterableDataset("a", batch_size=None, return_index=True)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    index = torch.tensor([0])
    sample, _ = next(iter(dataset))
    assert_rows_equal(sample.unsqueeze(0), index, read_all(array))
    dataset.close()


def test_a_big_endian_array_just_made_by_zarr_python_is_not_swapped_twice(tmp_path: Path) -> None:
    """zarr.Array.dtype may say '>f4' while the v3 bytes codec stores little-endian, until it is opened again."""
    data = numbered((12, 3), "f4")
    array: zarr.Array[Any] = zarr.create_array(
        tmp_path / "a", shape=data.shape, chunks=(5, 3), dtype=">f4", zarr_format=3
    )
    array[...] = data
    assert_parity(array, read_all(array))
    assert_parity(tmp_path / "a", read_all(array))


# --- targets ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chunks", "budget"),
    [
        ((8, 32, 64), "8MiB"),  # the same blocks
        ((4, 32, 64), "8MiB"),  # nested in the blocks
        ((3, 32, 50), "8MiB"),  # across the blocks, streamed: too large to be resident
        ((100, 20, 64), "64MiB"),  # one chunk
        ((3, 32, 50), "1GiB"),  # resident
    ],
)
def test_targets_may_be_chunked_differently(chunks: tuple[int, ...], budget: str, tmp_path: Path) -> None:
    samples = Layout(shape=(70, 6, 9), chunks=(8, 3, 9), codec="blosc-lz4-shuffle")
    targets = Layout(2, (70, 32, 64), chunks, "f8", big_endian=True, order="F", codec="zstd")
    x = samples.write(tmp_path / "x")
    y = targets.write(tmp_path / "y")
    assert_parity(tmp_path / "x", read_all(x), tmp_path / "y", read_all(y), memory_budget=budget)


@pytest.mark.parametrize("dtype", DTYPES)
def test_targets_in_memory_are_delivered_as_they_are(dtype: str, tmp_path: Path) -> None:
    x = Layout().write(tmp_path / "x")
    y = numbered((23, 2, 3), dtype)
    for targets in (y, torch.from_numpy(y.copy())):
        assert_parity(tmp_path / "x", read_all(x), targets, y)


def test_the_same_array_may_be_samples_and_targets(tmp_path: Path) -> None:
    x = Layout(codec="zstd").write(tmp_path / "x")
    assert_parity(tmp_path / "x", read_all(x), tmp_path / "x", read_all(x))


# --- missing chunks ---------------------------------------------------------------------------------------------

FILL_VALUES = [
    *[("f4", value) for value in (0.0, -0.0, 1.5, float("nan"), float("inf"), -float("inf"), 1e-45)],
    *[("f2", value) for value in (1.5, -0.0, float("nan"))],
    *[("f8", value) for value in (1.5, float("nan"), 0.1)],
    *[("i4", 0x01020304), ("u4", 0xFFFFFFFF), ("i2", -2), ("u8", 2**64 - 2), ("i1", -128), ("b1", True)],
    *[("c8", 1.5 - 2j), ("c16", complex(float("nan"), -0.0))],
]


#: zarr-python leaves out chunks that are all fill value
WRITE_ALL = {"write_empty_chunks": True}


def with_missing(layout: Layout, path: Path, **options: Any) -> tuple[AnyArray, int]:
    """Write an array, delete every third chunk; return what zarr-python reads now, and how many are missing."""
    layout.write(path, **options)
    missing = chunk_files(path)[::3]
    for file in missing:
        file.unlink()
    return read_all(path, sample_axis=layout.sample_axis), len(missing)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("big_endian", [False, True], ids=["little", "big"])
@pytest.mark.parametrize(("dtype", "fill"), FILL_VALUES)
def test_missing_chunks_are_fill_value_and_are_counted(
    dtype: str, fill: Any, big_endian: bool, zarr_format: ZarrFormat, tmp_path: Path
) -> None:
    layout = Layout(zarr_format, (23, 4, 5), (5, 3, 2), dtype, big_endian=big_endian)
    expected, missing = with_missing(layout, tmp_path / "a", fill_value=fill, config=WRITE_ALL)
    dataset = assert_parity(tmp_path / "a", expected, lanes=1)
    assert dataset.stats().chunks_missing == missing


@pytest.mark.parametrize("dtype", DTYPES)
def test_missing_chunks_of_a_v2_array_without_fill_value_are_zeros_as_in_zarr_python(
    dtype: str, tmp_path: Path
) -> None:
    layout = Layout(2, (23, 4, 5), (5, 3, 2), dtype)
    layout.write(tmp_path / "a", fill_value=None, config=WRITE_ALL)
    metadata = (tmp_path / "a" / ".zarray").read_text()
    assert '"fill_value": null' in metadata
    missing = chunk_files(tmp_path / "a")[::3]
    for file in missing:
        file.unlink()
    expected = read_all(tmp_path / "a")
    dataset = assert_parity(tmp_path / "a", expected, lanes=1)
    assert dataset.stats().chunks_missing == len(missing)


@pytest.mark.parametrize("pattern", ["0x7fc00001", "0xffc12345", "0x7f800001"])
def test_a_v3_fill_value_given_as_bits_keeps_its_nan_payload(pattern: str, tmp_path: Path) -> None:
    layout = Layout(shape=(12, 3), chunks=(5, 3))
    layout.write(tmp_path / "a", fill_value=float("nan"))
    metadata = tmp_path / "a" / "zarr.json"
    metadata.write_text(metadata.read_text().replace('"NaN"', f'"{pattern}"'))
    assert pattern in metadata.read_text()
    for file in chunk_files(tmp_path / "a")[::2]:
        file.unlink()
    assert_parity(tmp_path / "a", read_all(tmp_path / "a"))


@pytest.mark.parametrize("grid", GRIDS)
def test_missing_chunks_of_every_grid_fill_their_own_box_and_no_other(grid: str, tmp_path: Path) -> None:
    layout = GRIDS[grid].but(dtype="i4")
    expected, missing = with_missing(layout, tmp_path / "a", fill_value=0x01020304, config=WRITE_ALL)
    dataset = assert_parity(tmp_path / "a", expected, lanes=1, sample_axis=layout.sample_axis)
    assert dataset.stats().chunks_missing == missing


def test_an_array_without_any_chunk_is_all_fill_value(tmp_path: Path) -> None:
    array: zarr.Array[Any] = zarr.create_array(
        tmp_path / "a", shape=(23, 4), chunks=(5, 3), dtype="f8", fill_value=float("nan")
    )
    dataset = assert_parity(tmp_path / "a", read_all(array), lanes=1)
    assert dataset.stats().chunks_missing == 10
    assert dataset.stats().chunks_read == 0


@pytest.mark.parametrize("budget", ["4MiB", "1GiB"], ids=["streamed", "resident"])
def test_missing_chunks_of_targets_are_counted_too(budget: str, tmp_path: Path) -> None:
    """Targets whose chunks lie across the blocks are read into memory if they are small: not counted at first."""
    samples = Layout(shape=(70, 6), chunks=(8, 6))
    x = samples.write(tmp_path / "x")
    expected, missing = with_missing(
        Layout(shape=(70, 16, 64), chunks=(3, 16, 64), dtype="f8"), tmp_path / "y", fill_value=1.5
    )
    dataset = assert_parity(tmp_path / "x", read_all(x), tmp_path / "y", expected, lanes=1, memory_budget=budget)
    counted = dataset.stats().chunks_missing
    assert counted >= missing if budget == "4MiB" else counted == missing


def test_missing_chunks_of_a_transposed_big_endian_array_are_not_swapped(tmp_path: Path) -> None:
    layout = Layout(shape=(12, 3, 5), chunks=(5, 2, 3), dtype="i4", big_endian=True, transposes=((2, 0, 1),))
    expected, _ = with_missing(layout, tmp_path / "a", fill_value=0x01020304)
    assert_parity(tmp_path / "a", expected)


# --- anything at all --------------------------------------------------------------------------------------------


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    zarr_format: ZarrFormat = draw(st.sampled_from((2, 3)))
    ndim = draw(st.integers(1, 4))
    extents = st.integers(1, 9)
    shape = tuple(draw(st.lists(extents, min_size=ndim, max_size=ndim)))
    chunks = tuple(draw(st.lists(st.integers(1, 11), min_size=ndim, max_size=ndim)))
    names = [name for name, c in CODECS.items() if (c.v2 if zarr_format == 2 else c.v3) is not None]
    separator = draw(st.sampled_from([".", "/"]))
    permutation = st.permutations(list(range(ndim))).map(tuple)
    return Layout(
        zarr_format=zarr_format,
        shape=shape,
        chunks=chunks,
        dtype=draw(st.sampled_from(DTYPES)),
        big_endian=draw(st.booleans()),
        codec=draw(st.sampled_from(names)),
        sample_axis=draw(st.integers(-ndim, ndim - 1)),
        order=draw(st.sampled_from(["C", "F"])) if zarr_format == 2 else "C",
        transposes=tuple(draw(st.lists(permutation, max_size=2))) if zarr_format == 3 else (),
        keys=("v2" if zarr_format == 2 else draw(st.sampled_from(["default", "v2"])), separator),
        period=draw(st.sampled_from([None, 3])),
    )


def check_any(layout: Layout, target: Layout, data: st.DataObject) -> None:
    folder = Path(tempfile.mkdtemp(prefix="zarrfeed-parity-"))
    try:
        layout.write(folder / "x")
        n = layout.shape[layout.sample_axis]
        target = target.but(sample_axis=0, shape=(n, *target.shape[1:]))
        target.write(folder / "y")
        for name in ("x", "y"):
            for file in chunk_files(folder / name):
                if data.draw(st.integers(0, 4), label="missing if 0") == 0:
                    file.unlink()
        assert_parity(
            folder / "x",
            read_all(folder / "x", sample_axis=layout.sample_axis),
            folder / "y",
            read_all(folder / "y"),
            sample_axis=layout.sample_axis,
            batch_size=data.draw(st.one_of(st.none(), st.integers(1, 12)), label="batch_size"),
            shuffle=data.draw(st.booleans(), label="shuffle"),
            seed=data.draw(st.integers(0, 2**64 - 1), label="seed"),
            lanes=data.draw(st.one_of(st.none(), st.integers(1, n)), label="lanes"),
            mix=data.draw(st.integers(1, 4), label="mix"),
            num_threads=data.draw(st.integers(1, 4), label="num_threads"),
        )
    finally:
        shutil.rmtree(folder)


@examples(150)
@given(layout=layouts(), target=layouts(), data=st.data())
def test_any_combination_equals_zarr_python(layout: Layout, target: Layout, data: st.DataObject) -> None:
    check_any(layout, target, data)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=3000)
@given(layout=layouts(), target=layouts(), data=st.data())
def test_very_many_combinations_equal_zarr_python(layout: Layout, target: Layout, data: st.DataObject) -> None:
    check_any(layout, target, data)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_codec_decodes_every_dtype(dtype: str, tmp_path: Path) -> None:
    for (zarr_format, codec), big_endian in itertools.product(CODEC_CASES, [False, True]):
        for order in "CF" if zarr_format == 2 else "C":
            check(Layout(zarr_format, (23, 4, 5), (5, 3, 2), dtype, big_endian, codec, order=order), tmp_path / "a")
            shutil.rmtree(tmp_path / "a")


@pytest.mark.filterwarnings("ignore:.*Numcodecs codecs are not in the Zarr version 3:UserWarning")
@pytest.mark.parametrize("shuffle", ["noshuffle", "shuffle", "bitshuffle"])
@pytest.mark.parametrize("dtype", ["u1", "f2", "f4", "f8", "c16"])
@pytest.mark.parametrize("blocksize", [0, 1000, 4096, 6000])
def test_long_rows_go_from_blosc_blocks_to_their_slots(
    shuffle: Any, dtype: str, blocksize: int, tmp_path: Path
) -> None:
    """The fast path for rows of 4 KiB and more, whose blocks end anywhere, against zarr-python; lanes cut blocks."""
    length = 5003 // np.dtype(dtype).itemsize + 200
    data = numbered((45, length), dtype)
    zarr.create_array(
        tmp_path / "a",
        data=data,
        chunks=(7, length),
        compressors=zarr.codecs.BloscCodec(cname="lz4", shuffle=shuffle, blocksize=blocksize),
    )
    assert_parity(tmp_path / "a", data, lanes=4, num_threads=2)
    # an unfused chain of the same bytes: a checksum behind the container
    zarr.create_array(
        tmp_path / "b",
        data=data,
        chunks=(7, length),
        compressors=[
            zarr.codecs.BloscCodec(cname="lz4", shuffle=shuffle, blocksize=blocksize),
            zarr.codecs.Crc32cCodec(),
        ],
    )
    assert_parity(tmp_path / "b", data, lanes=4, num_threads=2)
