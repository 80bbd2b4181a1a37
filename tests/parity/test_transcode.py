"""Chunks that the node cache transcodes: equal to the source in every epoch, mode and kind of store, and never stale.

Samples encode their index: sample i is full of numbers that only it has.
"""

from __future__ import annotations

import itertools
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import zarr
from numcodecs import BZ2, Delta, Shuffle, Zlib, Zstd

import zarrfeed as zf
from zarrfeed import ConfigError

ROWS, WIDTH = 60, 2100
LONG_AGO = 1_000_000_000


def values(dtype: str = "f4") -> np.ndarray:
    rows = np.arange(ROWS)[:, None] * WIDTH + np.arange(WIDTH)
    return (rows / 4 if np.dtype(dtype).kind == "f" else rows).astype(dtype)


def _v2(path: Path, dtype: str = "f4", **options: Any) -> tuple[Path, dict[str, Any]]:
    zarr.create_array(path, data=values(dtype), zarr_format=2, chunks=(8, 700), **options)
    return path, {}


def _sharded(path: Path) -> tuple[Path, dict[str, Any]]:
    codec = zarr.codecs.ZstdCodec()
    zarr.create_array(path, data=values(), chunks=(4, WIDTH), shards=(24, WIDTH), compressors=codec)
    return path, {}


def _hdf5(path: Path) -> tuple[Path, dict[str, Any]]:
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=values(), chunks=(8, WIDTH), compression="gzip", shuffle=True)
    return path, {"variables": ["x"]}


def _zip(path: Path) -> tuple[Any, dict[str, Any]]:
    folder = path.with_suffix(".folder")
    _v2(folder, compressors=Zlib(1))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as packed:
        for one in folder.rglob("*"):
            packed.write(one, one.relative_to(folder))
    return zarr.storage.ZipStore(path, mode="r"), {}


def _noise(path: Path) -> tuple[Path, dict[str, Any]]:
    noise = np.random.default_rng(0).integers(0, 2**32, (ROWS, WIDTH), "u4").view("f4")
    noise[:] = np.where(np.isfinite(noise), noise, 1)
    noise[:, :2] = values()[:, :2]
    zarr.create_array(path, data=noise, zarr_format=2, chunks=(8, WIDTH), compressors=Zlib(1))
    return path, {}


def _many(path: Path) -> tuple[list[Path], dict[str, Any]]:
    path.mkdir()
    parts = [path / f"{begin}.zarr" for begin in (0, 24)]
    for part, rows in zip(parts, (values()[:24], values()[24:]), strict=True):
        zarr.create_array(part, data=rows, zarr_format=2, chunks=(8, WIDTH), compressors=Zstd())
    return parts, {}


def _files(path: Path) -> tuple[list[Path], dict[str, Any]]:
    path.mkdir()
    parts = [path / f"{begin}.h5" for begin in (0, 24)]
    for part, rows in zip(parts, (values()[:24], values()[24:]), strict=True):
        with h5py.File(part, "w") as file:
            file.create_dataset("x", data=rows, chunks=(8, WIDTH), compression="gzip")
    return parts, {"variables": ["x"]}


SOURCES: dict[str, Callable[[Path], tuple[Any, dict[str, Any]]]] = {
    "zstd": lambda path: _v2(path, compressors=Zstd()),
    "shuffle, zlib, big-endian": lambda path: _v2(path, ">f8", filters=[Shuffle(8)], compressors=Zlib(1)),
    "by zarr-python": lambda path: _v2(path, "i4", filters=[Delta("i4")], compressors=BZ2(1)),
    "bytes": lambda path: _v2(path, "u1", compressors=Zlib(1)),
    "shards": _sharded,
    "HDF5": _hdf5,
    "zip": _zip,
    "noise": _noise,
    "many stores": _many,
    "many files": _files,
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Write each source once, as if long ago."""
    folder = tmp_path_factory.mktemp("sources")
    made = {name: write(folder / str(number)) for number, (name, write) in enumerate(SOURCES.items())}
    for path in folder.rglob("*"):
        os.utime(path, (LONG_AGO, LONG_AGO))
    return made


def opened(made: tuple[Any, dict[str, Any]], cache: Path | None, **more: Any) -> zf.Data:
    source, options = made
    cached: dict[str, Any] = {} if cache is None else {"cache": cache, "cache_limit": "64MiB", "transcode": "lz4"}
    return zf.open(source, **options, **cached, **more)


def iterable(data: zf.Data, **options: Any) -> zf.ZarrIterableDataset:
    return zf.ZarrIterableDataset(data, return_index=True, **{"batch_size": 7, "num_threads": 2, **options})


def epoch_of(dataset: Any) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for batch in dataset:
        x, index = batch
        (x,) = x.values() if isinstance(x, dict) else (x,)
        for number, row in zip(index.tolist(), x.numpy(), strict=True):
            assert number not in found
            found[number] = row.tobytes()
    return found


@pytest.mark.parametrize("name", list(SOURCES))
def test_every_epoch_equals_the_source_and_later_ones_decode_lz4(
    sources: dict[str, tuple[Any, dict[str, Any]]], tmp_path: Path, name: str
) -> None:
    wanted = epoch_of(iterable(opened(sources[name], None), shuffle=False))
    dataset = iterable(opened(sources[name], tmp_path / "cache"), seed=1)
    assert epoch_of(dataset) == wanted
    first = dataset.stats().cache
    assert first.transcoded > 0
    assert first.troubles == ()
    dataset.set_epoch(1)
    assert epoch_of(dataset) == wanted
    second = dataset.stats().cache
    assert (second.misses, second.transcoded) == (first.misses, first.transcoded)
    assert second.transcoded_hits - first.transcoded_hits >= first.transcoded
    assert (second.written_bytes < first.transcoded_bytes * 0.9) == (name != "noise")
    again = iterable(opened(sources[name], tmp_path / "cache"), batch_size=4, shuffle=False)
    assert epoch_of(again) == wanted
    assert again.stats().cache.misses == 0


def test_workers_resumed_passes_and_random_access_read_the_same(
    sources: dict[str, tuple[Any, dict[str, Any]]], tmp_path: Path
) -> None:
    cache, made = tmp_path / "cache", sources["zstd"]
    wanted = {number: row.tobytes() for number, row in enumerate(values())}
    shared = iterable(opened(made, cache), seed=2)
    loader = torch.utils.data.DataLoader(shared, batch_size=None, num_workers=2)
    assert epoch_of(loader) == epoch_of(loader) == wanted
    left, rest = iterable(opened(made, cache), seed=2), iterable(opened(made, cache), seed=2)
    taken = epoch_of(itertools.islice(left, 3))
    rest.load_state_dict(left.state_dict())
    assert taken | epoch_of(rest) == wanted
    assert rest.stats().cache.misses == 0
    dataset = zf.ZarrDataset(opened(made, cache), cache="0 B")
    for index in np.random.default_rng(0).integers(0, ROWS, 20):
        assert dataset[int(index)].numpy().tobytes() == wanted[index]
    assert dataset.stats().cache.misses == 0


def test_rows_patches_and_columns_read_parts_of_entries(tmp_path: Path) -> None:
    names: dict[str, Any] = {"_ARRAY_DIMENSIONS": ["t", "y", "x"]}
    x = np.random.default_rng(0).standard_normal((64, 512, 64), "f4")
    zarr.create_array(tmp_path / "x", data=x, zarr_format=2, chunks=(32, 512, 64), compressors=Zstd(), attributes=names)
    options: dict[str, Any] = {"cache": tmp_path / "cache", "cache_limit": "64MiB", "transcode": "lz4"}
    for _ in range(2):
        by_index = zf.ZarrDataset(zf.open(tmp_path / "x", **options), cache="0 B")
        for index in (3, 60, 17, 31, 32):
            assert np.array_equal(by_index[index].numpy(), x[index])
    read = by_index.stats()
    assert read.cache.misses == 0
    assert read.bytes_read < read.stored_bytes / 2
    rows = zf.ZarrIterableDataset(zf.open(tmp_path / "x", **options).isel(y=slice(0, 8)), batch_size=8, shuffle=False)
    assert np.array_equal(np.concatenate([batch.numpy() for batch in rows]), x[:, :8])
    patches = zf.ZarrIterableDataset(
        zf.open(tmp_path / "x", **options).patch({"t": 16, "y": 64, "x": 64}), batch_size=4, seed=0
    )
    assert np.array_equal(np.sort(np.concatenate([batch.numpy().ravel() for batch in patches])), np.sort(x.ravel()))


def test_a_source_that_changed_is_read_anew(tmp_path: Path) -> None:
    for number, (name, write) in enumerate((("zstd", SOURCES["zstd"]), ("HDF5", SOURCES["HDF5"]))):
        path = tmp_path / name
        made = write(path)
        for version in range(2):
            for one in [path, *path.rglob("*")]:
                os.utime(one, (LONG_AGO + version, LONG_AGO + version))
            data = opened(made, tmp_path / f"cache{number}")
            wanted = {i: (row + version).tobytes() for i, row in enumerate(values())}
            assert epoch_of(iterable(data)) == wanted
            if name == "HDF5" and version == 0:
                with h5py.File(path, "a") as file:
                    file["x"][:] = values() + 1
            elif version == 0:
                zarr.open_array(path)[:] = values() + 1


def test_damaged_entries_are_found_and_a_damaged_source_is_the_error_that_it_was(
    sources: dict[str, tuple[Any, dict[str, Any]]], tmp_path: Path
) -> None:
    wanted = {number: row.tobytes() for number, row in enumerate(values())}
    cache, options = tmp_path / "cache", {"faults": zf.Faults(on_error="skip")}
    assert epoch_of(iterable(opened(sources["zstd"], cache))) == wanted
    entries = [one for one in (cache / "entries").rglob("*") if one.is_file() and one.name != "store"]
    for number, one in enumerate(entries):
        content = bytearray(one.read_bytes())
        content[-1 - number % 60] ^= 1 << number % 8
        one.write_bytes(content[: len(content) - number % 3])
    dataset = iterable(opened(sources["zstd"], cache))
    assert epoch_of(dataset) == wanted
    assert dataset.stats().cache.damaged == len(entries)
    path = tmp_path / "bad"
    made = _v2(path, compressors=Zstd())
    (path / "2.1").write_bytes((path / "2.1").read_bytes()[:-9])
    errors, skipped = [], []
    for where in (None, tmp_path / "bad_cache", tmp_path / "bad_cache"):
        with pytest.raises(zf.CorruptChunkError) as raised:
            epoch_of(iterable(opened(made, where)))
        errors.append(str(raised.value))
        with pytest.warns(zf.ChunkSkippedWarning, match="does not decode"):
            skipped.append([index.tolist() for _, index in iterable(opened(made, where), **options)])
    assert len(set(errors)) == 1
    assert skipped[0] == skipped[1] == skipped[2]


def test_a_cache_of_half_the_data_keeps_half_and_says_so(
    sources: dict[str, tuple[Any, dict[str, Any]]], tmp_path: Path
) -> None:
    data = zf.open(sources["zstd"][0], cache=tmp_path / "cache", cache_limit=60_000, transcode="lz4")
    dataset = iterable(data)
    wanted = {number: row.tobytes() for number, row in enumerate(values())}
    for _ in range(3):
        assert epoch_of(dataset) == wanted
    stats = dataset.stats().cache
    assert 0 < stats.transcoded < 24
    assert stats.refused > 0
    explained = dataset.explain()
    assert explained.cache is not None
    assert explained.cache.expected_hit_ratio == pytest.approx(stats.transcoded / 24)
    assert "as lz4: hits are decoded as such" in str(explained)
    assert f"{stats.transcoded_hits} chunks read as lz4" in str(dataset.stats())


def test_what_is_refused_and_what_stays_as_it_is(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "x", data=values(), chunks=(8, WIDTH), compressors=zarr.codecs.BloscCodec(cname="lz4"))
    with pytest.raises(ConfigError, match="transcode = 'zstd', must be 'lz4' or None"):
        zf.open(tmp_path / "x", cache=tmp_path / "cache", transcode="zstd")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="transcode = 'lz4' without cache"):
        zf.open(tmp_path / "x", transcode="lz4")
    dataset = iterable(zf.open(tmp_path / "x", cache=tmp_path / "cache", cache_limit="1MiB", transcode="lz4"))
    assert len(epoch_of(dataset)) == ROWS
    assert dataset.stats().cache.transcoded == 0
    assert "would gain nothing" in dataset.stats().cache.troubles[0]
