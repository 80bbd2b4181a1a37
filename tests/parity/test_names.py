"""Names of codes: labels, conditions and categories by name, against NumPy; samples hold their own index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import zarrfeed
from zarrfeed import ConfigError, Data, ZarrDataset
from zarrfeed.metadata.array.code_names import code_names

CODES = np.array([4, 1, 2, 2, 4, 1, 7], "i2")
FLAGS = {"flag_values": [1, 2, 4], "flag_meanings": "water land ice"}


def write(path: Path, attributes: dict[str, Any], codes: np.ndarray = CODES) -> str:
    group = zarr.create_group(path)
    group.create_array("x", data=np.arange(len(codes)), dimension_names=("time",))
    group.create_array("kind", data=codes, dimension_names=("time",), attributes=attributes)
    return str(path)


def opened(*paths: str) -> Data:
    return zarrfeed.open(list(paths) if len(paths) > 1 else paths[0], sample_dim="time", variables=["x", "kind"])


def index_of(data: Data) -> list[int]:
    return list(map(int, ZarrDataset(data)[list(range(len(data)))]["x"]))


def test_labels_and_text_of_conditions_may_be_names(tmp_path: Path) -> None:
    data = opened(write(tmp_path / "x.zarr", FLAGS))
    assert data.categories == {"kind": ("water", "land", "ice")}
    for found, wanted in (
        (data.sel(kind="ice"), [0, 4]),
        (data.sel(kind=["land", "water"]), [1, 2, 3, 5]),
        (data.sel(kind=7), [6]),
        (data.where("kind == 'ice' or x > 4"), [0, 4, 5, 6]),
        (data.where("kind in ['land', 'water']"), [1, 2, 3, 5]),
        (data.where("kind != 'ice'"), [1, 2, 3, 5, 6]),
        (data.where("kind == 4"), [0, 4]),
        (data.where(kind=lambda kind: kind == 2), [2, 3]),
        (data.select(slice(1, None)).sel(kind="ice"), [4]),
    ):
        assert index_of(found) == wanted
    with pytest.raises(ConfigError, match="'water', 'land', 'ice'; did you mean 'ice'"):
        data.sel(kind="icy")


def test_many_stores_share_names_only_where_these_agree(tmp_path: Path) -> None:
    first, same = write(tmp_path / "a.zarr", FLAGS), write(tmp_path / "b.zarr", FLAGS)
    assert len(opened(first, same).sel(kind="ice")) == 4
    known = opened(first).resolved.coordinate("kind")
    assert known.names == {1: "water", 2: "land", 4: "ice"}


def test_what_was_packed_has_its_names(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    kinds = np.array(["pick", "big place", "pick", "open"])
    pq.write_table(pa.table({"x": np.arange(4), "kind": pa.array(kinds).dictionary_encode()}), tmp_path / "x.parquet")
    zarrfeed.pack(tmp_path / "x.parquet", tmp_path / "x.zarr")
    data = zarrfeed.open(tmp_path / "x.zarr")
    assert set(data.categories["kind"]) == {*kinds}
    assert index_of(data.sel(kind="big place")) == [1]
    assert index_of(data.where("kind == 'pick'")) == [0, 2]


@pytest.mark.parametrize(
    ("attributes", "names"),
    [
        (FLAGS, {1: "water", 2: "land", 4: "ice"}),
        ({"names": ["a", "b"]}, {0: "a", 1: "b"}),
        (
            {"classes": ["big cat", "dog"], "flag_values": [0, 1], "flag_meanings": "big_cat dog"},
            {0: "big cat", 1: "dog"},
        ),
        ({"names": ["a", "b"], "flag_values": [3, 5]}, {3: "a", 5: "b"}),
        ({"flag_meanings": "a b"}, None),
        ({"flag_values": [1], "flag_meanings": "a b"}, None),
        ({"flag_values": [1, 1], "flag_meanings": "a b"}, None),
        ({"flag_values": [1, 2], "flag_meanings": "a a"}, None),
        ({"flag_values": "1 2", "flag_meanings": "a b"}, None),
        ({"names": "ab"}, None),
        ({"names": [1, 2]}, None),
        ({}, None),
    ],
)
def test_names_are_those_that_attributes_give_without_contradiction(attributes: Any, names: Any) -> None:
    assert code_names(attributes) == names


def test_figures_name_labels_and_units(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "a.zarr")
    names = ("time", "level")
    group.create_array("z", data=np.ones((7, 3)), dimension_names=names, attributes={"units": "K"})
    group.create_array("kind", data=CODES, dimension_names=names[:1], attributes=dict[str, Any](FLAGS))
    group.create_array("level", data=np.array([1000, 850, 500]), dimension_names=names[1:], attributes={"units": "hPa"})
    data = zarrfeed.open(tmp_path / "a.zarr", sample_dim="time", variables=["z", "kind"]).sel(level=[500, 1000])
    with zarrfeed.ZarrIterableDataset(data, batch_size=2) as dataset:
        found = [one.meaning for one in dataset.explain().fields]
    assert found == ["in K; level 500, 1000 hPa", "names of codes: water, land, ice"]
    zarrfeed.stats(data, axis="level", output=tmp_path / "s.json")
    page = str(zarrfeed.Statistics.load(tmp_path / "s.json"))
    assert "level 500 hPa: mean 1," in page
    assert "level 1000 hPa: mean 1," in page
