"""Objects become one Zarr store with the same contents, in the same order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zarrfeed
import zarrfeed.objects
from tests.support.objects import content, key_of, write_objects
from zarrfeed import ConfigError, CorruptChunkError
from zarrfeed.objects import to_zarr

N = 300


def write_arrays(folder: Path, count: int, shape: tuple[int, ...] = (3, 4)) -> Path:
    folder.mkdir()
    for i in range(count):
        np.save(folder / f"{i:05d}.npy", np.full(shape, i, np.float32))
    return folder


@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
def test_bytes_of_any_length(tmp_path: Path) -> None:
    group = to_zarr(write_objects(tmp_path / "in", N), tmp_path / "out.zarr", chunk=100, shard=1000)
    array: Any = group["objects"]
    assert array.chunks[0] > 1
    assert array.shards[0] > array.chunks[0]
    assert array[:].tolist() == [content(i) for i in range(N)]
    keys: Any = group["keys"]
    assert keys[:].tolist() == [key_of(i) for i in range(N)]
    with zarrfeed.ZarrIterableDataset(zarrfeed.open(group, variables=["objects"]), batch_size=50) as dataset:
        assert [one for batch in dataset for one in batch["objects"]] == [content(i) for i in range(N)]


def test_arrays_of_one_shape(tmp_path: Path) -> None:
    group = to_zarr(write_arrays(tmp_path / "in", N), tmp_path / "out.zarr", decode="npy", chunk=480, shard=4800)
    array: Any = group["objects"]
    assert (array.shape, array.chunks, array.shards) == ((N, 3, 4), (10, 3, 4), (100, 3, 4))
    assert np.array_equal(array[:, 0, 0], np.arange(N))
    with zarrfeed.ZarrIterableDataset(group, batch_size=64, shuffle=True, return_index=True) as dataset:
        for batch, index in dataset:
            assert np.array_equal(batch["objects"][:, 2, 3], index)
            assert batch["keys"] == [f"{i:05d}.npy" for i in index]


def test_what_is_there_stays(tmp_path: Path) -> None:
    source = write_objects(tmp_path / "in", 3)
    (tmp_path / "out.zarr").mkdir()
    with pytest.raises(FileExistsError, match="exists"):
        to_zarr(source, tmp_path / "out.zarr")
    assert list((tmp_path / "out.zarr").iterdir()) == []


def test_nothing_is_left_of_what_fails(tmp_path: Path) -> None:
    source = write_arrays(tmp_path / "in", 30)
    np.save(source / "00020.npy", np.zeros((3, 5), np.float32))
    with pytest.raises(ConfigError, match=r"00020\.npy: decode returned float32 of shape \(3, 5\)"):
        to_zarr(source, tmp_path / "out.zarr", decode="npy")
    (source / "00020.npy").write_bytes(b"cut")
    with pytest.raises(CorruptChunkError, match=r"00020\.npy: decode raised"):
        to_zarr(source, tmp_path / "out.zarr", decode="npy")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"chunk": "much"}, "chunk"),
        ({"shard": 0}, "shard"),
        ({"decode": lambda data: {"a": data}}, "decode returned a dict"),
        ({"decode": lambda data, key: key}, "decode returned a str"),  # noqa: ARG005
    ],
)
def test_bad_options(tmp_path: Path, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        to_zarr(write_objects(tmp_path / "in", 3), tmp_path / "out.zarr", **options)


def test_a_link_at_the_unfinished_store_leads_nothing_out(tmp_path: Path) -> None:
    source, home = tmp_path / "in", tmp_path / "home"
    source.mkdir()
    home.mkdir()
    (source / "a.bin").write_bytes(b"abc")
    (home / "thesis.tex").write_text("years of work")
    (tmp_path / ".out.zarr.unfinished").symlink_to(home)
    with pytest.raises(zarrfeed.ConfigError, match=r"\.out\.zarr\.unfinished: is a link, must be a folder"):
        zarrfeed.objects.to_zarr(source, tmp_path / "out.zarr")
    assert [one.name for one in home.iterdir()] == ["thesis.tex"]
