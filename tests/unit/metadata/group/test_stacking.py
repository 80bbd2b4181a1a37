"""`Data.stack`: several arrays side by side in one tensor, as NumPy would concatenate them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
import zarr

import zarrfeed
from tests.support.examples import tries
from tests.support.oracle import AnyArray
from zarrfeed import ConfigError, ZarrDataLoader, ZarrDataset, ZarrIterableDataset

N = 40


def stacked(arrays: list[AnyArray], spatial: int) -> AnyArray:
    """Return what NumPy makes of arrays with samples first."""
    flat = [a.reshape(len(a), -1, *a.shape[a.ndim - spatial :]) for a in arrays]
    return np.concatenate(flat, axis=1)


def check(data: zarrfeed.Data, wanted: AnyArray, **options: Any) -> None:
    """Read batches, shuffled and in order, from several ranks; compare samples by their index."""
    for shuffle in (False, True):
        seen: list[int] = []
        for rank in range(2):
            more: dict[str, Any] = {"rank": rank, "world_size": 2, "even": "off", "return_index": True}
            with ZarrIterableDataset(data, batch_size=7, shuffle=shuffle, **more, **options) as dataset:
                for batch, index in dataset:
                    assert batch.dtype == torch.from_numpy(wanted[:1]).dtype
                    np.testing.assert_array_equal(batch, wanted[index.numpy()])
                    seen += index.tolist()
        assert sorted(seen) == list(range(len(wanted)))


@pytest.mark.parametrize("seed", range(tries(6, 16)))
def test_arrays_of_any_layout_are_what_numpy_concatenates(seed: int) -> None:
    rng = np.random.default_rng(seed)
    spatial = int(rng.integers(0, 3))
    tail = tuple(int(n) for n in rng.integers(1, 7, spatial))
    group, arrays = zarr.create_group({}), {}
    memory = {}
    for number in range(int(rng.integers(1, 5))):
        lead = tuple(int(n) for n in rng.integers(1, 4, int(rng.integers(0, 3))))
        shape = (N, *lead, *tail)
        values = rng.integers(-100, 100, shape).astype("f4")
        chunks = tuple(int(rng.integers(1, n + 1)) for n in shape)
        shards = tuple(2 * n for n in chunks) if rng.random() < 0.3 else None
        group.create_array(f"x{number}", shape=shape, chunks=chunks, shards=shards, dtype="f4")[...] = values
        arrays[f"x{number}"] = values
        memory[f"x{number}"] = values if rng.random() < 0.4 else group[f"x{number}"]
    names = [str(name) for name in rng.permutation(list(arrays))]
    wanted = stacked([arrays[name] for name in names], spatial)
    check(zarrfeed.open(group).stack(names, spatial_axes=spatial), wanted, num_threads=2)
    check(zarrfeed.open(memory).stack(names, spatial_axes=spatial), wanted)
    windows = zarrfeed.open(group).window((-1, 0, 2)).stack(names, spatial_axes=spatial)
    picked = ZarrDataset(windows)[[5, 0, 5]]
    np.testing.assert_array_equal(picked, np.stack([wanted[[i - 1, i, i + 2]] for i in (6, 1, 6)]))


@pytest.fixture
def group() -> zarr.Group:
    """Make arrays whose values are distinct in each sample, level and variable."""
    made = zarr.create_group({})
    for name, shape, chunks, dtype in (
        ("t2m", (N, 4, 8), (3, 2, 8), "f4"),
        ("t", (N, 3, 4, 8), (4, 3, 4, 8), "f4"),
        ("p", (N, 4, 8), (20, 4, 8), "i2"),
        ("tp", (N, 4, 8), (5, 4, 8), "f4"),
    ):
        dims = ("time", "level", "lat", "lon") if len(shape) == 4 else ("time", "lat", "lon")
        array = made.create_array(name, shape=shape, chunks=chunks, dtype=dtype, dimension_names=dims)
        array[...] = np.arange(np.prod(shape)).reshape(shape) % 30000
    return made


def values_of(group: zarr.Group, *names: str) -> list[AnyArray]:
    return [np.asarray(group[name][...]) for name in names]  # type: ignore[index]


def test_each_array_keeps_its_cast_and_its_normalisation(group: zarr.Group) -> None:
    t2m, t, p = values_of(group, "t2m", "t", "p")
    levels, point = np.arange(3.0), np.linspace(1, 2, 32).reshape(1, 4, 8)
    data = zarrfeed.open(group, variables=["t2m", "t", "p"]).cast("float32")
    data = data.normalize({"p": (3, 7), "t2m": (0, point)}).normalize({"t": (levels, 2)}, axis="level")
    parts = [(p.astype("f4") - np.float32(3)) / np.float32(7)]
    parts += [(t - levels.astype("f4")[:, None, None]) / np.float32(2), t2m / point.astype("f4")]
    check(data.stack(["p", "t", "t2m"]), stacked(parts, 2))


def test_other_arrays_stay_beside_it_and_targets_are_stacked_too(group: zarr.Group) -> None:
    t2m, t, tp = values_of(group, "t2m", "t", "tp")
    data = zarrfeed.open(group, group, variables={"samples": ["t2m", "tp", "t"], "targets": ["t", "tp"]})
    data = data.select(slice(10, None)).static(mask=np.eye(2))
    with pytest.raises(ConfigError, match="'t', 'tp' are in samples and in targets"):
        data.stack(["t", "tp"])
    both = zarrfeed.open({"a": t2m, "b": tp, "c": t}, {"d": t, "e": tp}).stack(["c", "a"], name="x").stack(["e", "d"])
    both = both.static(mask=np.eye(2)).time_features("hour", coords=np.zeros(N, "M8[s]"))
    samples, targets = ZarrDataset(both)[[7, 3]]
    assert list(samples) == ["b", "x", "time_features", "mask"]
    np.testing.assert_array_equal(samples["x"], stacked([t, t2m], 2)[[7, 3]])
    np.testing.assert_array_equal(samples["b"], tp[[7, 3]])
    np.testing.assert_array_equal(targets, stacked([tp, t], 2)[[7, 3]])
    alone = zarrfeed.open({"a": t2m, "b": tp}).stack(["b", "a"])
    assert ZarrDataset(alone)[0].shape == (2, 4, 8)
    assert list(ZarrDataset(alone.static(mask=1))[0]) == ["samples", "mask"]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_workers_write_it_into_shared_memory(group: zarr.Group) -> None:
    wanted = stacked(values_of(group, "tp", "t"), 2)
    data = zarrfeed.open({"tp": group["tp"], "t": wanted[:, 1:]}).stack(["tp", "t"])
    dataset = ZarrIterableDataset(data, batch_size=6, shuffle=True, return_index=True)
    seen = []
    for batch, index in ZarrDataLoader(dataset, num_workers=2, timeout=240):
        np.testing.assert_array_equal(batch, wanted[index.numpy()])
        seen += index.tolist()
    assert sorted(seen) == list(range(N))


def test_a_resumed_epoch_delivers_the_rest(group: zarr.Group) -> None:
    data = zarrfeed.open(group, variables=["t", "tp"]).stack(["tp", "t"])
    with ZarrIterableDataset(data, batch_size=4, shuffle=True) as whole:
        batches = list(whole)
        passes = iter(whole)
        first = [next(passes) for _ in range(3)]
        state = whole.state_dict()
        rest = list(passes)
    assert len(batches) == len(first) + len(rest)
    with ZarrIterableDataset(data, batch_size=4, shuffle=True) as dataset:
        dataset.load_state_dict(state)
        assert all(torch.equal(a, b) for a, b in zip(dataset, rest, strict=True))


def test_a_sample_that_is_replaced_is_replaced_in_all_channels(tmp_path: Path) -> None:
    """A chunk of one array is damaged: the rows of the other arrays are exchanged with it."""
    group = zarr.create_group(tmp_path / "a.zarr")
    for name, rows in (("a", 4), ("b", 8)):
        array = group.create_array(name, shape=(N, 5), chunks=(rows, 5), dtype="f4")
        array[...] = np.broadcast_to(np.arange(N)[:, None], (N, 5))
    (tmp_path / "a.zarr" / "a" / "c" / "2" / "0").write_bytes(b"damaged")
    data = zarrfeed.open(tmp_path / "a.zarr").stack(["a", "b"])
    options: dict[str, Any] = {"faults": {"on_error": "skip"}, "return_index": True}
    with (
        pytest.warns(zarrfeed.ChunkSkippedWarning),
        ZarrIterableDataset(data, batch_size=8, shuffle=True, **options) as dataset,
    ):
        batches = list(dataset)
    batch, index = (torch.cat(parts) for parts in zip(*batches, strict=True))
    assert not set(index.tolist()) & {8, 9, 10, 11}
    np.testing.assert_array_equal(batch, np.broadcast_to(index.numpy()[:, None, None], (N, 2, 5)))


def test_it_is_said_printed_pickled_and_compared(group: zarr.Group) -> None:
    data = zarrfeed.open(group, variables=["t2m", "t", "tp"]).stack(["t", "tp"], name="x")
    assert repr(data).endswith(".stack(['t', 'tp'], name='x')")
    assert [(f.name, f.shape, f.channels) for f in data.fields] == [
        ("t2m", (4, 8), ()),
        ("x", (4, 4, 8), ("t[0]", "t[1]", "t[2]", "tp")),
    ]
    assert pickle.loads(pickle.dumps(data)) == data
    assert data != zarrfeed.open(group, variables=["t2m", "t", "tp"]).stack(["tp", "t"], name="x")
    assert "channels 0:3 of 4 of x" in data._repr_html_()
    with ZarrIterableDataset(data, batch_size=2) as dataset:
        page = str(dataset.explain())
        assert "stacked: channels 0:3 of 4 of x" in page
        assert "stacked: channel 3 of 4 of x" in page
        assert "'x': (4, 4, 8) float32" in repr(dataset)
    assert list(zarrfeed.stats(data).fields) == ["t2m", "t", "tp"]


def test_a_data_loader_takes_a_map_style_dataset(group: zarr.Group) -> None:
    wanted = stacked(values_of(group, "t", "tp"), 2)
    dataset = ZarrDataset(zarrfeed.open(group, variables=["t", "tp"]).stack(["t", "tp"]))
    loader: Any = torch.utils.data.DataLoader(dataset, batch_size=9)
    np.testing.assert_array_equal(torch.cat(list(loader)), wanted)
    assert dataset[[]].shape == (0, 4, 4, 8)
    np.testing.assert_array_equal(dataset[3], wanted[3])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda d: d.stack([]), r"names = \[\], must be a list of names"),
        (lambda d: d.stack("t"), "names = 't', must be a list of names"),
        (lambda d: d.stack(["t2"]), "stack names 't2', must be one of .*did you mean"),
        (lambda d: d.stack(["t", "t"]), "'t' is named twice"),
        (lambda d: d.stack(["t", "tp"]).stack(["tp", "t2m"], name="y"), "'tp' is named twice"),
        (lambda d: d.stack(["t", "tp"], name="t2m"), "have an array 't2m'; give the tensor another name"),
        (lambda d: d.static(x=1).stack(["t", "tp"], name="x"), "have an array 'x'"),
        (lambda d: d.stack(["t", "tp"], name="x").static(x=1), "have an array of this name"),
        (lambda d: d.stack(["t"], name="x").stack(["tp"], name="x"), "have an array 'x'"),
        (lambda d: d.stack(["t", "tp"], name=3), "name = 3, must be a str"),
        (lambda d: d.stack(["t", "tp"], spatial_axes=-1), "spatial_axes = -1, must be at least 0"),
        (lambda d: d.stack(["t", "tp"], spatial_axes=3), "spatial_axes = 3, must be at most 2"),
        (lambda d: d.stack(["t", "p"]), "p.* is int16, .* is float32: cast"),
        (lambda d: d.stack(["t", "tp"]).cast({"t": "float16"}), "float16.*cast"),
        (lambda d: d.stack(["t", "tp"]).window({"t": (0, 1), "tp": (0,)}), "have different lengths"),
        (lambda _: zarrfeed.open(np.zeros(3)).stack(["x"]), "must be one of none, as they have no names"),
        (
            lambda d: zarrfeed.concat([d.stack(["t", "tp"]), d]),
            r"call stack\(\) after zarrfeed.concat\(\)",
        ),
        (
            lambda d: zarrfeed.join({"a": d.stack(["t", "tp"]), "b": d}),
            r"'a' has a stack; stack arrays of the result: zarrfeed.join\(...\).stack\(...\)",
        ),
        (
            lambda _: zarrfeed.open({"a": np.zeros((3, 4)), "b": np.zeros((3, 5))}).stack(["a", "b"]),
            r"ends with the axes \(5,\), one of .* with \(4,\): they must be equal, or spatial_axes \(now 1\) smaller",
        ),
    ],
)
def test_what_cannot_be_stacked_is_refused(make: Any, message: str, group: zarr.Group) -> None:
    with pytest.raises(ConfigError, match=message):
        make(zarrfeed.open(group))


def test_many_stores_of_different_layouts_are_stacked(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values: dict[str, list[AnyArray]] = {"a": [], "b": []}
    paths = []
    for number, rows in enumerate((4, 7, 3)):
        group = zarr.create_group(tmp_path / f"{number}.zarr")
        count = 10 + 3 * number
        for name, shape in (("a", (count, 4, 6)), ("b", (count, 2, 4, 6))):
            array = rng.integers(0, 1000, shape)
            chunks = (rows, *shape[1:-1], 3 + number)
            group.create_array(name, shape=shape, chunks=chunks, dtype="f4")[...] = array
            values[name].append(array.astype("f4"))
        group.create_array("mask", shape=(4, 6), dtype="f4")[...] = number
        paths.append(tmp_path / f"{number}.zarr")
    a, b = (np.concatenate(values[name]) for name in ("a", "b"))
    data = zarrfeed.open(paths, variables=["a", "b"])
    wanted = stacked([b, a], 2)
    check(data.stack(["b", "a"]), wanted)
    samples = ZarrDataset(data.stack(["b", "a"]).static("mask"))[[30, 2]]  # of the first store
    np.testing.assert_array_equal(samples["samples"], wanted[[30, 2]])
    np.testing.assert_array_equal(samples["mask"], np.zeros((2, 4, 6)))


def test_windows_that_are_padded_are_stacked_with_one_mask(group: zarr.Group) -> None:
    wanted = stacked(values_of(group, "tp", "t"), 2)
    data = zarrfeed.open(group, variables=["t2m", "t", "tp"]).window((-2, 0), pad="edge", mask=True)
    data = data.stack(["tp", "t"], name="x")
    batch = ZarrDataset(data)[[0, 1, 9]]
    np.testing.assert_array_equal(batch["x"], wanted[[[0, 0], [0, 1], [7, 9]]])
    assert set(batch) == {"t2m", "x", "t2m_is_pad", "x_is_pad"}
    assert batch["x_is_pad"].tolist() == [[True, False], [True, False], [False, False]]
    assert {f.name for f in data.fields} == set(batch)


def test_the_axes_of_patches_are_no_channels(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "g")
    volume = np.arange(12 * 10 * 9, dtype="i4").reshape(12, 10, 9)
    for name, shift in (("t1", 0), ("t2", 5000)):
        group.create_array(name, data=volume + shift, chunks=(5, 4, 9))
    group.create_array(
        "both", data=np.stack([volume, -volume]), chunks=(1, 5, 10, 3), dimension_names=("c", "z", "y", "x")
    )
    group.create_array("last", data=np.stack([volume, -volume], axis=-1), chunks=(5, 5, 9, 1))
    data = zarrfeed.open(tmp_path / "g", variables=["t1", "t2"]).patch({0: 4, 1: 3, 2: 5}).stack(["t1", "t2"])
    assert data.channels == {"samples": ("t1", "t2")}
    for batch in zarrfeed.ZarrIterableDataset(data, batch_size=3, shuffle=True):
        assert batch.shape[1:] == (2, 4, 3, 5)
        inside = batch[:, 0] > 0
        assert (batch[:, 1][inside] - batch[:, 0][inside] == 5000).all()
    cut = zarrfeed.open(tmp_path / "g", variables=["both"], sample_dim="z").patch({"z": 4, "y": 3, "x": 5})
    batch = next(iter(zarrfeed.ZarrIterableDataset(cut.stack(["both"]), batch_size=3)))
    assert batch.shape == (3, 2, 4, 3, 5)
    last = zarrfeed.open(tmp_path / "g", variables=["last"]).patch({0: 4, 1: 3, 2: 5})
    with pytest.raises(zarrfeed.ConfigError, match="behind axes that patches"):
        last.stack(["last"])
