"""What read_layout makes of metadata: the engine believes every word of it."""

from __future__ import annotations

import json
import os
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numcodecs
import numpy as np
import pytest
import torch
import zarr
from numcodecs.checksum32 import CRC32C
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, TransposeCodec, ZstdCodec
from zarr.codecs import numcodecs as zarr_numcodecs

import zarrfeed
from tests.support.cases import case
from tests.support.oracle import (
    CODECS,
    DTYPES,
    NUMCODECS_WARNING,
    ZARR_FORMATS,
    Layout,
    ZarrFormat,
    chunk_files,
    read_all,
)
from zarrfeed import ConfigError, _core
from zarrfeed.metadata.array.array import open_array, read_layout
from zarrfeed.torch.batches.tensors import TORCH_DTYPES


def test_every_dtype_that_numpy_and_torch_share_is_known() -> None:
    for name, dtype in TORCH_DTYPES.items():
        assert dtype == getattr(torch, name)
        if name != "bfloat16":
            assert torch.from_numpy(np.zeros(1, name)).dtype == dtype
    assert {np.dtype(dtype).name for dtype in DTYPES} == TORCH_DTYPES.keys() - {"bfloat16"}


@pytest.mark.parametrize("zarr_format", ZARR_FORMATS)
def test_shapes_and_sizes_are_those_of_the_array(zarr_format: ZarrFormat, tmp_path: Path) -> None:
    Layout(zarr_format, (6, 23, 5), (4, 7, 2), "f8").write(tmp_path / "a")
    spec = read_layout(tmp_path / "a", sample_axis=1)
    assert spec.shape == (6, 23, 5)
    assert spec.chunk_shape == (4, 7, 2)
    assert spec.sample_axis == 1
    assert spec.num_samples == 23
    assert spec.sample_shape == (6, 5)
    assert spec.sample_bytes == 6 * 5 * 8
    assert spec.rows_per_chunk == 7
    assert spec.num_cells == 2 * 3
    assert spec.decoded_bytes == 4 * 7 * 2 * 8
    assert spec.dtype == np.dtype("float64")
    assert spec.zarr_format == zarr_format
    assert len(chunk_files(tmp_path / "a")) == 2 * 4 * 3


@pytest.mark.parametrize(("given", "meant"), [(0, 0), (2, 2), (-1, 2), (-3, 0), (np.int64(1), 1)])
def test_negative_sample_axes_count_from_the_end(given: int, meant: int, tmp_path: Path) -> None:
    Layout().write(tmp_path / "a")
    assert read_layout(tmp_path / "a", sample_axis=given).sample_axis == meant


@pytest.mark.parametrize("sample_axis", [3, -4, 100])
def test_a_sample_axis_out_of_range_is_named_with_the_range(sample_axis: int, tmp_path: Path) -> None:
    Layout().write(tmp_path / "a")
    with pytest.raises(ConfigError, match=rf"a: sample_axis = {sample_axis}, must be in \[-3, 2\]"):
        read_layout(tmp_path / "a", sample_axis=sample_axis)


@pytest.mark.parametrize("zarr_format", ZARR_FORMATS)
@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_items_of_the_other_byte_order_are_swapped_in_units_of_real_numbers(
    dtype: str, big_endian: bool, zarr_format: ZarrFormat, tmp_path: Path
) -> None:
    Layout(zarr_format, dtype=dtype, big_endian=big_endian).write(tmp_path / "a")
    spec = read_layout(tmp_path / "a")
    item_bytes = np.dtype(dtype).itemsize
    unit = item_bytes // 2 if dtype.startswith("c") else item_bytes
    assert spec.swap_bytes == (unit if unit > 1 and big_endian != (sys.byteorder == "big") else 0)
    assert spec.dtype == np.dtype(dtype)
    assert spec.dtype.isnative


@pytest.mark.parametrize(
    ("transposes", "storage_order"),
    [
        ((), (0, 1, 2)),
        (((2, 0, 1),), (2, 0, 1)),
        (((1, 2, 0),), (1, 2, 0)),
        # the second one permutes the axes that the first one gave
        (((2, 0, 1), (1, 0, 2)), (0, 2, 1)),
        (((1, 0, 2), (2, 0, 1)), (2, 1, 0)),
        (((1, 2, 0), (2, 0, 1)), (0, 1, 2)),
    ],
)
def test_the_storage_order_is_the_composition_of_all_transposes(
    transposes: tuple[tuple[int, ...], ...], storage_order: tuple[int, ...], tmp_path: Path
) -> None:
    layout = Layout(shape=(2, 3, 4), chunks=(2, 3, 4), transposes=transposes)
    array = layout.write(tmp_path / "a")
    assert read_layout(tmp_path / "a").storage_order == storage_order
    # the only chunk is the array with its axes in that order
    stored = np.frombuffer(chunk_files(tmp_path / "a")[0].read_bytes(), "f4")
    assert stored.tobytes() == read_all(array).transpose(storage_order).tobytes()


def test_fortran_order_of_v2_is_the_reversed_axes(tmp_path: Path) -> None:
    Layout(2, order="F").write(tmp_path / "a")
    assert read_layout(tmp_path / "a").storage_order == (2, 1, 0)


@pytest.mark.whole_product
@pytest.mark.filterwarnings(NUMCODECS_WARNING)
@pytest.mark.parametrize("zarr_format", ZARR_FORMATS)
@pytest.mark.parametrize("codec", CODECS)
def test_codecs_are_listed_in_the_order_of_decoding(codec: str, zarr_format: ZarrFormat, tmp_path: Path) -> None:
    make = CODECS[codec].v2 if zarr_format == 2 else CODECS[codec].v3
    if make is None:
        assert zarr_format == 2
        assert codec.startswith("numcodecs-")
        return
    Layout(zarr_format, codec=codec).write(tmp_path / "a")
    encoded = [
        (c.get_config()["id"] if zarr_format == 2 else c.to_dict()["name"]).removeprefix("numcodecs.") for c in make(4)
    ]
    assert [c.name for c in read_layout(tmp_path / "a").codecs] == encoded[::-1]


@pytest.mark.filterwarnings(NUMCODECS_WARNING)
def test_the_location_of_a_crc32c_is_read_from_its_configuration(tmp_path: Path) -> None:
    def at_start(**options: Any) -> bool:
        zarr.create_array(tmp_path / "a", shape=(4,), chunks=(2,), dtype="f4", overwrite=True, **options)
        return read_layout(tmp_path / "a").codecs[0].checksum_at_start

    v2: dict[str, Any] = {"zarr_format": 2}
    assert not at_start(compressors=[Crc32cCodec()])
    assert not at_start(compressors=[zarr_numcodecs.CRC32C()])
    assert not at_start(compressors=[zarr_numcodecs.CRC32C(location="end")])
    assert at_start(compressors=[zarr_numcodecs.CRC32C(location="start")])
    assert not at_start(compressors=CRC32C(), **v2)
    assert not at_start(compressors=CRC32C(location="end"), **v2)
    assert at_start(compressors=CRC32C(location="start"), **v2)


def test_labels_say_which_blosc_it_is(tmp_path: Path) -> None:
    def label(**options: Any) -> str:
        zarr.create_array(tmp_path / "a", shape=(4,), chunks=(2,), dtype="f4", overwrite=True, **options)
        return read_layout(tmp_path / "a").codecs[0].label

    assert label(compressors=BloscCodec(cname="lz4", shuffle="bitshuffle")) == "blosc(lz4, bitshuffle)"
    assert label(compressors=BloscCodec(cname="zstd", shuffle="noshuffle")) == "blosc(zstd, noshuffle)"
    assert label(compressors=numcodecs.Blosc(cname="lz4", shuffle=1), zarr_format=2) == "blosc(lz4, shuffle)"
    assert label(compressors=numcodecs.Blosc(shuffle=-1), zarr_format=2) == "blosc(lz4, autoshuffle)"
    assert label(compressors=ZstdCodec()) == "zstd"


@pytest.mark.parametrize(
    ("zarr_format", "keys", "metadata_key", "prefix"),
    [
        (2, ("v2", "."), ".zarray", ""),
        (2, ("v2", "/"), ".zarray", ""),
        (3, ("default", "/"), "zarr.json", "c"),
        (3, ("default", "."), "zarr.json", "c"),
        (3, ("v2", "."), "zarr.json", ""),
        (3, ("v2", "/"), "zarr.json", ""),
    ],
)
def test_keys_are_encoded_as_the_metadata_says(
    zarr_format: ZarrFormat, keys: tuple[str, str], metadata_key: str, prefix: str, tmp_path: Path
) -> None:
    Layout(zarr_format, keys=keys).write(tmp_path / "a")
    spec = read_layout(tmp_path / "a")
    assert (spec.metadata_key, spec.key_prefix, spec.key_separator) == (metadata_key, prefix, keys[1])
    assert (tmp_path / "a" / metadata_key).exists()
    assert (tmp_path / "a" / keys[1].join([*([prefix] if prefix else []), "4", "1", "2"])).is_file()


@pytest.mark.parametrize("zarr_format", ZARR_FORMATS)
@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize(
    ("dtype", "fill"), [("f4", 1.5), ("f4", -0.0), ("i4", 0x01020304), ("c8", 1 - 2j), ("b1", True), ("u8", 2**64 - 1)]
)
def test_the_fill_value_is_one_item_in_native_byte_order(
    dtype: str, fill: Any, big_endian: bool, zarr_format: ZarrFormat, tmp_path: Path
) -> None:
    Layout(zarr_format, dtype=dtype, big_endian=big_endian).write(tmp_path / "a", fill_value=fill)
    assert read_layout(tmp_path / "a").fill == np.array(fill, dtype).tobytes()


def test_a_fill_value_that_is_null_is_zero(tmp_path: Path) -> None:
    Layout(2).write(tmp_path / "a", fill_value=None)
    assert read_layout(tmp_path / "a").fill == bytes(4)


def test_the_root_is_absolute_and_the_name_is_what_the_user_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = Layout().write(tmp_path / "a")
    monkeypatch.chdir(tmp_path)
    names: dict[Any, str] = {
        "a": "a",
        Path("a"): "a",
        str(tmp_path / "a"): str(tmp_path / "a"),
        (tmp_path / "a").as_uri(): str(tmp_path / "a"),
    }
    for source, name in names.items():
        spec = read_layout(source)
        assert spec.root == str(tmp_path / "a")
        assert spec.name == name
    assert read_layout(array).root == str(tmp_path / "a")
    assert read_layout(array).name == str(tmp_path / "a")


def test_chunks_or_shards_without_an_element_are_refused(tmp_path: Path) -> None:
    """Each axis in turn, of the grid of v2, of v3 and of shards, whose inner chunks stay as they are."""
    kinds: list[tuple[ZarrFormat, tuple[int, ...] | None]] = [(2, None), (3, None), (3, (10, 4))]
    for zarr_format, shards in kinds:
        for axis in (0, 1):
            path = tmp_path / f"{zarr_format}-{shards is None}-{axis}"
            zarr.create_array(path, shape=(20, 4), chunks=(5, 4), shards=shards, dtype="i4", zarr_format=zarr_format)
            document = path / (".zarray" if zarr_format == 2 else "zarr.json")
            metadata = json.loads(document.read_text())
            chunks = metadata["chunks"] if zarr_format == 2 else metadata["chunk_grid"]["configuration"]["chunk_shape"]
            chunks[axis] = 0
            document.write_text(json.dumps(metadata))
            with case(path.name), pytest.raises(ConfigError, match="every length must be at least 1"):
                zarrfeed.open(path)


def test_a_symbolic_link_is_followed(tmp_path: Path) -> None:
    array = Layout().write(tmp_path / "a")
    (tmp_path / "link").symlink_to("a")
    spec = read_layout(tmp_path / "link")
    assert spec.root == str(tmp_path / "link")
    assert spec.shape == array.shape


def test_an_open_array_is_taken_as_it_is(tmp_path: Path) -> None:
    array = Layout().write(tmp_path / "a")
    assert open_array(array) is array


def test_opening_reads_metadata_and_writes_nothing(tmp_path: Path) -> None:
    Layout(codec="zstd").write(tmp_path / "a")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    for file in chunk_files(tmp_path / "a"):
        file.write_bytes(b"not looked at")
        before[file] = file.stat().st_mtime_ns
    read_layout(tmp_path / "a")
    with pytest.raises(OSError, match="nope"):
        read_layout(tmp_path / "nope")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_layout_is_a_value_that_can_be_sent_to_a_worker(tmp_path: Path) -> None:
    Layout(codec="blosc-zstd", big_endian=True).write(tmp_path / "a")
    spec = read_layout(tmp_path / "a")
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert hash(spec) == hash(read_layout(tmp_path / "a"))


def test_what_goes_to_the_engine_is_the_stored_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Layout(codec="crc32c-blosc-crc32c", big_endian=True, dtype="c8").write(tmp_path / "a")
    spec = read_layout(tmp_path / "a")
    assert isinstance(spec.to_core(), _core.ArraySpec)
    recorder = SimpleNamespace(ArraySpec=lambda **options: options, CodecSpec=lambda name, **_: name)
    for module in ("zarrfeed.spec.arrays.array.core", "zarrfeed.spec.arrays.codec.core"):
        monkeypatch.setattr(module, recorder)
    handed: Any = spec.to_core()
    assert (handed["item_bytes"], handed["swap_bytes"]) == (8, 4)
    assert handed["codecs"] == ["crc32c", "blosc", "crc32c"]
    assert handed["root"] == os.fsencode(tmp_path / "a")


def test_an_item_of_one_byte_is_never_swapped(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "a", shape=(4,), chunks=(2,), dtype="u1", serializer=BytesCodec(endian="big"))
    assert read_layout(tmp_path / "a").swap_bytes == 0


def test_transposes_and_the_byte_order_are_not_codecs_of_bytes(tmp_path: Path) -> None:
    zarr.create_array(
        tmp_path / "a",
        shape=(4, 3),
        chunks=(2, 3),
        dtype="f4",
        filters=[TransposeCodec(order=(1, 0))],
        serializer=BytesCodec(endian="big"),
        compressors=None,
    )
    assert read_layout(tmp_path / "a").codecs == ()
