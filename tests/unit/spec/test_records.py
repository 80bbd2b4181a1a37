"""Records (structured dtypes): a dict of tensors, which are the members that zarr-python reads."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import torch
import torch.utils.data
import zarr
from zarr.codecs import numcodecs as zarr_numcodecs
from zarr.storage import MemoryStore

import zarrfeed
from tests.support.oracle import ZARR_FORMATS, AnyArray, ZarrFormat, read_all
from zarrfeed import ConfigError, UnsupportedError, ZarrDataLoader, ZarrDataset, ZarrIterableDataset
from zarrfeed.spec.values.dtypes import read_items
from zarrfeed.tools import cli

#: No v3 specification yet: zarr says so when such an array is made or opened.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The data type:zarr.errors.UnstableSpecificationWarning"),
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in:zarr.errors.ZarrUserWarning"),
]

N = 23
#: Members of unlike sizes, so that none but the first is aligned; of every kind that an array may have.
RECORD = np.dtype(
    [("flag", "?"), ("x", ">f4"), ("y", "<i8"), ("word", "S3"), ("when", "<M8[s]"), ("z", "<c8"), ("h", "<f2")]
)


def records(shape: tuple[int, ...] = (N, 4), dtype: np.dtype[Any] = RECORD) -> AnyArray:
    """Return records that encode their sample in every member."""
    data = np.zeros(shape, dtype)
    number = np.arange(data.size).reshape(shape)
    for name in dtype.names or ():
        kind = dtype[name].kind
        data[name] = number % 3 == 0 if kind == "b" else number.astype("S3") if kind == "S" else number
    return data


def members(data: AnyArray) -> dict[str, AnyArray]:
    """Return what batches have of records, by NumPy."""
    found = {}
    for name in data.dtype.names or ():
        values = np.ascontiguousarray(data[name])
        if values.dtype.kind == "M":
            values = values.view(values.dtype.str.replace("M8[s]", "i8"))
        if values.dtype.kind == "S":
            values = values.view(np.uint8).reshape(*values.shape, values.dtype.itemsize)
        found[name] = values.astype(values.dtype.newbyteorder("="))
    return found


def assert_same(batch: dict[str, torch.Tensor], expected: AnyArray) -> None:
    """Compare a batch with records, bit by bit."""
    wanted = members(expected)
    assert list(batch) == list(wanted)
    for name, values in batch.items():
        assert values.is_contiguous()
        assert values.numpy().dtype == wanted[name].dtype
        assert values.numpy().tobytes() == wanted[name].tobytes(), name
        assert values.shape == wanted[name].shape


def write(where: Any, data: AnyArray, zarr_format: ZarrFormat, **options: Any) -> Any:
    """Write an array; v3 has no records in other than little-endian order, and numcodecs' codecs take no times."""
    if zarr_format == 3:
        data = data.astype(data.dtype.newbyteorder("<"))
    else:
        options = {"compressors": None, **options}
    array = zarr.create_array(
        where, shape=data.shape, dtype=data.dtype, zarr_format=zarr_format, **{"chunks": (5, 3), **options}
    )
    array[...] = data
    return array


@pytest.mark.parametrize("zarr_format", ZARR_FORMATS)
@pytest.mark.parametrize("slow", [False, True])
def test_a_batch_of_records_is_a_dict_of_the_members(zarr_format: ZarrFormat, slow: bool, tmp_path: Path) -> None:
    """Whichever byte order they have; and where zarr-python decodes the chunks."""
    options: dict[str, Any] = {"order": "F"} if zarr_format == 2 else {}
    if slow:
        options["compressors"] = numcodecs.BZ2() if zarr_format == 2 else zarr_numcodecs.BZ2()
    array = write(tmp_path / "a", records(), zarr_format, **options)
    stored = read_all(array)
    assert stored["y"][3, 2] == 14
    with ZarrIterableDataset(tmp_path / "a", batch_size=4, shuffle=True, return_index=True) as dataset:
        assert dataset.explain().fields[0].native is not slow
        seen = []
        for batch, index in dataset:
            assert_same(batch, stored[index.numpy()])
            seen += index.tolist()
    assert sorted(seen) == list(range(N))
    with ZarrIterableDataset(zarrfeed.open(tmp_path / "a", sample_axis=1), batch_size=4) as dataset:
        (batch,) = dataset
        assert_same(batch, stored.swapaxes(0, 1))


@pytest.mark.parametrize("zarr_format", ZARR_FORMATS)
def test_records_that_are_missing_are_the_fill_value(zarr_format: ZarrFormat) -> None:
    dtype = np.dtype([("x", "<f4"), ("y", "<i2"), ("n", "u1")])
    for fill in (None, np.array([(1.5, -3, 7)], dtype)[0]):
        array: Any = zarr.create_array(
            MemoryStore(),
            shape=(N, 7),
            chunks=(5, 3),
            dtype=dtype,
            fill_value=0 if fill is None and zarr_format == 3 else fill,
            zarr_format=zarr_format,
        )
        array[5:10, :2] = records((5, 2), dtype)
        stored = read_all(array)
        assert stored[0, 0] == (np.zeros((), dtype) if fill is None else fill)
        with ZarrIterableDataset(array, batch_size=N) as dataset:
            (batch,) = dataset
        assert_same(batch, stored)


def test_samples_of_records_one_by_one_and_by_index(tmp_path: Path) -> None:
    data = records()
    write(tmp_path / "a", data, 3)
    stored = read_all(zarr.open_array(tmp_path / "a"))
    with ZarrIterableDataset(tmp_path / "a") as dataset:
        for i, sample in enumerate(dataset):
            assert_same(sample, stored[i])
    access = ZarrDataset(tmp_path / "a", np.arange(N))
    sample, target = access[7]
    assert_same(sample, stored[7])
    assert target == 7
    assert sample["y"].untyped_storage().nbytes() == sample["y"].nbytes, "a sample owns its memory, and no more"
    assert_same(access[[3, 1, 3]][0], stored[[3, 1, 3]])
    assert_same(access[[]][0], stored[:0])
    for batch, index in torch.utils.data.DataLoader(access, batch_size=5, shuffle=True):
        assert_same(batch, stored[index.numpy()])


def test_records_come_from_workers_and_after_pickling(tmp_path: Path) -> None:
    write(tmp_path / "a", records(), 2)
    stored = read_all(zarr.open_array(tmp_path / "a"))
    dataset = pickle.loads(pickle.dumps(ZarrIterableDataset(tmp_path / "a", batch_size=4, return_index=True)))
    seen = []
    for batch, index in ZarrDataLoader(dataset, num_workers=2):
        assert_same(batch, stored[index.numpy()])
        seen += index.tolist()
    assert sorted(seen) == list(range(N))


def test_variables_name_members_and_keep_their_order(tmp_path: Path) -> None:
    write(tmp_path / "a", records(), 2)
    stored = read_all(zarr.open_array(tmp_path / "a"))
    with ZarrIterableDataset(zarrfeed.open(tmp_path / "a", variables=["when", "x"]), batch_size=N) as dataset:
        (batch,) = dataset
        assert "{when: int64, x: float32}" in repr(dataset)
        assert "records of {when: int64, x: float32}" in str(dataset.explain())
    assert_same(batch, stored[["when", "x"]])
    with pytest.raises(ConfigError, match=r"variables: 'wen' is no member .*; did you mean 'when'\?"):
        ZarrIterableDataset(zarrfeed.open(tmp_path / "a", variables=["wen"]))


def test_records_among_other_arrays_are_nested_dicts(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "g")
    write(tmp_path / "g" / "event", records(), 3)
    group.create_array("image", data=np.arange(N * 6, dtype="i2").reshape(N, 6), chunks=(4, 6))
    stored = read_all(group["event"])  # type: ignore[arg-type]
    with ZarrIterableDataset(zarrfeed.open(tmp_path / "g").cast("float32"), batch_size=N) as dataset:
        (batch,) = dataset
    assert batch["image"].dtype == torch.float32, "a dtype for all arrays leaves records alone"
    assert_same(batch["event"], stored)
    for samples in (tmp_path / "g" / "event", {"event": tmp_path / "g" / "event"}):
        with pytest.raises(ConfigError, match="cannot convert the members of records"):
            ZarrIterableDataset(zarrfeed.open(samples).cast("float32"))


def test_windows_of_records(tmp_path: Path) -> None:
    write(tmp_path / "a", records(), 3)
    stored = read_all(zarr.open_array(tmp_path / "a"))
    with ZarrIterableDataset(zarrfeed.open(tmp_path / "a").window((-2, 0)), batch_size=N) as dataset:
        (batch,) = dataset
    assert_same(batch, np.stack([stored[:-2], stored[2:]], axis=1))


def test_records_in_memory_with_gaps_and_arrays_as_members() -> None:
    dtype = np.dtype([("n", "u1"), ("v", "<f8", (3, 2)), ("i", ">i4")], align=True)
    data = np.zeros((N, 2), dtype)
    data["n"], data["i"] = np.arange(2 * N).reshape(N, 2), np.arange(2 * N).reshape(N, 2) * 70000
    data["v"] = np.random.default_rng(0).random((N, 2, 3, 2))
    for samples in (data, data[::-1]):
        with ZarrIterableDataset(samples, batch_size=4, shuffle=True, return_index=True) as dataset:
            for batch, index in dataset:
                assert_same(batch, samples[index.numpy()])


def test_a_small_stored_array_of_records_is_read_into_memory(tmp_path: Path) -> None:
    """Beside larger samples, whose chunks it does not nest in."""
    write(tmp_path / "a", records(), 2, chunks=(7, 4))
    stored = read_all(zarr.open_array(tmp_path / "a"))
    images = zarr.create_array(tmp_path / "b", data=np.arange(N * 9000).reshape(N, 9000), chunks=(3, 9000))
    with ZarrIterableDataset(images, tmp_path / "a", batch_size=5, shuffle=True, return_index=True) as dataset:
        assert "kept in memory" in str(dataset.explain())
        for _, batch, index in dataset:
            assert_same(batch, stored[index.numpy()])


def test_nested_records_text_and_objects_are_refused_with_the_member() -> None:
    for member, message in (
        (("u", "<U2"), "the member 'u' of its records: dtype <U2 has no torch equivalent"),
        (("r", [("b", "<f4")]), "the member 'r' of its records is a record itself, which is not supported"),
    ):
        dtype = np.dtype([("x", "<i2"), member])
        array = zarr.create_array(MemoryStore(), shape=(N,), chunks=(5,), dtype=dtype, zarr_format=3)
        with pytest.raises(UnsupportedError, match=message):
            ZarrIterableDataset(array)
    with pytest.raises(UnsupportedError, match=r"the member .o. of its records: .* it holds Python objects"):
        ZarrIterableDataset(np.zeros(3, [("o", "O")]))


def test_swapped_records_of_v3_are_refused() -> None:
    """zarr-python 3.1 drops the byte order of records from the metadata, and writes little-endian; others need not."""
    with pytest.raises(UnsupportedError, match="a: records with the byte order big in the codec `bytes`"):
        read_items(np.dtype([("x", "<f4"), ("y", "<i2")]), swapped=True, name="a")


def test_bench_says_that_it_does_not_measure_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "a", records(), 2)
    assert cli.main(["bench", str(tmp_path / "a")]) == cli.EXIT_ERROR
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"zarrfeed: {tmp_path}/a: bench does not measure records (structured dtypes)\n")


def test_a_state_of_other_members_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a", records(), 2)
    state = ZarrIterableDataset(zarrfeed.open(tmp_path / "a", variables=["x"]), batch_size=4).state_dict()
    json.dumps(state)
    ZarrIterableDataset(zarrfeed.open(tmp_path / "a", variables=["x"]), batch_size=4).load_state_dict(state)
    with pytest.raises(ConfigError):
        ZarrIterableDataset(zarrfeed.open(tmp_path / "a", variables=["y"]), batch_size=4).load_state_dict(state)
