"""`Data.drop_missing` against NumPy: samples and windows with few enough missing values; samples hold their index."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import zarr

import zarrfeed
from zarrfeed import ConfigError, Data, UnsupportedError, ZarrDataset, ZarrIterableDataset

N = 60
rng = np.random.default_rng(7)
#: NaN in some values; fill values in others; a row each store without any.
FLOATS = np.where(rng.random((N, 4)) < 0.12, np.nan, rng.random((N, 4))).astype("f4")
PACKED = np.where(rng.random((N, 3)) < 0.08, -1, rng.integers(0, 9, (N, 3))).astype("i2")
FLOATS[10:14] = np.nan


def missing(name: str) -> Any:
    return np.isnan(FLOATS) if name == "x" else PACKED == -1


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder, made = tmp_path_factory.mktemp("missing"), []
    for number, (begin, end) in enumerate(pairwise((0, 23, N))):
        group = zarr.create_group(folder / f"{number}.zarr")
        fills = {"_FillValue": -1}
        for name, values in (("x", FLOATS), ("p", PACKED)):
            group.create_array(
                name,
                data=values[begin:end],
                chunks=(5, 2),
                dimension_names=("time", name),
                attributes=dict(fills) if name == "p" else {},
            )
        group.create_array("i", data=np.arange(begin, end), chunks=(5,), dimension_names=("time",))
        made.append(str(folder / f"{number}.zarr"))
    return made


def opened(stores: list[str]) -> Data:
    return zarrfeed.open(stores, variables=["x", "p", "i"], sample_dim="time")


def index_of(data: Data) -> list[int]:
    index = ZarrDataset(data, return_index=True)[list(range(len(data)))][1]
    return list(map(int, index))


@pytest.mark.parametrize("max_share", [0, 0.25, 0.5])
@pytest.mark.parametrize("field", ["x", "p", None])
def test_samples_with_few_missing_values_stay(stores: list[str], field: str | None, max_share: float) -> None:
    names = ["x", "p"] if field is None else [field]
    wanted = np.logical_and.reduce([missing(name).mean(1) <= max_share for name in names])
    data = opened(stores)
    kept = data.drop_missing(field, max_share=max_share)
    assert index_of(kept) == np.flatnonzero(wanted).tolist()
    later = data.select(slice(5, 50)).log1p().fill_nan(0).drop_missing(field, max_share=max_share)
    assert index_of(later) == [one for one in np.flatnonzero(wanted) if 5 <= one < 50]
    assert pickle.loads(pickle.dumps(kept)) == kept
    with ZarrIterableDataset(kept, batch_size=4, shuffle=True, rank=0, world_size=2, even="off") as dataset:
        found = [int(i) for batch in dataset for i in batch["i"]]
        left_out = f"{N - wanted.sum()} of {N} samples left out"
        assert wanted.all() or left_out in str(dataset.explain())
    assert set(found) < set(np.flatnonzero(wanted).tolist())


@pytest.mark.parametrize(("pad", "value"), [(None, 0), ("edge", 0), (0.0, 0), ("nan", 1)])
def test_windows_with_few_missing_values_stay(stores: list[str], pad: Any, value: int) -> None:
    offsets, share = (-1, 0, 2), 0.2
    begins, ends = np.repeat([0, 23], [23, N - 23]), np.repeat([23, N], [23, N - 23])
    at = np.arange(N)[:, None] + np.array(offsets)
    outside = (at < begins[:, None]) | (at >= ends[:, None])
    near = missing("x")[np.clip(at, begins[:, None], ends[:, None] - 1)].mean(2)
    each = np.where(outside, value, near) if pad not in (None, "edge") else near
    wanted = (each.mean(1) <= share + 1e-12) & (~outside.any(1) | (pad is not None))
    data = opened(stores).window({"x": offsets}, pad=None if pad is None else {"x": pad}, gaps="ignore")
    kept = data.drop_missing("x", max_share=share)
    assert index_of(kept) == np.flatnonzero(wanted).tolist()
    assert index_of(data.normalize({"x": (1, 2)}).drop_missing("x", max_share=share)) == index_of(kept)
    parts = kept.split((0.5, 0.5), by="sample", gap=None)
    assert sorted(i for part in parts for i in index_of(part)) == index_of(kept)


def test_rows_left_out_before_windows_are_read_by_none(stores: list[str]) -> None:
    kept = opened(stores).drop_missing("p").window((0, 1), gaps="ignore", rows="selected")
    good = ~missing("p").any(1)
    wanted = [i for i in range(N - 1) if good[i] and good[i + 1] and i != 22]
    assert index_of(kept) == wanted


def test_nothing_missing_changes_nothing_and_all_missing_is_an_error(stores: list[str]) -> None:
    data = zarrfeed.open({"x": np.ones((6, 2), "f4"), "n": np.arange(6)})
    assert data.drop_missing().resolved.choice is data.resolved.choice
    refused: tuple[tuple[Callable[[], Any], str], ...] = (
        (lambda: data.drop_missing("n"), "int64 without a fill value"),
        (lambda: zarrfeed.open(np.arange(6)).drop_missing(), "nothing is missing"),
        (
            lambda: zarrfeed.open(np.full((4, 2), np.nan)).drop_missing(max_share=0.5),
            "all 4 samples have more",
        ),
        (lambda: data.drop_missing(max_share=-1), "max_share"),
        (lambda: data.weight(np.ones(6)).drop_missing(), "samples are weighted"),
    )
    for wrong, message in refused:
        with pytest.raises(ConfigError, match=message):
            wrong()
    with pytest.raises(UnsupportedError, match="drawn anew"):
        opened(stores).window({"x": (0, zarrfeed.lead(1, 3))}, gaps="ignore").drop_missing("x")


def test_a_join_lacks_rows_where_they_are_missing() -> None:
    hours = np.arange(8)
    a = zarrfeed.open({"x": np.arange(8, dtype="f4")})
    b = zarrfeed.open({"y": np.arange(4, dtype="f4")})
    joined = zarrfeed.join({"a": a, "b": b}, on="t", how="outer", coords={"a": hours, "b": hours[::2]}, missing="nan")
    assert len(joined) == 8
    assert len(joined.drop_missing()) == 4
