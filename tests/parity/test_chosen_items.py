"""`Data.isel` and `Data.sel` along other axes than that of samples, against NumPy and xarray on the same array."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
import zarr
from zarr.storage import MemoryStore, WrapperStore

import zarrfeed
from tests.support.examples import tries
from tests.support.oracle import CODECS, NUMCODECS_WARNING, AnyArray
from tests.support.pyramids import put_pyramid
from zarrfeed import ZarrDataset, ZarrIterableDataset

pytestmark = [pytest.mark.filterwarnings(NUMCODECS_WARNING)]

_DIMS = ("time", "level", "y", "x")
_CODECS = ("none", "blosc-many-blocks", "blosc-many-blocks-zstd", "blosc-lz4-bitshuffle", "zstd", "gzip", "lz4")


def _random_indexer(rng: np.random.Generator, length: int) -> Any:
    """Return an integer, a slice with any step, a list in any order, or a mask."""
    kind = rng.integers(5)
    if kind == 0:
        return int(rng.integers(-length, length))
    if kind == 1:
        begin, end = sorted(rng.integers(0, length + 1, 2).tolist())
        return slice(begin, end + (begin == end), int(rng.integers(1, 4))) if begin < length else slice(None)
    if kind == 2:
        return slice(None, None, -int(rng.integers(1, 3)))
    if kind == 3:
        return rng.integers(-length, length, int(rng.integers(1, length + 1))).tolist()
    mask = rng.random(length) < 0.5
    mask[rng.integers(length)] = True
    return mask


def _expected(array: AnyArray, axis: int, indexers: dict[str, Any]) -> AnyArray:
    """Return what xarray selects, the sample axis first."""
    named = xarray.DataArray(array, dims=_DIMS[: array.ndim])
    return named.isel(indexers).transpose(_DIMS[axis], ...).values


def _stored(root: Path | MemoryStore, array: AnyArray, rng: np.random.Generator, where: list[str]) -> zarr.Array[Any]:
    """Write an array in a random layout, and say in `where` which."""
    zarr_format = int(rng.integers(2, 4))
    chunks = tuple(int(rng.integers(1, n + 2)) for n in array.shape)
    codec = CODECS[_CODECS[rng.integers(len(_CODECS))]]
    make = codec.v2 if zarr_format == 2 else codec.v3
    assert make is not None
    compressors = make(array.dtype.itemsize)
    options: dict[str, Any] = {}
    if zarr_format == 3:
        options["dimension_names"] = _DIMS[: array.ndim]
        if rng.random() < 0.4:
            options["shards"] = tuple(int(c * rng.integers(1, 3)) for c in chunks)
    else:
        options["order"] = "CF"[rng.integers(2)]
        options["attributes"] = {"_ARRAY_DIMENSIONS": list(_DIMS[: array.ndim])}
    where.append(f"v{zarr_format} {chunks} {compressors} {options}")
    made = zarr.create_array(
        root,
        shape=array.shape,
        chunks=chunks,
        dtype=array.dtype,
        zarr_format=zarr_format,  # type: ignore[arg-type]
        compressors=compressors or None,
        fill_value=3,
        **options,
    )
    made[:] = array
    return made


def _read(data: zarrfeed.Data, **options: Any) -> tuple[AnyArray, AnyArray]:
    """Return the samples of an epoch and their indices."""
    batches = list(ZarrIterableDataset(data, batch_size=5, return_index=True, **options))
    return (np.concatenate([x.numpy() for x, _ in batches]), np.concatenate([i.numpy() for _, i in batches]))


def test_what_is_chosen_of_a_random_cube_is_what_xarray_selects(tmp_path: Path) -> None:
    rng = np.random.default_rng(42)
    for number in range(tries(40, 120)):
        shape = tuple(rng.integers(1, 12, int(rng.integers(2, 5))).tolist())
        dtype = ("<f4", ">f4", "<i2", ">f8", "u1")[rng.integers(5)]
        array = rng.integers(1, 200, shape).astype(dtype)
        array[..., 0] = 3  # some chunks hold the fill value alone, and are not written
        axis = int(rng.integers(len(shape)))
        where = [f"case {number}: {shape} {dtype} axis {axis}"]
        store: Any = tmp_path / str(number) if rng.random() < 0.7 else MemoryStore()
        stored = _stored(store, array, rng, where)
        names = [name for a, name in enumerate(_DIMS[: len(shape)]) if a != axis and rng.random() < 0.8]
        indexers = {name: _random_indexer(rng, shape[_DIMS.index(name)]) for name in names}
        if not indexers:
            continue
        where.append(repr(indexers))
        data = zarrfeed.open(stored, sample_axis=axis, decode_cf=False).isel(indexers)
        expected = _expected(array, axis, indexers)
        if rng.random() < 0.3:
            data, expected = data.normalize((2.0, 0.5)), (expected.astype("f4") - np.float32(2)) * np.float32(2)
            where.append("normalized")
        told = "\n".join(where)
        assert data.fields[0].shape == expected.shape[1:], told
        order = rng.permutation(shape[axis])
        got = ZarrDataset(data)[order].numpy()
        np.testing.assert_array_equal(got, expected[order], err_msg=told)
        rows, index = _read(data, shuffle=bool(rng.integers(2)), num_threads=2)
        np.testing.assert_array_equal(rows, expected[index], err_msg=told)
        assert sorted(index.tolist()) == list(range(shape[axis])), told


def test_a_choice_of_a_choice_is_that_of_xarray() -> None:
    rng = np.random.default_rng(1)
    array = rng.random((6, 7, 8, 9))
    stored = zarr.create_array({}, data=array, chunks=(2, 3, 3, 4), dimension_names=_DIMS)
    for _ in range(40):
        data, expected = zarrfeed.open(stored), xarray.DataArray(array, dims=_DIMS)
        for _ in range(3):
            name = ("level", "y", "x")[rng.integers(3)]
            if name not in expected.dims:
                continue
            indexer = _random_indexer(rng, expected.sizes[name])
            data, expected = data.isel({name: indexer}), expected.isel({name: indexer})
        np.testing.assert_array_equal(ZarrDataset(data)[np.arange(6)].numpy(), expected.values, err_msg=repr(data))


def _cube(path: Path) -> xarray.Dataset:
    """Write a dataset of some variables, of which not all have levels."""
    rng = np.random.default_rng(3)
    shape = (24, 5, 12, 16)
    coords: dict[str, Any] = {
        "time": np.datetime64("2000-01-01", "ns") + np.arange(24) * np.timedelta64(6, "h"),
        "level": [300, 500, 700, 850, 1000],
        "latitude": np.linspace(90, -90, 12),
        "longitude": np.arange(16) * 22.5,
    }
    dims = tuple(coords)
    cube = xarray.Dataset(
        {
            "z": (dims, rng.random(shape).astype("f4")),
            "t": (dims, rng.random(shape).astype("f4")),
            "t2m": (("time", "latitude", "longitude"), rng.random((24, 12, 16)).astype("f4")),
            "lsm": (("latitude", "longitude"), rng.random((12, 16)).astype("f4")),
            "day": (("time",), np.arange(24.0)),
        },
        coords,
    )
    encoding: dict[str, Any] = {"z": {"chunks": (3, 2, 5, 7)}, "t": {"chunks": (1, 5, 12, 16)}}
    cube.to_zarr(path, consolidated=False, encoding=encoding)
    return cube


_LABELS: list[dict[str, Any]] = [
    {"level": [850, 500]},
    {"level": 500},
    {"latitude": slice(60, -30)},
    {"latitude": slice(None, None, -1)},
    {"latitude": slice(-30, 60, -2)},
    {"longitude": slice(22.5, 90, 2), "level": slice(500, 850)},
    {
        "time": slice("2000-01-02", "2000-01-04"),
        "level": [1000, 300],
        "latitude": slice(60, 0),
        "longitude": [0.0, 90.0],
    },
    {"level": [500, 500, 300]},
]


@pytest.mark.parametrize("shuffle", [True, False])
def test_labels_choose_what_they_choose_in_xarray(shuffle: bool, tmp_path: Path) -> None:
    cube = _cube(tmp_path / "cube.zarr")
    whole = zarrfeed.open(tmp_path / "cube.zarr", variables=["z", "t2m", "day"])
    for labels in _LABELS:
        expected = cube.sel(labels)
        after = whole.sel(labels).static("lsm")
        for data in (whole.static("lsm").sel(labels), after):
            for batch, index in ZarrIterableDataset(data, batch_size=7, shuffle=shuffle, return_index=True):
                rows = cube.sel({name: one for name, one in labels.items() if name != "time"}).isel(time=index.numpy())
                for name in ("z", "t2m", "day"):
                    np.testing.assert_array_equal(batch[name].numpy(), rows[name].values, err_msg=f"{labels} {name}")
                np.testing.assert_array_equal(batch["lsm"][0].numpy(), expected["lsm"].values, err_msg=repr(labels))
            assert len(data) == expected.sizes["time"], labels


def test_the_nearest_label_is_that_of_xarray(tmp_path: Path) -> None:
    cube = _cube(tmp_path / "cube.zarr")
    data = zarrfeed.open(tmp_path / "cube.zarr", variables=["z"])
    for labels in ({"level": 720}, {"latitude": [50, -88.0]}, {"longitude": 11.3, "level": [10, 2000]}):
        got = ZarrDataset(data.sel(labels, method="nearest"))[np.arange(24)]
        np.testing.assert_array_equal(got["z"].numpy(), cube["z"].sel(labels, method="nearest").values)


def test_windows_leads_and_pads_have_the_chosen_items(tmp_path: Path) -> None:
    cube = _cube(tmp_path / "cube.zarr")
    expected = cube["z"].sel(level=[850, 500], latitude=slice(60, 0)).values
    opened = zarrfeed.open({"z": zarr.open_array(tmp_path / "cube.zarr" / "z")})
    chosen = opened.isel(level=[3, 1], latitude=slice(2, 6))
    for data in (
        chosen.window((-2, 0, 1), pad="edge"),
        opened.window((-2, 0, 1), pad="edge").isel(level=[3, 1], latitude=slice(2, 6)),
    ):
        for shuffle in (True, False):
            for batch, index in ZarrIterableDataset(data, batch_size=5, shuffle=shuffle, return_index=True):
                rows = np.clip(index.numpy()[:, None] + np.array([-2, 0, 1]), 0, 23)
                np.testing.assert_array_equal(batch["z"].numpy(), expected[rows])


def test_statistics_of_all_levels_are_cut_alongside(tmp_path: Path) -> None:
    cube = _cube(tmp_path / "cube.zarr")
    data = zarrfeed.open(tmp_path / "cube.zarr", variables=["z", "t2m"])
    statistics = zarrfeed.stats(data, axis="level")
    mean, std = cube["z"].mean(("time", "latitude", "longitude")), cube["z"].std(("time", "latitude", "longitude"))
    z = (cube["z"] - mean) / std
    by_axis = {"z": (mean.values, std.values)}
    for labels in ({"level": [850, 300]}, {"level": 700}, {"level": [500]}, {"latitude": slice(60, 0), "level": 1000}):
        for chosen in (
            data.normalize(statistics).sel(labels),
            data.sel(labels).normalize(statistics),
            data.normalize(by_axis, axis="level").sel(labels),
            data.normalize(by_axis, axis=1).sel(labels),
        ):
            got = ZarrDataset(chosen)[np.arange(24)]["z"].numpy()
            np.testing.assert_allclose(
                got, z.sel(labels).transpose("time", ...).values, atol=2e-6, err_msg=repr(chosen)
            )


def _bytes_of_blocks(path: Path, chunks: tuple[int, ...], chosen: list[int]) -> int:
    """Return the decoded bytes of the Blosc blocks of an array of shape (6, 37, 40, 64) that have a chosen level."""
    first = sorted(path.glob("c/0/*/0/0"))[0].read_bytes()
    block = int.from_bytes(first[8:12], "little")
    chunk_bytes, level_bytes = math.prod(chunks) * 4, 40 * 64 * 4
    decoded = 0
    for cell in {level // chunks[1] for level in chosen}:
        wanted = np.zeros(chunk_bytes, bool).reshape(chunks[0], chunks[1], level_bytes)
        wanted[:, [level % chunks[1] for level in chosen if level // chunks[1] == cell]] = True
        touched = sorted({at // block for at in np.flatnonzero(wanted).tolist()})
        decoded += sum(min(block, chunk_bytes - one * block) for one in touched)
    return decoded * math.ceil(6 / chunks[0])


def test_blocks_without_a_chosen_item_are_not_decoded_and_chunks_not_read(tmp_path: Path) -> None:
    shape, compressor = (6, 37, 40, 64), zarr.codecs.BloscCodec(cname="lz4", shuffle="shuffle", blocksize=1 << 13)
    array = np.random.default_rng(0).integers(0, 99, shape).astype("f4")
    for chunks in ((1, 37, 40, 64), (1, 1, 40, 64), (2, 37, 40, 64), (6, 5, 40, 64)):
        path = tmp_path / "-".join(map(str, chunks))
        stored = zarr.create_array(path, shape=shape, chunks=chunks, dtype="f4", compressors=[compressor])
        stored[:] = array
        for chosen in (list(range(0, 37, 3)), list(range(5, 30)), [36, 0]):
            per_chunk = chunks[1]
            lost = [n for n in range(-(-37 // per_chunk)) if not any(level // per_chunk == n for level in chosen)]
            unread = {one: one.read_bytes() for n in lost for one in path.glob(f"c/*/{n}/0/0")}
            for one in unread:  # so that reading them is an error
                one.unlink()
            data = zarrfeed.open(path).isel({1: chosen})
            each: list[dict[str, Any]] = [{}, {"shuffle": True, "mixing": {"lanes": 1}}]
            for options in each:
                dataset = ZarrIterableDataset(
                    data, batch_size=2, return_index=True, faults={"missing": "raise"}, **options
                )
                for rows, index in dataset:
                    np.testing.assert_array_equal(rows.numpy(), array[index.numpy()][:, chosen])
                expected = _bytes_of_blocks(path, chunks, chosen)
                assert dataset.stats().bytes_decoded == expected, (chunks, chosen, options)
                cells = len({level // per_chunk for level in chosen})
                assert dataset.stats().chunks_read == math.ceil(6 / chunks[0]) * cells, (chunks, chosen)
            for one, stored_bytes in unread.items():
                one.write_bytes(stored_bytes)


@pytest.mark.parametrize("shuffle", [True, False])
def test_patches_are_cut_out_of_a_region_and_have_the_chosen_channels(shuffle: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    array = rng.integers(0, 999, (7, 5, 30, 26)).astype("i4")
    compressor = zarr.codecs.BloscCodec(cname="lz4", blocksize=512)
    zarr.create_array(
        tmp_path / "v", data=array, chunks=(3, 2, 8, 7), compressors=[compressor], dimension_names=("t", "c", "y", "x")
    )
    opened = zarrfeed.open(tmp_path / "v")
    size: dict[str | int, int] = {"y": 5, "x": 4}
    region: dict[str, Any] = {"y": slice(3, 24), "x": slice(25, 2, -1)}
    listed: dict[str, Any] = {"y": [4, 9, 10, 11, 12, 29, 0], "x": [3, 4, 5, 6, 20]}
    cases: list[tuple[zarrfeed.Data, AnyArray]] = [
        (opened.isel(c=[3, 1]).patch(size), array[:, [3, 1]]),
        (opened.patch(size).isel(c=[3, 1]), array[:, [3, 1]]),
        (opened.patch(size, isel={"c": [3, 1]}), array[:, [3, 1]]),
        (opened.isel(c=4).patch(size), array[:, 4]),
        (opened.patch(size).isel(c=-1), array[:, 4]),
        (opened.isel(region).patch(size), array[:, :, 3:24, 25:2:-1]),
        (opened.isel(listed).patch(size, isel={"c": slice(1, 3)}), array[:, 1:3][:, :, listed["y"]][..., listed["x"]]),
        (opened.isel(c=2, **region).window((0, 1)).patch(size), array[:, 2, 3:24, 25:2:-1]),
    ]
    for data, expected in cases:
        windowed = data.resolved.columns[0].window is not None
        seen = 0
        for patches, index in ZarrIterableDataset(data, batch_size=6, shuffle=shuffle, return_index=True):
            _, starts = data.locate(index.numpy())
            for patch, (row, y, x) in zip(patches.numpy(), starts.tolist(), strict=True):
                rows = expected[row : row + 2] if windowed else expected[row]
                inside = rows[..., max(0, y) : y + 5, max(0, x) : x + 4]
                padded = np.zeros_like(patch)
                at_y, at_x = max(0, -y), max(0, -x)
                padded[..., at_y : at_y + inside.shape[-2], at_x : at_x + inside.shape[-1]] = inside
                np.testing.assert_array_equal(patch, padded, err_msg=repr(data))
                seen += inside.shape[-1] * inside.shape[-2]
        assert seen == (expected.shape[0] - windowed) * expected.shape[-1] * expected.shape[-2], repr(data)


def test_items_along_which_patches_are_cut_are_chosen_before(tmp_path: Path) -> None:
    dims = ("t", "c", "y", "x")
    zarr.create_array(tmp_path / "v", data=np.zeros((3, 4, 9, 9)), chunks=(1, 4, 9, 9), dimension_names=dims)
    data = zarrfeed.open(tmp_path / "v").patch({"y": 3, "x": 3}, isel={"c": [0, 2]})
    with pytest.raises(zarrfeed.ConfigError, match="'y': patches are cut along it; choose its items by sel or isel"):
        data.isel(y=slice(2))
    with pytest.raises(zarrfeed.ConfigError, match=r"'c': patch\(isel=\) has chosen items"):
        data.isel(c=1)


def test_channels_of_a_stack_are_named_by_their_labels(tmp_path: Path) -> None:
    cube = _cube(tmp_path / "cube.zarr")
    data = zarrfeed.open(tmp_path / "cube.zarr", variables=["z", "t", "t2m"]).static("lsm")
    labels: dict[str, Any] = {"level": [850, 500], "latitude": slice(60, 0)}
    rows = cube.sel(labels)
    expected = np.concatenate([rows["z"], rows["t2m"].values[:, None], rows["t"]], 1)
    for stacked in (data.sel(labels).stack(["z", "t2m", "t"]), data.stack(["z", "t2m", "t"]).sel(labels)):
        assert stacked.channels == {"samples": ("z850", "z500", "t2m", "t850", "t500")}
        got = ZarrDataset(stacked)[np.arange(24)]
        np.testing.assert_array_equal(got["samples"].numpy(), expected)
        np.testing.assert_array_equal(got["lsm"][0].numpy(), rows["lsm"].values)
    with_static = data.stack(["z", "lsm"], name="x").sel(level=[300], latitude=slice(60, 0))
    assert with_static.channels == {"x": ("z300", "lsm")}
    got = ZarrDataset(with_static)[np.arange(24)]["x"].numpy()
    np.testing.assert_array_equal(got[:, 0], cube["z"].sel(level=300, latitude=slice(60, 0)))
    np.testing.assert_array_equal(got[:, 1], np.broadcast_to(rows["lsm"], (24, *rows["lsm"].shape)))


def test_channels_of_arrays_without_their_group_are_named_by_their_labels(tmp_path: Path) -> None:
    cube = _cube(tmp_path / "cube.zarr")
    by_path = zarrfeed.open({name: tmp_path / "cube.zarr" / name for name in ("z", "t2m")}, sample_dim="time")
    with xarray.open_zarr(tmp_path / "cube.zarr", consolidated=False) as lazy:
        of_xarray = zarrfeed.from_xarray(lazy, sample_dim="time", variables=["z", "t2m"])
    for data in (by_path, of_xarray):
        levels = cube.level.values.tolist()
        assert data.stack(["z", "t2m"]).channels == {"samples": (*(f"z{level}" for level in levels), "t2m")}
        for stacked in (data.isel(level=[2, 0]).stack(["z"]), data.stack(["z"]).isel(level=[2, 0])):
            assert stacked.channels == {"samples": (f"z{levels[2]}", f"z{levels[0]}")}


def test_inputs_of_a_join_are_chosen_from_by_label_in_each(tmp_path: Path) -> None:
    times = np.datetime64("2000-01-01", "ns") + np.arange(8) * np.timedelta64(1, "D")
    values = np.arange(24.0).reshape(8, 3)
    for name, levels in (("a", [300, 500, 850]), ("b", [1000, 850, 300])):
        coords: dict[str, Any] = {"time": times, "level": levels}
        xarray.Dataset({"x": (("time", "level"), values)}, coords).to_zarr(tmp_path / name, consolidated=False)
    joined = zarrfeed.join({name: zarrfeed.open(tmp_path / name, variables=["x"]) for name in "ab"})
    got = ZarrDataset(joined.sel(level=[850, 300]))[np.arange(8)]
    np.testing.assert_array_equal(got["a/x"].numpy(), values[:, [2, 0]])
    np.testing.assert_array_equal(got["b/x"].numpy(), values[:, [1, 2]])
    with pytest.raises(zarrfeed.ConfigError, match=r"level has no 500: .*b/level has values from 300 "):
        joined.sel(level=500)


def test_mixtures_and_many_stores_have_the_chosen_items(tmp_path: Path) -> None:
    cubes = [_cube(tmp_path / name) for name in ("a", "b")]
    labels: dict[str, Any] = {"level": [850, 500], "latitude": slice(60, 0)}
    rows = cubes[0]["z"].sel(labels).values
    both = np.concatenate([rows, rows])
    opened = [zarrfeed.open(tmp_path / name, variables=["z"]) for name in ("a", "b")]
    each = [one.sel(labels) for one in opened]
    for data in (
        zarrfeed.open([tmp_path / "a", tmp_path / "b"], variables=["z"]).sel(labels),
        zarrfeed.concat(opened).sel(labels),
        zarrfeed.concat(each),
        zarrfeed.mix(opened).sel(labels),
        zarrfeed.mix(each),
    ):
        for batch, index in ZarrIterableDataset(data, batch_size=7, shuffle=True, return_index=True):
            np.testing.assert_array_equal(batch["z"].numpy(), both[index.numpy()], err_msg=repr(data))


def test_arrays_in_memory_and_text_have_the_chosen_items(tmp_path: Path) -> None:
    values = np.arange(120).reshape(6, 5, 4)
    group = zarr.create_group(tmp_path / "g")
    text = group.create_array("t", shape=(6, 5, 4), chunks=(2, 2, 3), dtype=str, dimension_names=("n", "a", "b"))
    text[:] = values.astype(str)
    cases: list[dict[Any, Any]] = [{1: [4, 0, 0]}, {2: slice(None, None, -2)}, {1: 3, 2: [1, 2]}, {-1: 0}]
    for indexers in cases:
        named = {("n", "a", "b")[axis]: one for axis, one in indexers.items()}
        expected = xarray.DataArray(values, dims=("n", "a", "b")).isel(named).values
        got = ZarrDataset(zarrfeed.open(values).isel(indexers))[np.arange(6)].numpy()
        np.testing.assert_array_equal(got, expected, err_msg=repr(indexers))
        listed = ZarrDataset(zarrfeed.open({"t": text}).isel(named))[np.arange(6)]["t"]
        assert np.array(listed).astype(int).tolist() == expected.tolist(), indexers


def test_a_lazy_selection_of_xarray_is_read_from_the_store(tmp_path: Path) -> None:
    whole = _cube(tmp_path / "cube.zarr")[["z", "t2m"]]
    lazy = xarray.open_zarr(tmp_path / "cube.zarr", consolidated=False, chunks=None)[["z", "t2m"]]
    selections: list[Any] = [
        lambda one: one.sel(level=[850, 500]),
        lambda one: one.sel(level=500, latitude=slice(60, 0)),
        lambda one: one.sel(time=slice("2000-01-02", "2000-01-04")).isel(level=slice(None, None, -2), longitude=[3, 1]),
        lambda one: one.isel(latitude=0).isel(longitude=slice(2, 9), level=[4, 1, 2]).isel(level=[2, 0]),
    ]
    for select in selections:
        expected = select(whole)
        data = zarrfeed.from_xarray(select(lazy))
        got = ZarrDataset(data)[np.arange(expected.sizes["time"])]
        for name in ("z", "t2m"):
            np.testing.assert_array_equal(got[name].numpy(), expected[name].values, err_msg=repr(data))
        of_array = ZarrDataset(zarrfeed.from_xarray(select(lazy["z"])))[np.arange(expected.sizes["time"])]
        np.testing.assert_array_equal(of_array.numpy(), expected["z"].values)
    with pytest.raises(zarrfeed.ConfigError, match="name the dimension of samples: sample_dim="):
        zarrfeed.from_xarray(lazy["z"].isel(level=0), sample_axis=2)


def test_a_state_goes_on_with_the_same_items_on_other_ranks_and_no_others(tmp_path: Path) -> None:
    cube = _cube(tmp_path / "cube.zarr")
    rows = cube["z"].sel(level=[850, 500]).values
    data = zarrfeed.open(tmp_path / "cube.zarr", variables=["z"]).sel(level=[850, 500])

    def dataset(rank: int, world_size: int, of: zarrfeed.Data = data) -> ZarrIterableDataset:
        options: dict[str, Any] = {"batch_size": 4 // world_size, "shuffle": True, "seed": 1, "return_index": True}
        return ZarrIterableDataset(of, rank=rank, world_size=world_size, **options)

    first = dataset(0, 1)
    iterator = iter(first)
    seen = [one for _ in range(2) for one in next(iterator)[1].tolist()]
    state = first.state_dict()
    for rank in range(2):
        resumed = dataset(rank, 2)
        resumed.load_state_dict(state)
        for batch, index in resumed:
            np.testing.assert_array_equal(batch["z"].numpy(), rows[index.numpy()])
            seen += index.tolist()
    assert sorted(seen) == list(range(24))
    other = zarrfeed.open(tmp_path / "cube.zarr", variables=["z"]).sel(level=[850, 300])
    with pytest.raises(zarrfeed.ConfigError, match="items"):
        dataset(0, 1, other).load_state_dict(state)


def test_explain_says_which_share_of_an_array_is_read(tmp_path: Path) -> None:
    _cube(tmp_path / "cube.zarr")
    data = zarrfeed.open({"z": tmp_path / "cube.zarr" / "z"})
    explanation = ZarrIterableDataset(data.isel(level=[1, 3]), batch_size=4).explain()
    (field,) = explanation.fields
    assert [field.chunk_share, field.byte_share] == pytest.approx([2 / 3, 0.4])
    assert (field.chunk_reads, field.chunks) == (8 * 2 * 3 * 3, 8 * 3 * 3 * 3)
    line = "66.7% of its chunks are read, 40.0% of its bytes are chosen items, 66.7% are decoded"
    assert f"chosen: 2 of 5 items of axis 1: {line}" in str(explanation)
    (field,) = ZarrIterableDataset(data, batch_size=4).explain().fields
    assert (field.chosen, field.chunk_share, field.byte_share) == ("", 1.0, 1.0)


def test_explain_counts_the_blocks_that_an_epoch_decodes(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    for number in range(tries(12, 40)):
        shape = tuple(rng.integers(2, 30, int(rng.integers(2, 5))).tolist())
        axis = int(rng.integers(len(shape)))
        chunks = tuple(int(rng.integers(1, n + 1)) for n in shape)
        blocks = int(rng.choice([128, 256, 1024, 0]))
        codec: Any = (
            zarr.codecs.BloscCodec(cname="lz4", blocksize=blocks) if rng.random() < 0.8 else zarr.codecs.GzipCodec()
        )
        shards = tuple(int(c * rng.integers(1, 3)) for c in chunks) if rng.random() < 0.3 else None
        stored = zarr.create_array(
            tmp_path / str(number), shape=shape, chunks=chunks, shards=shards, dtype="f4", compressors=codec
        )
        stored[:] = rng.integers(1, 99, shape)
        indexers = {one: _random_indexer(rng, n) for one, n in enumerate(shape) if one != axis}
        data = zarrfeed.open(tmp_path / str(number), sample_axis=axis).isel(indexers)
        dataset = ZarrIterableDataset(data, batch_size=3)
        (field,) = dataset.explain().fields
        for _ in dataset:
            pass
        whole = math.prod(-(-n // c) * c for n, c in zip(shape, chunks, strict=True)) * 4
        told = f"case {number}: {shape} {chunks} {shards} {codec} {data!r}"
        assert field.decoded_share is not None, told
        assert field.decoded_share * whole == pytest.approx(dataset.stats().bytes_decoded, rel=0.02), told


def test_explain_does_not_guess_the_blocks_of_arrays_that_are_not_local() -> None:
    stored = zarr.create_array(MemoryStore(), data=np.ones((6, 8)), chunks=(2, 4))
    explanation = ZarrIterableDataset(zarrfeed.open(stored).isel({1: 3}), batch_size=2).explain()
    assert explanation.fields[0].decoded_share is None
    assert "are decoded" not in str(explanation)


def test_stores_with_their_labels_in_other_places_are_chosen_from_by_label_in_each(tmp_path: Path) -> None:
    cube = _cube(tmp_path / "a")
    other = cube.isel(level=[4, 0, 2, 1, 3]).drop_encoding()
    for name in ("b", "c"):
        other.to_zarr(tmp_path / name, consolidated=False, encoding={"z": {"chunks": (5, 3, 12, 16)}})
    paths = [tmp_path / name for name in "abc"]
    statistics = zarrfeed.stats(zarrfeed.open(tmp_path / "a", variables=["z"]), axis="level")
    mean, std = cube["z"].mean(("time", "latitude", "longitude")), cube["z"].std(("time", "latitude", "longitude"))
    choices: list[dict[str, Any]] = [
        {"level": [850, 300]},
        {"level": 500, "latitude": slice(60, 0)},
        {"level": [1000, 500, 700]},
    ]
    for opened in (
        zarrfeed.open(paths, variables=["z"]),
        zarrfeed.concat([zarrfeed.open(one, variables=["z"]) for one in paths]),
    ):
        for labels in choices:
            rows = cube["z"].sel(labels)
            normalized = ((cube["z"] - mean) / std).sel(labels)
            chosen = opened.sel(labels)
            for data, expected in ((chosen, rows), (chosen.normalize(statistics), normalized)):
                values = expected.transpose("time", ...).values
                for batch, index in ZarrIterableDataset(data, batch_size=7, shuffle=True, return_index=True):
                    want = values[index.numpy() % 24]
                    np.testing.assert_allclose(batch["z"].numpy(), want, atol=2e-6, err_msg=repr(data))
        again = ZarrDataset(opened.sel(level=[850, 300]).sel(level=[300]))[np.arange(72)]["z"].numpy()
        np.testing.assert_array_equal(again, np.concatenate([cube["z"].sel(level=[300])] * 3))
        assert opened.sel(level=[850, 300]).stack(["z"]).channels == {"samples": ("z850", "z300")}


def test_a_store_without_a_label_or_with_others_is_named(tmp_path: Path) -> None:
    cube = _cube(tmp_path / "a")
    other = cube.isel(level=[0, 1, 2, 3]).drop_encoding().assign_coords(level=[300, 500, 700, 851])
    other.to_zarr(tmp_path / "b", consolidated=False)
    stores = [zarrfeed.open(tmp_path / name, variables=["z"]).isel(level=slice(4)) for name in "a"]
    stores.append(zarrfeed.open(tmp_path / "b", variables=["z"]))
    with pytest.raises(
        zarrfeed.ConfigError, match=r"b: samples have 'level' = 300, 500, 700, 851, in .*a 300, 500, 700, 850"
    ):
        zarrfeed.concat(stores)
    whole = cube.drop_encoding().assign_coords(level=[300, 500, 701, 850, 1000])
    whole.to_zarr(tmp_path / "c", consolidated=False)
    both = zarrfeed.open([tmp_path / "a", tmp_path / "c"], variables=["z"])
    with pytest.raises(
        zarrfeed.ConfigError, match=r"level has no 700: .*c/level has values from 300 .*; near it are 500"
    ):
        both.sel(level=700)
    with pytest.raises(zarrfeed.ConfigError, match=r"c/level has 500, 701, 850, .*a/level has 500, 700, 850; "):
        both.sel(level=slice(500, 850))


def test_items_of_a_pyramid_are_chosen_where_its_levels_have_the_same_voxels(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "image")
    factors, chunks = [(1, 1, 1, 1), (1, 1, 2, 2)], [(2, 2, 8, 8), (2, 3, 8, 8)]
    levels = put_pyramid(group, (6, 3, 16, 16), factors, chunks=chunks, axes="zcyx")
    data = zarrfeed.open(tmp_path / "image", multiscale=["0", "1"], sample_dim="z")
    got = ZarrDataset(data.isel(c=[2, 0]))[np.arange(6)]
    for key, level in zip("01", levels, strict=True):
        np.testing.assert_array_equal(got[key].numpy(), level[:, [2, 0]])
    patches = data.isel(c=1).patch({"y": 4, "x": 4})
    for batch, index in ZarrIterableDataset(patches, batch_size=4, return_index=True, shuffle=True):
        _, starts = patches.locate(index.numpy())
        for patch, (z, y, x) in zip(batch["0"].numpy(), starts.tolist(), strict=True):
            inside = levels[0][z, 1, max(0, y) : y + 4, max(0, x) : x + 4]
            part = patch[max(0, -y) :, max(0, -x) :][: inside.shape[0], : inside.shape[1]]
            np.testing.assert_array_equal(part, inside)
    with pytest.raises(zarrfeed.ConfigError, match="a voxel along 'y' is as long as 2 of the first level"):
        data.isel(y=slice(4))


def test_a_store_is_asked_for_no_chunk_without_a_chosen_item() -> None:
    asked: set[str] = set()

    class Recording(WrapperStore[MemoryStore]):
        async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
            asked.add(key)
            return await self._store.get(key, prototype, byte_range)

    memory, values = MemoryStore(), np.arange(480.0).reshape(8, 6, 10)
    zarr.create_array(memory, data=values, chunks=(2, 2, 5))
    data = zarrfeed.open(zarr.open_array(Recording(memory))).isel({1: [5, 1], 2: slice(0, 3)})
    asked.clear()
    for rows, index in ZarrIterableDataset(data, batch_size=4, return_index=True):
        np.testing.assert_array_equal(rows.numpy(), values[index.numpy()][:, [5, 1], :3])
    assert sorted(key for key in asked if key.startswith("c/")) == [f"c/{t}/{y}/0" for t in range(4) for y in (0, 2)]


def test_a_store_that_grows_keeps_its_chosen_items(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "g")
    array = group.create_array("x", shape=(6, 4), chunks=(2, 4), dtype="f4", dimension_names=("t", "c"))
    array[:] = np.arange(24).reshape(6, 4)
    data = zarrfeed.open(tmp_path / "g", refresh="epoch", variables=["x"], sample_dim="t").isel(c=[2, 0])
    dataset = ZarrIterableDataset(data, batch_size=10)
    assert [batch["x"].tolist() for batch in dataset] == [np.asarray(array)[:, [2, 0]].tolist()]
    array.resize((8, 4))
    array[6:] = -np.arange(8).reshape(2, 4)
    assert [batch["x"].tolist() for batch in dataset] == [np.asarray(array)[:, [2, 0]].tolist()]
