"""The stores that `gpu.py` trains on: how each is made, how zarrfeed reads it, and how plain zarr-python does.

Data are stored once and repeated by `zarrfeed.concat`, so that an epoch is as long as those of a large data set: where
an epoch takes less than a second, its beginning would count for more than the feeding that is measured.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
import zarr
from torch.utils.data import Dataset

import zarrfeed
from benchmarks.data.conversion import MEAN, PACKED, STD
from benchmarks.data.layouts import LAYOUTS, Layout
from benchmarks.data.stores import Store, prepare_store, warm_page_cache
from benchmarks.loaders.zarr_map import ZarrSamples
from benchmarks.suites.patch_cases import Case
from benchmarks.suites.patch_cases import write as write_volume
from benchmarks.suites.patch_peers import clip

#: A sample: a tensor, or (inputs, targets).
Sample: TypeAlias = Any
#: See `Feed.keys`.
Keys: TypeAlias = Callable[[zarrfeed.Data, torch.Tensor], Sequence[Any]]

SCALES = ("full", "tiny")

#: All stores together, in bytes.
_MAX_STORED_BYTES = 19 * 10**8

#: Decoded bytes of an epoch, at least: the data are repeated until there are so many.
_EPOCH_BYTES = {"full": 1 << 40, "tiny": 1 << 24}
#: A plan names each copy, so there are not more.
_MOST_COPIES = 2048

#: Time steps that the forecast is ahead, and those before that a model sees.
_INPUTS, _AHEAD = (-1, 0), 4


@dataclass(frozen=True)
class Feed:
    """One layout, ready to be read.

    Attributes
    ----------
    name, description
        For the page.
    batch_size
        Samples of a batch.
    shape
        Shape of the inputs of one sample.
    copies
        Number of times that an epoch repeats the stored samples.
    open
        Takes a number of copies; returns so many copies of the stored samples, for zarrfeed to read.
    plain
        A map-style dataset over zarr-python, one of the stored samples each.
    keys
        Takes copies that `open` returned and indices of theirs; returns the number of each sample in `plain`.
    """

    name: str
    description: str
    batch_size: int
    shape: tuple[int, ...]
    copies: int
    open: Callable[[int], zarrfeed.Data]
    plain: Dataset[Sample]
    keys: Keys


class Forecast(Dataset[Sample]):
    """Sample i: the fields at two time steps, and those at a later one, unpacked, normalised and cast by NumPy."""

    def __init__(self, path: Path) -> None:
        self._array: Any = zarr.open_array(path, mode="r")

    def __len__(self) -> int:
        return int(self._array.shape[0]) - _AHEAD + _INPUTS[0]

    def __getitem__(self, number: int) -> Sample:
        now = number - _INPUTS[0]
        return self._values(slice(now + _INPUTS[0], now + 1)), self._values(now + _AHEAD)

    def _values(self, rows: int | slice) -> torch.Tensor:
        packed = np.asarray(self._array[rows], dtype=np.float32)
        packed *= np.float32(PACKED["scale_factor"] / STD)
        packed += np.float32((PACKED["add_offset"] - MEAN) / STD)
        return torch.from_numpy(packed).to(torch.bfloat16)


class Boxes(Dataset[Sample]):
    """Sample i is a box of a volume that begins at a random voxel; in place of i, a box's first voxel will do.

    A box that reaches beyond the volume is padded with 0.
    """

    def __init__(self, path: Path, size: Sequence[int], count: int) -> None:
        self._array: Any = zarr.open_array(path, mode="r")
        rng, room = np.random.default_rng(0), np.subtract(self._array.shape, size)
        self._size, self._starts = size, rng.integers(0, room, (count, len(size)), endpoint=True)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, number: Any) -> Sample:
        start = self._starts[number] if np.ndim(number) == 0 else np.asarray(number)
        patch = np.zeros(self._size, self._array.dtype)
        inside, at = clip(start, self._size, self._array.shape)
        patch[at] = self._array[inside]
        return torch.from_numpy(patch)


#: A name, the folder of the stores, a scale -> the feed.
Maker: TypeAlias = Callable[[Path, str], Feed]

#: Layout, batch size and samples at each scale.
_ROWS: Mapping[str, tuple[int, Mapping[str, tuple[int, ...]]]] = {
    "A": (512, {"full": (8192, 4, 64, 64), "tiny": (128, 4, 32, 32)}),
    "C": (64, {"full": (512, 4, 256, 256), "tiny": (32, 4, 32, 32)}),
    "E": (512, {"full": (8192, 4, 64, 64), "tiny": (128, 4, 32, 32)}),
}
#: Samples of a batch at the tiny scale, whatever the layout.
_TINY_BATCH = 4

_FORECAST = replace(
    LAYOUTS["I-int16"],
    name="forecast",
    description="16 fields of 180 x 360 points as packed int16, a time step a chunk",
    shape=(288, 16, 180, 360),
    chunks=(1, 16, 180, 360),
    batch_size=16,
)
_VOLUME = {
    "full": Case((512, 512, 512), (64, 64, 64), (64, 64, 64), 8, 8, None),
    "tiny": Case((32, 32, 32), (16, 16, 16), (16, 16, 16), _TINY_BATCH, 8, None),
}
#: Images, their height and width, and the size that they are resized to.
_IMAGES = {"full": (1536, (375, 500), (224, 224)), "tiny": (16, (48, 64), (32, 32))}
_IMAGE_BATCH = 256


def _rows(name: str) -> Maker:
    def make(folder: Path, scale: str) -> Feed:
        batch_size, shapes = _ROWS[name]
        layout = replace(LAYOUTS[name], shape=shapes[scale], batch_size=batch_size)
        if scale == "tiny":
            layout = replace(layout, chunks=(layout.chunks[0], *layout.shape[1:]), batch_size=_TINY_BATCH)
            layout = replace(layout, chunks_per_shard=min(2, layout.chunks_per_shard))
        store = _prepared(layout, folder, scale)

        def opened(copies: int) -> zarrfeed.Data:
            return zarrfeed.concat([zarrfeed.open(store.samples_path)] * copies)

        keys = _modulo(layout.num_samples)
        return _feed(layout, _copies(layout.decoded_bytes, scale), layout.shape[1:], opened, ZarrSamples(store), keys)

    return make


def _forecast(folder: Path, scale: str) -> Feed:
    layout = _FORECAST
    if scale == "tiny":
        layout = replace(layout, shape=(24, 2, 16, 32), chunks=(1, 2, 16, 32), batch_size=_TINY_BATCH)
    path = _prepared(layout, folder, scale).samples_path

    def opened(copies: int) -> zarrfeed.Data:
        data = zarrfeed.concat([zarrfeed.open(path, path)] * copies)
        data = data.window({"samples": _INPUTS, "targets": _AHEAD})
        data = data.normalize((MEAN, STD), sides=["samples", "targets"])
        return data.cast({"samples": "bfloat16", "targets": "bfloat16"})

    def keys(_: zarrfeed.Data, index: torch.Tensor) -> list[int]:
        numbers: list[int] = (index % layout.num_samples + _INPUTS[0]).tolist()
        return numbers

    what = f"; two time steps and the one {_AHEAD} steps later, unpacked, normalised, bfloat16"
    shape = (len(_INPUTS), *layout.shape[1:])
    return _feed(layout, _copies(layout.decoded_bytes, scale), shape, opened, Forecast(path), keys, what)


def _feed(
    layout: Layout,
    copies: int,
    shape: tuple[int, ...],
    opened: Callable[[int], zarrfeed.Data],
    plain: Dataset[Sample],
    keys: Keys,
    what: str = "",
) -> Feed:
    description = f"{layout.stored_as()}{what}, batches of {layout.batch_size}"
    return Feed(layout.name, description, layout.batch_size, shape, copies, opened, plain, keys)


def _patches(folder: Path, scale: str) -> Feed:
    case, path = _VOLUME[scale], folder / f"gpu-volume-{scale}.zarr"
    _made(path, lambda begun: write_volume(begun, case))
    size: dict[str | int, int] = dict(enumerate(case.patch))

    def opened(copies: int) -> zarrfeed.Data:
        return zarrfeed.concat([zarrfeed.open(path).patch(size)] * copies)

    def keys(data: zarrfeed.Data, index: torch.Tensor) -> list[Any]:
        return list(data.locate(index)[1])

    description = (
        f"uint8, patches of {_by(case.patch)} voxels of a volume of {_by(case.shape)} in chunks of "
        f"{_by(case.chunks)}, Blosc lz4 + bit-shuffle, batches of {case.batch}"
    )
    plain = Boxes(path, case.patch, max(64, math.prod(case.shape) // math.prod(case.patch)))
    copies = _copies(case.decoded_bytes, scale)
    return Feed("patches", description, case.batch, case.patch, copies, opened, plain, keys)


def _images(folder: Path, scale: str) -> Feed:
    from benchmarks.suites.images import Task, ZarrItems, jpegs, write_array  # which need Pillow

    count, stored, size = _IMAGES[scale]
    inside = folder / f"gpu-images-{scale}.zarr"

    def write(begun: Path) -> None:
        begun.mkdir()
        write_array(begun / "images.zarr", jpegs(count, stored))

    def opened(copies: int) -> zarrfeed.Data:
        return zarrfeed.concat([zarrfeed.open(inside / "images.zarr").decode("image", size=size)] * copies)

    _made(inside, write)
    batch_size = _TINY_BATCH if scale == "tiny" else _IMAGE_BATCH
    description = f"JPEGs of {_by(stored)} pixels in an array of bytes, resized to {_by(size)}, batches of {batch_size}"
    copies, plain = _copies(math.prod((count, 3, *size)), scale), ZarrItems(Task(inside, size, 0))
    return Feed("images", description, batch_size, (3, *size), copies, opened, plain, _modulo(count))


FEEDS: Mapping[str, Maker] = {
    "A": _rows("A"),
    "C": _rows("C"),
    "E": _rows("E"),
    "forecast": _forecast,
    "patches": _patches,
    "images": _images,
}


def _modulo(count: int) -> Keys:
    def keys(_: zarrfeed.Data, index: torch.Tensor) -> list[int]:
        numbers: list[int] = (index % count).tolist()
        return numbers

    return keys


def _by(lengths: Sequence[int]) -> str:
    return " x ".join(map(str, lengths))


def _prepared(layout: Layout, folder: Path, scale: str) -> Store:
    """Write the store of a layout, unless it is there; no store of another suite has its name."""
    store = prepare_store(layout, folder, scale=f"gpu-{scale}", max_bytes=_MAX_STORED_BYTES)
    warm_page_cache(store)
    return store


def _made(path: Path, write: Callable[[Path], None]) -> None:
    """Write a store unless it is there, under another name first: one that was begun is never taken for a whole one."""
    begun = path.with_name(f".{path.name}.begun")
    if not path.exists():
        shutil.rmtree(begun, ignore_errors=True)
        write(begun)
        begun.rename(path)
    warm_page_cache(path)


def _copies(decoded_bytes: int, scale: str) -> int:
    return min(_MOST_COPIES, -(-_EPOCH_BYTES[scale] // decoded_bytes))
