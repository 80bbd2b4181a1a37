"""storage/chunks/codec_configs.py: configurations that writers got wrong, or that contradict the array they are of."""

from __future__ import annotations

import json
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import numpy.typing as npt
import pytest
import zarr
from numcodecs.checksum32 import JenkinsLookup3
from zarr.codecs import numcodecs as zarr_numcodecs

import zarrfeed as zf
from tests.support.oracle import NUMCODECS_WARNING
from zarrfeed.base.errors import ConfigError
from zarrfeed.storage.chunks.codec_configs import whole_number

pytestmark = pytest.mark.filterwarnings(NUMCODECS_WARNING)

MISSING = object()
#: Samples, samples of a chunk, and items of a sample.
SHAPE, ROWS = (30, 8), 7


def samples(dtype: str = "i2") -> npt.NDArray[Any]:
    return (np.arange(240).reshape(SHAPE) * 37 % 1000 - 500).astype(dtype)


def write_v2(
    folder: Path, values: npt.NDArray[Any], filters: list[Any] | None = None, compressor: Any = None
) -> dict[str, Any]:
    """Write an array of format 2 with zarr-python, and return its metadata."""
    array = zarr.create_array(
        folder,
        shape=values.shape,
        chunks=(ROWS, *values.shape[1:]),
        dtype=values.dtype,
        zarr_format=2,
        filters=filters,
        compressors=compressor,
        overwrite=True,
    )
    array[:] = values
    document: dict[str, Any] = json.loads((folder / ".zarray").read_text())
    return document


def write_as_netcdf(folder: Path, values: npt.NDArray[Any], size: int, stored: Any) -> None:
    """Write an array as netCDF-C does: shuffled by `size`, with another size or none in the metadata."""
    document = write_v2(folder, values, [numcodecs.Shuffle(size)], numcodecs.Zlib(4))
    document["filters"] = [{"id": "shuffle"} if stored is MISSING else {"id": "shuffle", "elementsize": stored}]
    document["compressor"]["level"] = "4"  # older releases write all numbers as text
    (folder / ".zarray").write_text(json.dumps(document))


def set_config(folder: Path, changes: dict[str, Any], number: int = 0) -> None:
    """Change keys of a codec: of a filter of format 2, or of the chain of format 3."""
    key = ".zarray" if (folder / ".zarray").exists() else "zarr.json"
    document = json.loads((folder / key).read_text())
    config = document["filters"][number] if key == ".zarray" else document["codecs"][number]["configuration"]
    config.update(changes)
    for name in [name for name, value in config.items() if value is MISSING]:
        del config[name]
    (folder / key).write_text(json.dumps(document))


def read(path: Path) -> npt.NDArray[Any]:
    values: npt.NDArray[Any] = zf.ZarrDataset(zf.open(path, decode_cf=False))[list(range(SHAPE[0]))].numpy()
    return values


def refusal(path: Path) -> str:
    """Return the sentence with which an array is refused, by opening it and by verifying its group."""
    with pytest.raises(ConfigError) as caught:
        zf.ZarrIterableDataset(zf.open(path, decode_cf=False), batch_size=4, faults={"on_error": "skip"})
    zarr.open_group(path.parent, mode="a", zarr_format=2 if (path / ".zarray").exists() else 3)
    report = zf.verify(path.parent, progress_file="none")
    assert not report.ok, str(report)
    assert path.name in str(report)
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("dtype", ["u1", "<i2", ">i2", "<f4", "<f8"])
def test_what_netcdf_c_shuffled_by_the_size_of_the_dtype_is_read_so(tmp_path: Path, dtype: str) -> None:
    values, size = samples(dtype), np.dtype(dtype).itemsize
    for number, stored in enumerate((0, "0", str(size), f" {size}", None, float(size), MISSING, size)):
        folder = tmp_path / str(number)
        write_as_netcdf(folder, values, size, stored)
        np.testing.assert_array_equal(read(folder), values, err_msg=f"elementsize {stored!r}")
        assert zf.verify(folder, progress_file="none").ok


def test_a_column_of_words_that_netcdf_c_shuffled_by_the_size_of_a_pointer_is_read_so(tmp_path: Path) -> None:
    words = np.array([f"sample {number}" for number in range(24)], dtype="S16")
    write_as_netcdf(tmp_path / "a", words, 8, 0)
    got = zf.ZarrDataset(zf.open(tmp_path / "a"))[list(range(24))]
    assert [bytes(row).rstrip(b"\0") for row in np.asarray(got)] == words.tolist()


def test_a_coordinate_and_the_ends_of_segments_of_netcdf_c_have_their_values(tmp_path: Path) -> None:
    values = samples("f4")
    for name, written in (("v", values), ("time", np.arange(30, dtype="f8")), ("ends", np.array([10, 30], "i8"))):
        write_as_netcdf(tmp_path / name, written, written.dtype.itemsize, 0)
        names = ["time", "x"][: written.ndim] if name != "ends" else ["episode"]
        (tmp_path / name / ".zattrs").write_text(json.dumps({"_ARRAY_DIMENSIONS": names}))
    (tmp_path / ".zgroup").write_text('{"zarr_format": 2}')
    data = zf.open(tmp_path, variables=["v"], sample_dim="time")
    np.testing.assert_array_equal(zf.ZarrDataset(data.sel(time=slice(3.0, 7.0)))[[0, 4]]["v"].numpy(), values[[3, 7]])
    assert len(data.window([0, 1], segment_ends=tmp_path / "ends")) == 28


def test_pack_copies_the_values_that_netcdf_c_meant(tmp_path: Path) -> None:
    values = samples()
    write_as_netcdf(tmp_path / "a", values, 2, 0)
    zf.pack(tmp_path / "a", tmp_path / "packed.zarr")
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "packed.zarr")[:], values)


def test_rows_appended_to_an_array_of_netcdf_c_are_shuffled_as_the_others(tmp_path: Path) -> None:
    values = samples()[:28]
    write_as_netcdf(tmp_path / "a", values, 2, 0)
    with zf.Appender(tmp_path / "a") as appender:
        appender.append(values)
    raw = zlib.decompress((tmp_path / "a" / "4.0").read_bytes())
    assert bytes(numcodecs.Shuffle(2).decode(raw)) == values[:7].tobytes()


def test_numcodecs_default_of_4_is_read_as_4_whatever_the_dtype(tmp_path: Path) -> None:
    write_v2(tmp_path / "a", samples(), [numcodecs.Shuffle()])
    np.testing.assert_array_equal(read(tmp_path / "a"), samples())


NUMBERS_AS_TEXT: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "scale": ("f4", numcodecs.FixedScaleOffset(2, 4, "f4", "i4"), {"scale": "4", "offset": "2.0"}),
    "format": ("i2", numcodecs.LZMA(format=lzma.FORMAT_ALONE), {"format": "2"}),
    "filters": (
        "i2",
        numcodecs.LZMA(format=lzma.FORMAT_RAW, filters=[{"id": lzma.FILTER_DELTA, "dist": 2}, {"id": 33}]),
        {"format": "3", "filters": [{"id": "3", "dist": "2"}, {"id": 33}]},
    ),
    "initval": ("i2", JenkinsLookup3(initval=7), {"initval": "7"}),
    "blocksize": ("i2", numcodecs.Blosc(), {"blocksize": "0", "clevel": "5", "shuffle": "1"}),
    "level": ("i2", numcodecs.BZ2(), {"level": "1"}),
}


@pytest.mark.parametrize("name", NUMBERS_AS_TEXT)
def test_a_number_that_is_written_as_text_is_read_as_the_number(tmp_path: Path, name: str) -> None:
    dtype, codec, changes = NUMBERS_AS_TEXT[name]
    write_v2(tmp_path / "a", samples(dtype), [codec])
    set_config(tmp_path / "a", changes)
    np.testing.assert_array_equal(read(tmp_path / "a"), samples(dtype))


def test_what_numcodecs_writes_and_cannot_read_back_is_read(tmp_path: Path) -> None:
    xz = numcodecs.LZMA(filters=[{"id": lzma.FILTER_DELTA, "dist": 2}, {"id": lzma.FILTER_LZMA2}])
    write_v2(tmp_path / "xz", samples(), [xz])
    np.testing.assert_array_equal(read(tmp_path / "xz"), samples())
    times = samples("i8").view("M8[s]")
    write_v2(tmp_path / "times", times, [numcodecs.Delta("M8[s]")])
    np.testing.assert_array_equal(read(tmp_path / "times"), samples("i8"))


def delta(**config: Any) -> tuple[Any, dict[str, Any]]:
    return numcodecs.Delta("i2"), config


def scaled(**config: Any) -> tuple[Any, dict[str, Any]]:
    return numcodecs.FixedScaleOffset(0, 1, "i2", "i2"), config


def shuffled(size: Any) -> tuple[Any, dict[str, Any]]:
    return numcodecs.Shuffle(2), {"elementsize": size}


def replaced(codec: str, **config: Any) -> tuple[Any, dict[str, Any]]:
    return numcodecs.Shuffle(2), {"id": codec, "elementsize": MISSING, **config}


CONTRADICTIONS: dict[str, tuple[tuple[Any, dict[str, Any]], str]] = {
    "size-of-no-number": (shuffled("two"), "elementsize = 'two', must be a whole number of at least 1"),
    "size-below-0": (shuffled(-2), "elementsize = -2"),
    "size-no-divisor": (shuffled(5), "elementsize = 5, must be a divisor of the 112 bytes"),
    "size-larger-than-a-chunk": (shuffled(2**40), "elementsize = 1099511627776"),
    "size-of-half-a-byte": (shuffled(2.5), "elementsize = 2.5"),
    "size-true": (shuffled(True), "elementsize = True"),
    "size-a-list": (shuffled([2]), "elementsize = [2]"),
    "size-text-against-dtype": (shuffled("4"), "elementsize = '4'"),
    "delta-of-larger-items": (delta(dtype="<i4", astype="<i4"), "codec 'delta': dtype = '<i4', must be that"),
    "delta-of-smaller-items": (delta(dtype="|u1"), "dtype = '|u1'"),
    "delta-of-floats": (delta(dtype="<f2"), "dtype = '<f2'"),
    "delta-to-an-empty-record": (delta(astype=[]), "astype = '|V0', must be a dtype of numbers"),
    "scaled-to-an-empty-record": (scaled(astype={}), "astype = '|V0', must be a dtype of numbers"),
    "scaled-to-text": (scaled(astype="<U4"), "must be a dtype of numbers"),
    "other-items-of-nothing": ((numcodecs.AsType("i1", "i2"), {"encode_dtype": []}), "must be a dtype of numbers"),
    "delta-of-nothing": (delta(dtype=None), "dtype = '<f8'"),
    "delta-unknown": (delta(dtype="i77"), '"id": "delta", "dtype": "i77"'),
    "delta-without-dtype": (delta(dtype=MISSING), '"id": "delta"'),
    "unknown-key": (delta(order=2), '"order": 2'),
    "scale-0": (scaled(scale=0), "codec 'fixedscaleoffset': scale = 0, must be a number other than 0"),
    "scale-null": (scaled(scale=None), "scale = None"),
    "scale-of-no-number": (scaled(scale="ten"), "scale = 'ten'"),
    "scale-infinite": (scaled(scale=float("inf")), "scale = inf"),
    "offset-nan": (scaled(offset=float("nan")), "offset = nan, must be a number"),
    "scaled-from-other-items": (scaled(dtype="<f4"), "dtype = '<f4', must be that of the items, <i2"),
    "scaled-from-other-bytes": (scaled(dtype=">i2"), "dtype = '>i2'"),
    "scaled-to-nothing": (scaled(astype="x9"), '"astype": "x9"'),
    "other-items": ((numcodecs.AsType("i1", "i2"), {"decode_dtype": "<i4"}), "decode_dtype = '<i4'"),
    "rounded-integers": (replaced("bitround", keepbits=3), "'bitround': encodes floats only, the items are <i2"),
    "packed-integers": (replaced("packbits"), "codec 'packbits': encodes booleans only"),
    "text-of-numbers": (replaced("vlen-utf8"), "vlen-utf8"),
    "lzma-format": ((numcodecs.LZMA(), {"format": 9}), "codec 'lzma': format = 9, must be one of 0, 1, 2, 3"),
    "lzma-raw-without-filters": ((numcodecs.LZMA(), {"format": 3}), "filters = None, must be a list of LZMA filters"),
    "lzma-filter": ((numcodecs.LZMA(), {"format": 3, "filters": [{"id": 77}]}), "filters = [{'id': 77}]"),
    "seed": ((JenkinsLookup3(), {"initval": -1}), "initval = -1, must be a whole number in [0, 4294967295]"),
    "checksum-location": ((numcodecs.CRC32(), {"location": "middle"}), '"location": "middle"'),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_configuration_that_contradicts_the_array_is_refused_and_no_chunk_is_called_bad(
    tmp_path: Path, name: str
) -> None:
    (codec, changes), expected = CONTRADICTIONS[name]
    write_v2(tmp_path / "a", samples(), [codec])
    set_config(tmp_path / "a", changes)
    assert expected in refusal(tmp_path / "a")


FOREIGN: list[tuple[str, Callable[[], list[Any]]]] = [
    ("f4", lambda: [numcodecs.Delta("i4")]),
    ("f4", lambda: [numcodecs.Delta("f4", astype="f8")]),
    ("i2", lambda: [numcodecs.Shuffle(2), numcodecs.Delta("i2")]),
    ("f4", lambda: [numcodecs.FixedScaleOffset(0, 10, "f4", "i2"), numcodecs.Delta("i2"), numcodecs.Shuffle(2)]),
    (">f4", lambda: [numcodecs.FixedScaleOffset(0, 10, ">f4", "i2")]),
    ("f8", lambda: [numcodecs.Quantize(2, "f8", "f4")]),
    ("f4", lambda: [numcodecs.BitRound(5), numcodecs.Shuffle(4)]),
    ("i4", lambda: [numcodecs.AsType("i2", "i4"), numcodecs.Delta("i2")]),
    ("b1", lambda: [numcodecs.PackBits()]),
    ("u1", lambda: [numcodecs.Zlib(), numcodecs.Shuffle(1)]),
    ("i2", lambda: [numcodecs.Fletcher32(), numcodecs.Shuffle(2)]),
    ("c8", lambda: [numcodecs.Delta("i8"), numcodecs.Shuffle(8)]),
]


# Delta of numcodecs sums float64 into an array of float32 that nothing was written to: NumPy casts what lies there, and
# warns of it in one run of some hundred.
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast:RuntimeWarning")
def test_configurations_that_numcodecs_means_are_read_as_zarr_python_reads_them(tmp_path: Path) -> None:
    for number, (dtype, filters) in enumerate(FOREIGN):
        folder = tmp_path / str(number)
        values = samples(dtype) if dtype != "b1" else samples() % 2 == 1
        write_v2(folder, values, filters())
        np.testing.assert_array_equal(read(folder), zarr.open_array(folder)[:], err_msg=str(filters()))


@pytest.mark.parametrize("in_shards", [False, True])
def test_format_3_is_checked_alike_inside_of_shards_and_outside(tmp_path: Path, in_shards: bool) -> None:
    def write(folder: Path, codecs: list[Any], changes: dict[str, Any], number: int) -> None:
        filters = [codec for codec in codecs if isinstance(codec, zarr_numcodecs.FixedScaleOffset)]
        array = zarr.create_array(
            folder,
            shape=SHAPE,
            chunks=(5, 8),
            shards=(10, 8) if in_shards else None,
            dtype="i2",
            filters=filters,
            compressors=[codec for codec in codecs if codec not in filters],
        )
        array[:] = samples()
        document = json.loads((folder / "zarr.json").read_text())
        chain = document["codecs"][0]["configuration"]["codecs"] if in_shards else document["codecs"]
        chain[number]["configuration"].update(changes)
        (folder / "zarr.json").write_text(json.dumps(document))

    shuffle = zarr_numcodecs.Shuffle(elementsize=2)
    for number, stored in enumerate((0, "2", "0", None, 2.0)):
        write(tmp_path / str(number), [shuffle], {"elementsize": stored}, 1)
        np.testing.assert_array_equal(read(tmp_path / str(number)), samples(), err_msg=f"elementsize {stored!r}")
    write(tmp_path / "bad", [shuffle], {"elementsize": "two"}, 1)
    assert "codec 'numcodecs.shuffle': elementsize = 'two'" in refusal(tmp_path / "bad")

    scale = zarr_numcodecs.FixedScaleOffset(offset=0, scale=2, dtype="int16", astype="int32")
    write(tmp_path / "scale", [scale], {"scale": "2"}, 0)
    np.testing.assert_array_equal(read(tmp_path / "scale"), samples())
    for key, value, expected in (("scale", 0, "scale = 0"), ("dtype", "<f4", "dtype = '<f4'"), ("dtype", "x9", "x9")):
        folder = tmp_path / f"{key}{value}".strip("<")
        write(folder, [scale], {key: value}, 0)
        assert expected in refusal(folder)


@pytest.mark.parametrize(
    ("codec", "expected"),
    [
        ({"name": "bytes", "configuration": {"endian": "middle"}}, "middle"),
        ({"name": "bytes", "configuration": {"endian": None}}, "endian"),
        ({"name": "transpose", "configuration": {"order": [0, 0]}}, "(0, 0)"),
        ({"name": "transpose", "configuration": {"order": [1, 0, 2]}}, "(1, 0, 2)"),
        ({"name": "transpose", "configuration": {"order": ["1", "0"]}}, '"order": ["1", "0"]'),
        ({"name": "gzip", "configuration": {"level": "5"}}, '"level": "5"'),
        ({"name": "zstd", "configuration": {"level": 3, "checksum": "no"}}, '"checksum": "no"'),
        ({"name": "blosc", "configuration": {"cname": "lz4", "shuffle": "shuffle", "typesize": 0}}, '"typesize": 0'),
        ({"name": "vlen-utf8", "configuration": {}}, "vlen-utf8"),
        ({"name": "numcodecs.delta", "configuration": {}}, "codec 'numcodecs.delta'"),
    ],
)
def test_codecs_that_zarr_python_refuses_are_named(tmp_path: Path, codec: dict[str, Any], expected: str) -> None:
    zarr.create_array(tmp_path / "a", data=samples(), chunks=(ROWS, 8), compressors=None)
    document = json.loads((tmp_path / "a" / "zarr.json").read_text())
    plain = {"name": "bytes", "configuration": {"endian": "little"}}
    before = codec["name"] in ("transpose", "numcodecs.delta")
    chain = [codec] if codec["name"] in ("bytes", "vlen-utf8") else [codec, plain] if before else [plain, codec]
    (tmp_path / "a" / "zarr.json").write_text(json.dumps({**document, "codecs": chain}))
    assert expected in refusal(tmp_path / "a")


def test_whole_numbers_are_read_from_text_and_floats_alone() -> None:
    assert [whole_number(value) for value in (3, "3", 3.0, "-1")] == [3, 3, 3, -1]
    assert [whole_number(value) for value in (True, "3.5", 3.5, None, [3], float("nan"), "")] == [None] * 7
