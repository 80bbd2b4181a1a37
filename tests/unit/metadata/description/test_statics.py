"""`Data.static`: arrays without a sample axis that each batch has as a view of one tensor."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
import xarray
import zarr

import zarrfeed
from tests.support.oracle import AnyArray
from zarrfeed import ConfigError, UnsupportedError, ZarrDataLoader, ZarrDataset, ZarrIterableDataset


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Write a store with xarray: samples are their own index; a mask, a packed orography, and what cannot be."""
    rng = np.random.default_rng(0)
    orography = rng.normal(500, 300, (5, 7))
    orography[1, 2] = np.nan
    dataset = xarray.Dataset(
        {
            "t2m": (("time", "lat", "lon"), np.broadcast_to(np.arange(20.0)[:, None, None], (20, 5, 7)).astype("f4")),
            "lsm": (("lat", "lon"), rng.random((5, 7)) < 0.5),
            "z": (("lat", "lon"), orography),
            "level_height": (("level",), np.arange(3.0)),
            "name": (("lat",), np.array(list("abcde"), dtype=object)),
            "scalar": ((), 3.5),
        },
        {"time": np.arange(20), "lat": np.arange(5.0)},
    )
    packed = {"dtype": "int16", "scale_factor": 0.1, "add_offset": 500.0, "_FillValue": -32768, "chunks": (2, 3)}
    path = tmp_path / "a.zarr"
    encoding = {"z": packed, "t2m": {"chunks": (3, 5, 7)}}
    dataset.to_zarr(path, encoding=encoding, consolidated=False)
    return path


def opened(store: Path) -> zarrfeed.Data:
    return zarrfeed.open(store, sample_dim="time", variables=["t2m"])


def values_of(store: Path) -> dict[str, AnyArray]:
    decoded = xarray.open_zarr(store, consolidated=False)
    return {"lsm": decoded.lsm.values, "z": decoded.z.values.astype("f4"), "level_height": decoded.level_height.values}


def check(batch: dict[str, torch.Tensor], expected: dict[str, AnyArray], index: AnyArray) -> None:
    """Compare a batch, whose samples are their own index, with what xarray reads."""
    np.testing.assert_array_equal(batch["t2m"][:, 0, 0], index)
    for name, values in expected.items():
        assert batch[name].dtype == torch.from_numpy(values).dtype
        np.testing.assert_array_equal(batch[name], np.broadcast_to(values, (len(index), *values.shape)))
        assert batch[name].stride(0) == 0  # one tensor, and no copies


def test_batches_have_views_of_one_tensor_as_xarray_decodes_it(store: Path) -> None:
    expected = values_of(store)
    data = opened(store).static("lsm", "z").static("level_height")
    addresses = set()
    with ZarrIterableDataset(data, batch_size=6, shuffle=True, return_index=True) as dataset:
        for _ in range(2):
            for batch, index in dataset:
                check(batch, expected, index.numpy())
                addresses.add(batch["z"].data_ptr())
    assert len(addresses) == 1
    with ZarrIterableDataset(data) as dataset:
        for number, sample in enumerate(dataset):
            assert sample["t2m"][0, 0] == number
            assert sample["z"].shape == (5, 7)
            np.testing.assert_array_equal(sample["z"], expected["z"])


def test_decode_cf_of_open_holds_for_static_arrays_too(store: Path) -> None:
    data = zarrfeed.open(store, sample_dim="time", variables=["t2m"], decode_cf=False).static("z")
    stored = zarr.open_array(store / "z", mode="r")[...]
    np.testing.assert_array_equal(ZarrDataset(data)[0]["z"], np.asarray(stored))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_map_style_dataset_has_them_in_samples_and_batches(num_workers: int, store: Path) -> None:
    expected = values_of(store)
    dataset = ZarrDataset(opened(store).static("lsm", "z", "level_height"))
    assert dataset[3]["z"].shape == (5, 7)
    np.testing.assert_array_equal(dataset[3]["z"], expected["z"])
    check(dataset[[4, 2, 2]], expected, np.array([4, 2, 2]))
    assert dataset[[]]["z"].shape == (0, 5, 7)
    loader: Any = torch.utils.data.DataLoader(dataset, batch_size=8, num_workers=num_workers, timeout=240 * num_workers)
    seen = []
    for batch in loader:
        seen.append(batch["t2m"][:, 0, 0])
        check(batch, expected, seen[-1].numpy())
    assert torch.equal(torch.cat(seen), torch.arange(20.0))


@pytest.mark.parametrize("context", ["fork", "forkserver"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_workers_send_them_without_copies(context: str, store: Path) -> None:
    expected = values_of(store)
    data = opened(store).static("lsm", "z", level_height=store / "level_height", mask=torch.arange(3))
    dataset = ZarrIterableDataset(data, batch_size=3, shuffle=True, seed=1, return_index=True)
    loader = ZarrDataLoader(dataset, num_workers=2, multiprocessing_context=context, timeout=240)
    seen = []
    for batch, index in loader:
        check(batch, expected | {"mask": np.arange(3)}, index.numpy())
        seen += index.tolist()
    assert sorted(seen) == list(range(20))


def test_order_and_states_are_those_without_them(store: Path) -> None:
    """Ranks, workers and resuming know nothing of static arrays."""
    plain, data = opened(store), opened(store).static("lsm")
    for rank in range(2):
        options: dict[str, Any] = {
            "batch_size": 3,
            "shuffle": True,
            "rank": rank,
            "world_size": 2,
            "return_index": True,
        }
        with ZarrIterableDataset(plain, **options) as one, ZarrIterableDataset(data, **options) as other:
            for (_, index), (_, same) in zip(one, other, strict=True):
                assert torch.equal(index, same)
                assert one.state_dict() == other.state_dict()
            passes = iter(one)
            next(passes)
            other.load_state_dict(one.state_dict())
            assert [i.tolist() for _, i in passes] == [i.tolist() for _, i in other]


def test_a_single_array_becomes_a_dict_with_it() -> None:
    data = zarrfeed.open(np.arange(6.0), np.arange(6)).static(scale=2.5, grid=np.eye(2, dtype="f4"))
    with ZarrIterableDataset(data, batch_size=4, return_index=True) as dataset:
        (samples, targets, _), _ = dataset
        assert list(samples) == ["samples", "scale", "grid"]
        assert samples["scale"].tolist() == [2.5] * 4
        assert samples["grid"].shape == (4, 2, 2)
        assert targets.tolist() == [0, 1, 2, 3]
    text = zarr.create_array({}, shape=(6,), chunks=(2,), dtype=str)
    text[...] = np.array(list("abcdef"))
    with ZarrIterableDataset(zarrfeed.open(text).static(x=1), batch_size=6) as dataset:
        (batch,) = dataset
    assert batch["samples"] == list("abcdef")
    assert batch["x"].tolist() == [1] * 6


def test_records_have_them_beside_their_members() -> None:
    records = np.array([(1, 2.0), (3, 4.0), (5, 6.0)], dtype=[("a", "i4"), ("b", "f8")])
    dataset = ZarrDataset(zarrfeed.open(records).static(x=np.arange(3)))
    assert dataset[1]["samples"]["a"] == 3
    loader: Any = torch.utils.data.DataLoader(dataset, batch_size=3)
    (batch,) = loader
    assert batch["samples"]["b"].tolist() == [2, 4, 6]
    assert batch["x"].shape == (3, 3)
    assert dataset[[0]]["x"].shape == (1, 3)


def test_they_are_said_printed_pickled_and_compared(store: Path) -> None:
    mask = np.ones((5, 7), "f4")
    data = opened(store).static("lsm", mask=mask)
    assert repr(data).endswith(".static('lsm', mask=<numpy.ndarray (5, 7) float32>)")
    assert [(f.name, f.shape, f.dtype, f.is_static) for f in data.fields] == [
        ("t2m", (5, 7), "float32", False),
        ("lsm", (5, 7), "bool", True),
        ("mask", (5, 7), "float32", True),
    ]
    again = pickle.loads(pickle.dumps(data))
    assert again == data
    assert data == opened(store).static("lsm", mask=mask.copy())
    assert data != opened(store).static("lsm", mask=mask + 1)
    assert "one tensor for all samples" in data._repr_html_()
    with ZarrIterableDataset(again, batch_size=2) as dataset:
        page = str(dataset.explain())
        assert re.search(rf"^lsm +{store}/lsm: \(5, 7\) bool, one tensor for all samples$", page, re.MULTILINE)
        assert re.search(r"^mask +in memory: \(5, 7\) float32, one tensor for all samples$", page, re.MULTILINE)
        assert "'lsm': (5, 7) bool, static" in repr(dataset)
        assert "one tensor for all samples" in dataset._repr_html_()
    map_style = pickle.loads(pickle.dumps(ZarrDataset(data)))
    assert map_style[0]["mask"].sum() == 35
    assert "'mask': (5, 7) float32, static" in repr(map_style)
    assert "one tensor for all samples" in map_style._repr_html_()


def test_other_methods_keep_them_and_leave_them_alone(store: Path) -> None:
    data = opened(store).static("z").select(slice(2, None)).window((0, 1)).normalize((3, 2)).cast("float16")
    train, _ = data.split((0.5, 0.5), by="contiguous")
    sample = ZarrDataset(train)[0]
    assert (sample["t2m"].dtype, sample["z"].dtype) == (torch.float16, torch.float32)
    np.testing.assert_array_equal(sample["z"], values_of(store)["z"])
    assert list(zarrfeed.stats(train).fields) == ["t2m"]


def test_in_pinned_batches_they_lie_in_pinned_memory(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pins = []

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        pins.append(tensor.shape)
        return tensor.clone()

    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda _: True)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    with ZarrIterableDataset(opened(store).static("z"), batch_size=4, pin_memory=False) as dataset:
        assert len({batch["z"].data_ptr() for batch in dataset}) == 1
    assert pins == [(5, 7)]


def test_a_store_that_grows_has_them_in_every_version(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "a.zarr")
    group.create_array("x", shape=(4,), chunks=(2,), dtype="f4", dimension_names=("time",))[...] = np.arange(4)
    group.create_array("grid", shape=(3,), dtype="f4", dimension_names=("lat",))[...] = np.arange(3)
    data = zarrfeed.open(tmp_path / "a.zarr", sample_dim="time", variables=["x"], refresh="epoch").static("grid")
    group["x"].append(np.arange(4, 8, dtype="f4"))  # type: ignore[union-attr]
    with ZarrIterableDataset(data, batch_size=8) as dataset:
        (batch,) = dataset
    np.testing.assert_array_equal(batch["x"], np.arange(8))
    np.testing.assert_array_equal(batch["grid"], np.broadcast_to(np.arange(3), (8, 3)))


def test_a_damaged_chunk_is_an_error_when_the_dataset_is_made(store: Path) -> None:
    (store / "z" / "c" / "1" / "1").write_bytes(b"damaged")
    data = opened(store).static("z")
    for make in (
        lambda: ZarrIterableDataset(data, batch_size=2, faults={"on_error": "skip"}),
        lambda: ZarrDataset(data),
    ):
        with pytest.raises(zarrfeed.CorruptChunkError, match=r"z chunk c/1/1"):
            make()


@pytest.mark.parametrize(
    ("names", "arrays", "error", "message"),
    [
        ((), {}, ConfigError, "needs the name of an array, or name=array"),
        ((3,), {}, ConfigError, "got a int, must be a name"),
        (("lsm", "lsm"), {}, ConfigError, "'lsm' is named twice"),
        (("lsm",), {"lsm": 1}, ConfigError, "'lsm' is named twice"),
        (("lsn",), {}, ConfigError, "no array 'lsn' lies beside the arrays of the samples"),
        (("t2m",), {}, ConfigError, "has the sample dimension 'time', so it differs from sample to sample"),
        (("time",), {}, ConfigError, "has the sample dimension 'time'"),
        (("scalar",), {}, ConfigError, "is a scalar; give its value, scalar="),
        (("name",), {}, UnsupportedError, "static 'name': has items of .*, must have numbers"),
        ((), {"t2m": 1}, ConfigError, "the samples already have an array of this name"),
        ((), {"x": None}, ConfigError, "static 'x': got a NoneType"),
        ((), {"x": [1, 2]}, ConfigError, "static 'x': got a list"),
        ((), {"x": np.array(["a"])}, UnsupportedError, "no torch equivalent"),
        ((), {"x": np.zeros(0)}, ConfigError, "must have numbers"),
        ((), {"x": np.zeros(2, [("a", "i4")])}, ConfigError, "must have numbers"),
        ((), {"x": "no-such-store.zarr"}, (ConfigError, zarrfeed.StoreReadError), "no-such-store"),
    ],
)
def test_what_cannot_be_static_is_refused(
    names: tuple[Any, ...], arrays: dict[str, Any], error: Any, message: str, store: Path
) -> None:
    with pytest.raises(error, match=message):
        opened(store).static(*names, **arrays)


def test_a_name_is_taken_once(store: Path) -> None:
    with pytest.raises(ConfigError, match="the samples already have an array of this name"):
        opened(store).static("lsm").static(lsm=1)
    with pytest.raises(ConfigError, match="the samples already have an array of this name"):
        zarrfeed.open(np.arange(3)).static(samples=1)
    with pytest.raises(ConfigError, match="no array 'lsm' lies beside"):
        zarrfeed.open(np.arange(3)).static("lsm")
