"""Arrays in groups of a group, by the paths that `variables=` gives; every sample holds its own index."""

from __future__ import annotations

import errno
import re
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import LocalStore

import zarrfeed
from zarrfeed import ConfigError, UnsupportedError, ZarrIterableDataset

N = 23
#: Path -> an offset to the index that the values have.
ARRAYS = {"s1/x": 0, "s1/y": 100, "s2/x": 200, "deep/er/z": 300}


def write(path: Path, zarr_format: Any = 3) -> Path:
    root = zarr.create_group(path, zarr_format=zarr_format)
    for number, (name, offset) in enumerate(ARRAYS.items()):
        names: Any = {"dimension_names": ("time", "c")} if zarr_format == 3 else {}
        array = root.create_array(name, shape=(N, 2), chunks=(3 + number, 2), dtype="i4", **names)
        array[:] = np.arange(N)[:, None] + offset
    names = {"dimension_names": ("time",)} if zarr_format == 3 else {}
    root.create_array("s1/time", data=np.arange(N) * 6, attributes={"units": "hours since 2015-01-01"}, **names)
    return path


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return write(tmp_path / "x.zarr")


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("is_consolidated", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_samples_are_those_of_the_arrays(
    zarr_format: Any, is_consolidated: bool, shuffle: bool, tmp_path: Path
) -> None:
    path = write(tmp_path / "x.zarr", zarr_format)
    if is_consolidated:
        zarr.consolidate_metadata(path)
    names = ["s2/x", "deep/er/z", "s1/y"]
    for given in (path, zarr.open_group(path, mode="r")):
        data = zarrfeed.open(given, variables=names)
        assert [field.name for field in data.fields] == names
        rows = []
        for batch in ZarrIterableDataset(data, batch_size=5, shuffle=shuffle, seed=1):
            assert list(batch) == names
            index = batch["s2/x"][:, 0] - 200
            for name in names:
                assert batch[name].tolist() == [[row + ARRAYS[name]] * 2 for row in index.tolist()]
            rows += index.tolist()
        assert sorted(rows) == list(range(N))


def test_arrays_of_the_group_itself_may_be_among_them(store: Path) -> None:
    zarr.open_group(store).create_array("top", data=np.arange(N))
    data = zarrfeed.open(store, variables=["top", "s1/x"])
    (batch,) = ZarrIterableDataset(data, batch_size=N)
    assert batch["top"].tolist() == batch["s1/x"][:, 0].tolist() == list(range(N))
    assert [field.name for field in zarrfeed.open(store).fields] == ["top"]


def test_methods_take_these_names(store: Path) -> None:
    data = zarrfeed.open(store, variables=["s1/x", "s2/x"], sample_dim="time")
    march = data.sel(time=slice("2015-01-02", "2015-01-03")).window({"s1/x": (0, 1)}).cast({"s2/x": "float64"})
    (batch,) = ZarrIterableDataset(march, batch_size=N)
    assert batch["s1/x"][:, :, 0].tolist() == [[row, row + 1] for row in range(4, 11)]
    assert batch["s2/x"][:, 0].tolist() == [200.0 + row for row in range(4, 11)]
    assert zarrfeed.stats(data)["s2/x"].mean == pytest.approx(200 + (N - 1) / 2)
    assert zarrfeed.verify(data).ok


def test_both_sides_of_a_batch_and_many_stores(store: Path) -> None:
    sides = {"samples": ["s1/x"], "targets": ["deep/er/z"]}
    both = zarrfeed.open([store, store], [store, store], variables=sides)
    read = [(x["s1/x"][:, 0], z["deep/er/z"][:, 0]) for x, z in ZarrIterableDataset(both, batch_size=5)]
    assert np.concatenate([x for x, _ in read]).tolist() == [*range(N)] * 2
    assert np.concatenate([z for _, z in read]).tolist() == [*range(300, 300 + N)] * 2


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (None, "groups in it, which depth=1 enters, or variables=['s1/time']: deep, s1, s2"),
        (["s1"], "is a group without arrays"),
        (["s1/x", "s1/q"], "'s1/q' is no array in samples; arrays in s1: s1/time, s1/x, s1/y"),
        (["s1/x", "s1/xx"], "did you mean 's1/x'?"),
        (["deep/er"], "'deep/er' is no array in samples; arrays in deep/er: deep/er/z"),
        (["deep/nowhere/z"], "'deep/nowhere/z' is no array in samples; groups in deep: deep/er"),
        (["s3/x"], "'s3/x' is no array in samples; groups: deep, s1, s2"),
        (["../x.zarr/s1/x"], "is no array in samples"),
        (["/s1/x"], "is no array in samples"),
        (["s1//x"], "is no array in samples"),
    ],
)
def test_other_names_are_refused(variables: list[str] | None, message: str, store: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        zarrfeed.open(store, variables=variables)


def test_an_array_that_is_damaged_is_an_error_with_its_path(store: Path) -> None:
    (store / "s1" / "x" / "zarr.json").write_text("{")
    with pytest.raises(zarrfeed.StoreReadError, match="s1/x"):
        zarrfeed.open(store, variables=["s1/x"])


def test_a_replay_buffer_is_named_from_its_data(tmp_path: Path) -> None:
    root = zarr.create_group(tmp_path / "buffer.zarr")
    root.create_array("data/state", data=np.arange(10))
    root.create_array("meta/episode_ends", data=np.array([4, 10]))
    assert len(zarrfeed.open(tmp_path / "buffer.zarr", variables=["state"]).window((0, 1))) == 8
    with pytest.raises(ConfigError, match="'data/state' is no array in samples; arrays: state"):
        zarrfeed.open(tmp_path / "buffer.zarr", variables=["data/state"])


def test_a_packed_store_has_no_groups(store: Path, tmp_path: Path) -> None:
    advice = r"'s1/x' lies in a group; give names of your own: zarrfeed.open\(\{'x': path of the array\}\)$"
    with pytest.raises(UnsupportedError, match=advice):
        zarrfeed.pack(zarrfeed.open(store, variables=["s1/x"]), tmp_path / "out.zarr")


@pytest.mark.parametrize(
    ("depth", "expected"), [(1, ["s1/x", "s1/y", "s2/x"]), (2, ["deep/er/z", "s1/x", "s1/y", "s2/x"]), (9, None)]
)
def test_all_data_variables_to_a_depth(depth: int, expected: list[str] | None, store: Path) -> None:
    expected = expected or ["deep/er/z", "s1/x", "s1/y", "s2/x"]
    for given in (store, zarr.open_group(store, mode="r")):
        data = zarrfeed.open(given, depth=depth, sample_dim="time")
        assert [field.name for field in data.fields] == expected
        assert data == zarrfeed.open(given, depth=depth, sample_dim="time")
        (batch,) = ZarrIterableDataset(data, batch_size=N)
        for name in expected:
            assert batch[name][:, 0].tolist() == [row + ARRAYS[name] for row in range(N)]
    assert str(data).endswith(f"sample_dim='time', depth={depth})")


def test_its_own_arrays_come_first_and_those_without_the_sample_dimension_are_left_out(store: Path) -> None:
    root = zarr.open_group(store)
    root.create_array("top", data=np.arange(N), dimension_names=("time",))
    root.create_array("s2/static", data=np.arange(4), dimension_names=("c",))
    names = [field.name for field in zarrfeed.open(store, depth=1, sample_dim="time").fields]
    assert names == ["top", "s1/x", "s1/y", "s2/x"]
    with pytest.raises(ConfigError, match="they must be equal; give sample_dim='time'"):
        zarrfeed.open(store, depth=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": 1, "variables": ["s1/x"]}, "give neither variables= nor multiscale="),
        ({"depth": -1}, "depth = -1"),
        ({"depth": True}, "depth = True"),
        ({"depth": 1, "sample_dim": "tiem"}, "there is no data variable with the dimension 'tiem' in samples"),
    ],
)
def test_depths_that_are_refused(options: dict[str, Any], message: str, store: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        zarrfeed.open(store, **options)
    with pytest.raises(ConfigError, match="depth = 1: samples must be a group"):
        zarrfeed.open(store / "s1" / "x", depth=1)


def test_groups_of_kinds_that_are_no_fields_are_refused(store: Path) -> None:
    zarr.open_group(store).create_group("cells", attributes={"encoding-type": "anndata"})
    with pytest.raises(ConfigError, match="cells: is AnnData"):
        zarrfeed.open(store, depth=1)


class Unsteady(LocalStore):
    """A store that counts the listings of each folder, the first of which fails."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, read_only=True)
        self.listings: Counter[str] = Counter()

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        self.listings[prefix] += 1
        if self.listings[prefix] == 1:
            raise ConnectionResetError(errno.ECONNRESET, "on purpose")
        async for name in super().list_dir(prefix):
            yield name

    def below_root(self) -> dict[str, int]:
        """Return the counts of all folders but the root, whose arrays any description knows: it is listed before."""
        return {path: count for path, count in self.listings.items() if path}


def test_each_group_of_a_store_that_fails_once_is_listed_once_more(store: Path) -> None:
    unsteady = Unsteady(store)
    data = zarrfeed.open(unsteady, depth=2, retries=1)
    assert [field.name for field in data.fields] == ["deep/er/z", "s1/x", "s1/y", "s2/x"]
    assert unsteady.below_root() == dict.fromkeys(["s1", "deep", "deep/er", "s2"], 2)


def test_the_error_for_a_path_lists_a_group_once(store: Path) -> None:
    unsteady = Unsteady(store)
    with pytest.raises(ConfigError, match=re.escape("groups in deep: deep/er")):
        zarrfeed.open(unsteady, variables=["deep/re"], retries=1)
    assert unsteady.below_root() == {"deep": 2}
