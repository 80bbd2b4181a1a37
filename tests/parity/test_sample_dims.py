"""`sample_dim=("member", "time")` against NumPy: every combination of several dimensions is a sample, read once.

Every item of an array says where it lies, so each sample tells which combination it is.
"""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
import zarr
from zarr.storage import MemoryStore

import zarrfeed
from tests.support.cases import case
from tests.support.oracle import CODECS, NUMCODECS_WARNING, AnyArray
from tests.support.runs import Int64, Run
from zarrfeed import ConfigError, Data, UnsupportedError, ZarrDataset, ZarrIterableDataset
from zarrfeed.spec.samples.sample_grid import SampleGrid
from zarrfeed.spec.samples.sample_grids import SampleGrids

pytestmark = [pytest.mark.filterwarnings(NUMCODECS_WARNING)]

_NAMES = ("member", "time", "level", "y")
_CODECS = ("none", "blosc-many-blocks", "zstd", "lz4")
M, T = 5, 23


def _chunks(rng: np.random.Generator, shape: tuple[int, ...], dims: list[str]) -> tuple[int, ...]:
    """Return chunks of any lengths, of which sample dimensions far apart in the array have 1 but for one."""
    chunks = [int(rng.integers(1, n + 2)) for n in shape]
    axes = sorted(_NAMES.index(dim) for dim in dims)
    if axes[-1] - axes[0] + 1 > len(axes):
        wide = int(rng.choice(axes))
        chunks = [1 if axis in axes and axis != wide else n for axis, n in enumerate(chunks)]
    return tuple(chunks)


def _stored(root: Any, array: AnyArray, chunks: tuple[int, ...], rng: np.random.Generator, told: list[str]) -> None:
    """Write an array in a random layout, with coordinates of its dimensions."""
    codec = CODECS[_CODECS[rng.integers(len(_CODECS))]]
    zarr_format = int(rng.integers(2, 4))
    make = codec.v2 if zarr_format == 2 else codec.v3
    assert make is not None
    names = _NAMES[: array.ndim]
    options: dict[str, Any] = {"compressors": make(array.dtype.itemsize) or None}
    if zarr_format == 3:
        options["dimension_names"] = names
        if rng.random() < 0.4:
            options["shards"] = tuple(int(c * rng.integers(1, 3)) for c in chunks)
    else:
        options |= {"order": "CF"[rng.integers(2)], "attributes": {"_ARRAY_DIMENSIONS": list(names)}}
    told.append(f"v{zarr_format} {chunks} {options}")
    group = zarr.open_group(root, mode="w", zarr_format=zarr_format)  # type: ignore[arg-type]
    made = group.create_array("x", shape=array.shape, chunks=chunks, dtype=array.dtype, fill_value=3, **options)
    made[:] = array


def _read(data: Data, **options: Any) -> tuple[AnyArray, Int64]:
    """Return the samples of an epoch and their indices."""
    batches = list(ZarrIterableDataset(data, batch_size=5, return_index=True, num_threads=1, **options))
    return np.concatenate([x["x"].numpy() for x, _ in batches]), np.concatenate([i.numpy() for _, i in batches])


def test_random_arrays_have_each_combination_once_with_the_items_that_numpy_has(tmp_path: Path) -> None:
    rng, refused = np.random.default_rng(7), 0
    for number in range(30):
        shape = tuple(rng.integers(1, 10, int(rng.integers(2, 5))).tolist())
        dims = [
            str(one) for one in rng.permutation(_NAMES[: len(shape)])[: int(rng.integers(2, min(3, len(shape)) + 1))]
        ]
        array = rng.integers(1, 250, shape).astype(("<f4", ">i2", "u1")[rng.integers(3)])
        array[:1] = 3  # some chunks hold the fill value alone, and are not written
        chunks = _chunks(rng, shape, dims)
        told = [f"case {number}: {shape} {dims}"]
        store: Any = tmp_path / str(number) if rng.random() < 0.7 else MemoryStore()
        _stored(store, array, chunks, rng, told)
        with case(*told):
            try:
                data = zarrfeed.open(zarr.open_group(store, mode="r"), sample_dim=dims, decode_cf=False)
            except UnsupportedError:  # of order F: another axis lies between
                refused += 1
                continue
            whole = xarray.DataArray(array, dims=_NAMES[: len(shape)]).transpose(*dims, ...).values
            want = whole.reshape(-1, *whole.shape[len(dims) :])
            options: dict[str, Any] = {"shuffle": bool(rng.integers(2)), "seed": number}
            if rng.random() < 0.5:
                options["mixing"] = {"lanes": int(rng.integers(1, 20)), "mix": int(rng.integers(1, 4))}
            if rng.random() < 0.3 and "shards" in told[-1]:
                options["mixing"] = {"block": "shard"}
            got, index = _read(data, **options)
            assert np.array_equal(np.sort(index), np.arange(len(want)))
            assert np.array_equal(got, want[index])
            wanted = rng.integers(0, len(want), 9)
            assert np.array_equal(ZarrDataset(data)[wanted]["x"].numpy(), want[wanted])
            width = int(rng.integers(1, whole.shape[len(dims) - 1] + 1))
            windows = data.window(tuple(range(width)), gaps="ignore")
            got, index = _read(windows, **options | {"mixing": {}})
            along = whole.shape[len(dims) - 1]
            assert np.array_equal(np.sort(index), [i for i in range(len(want)) if i % along + width <= along])
            assert np.array_equal(got, want[index[:, None] + np.arange(width)])
            kept = rng.random(len(want)) < 0.5
            kept[0] = True
            got, index = _read(data.select(kept), **options)
            assert np.array_equal(np.sort(index), np.flatnonzero(kept))
            assert np.array_equal(got, want[index])
    assert refused < 6


def test_stores_of_any_lengths_follow_each_other_and_mix(tmp_path: Path) -> None:
    for number in range(3):
        rng = np.random.default_rng(number)
        dims = [str(one) for one in rng.permutation(["member", "time"])]
        chunks, opened, wanted, labels = tuple(rng.integers(1, 5, 2).tolist()), [], [], []
        for store in range(3):
            lengths = dict(zip(dims, rng.integers(1, 9, 2).tolist(), strict=True))
            array = np.arange(math.prod(lengths.values()), dtype="i4").reshape(*lengths.values()) + 100 * store
            group = zarr.create_group(tmp_path / f"{number}-{store}.zarr")
            stored = xarray.DataArray(array, dims=dims).transpose("time", "member")
            group.create_array("x", data=stored.values, chunks=chunks, dimension_names=("time", "member"))
            for dim, length in lengths.items():  # members are those of all stores, times are not
                along = np.arange(length) + 100 * store * (dim == "time")
                group.create_array(dim, data=along, dimension_names=(dim,))
            opened.append(zarrfeed.open(str(group.store_path.store), sample_dim=dims, variables=["x"]))
            wanted.append(array.ravel())
            at = np.indices(array.shape).reshape(2, -1)
            labels.append(at + 100 * store * np.array([[dim == "time"] for dim in dims]))
        want, label = np.concatenate(wanted), dict(zip(dims, np.concatenate(labels, axis=1), strict=True))
        whole = zarrfeed.concat(opened)
        with case(number, dims, chunks, [len(one) for one in wanted]):
            for shuffle in (False, True):
                got, index = _read(whole, shuffle=shuffle, mixing={"lanes": 3})
                assert np.array_equal(np.sort(index), np.arange(len(want)))
                assert np.array_equal(got, want[index])
            assert list(whole.coords) == dims
            assert all(np.array_equal(whole.coords[dim], label[dim]) for dim in dims)
            chosen = whole.sel(member=slice(0, 1), time=np.unique(label["time"])[1::2].tolist())
            got, index = _read(chosen, shuffle=True)
            meets = (label["member"] <= 1) & np.isin(label["time"], np.unique(label["time"])[1::2])
            assert np.array_equal(np.sort(index), np.flatnonzero(meets))
            assert np.array_equal(got, want[index])
            mixture = zarrfeed.mix([opened[0].weight(np.ones(len(opened[0]))), *opened[1:]], [1, 2, 3], stop="all")
            got, index = _read(mixture, shuffle=True)
            assert np.array_equal(np.unique(index), np.arange(len(want)))
            assert np.array_equal(got, want[index])
            some = zarrfeed.mix([one.select(np.arange(len(one)) % 3 != 1) for one in opened], stop="all")
            got, index = _read(some)
            assert np.array_equal(got, want[index])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a store of members and times, chunked along both, with forcings that all members share."""
    path = tmp_path_factory.mktemp("dims") / "ens.zarr"
    times = np.datetime64("2020-01-01", "ns") + np.arange(T) * np.timedelta64(6, "h")
    xarray.Dataset(
        {
            "x": (("member", "time", "y"), np.arange(M * T * 3, dtype="f4").reshape(M, T, 3)),
            "forcing": (("time", "y"), np.arange(T * 3, dtype="f4").reshape(T, 3)),
        },
        coords={
            "member": [10, 20, 30, 40, 50],
            "time": times,
            "valid": (("member", "time"), np.arange(M * T).reshape(M, T)),
        },
    ).to_zarr(path, encoding={"x": {"chunks": (2, 4, 3)}, "forcing": {"chunks": (5, 3)}}, consolidated=False)
    return str(path)


def _open(store: str, *names: str) -> Data:
    return zarrfeed.open(store, sample_dim=("member", "time"), variables=list(names or ("x",)))


def _indices(data: Data) -> list[int]:
    """Return the samples in order, which say which they are."""
    batch = ZarrDataset(data)[range(len(data))]
    return [int(i) // 3 for i in batch["x"].reshape(len(data), -1)[:, 0].tolist()]


@pytest.mark.parametrize("chunks", [(4, 20), (1, 50), (20, 5)])
def test_ends_of_lanes_cut_few_boxes(chunks: tuple[int, int]) -> None:
    group = zarr.create_group({})
    group.create_array("x", shape=(20, 1000), dtype="u1", chunks=chunks, dimension_names=("member", "time"))
    data = zarrfeed.open(group, sample_dim=("member", "time"), variables=["x"])
    found = ZarrIterableDataset(data, batch_size=32, shuffle=True).explain()
    assert found.fields[0].chunk_reads <= 1.05 * (20_000 // math.prod(chunks))
    assert found.lanes >= 8


def test_each_chunk_is_decoded_once_and_a_block_is_its_box(store: str) -> None:
    dataset = ZarrIterableDataset(_open(store), batch_size=8, shuffle=True, num_threads=1, mixing={"lanes": 1})
    assert sum(len(batch["x"]) for batch in dataset) == M * T
    assert dataset.explain().fields[0].chunk_reads == 3 * 6
    assert dataset.stats().chunks_read == 3 * 6
    assert dataset.session.schedule.order.num_blocks == 3 * 6
    rows = dataset.session.schedule.order.rows_at(np.array([0, 5, 17]))[1]
    assert rows.tolist() == [8, 6, 3]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("window", [None, (-1, 0, 1)])
def test_ranks_workers_and_resumed_runs_read_each_sample_once(
    store: str, window: tuple[int, ...] | None, shuffle: bool
) -> None:
    data = _open(store) if window is None else _open(store).window(window)
    every = np.arange(M * T)
    every = every if window is None else every[(every % T > 0) & (every % T < T - 1)]
    run = Run.of(data, shuffle=shuffle)
    for ranks, workers in ((1, 0), (2, 0), (3, 2), (8, 0)):
        with case(ranks, workers):
            assert np.array_equal(np.sort(run.on(ranks, workers).sample_order()), every)
    if shuffle:
        assert np.array_equal(run.on(1).sample_order(), run.on(4).sample_order())
    before = run.on(2)
    for ranks, workers in ((2, 0), (3, 0), (1, 2)):
        rest = before.after(2, ranks, workers)
        with case("resumed", ranks, workers):
            assert np.array_equal(np.sort(np.concatenate([before.sample_order(2), rest.sample_order()])), every)


def test_a_resumed_dataset_reads_the_rest_of_its_epoch(store: str) -> None:
    data = _open(store, "x", "forcing").window((0, 1))
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "return_index": True, "num_threads": 1}
    dataset = ZarrIterableDataset(pickle.loads(pickle.dumps(data)), **options)
    whole = [(x, i.tolist()) for x, i in dataset]
    for x, index in whole:
        time = np.array(index) % T
        assert (x["x"][:, 0, 0] == x["x"][:, 1, 0] - 3).all()
        assert x["forcing"][:, :, 0].tolist() == [[3 * t, 3 * t + 3] for t in time]
    dataset = ZarrIterableDataset(data, **options)
    passes = iter(dataset)
    first = [next(passes)[1].tolist() for _ in range(3)]
    other = ZarrIterableDataset(data, **options)
    other.load_state_dict(dataset.state_dict())
    assert first + [i.tolist() for _, i in other] == [i for _, i in whole]


def test_sel_and_isel_filter_along_each_dimension(store: str) -> None:
    array = xarray.open_zarr(store, consolidated=False)
    data = _open(store)
    number = xarray.DataArray(np.arange(M * T).reshape(M, T), coords=array["x"].isel(y=0).coords)
    choices: list[tuple[str, dict[str, Any]]] = [
        ("sel", {"member": [20, 50], "time": slice("2020-01-02", "2020-01-03")}),
        ("sel", {"member": 30}),
        ("isel", {"member": slice(1, None, 2), "time": [0, 7, 22]}),
        ("isel", {"time": -1}),
        ("sel", {"time": "2020-01-02T06"}),
    ]
    for method, named in choices:
        with case(method, named):
            chosen = getattr(data, method)(**named)
            want = getattr(number, method)(**named).values.ravel().tolist()
            assert _indices(chosen) == want
            assert sorted(_read(chosen, shuffle=True)[1].tolist()) == want
    assert _indices(data.isel(member=[3, 1]).isel(time=2).sel(member=40)) == [3 * T + 2]
    assert _indices(data.sel(valid=[30, 40])) == [30, 40]
    assert _indices(data.where(valid=lambda v: v > 110)) == [111, 112, 113, 114]
    assert len(data.isel(time=slice(0, 10)).window((0, 1, 2))) == M * 8
    for wrong in ({"member": 60}, {"time": "1999"}, {"memb": 10}):
        with pytest.raises(ConfigError):
            data.sel(**wrong)


def test_coords_are_those_of_the_chosen_samples(store: str) -> None:
    array = xarray.open_zarr(store, consolidated=False)["x"].isel(y=0)
    data = _open(store).isel(member=[1, 4], time=slice(3, 20, 2))
    stacked = array.isel(member=[1, 4], time=slice(3, 20, 2)).stack(sample=("member", "time"))
    for name in ("member", "time", "valid"):
        assert np.array_equal(data.coords[name], stacked[name].values)
    assert list(data.coords) == ["member", "time"]
    assert "valid" not in data.coords
    assert "int64" in repr(data.coords)
    with pytest.raises(ConfigError, match="no coordinate 'speed'"):
        data.coords["speed"]
    alone = zarrfeed.open(store, sample_dim="time", variables=["forcing"])
    assert np.array_equal(alone.coords["time"], array["time"].values)


def test_from_xarray_takes_selections_along_each_dimension(store: str) -> None:
    whole = xarray.open_zarr(store, consolidated=False, chunks=None)
    for named in ({}, {"member": [1, 3]}, {"time": slice(2, 9)}, {"member": slice(0, 4), "time": [1, 8]}):
        chosen = whole[["x"]].isel(named)
        data = zarrfeed.from_xarray(chosen, sample_dim=("member", "time"))
        with case(named):
            assert _indices(data) == (chosen["x"].isel(y=0).values.ravel() // 3).tolist()
    assert _indices(zarrfeed.from_xarray(whole, sample_dim=("member", "time"), variables=["x"]).sel(member=20))[0] == T


def test_statistics_are_of_all_combinations(store: str) -> None:
    statistics = zarrfeed.stats(_open(store))
    assert statistics["x"].count == M * T * 3
    normalized = _open(store).normalize(statistics)
    values = ZarrDataset(normalized)[range(M * T)]["x"].numpy()
    assert abs(values.mean()) < 1e-6
    assert abs(values.std() - 1) < 1e-5


def test_splits_and_weights_deal_combinations(store: str) -> None:
    data = _open(store)
    for how in ({}, {"by": "contiguous"}, {"by": "sample"}, {"groups": "member", "gap": None}, {"folds": 2, "fold": 1}):
        parts = data.split(None if "folds" in how else (0.5, 0.5), **how)
        with case(how):
            assert sorted(i for part in parts for i in _indices(part)) == list(range(M * T))
            for part in parts:
                assert sorted(_read(part, shuffle=True)[1].tolist()) == _indices(part)
    weights = np.arange(M * T) % 3
    got, index = _read(data.weight(weights, n=60), shuffle=True)
    assert np.array_equal(got[:, 0], 3 * index)
    counts = np.bincount(index, minlength=M * T)
    expected = 60 * weights / weights.sum()
    assert counts.sum() == 60
    assert ((counts >= np.floor(expected)) & (counts <= np.ceil(expected))).all()


def test_windows_see_gaps_within_a_member_alone(tmp_path: Path) -> None:
    hours = np.array([0, 1, 2, 3, 9, 10, 11, 12, 13, 14])
    xarray.Dataset(
        {"x": (("member", "time"), np.arange(20).reshape(2, 10))},
        coords={"time": np.datetime64("2020-01-01", "ns") + hours * np.timedelta64(1, "h")},
    ).to_zarr(tmp_path, encoding={"x": {"chunks": (1, 4)}}, consolidated=False)
    data = zarrfeed.open(tmp_path, sample_dim=("member", "time"), variables=["x"])
    assert len(data.window((0, 1), gaps="ignore")) == 18
    with pytest.warns(UserWarning, match="gap"):
        dropped = data.window((0, 1))
    assert sorted(_read(dropped, shuffle=True)[1].tolist()) == [i for i in range(20) if i % 10 not in (3, 9)]
    padded = ZarrDataset(data.window((0, 1), pad="edge", gaps="ignore"))
    assert padded[9]["x"].tolist() == [9, 9]


def test_what_cannot_be_is_refused_by_name(store: str, tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "apart.zarr")
    group.create_array("x", data=np.zeros((4, 3, 4)), chunks=(2, 2, 2), dimension_names=("time", "level", "member"))
    with pytest.raises(UnsupportedError, match="stores axis 1 between them"):
        zarrfeed.open(group, sample_dim=("member", "time"))
    assert len(zarrfeed.open(group, sample_dim=("time", "level"))) == 12
    for wrong in ((), ("time", "time"), ("time", 3), 3):
        with pytest.raises(ConfigError, match="must be the name of a dimension"):
            zarrfeed.open(store, sample_dim=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="did you mean 'member'"):
        zarrfeed.open(store, sample_dim=("membre", "time"))
    with pytest.raises(ConfigError, match="several dimensions are named"):
        zarrfeed.open(store, sample_axis=(0, 1))  # type: ignore[arg-type]
    plain, both = zarrfeed.open(store, sample_dim="time", variables=["x"]).isel(member=0), _open(store)
    with pytest.raises(ConfigError, match=r"numbered by one dimension, those of .* by 'member', 'time'"):
        zarrfeed.concat([both, plain])
    with pytest.raises(ConfigError, match="windows lie along 'time' and leave no 'member'"):
        zarrfeed.concat([both, both], contiguous=True)
    with pytest.raises(ConfigError, match=r"each of 2 stores has positions of its own along 'member'; sel\(\)"):
        zarrfeed.concat([both, both]).isel(member=0)
    with pytest.raises(ConfigError, match=r"select\(\) takes a mask"):
        zarrfeed.concat([both, both]).sel(member=[True, False, True, False, True])
    with pytest.raises(UnsupportedError, match="refresh"):
        zarrfeed.open(store, sample_dim=("member", "time"), variables=["x"], refresh="epoch")
    data = _open(store)
    with pytest.raises(UnsupportedError, match="several dimensions"):
        data.patch({"y": 2})
    assert zarrfeed.open(store, sample_dim=["time"], variables=["x"]) == zarrfeed.open(
        store, sample_dim="time", variables=["x"]
    )


def test_the_rows_of_a_grid_are_those_of_its_chunks_as_numpy_numbers_them() -> None:
    rng = np.random.default_rng(1)
    for _ in range(60):
        lengths = rng.integers(1, 8, int(rng.integers(1, 4))).tolist()
        chunks = [int(rng.integers(1, n + 2)) for n in lengths]
        grid = SampleGrid.of(lengths, chunks)
        counts = [-(-n // c) for n, c in zip(lengths, chunks, strict=True)]
        padded = np.full([k * c for k, c in zip(counts, chunks, strict=True)], -1)
        padded[tuple(map(slice, lengths))] = np.arange(math.prod(lengths)).reshape(lengths)
        axes = [n for pair in zip(counts, chunks, strict=True) for n in pair]
        count = len(lengths)
        by_rows = padded.reshape(axes).transpose([*range(0, 2 * count, 2), *range(1, 2 * count, 2)]).ravel()
        with case(lengths, chunks):
            rows = np.flatnonzero(by_rows >= 0)
            assert np.array_equal(grid.samples_of(rows), by_rows[rows])
            assert np.array_equal(np.sort(grid.rows_of(np.arange(grid.num_samples))), rows)
            begin, length = grid.stored_runs()
            assert np.array_equal(np.concatenate([b + np.arange(n) for b, n in zip(begin, length, strict=True)]), rows)
            before, of_box = grid.runs_of_boxes()
            boxes = np.unique(rows // grid.block_rows, return_counts=True)[1]
            ends = [n for b, e, k in zip(before[:-1], before[1:], of_box, strict=True) for n in _lengths(e - b, k)]
            assert boxes.tolist() == ends
            is_run = np.array_equal(by_rows[rows], np.arange(grid.num_samples))
            assert grid.boxes_are_runs == is_run
            twice, samples = SampleGrids.of_boxes([grid, grid]), np.arange(grid.num_samples)
            assert grid.num_rows == len(by_rows)
            both = np.concatenate([grid.rows_of(samples), grid.rows_of(samples) + len(by_rows)])
            assert np.array_equal(twice.rows_of(np.arange(len(both))), both)
            assert np.array_equal(twice.samples_of(both), np.arange(len(both)))
            begin, length = twice.stored_runs()
            assert np.array_equal(
                np.concatenate([b + np.arange(n) for b, n in zip(begin, length, strict=True)]), np.sort(both)
            )
            before, of_box = twice.runs_of_boxes()
            ends = [n for b, e, k in zip(before[:-1], before[1:], of_box, strict=True) for n in _lengths(e - b, k)]
            assert boxes.tolist() * 2 == ends


def _lengths(total: int, each: int) -> list[int]:
    full, rest = divmod(int(total), int(each))
    return [int(each)] * full + [rest] * bool(rest)
