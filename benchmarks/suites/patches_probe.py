"""Patches by another library, in a process of its own, for benchmarks/suites/patches.py.

python patches_probe.py tensorstore '{"path": "a.zarr", "starts": "starts.npy", "size": [64, 64, 64], "batch": 8, ...}'

Prints a JSON line about a pass that is checked: where each patch begins, and its checksum. Each line that it is sent
has the least seconds of passes that are timed; it prints how many patches took how long. If the library is missing, or
has no such patches, it prints that, and ends.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import time
import warnings
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

#: Batches that are read ahead, and bytes of decoded chunks that are kept.
_AHEAD, _CACHE_BYTES = 8, 512 << 20


@dataclass(frozen=True)
class Task:
    """What a library reads.

    Attributes
    ----------
    path, folder
        The Zarr array; an empty folder for what has to be converted.
    size, batch
        Voxels of a patch along each axis; patches of a batch.
    starts
        File with where patches begin, which a library reads that takes any; shape (patches, axes).
    sampling
        "tiles" or "random".
    epoch
        Patches of an epoch, which a library reads that loads the whole array first.
    workers
        Processes that read.
    """

    path: str
    folder: str
    size: tuple[int, int, int]
    batch: int
    starts: str
    sampling: str
    epoch: int
    workers: int

    def given(self) -> Any:
        """Return where patches begin that are given."""
        return np.load(self.starts)

    def array(self) -> Any:
        """Open the array."""
        import zarr

        return zarr.open_array(self.path, mode="r")


@dataclass(frozen=True)
class Side:
    """A library that reads patches.

    Attributes
    ----------
    checked
        Makes the batches of a pass that is checked, each with where its patches begin: (patches, axes).
    batches
        Begins a pass that is timed: tensors of shape (patches, z, y, x).
    decoded
        Voxels that it decodes for patches that begin at `starts`, over voxels of the patches; None: not known.
    epoch
        Patches of its own epoch; None: those of `Task.epoch`.
    """

    checked: Callable[[], Iterator[tuple[Any, Any]]]
    batches: Callable[[], Iterator[Any]]
    decoded: Callable[[Any], float] | None = None
    epoch: int | None = None


def decoded_by_slicing(starts: Any, size: Sequence[int], shape: Sequence[int], chunks: Sequence[int]) -> float:
    """Return how many voxels are decoded for a voxel of a patch, if each patch decodes all chunks that it touches.

    >>> decoded_by_slicing(np.array([[0, 0], [2, -1]]), (4, 4), (8, 8), (4, 4))
    1.5
    """
    low = np.maximum(starts, 0) // chunks
    high = (np.minimum(starts + np.asarray(size), shape) - 1) // chunks
    touched = int((high - low + 1).prod(axis=1).sum())
    return touched * int(np.prod(chunks)) / (len(starts) * int(np.prod(size)))


class MissingError(Exception):
    """The library has no such patches."""


def tensorstore_side(task: Task) -> Side:
    """Boxes at given starts, padded with 0, several batches read ahead."""
    import tensorstore
    import torch

    starts, size = task.given(), np.array(task.size)

    def read(store: Any, some: Any) -> tuple[Any, list[Any]]:
        batch = np.zeros((len(some), *size), store.dtype.numpy_dtype)
        futures = []
        for patch, start in zip(batch, some, strict=True):
            low, high = np.maximum(start, 0), np.minimum(start + size, store.shape)
            target = patch[tuple(slice(a, b) for a, b in zip(low - start, high - start, strict=True))]
            box = store[tuple(slice(a, b) for a, b in zip(low.tolist(), high.tolist(), strict=True))]
            futures.append(tensorstore.array(target).write(box))
        return batch, futures

    def finish(reading: tuple[Any, list[Any]]) -> Any:
        batch, futures = reading
        for one in futures:
            one.result()
        return torch.from_numpy(batch)

    def batches() -> Iterator[Any]:
        # A context of its own, so that no pass finds the chunks of the one before in the cache.
        store = tensorstore.open(
            {"driver": "zarr3", "kvstore": {"driver": "file", "path": task.path}},
            context=tensorstore.Context({"cache_pool": {"total_bytes_limit": _CACHE_BYTES}}),
            read=True,
        ).result()
        ahead: deque[tuple[Any, list[Any]]] = deque()
        for some in _cut(starts, task.batch):
            ahead.append(read(store, some))
            if len(ahead) > _AHEAD:
                yield finish(ahead.popleft())
        while ahead:
            yield finish(ahead.popleft())

    return Side(lambda: zip(batches(), _cut(starts, task.batch), strict=True), batches)


class Channel:
    """An array with a channel axis before its own, sliced by zarr-python: what MONAI and its transforms take.

    `seen` has where each slice began, counted in the array; `low` and `high` cut the first axis of it.
    """

    def __init__(self, array: Any, low: int = 0, high: int | None = None) -> None:
        high = array.shape[0] if high is None else high
        self._array, self._low = array, low
        self.shape, self.ndim = (1, high - low, *array.shape[1:]), 4
        self.seen: list[list[int]] = []

    def __getitem__(self, slices: tuple[slice, ...]) -> Any:
        _, first, *others = slices
        begin = first.start + self._low
        self.seen.append([begin, *(one.start for one in others)])
        return np.asarray(self._array[slice(begin, first.stop + self._low), *others])[None]


class FirstPatches:
    """MONAI's grid of patches, cut after some of them: `PatchIter` without padding, which reads each one by itself."""

    def __init__(self, size: Sequence[int], count: int) -> None:
        from monai.data import PatchIter

        # Any other mode pads the whole volume, in memory.
        self._patches, self._count = PatchIter(size, mode=None), count

    def __call__(self, volume: Channel) -> Iterator[Any]:
        return itertools.islice(self._patches(volume), self._count)


def monai_side(task: Task) -> Side:
    """Tiles: `GridPatchDataset`; random crops: `PatchDataset` with `RandSpatialCropSamples`; both slice Zarr lazily."""
    from monai.data import DataLoader, GridPatchDataset, PatchDataset, set_track_meta
    from monai.transforms import RandSpatialCropSamples

    set_track_meta(False)
    array, most = task.array(), len(task.given())

    def volumes(parts: int) -> list[Channel]:
        # A worker reads whole volumes, so each gets a slab of this one.
        tiles = array.shape[0] // task.size[0]
        bounds = [tiles * part // parts * task.size[0] for part in range(parts + 1)]
        return [Channel(array, low, high) for low, high in itertools.pairwise(bounds)]

    def made(workers: int) -> tuple[Any, list[Channel]]:
        if task.sampling == "tiles":
            slabs = volumes(max(1, workers))
            grid = FirstPatches(task.size, most // len(slabs))
            dataset: Any = GridPatchDataset(slabs, grid, with_coordinates=False)
        else:
            # An item is as many crops as a batch has, which the loader takes apart and puts together.
            slabs = [Channel(array)] * -(-most // task.batch)
            crops = RandSpatialCropSamples(task.size, num_samples=task.batch, random_size=False)
            dataset = PatchDataset(slabs, crops, samples_per_image=task.batch)
        more: dict[str, Any] = {"persistent_workers": True} if workers else {}
        return DataLoader(dataset, batch_size=task.batch, num_workers=workers, **more), slabs

    def checked() -> Iterator[tuple[Any, Any]]:
        loader, (volume, *_) = made(0)
        for batch in loader:
            some = volume.seen[: len(batch)]
            del volume.seen[: len(batch)]
            yield batch[:, 0], some

    loader, _ = made(task.workers)
    return Side(
        checked,
        lambda: (batch[:, 0] for batch in loader),
        lambda starts: decoded_by_slicing(starts, task.size, array.shape, array.chunks),
        _inside(array.shape, task.size) if task.sampling == "tiles" else None,
    )


def torchio_side(task: Task) -> Side:
    """Tiles: `GridSampler`; random crops: a `Queue` with `UniformSampler`; both of a volume that is read at once."""
    import torch
    import torchio

    shape = task.array().shape

    def read(_path: Any) -> tuple[Any, Any]:
        return torch.from_numpy(task.array()[...])[None], np.eye(4)

    def made(epoch: int) -> Any:
        subject = torchio.Subject(image=torchio.ScalarImage(task.path, reader=read))
        if task.sampling == "tiles":
            return torchio.SubjectsLoader(torchio.GridSampler(subject, task.size), batch_size=task.batch)
        sampler = torchio.UniformSampler(task.size)
        # A queue as long as an epoch: a shorter one would read the volume again for each time that it is filled.
        queue = torchio.Queue(torchio.SubjectsDataset([subject]), epoch, epoch, sampler, num_workers=0)
        return torchio.SubjectsLoader(queue, batch_size=task.batch, num_workers=0)

    def checked() -> Iterator[tuple[Any, Any]]:
        most = len(task.given())
        for batch in itertools.islice(made(most), -(-most // task.batch)):
            yield batch["image"][torchio.DATA][:, 0], batch[torchio.LOCATION][:, :3].tolist()

    epoch = task.epoch
    if task.sampling == "tiles":
        epoch = int(np.prod([-(-length // size) for length, size in zip(shape, task.size, strict=True)]))
    return Side(
        checked,
        lambda: (batch["image"][torchio.DATA][:, 0] for batch in made(task.epoch)),
        lambda _starts: float(np.prod(shape) / (epoch * np.prod(task.size))),
        epoch,
    )


def xbatcher_side(task: Task) -> Side:
    """Tiles: a `BatchGenerator` of patches, whose `MapDataset` a DataLoader shuffles."""
    import xarray
    from torch.utils.data import DataLoader
    from xbatcher import BatchGenerator
    from xbatcher.loaders.torch import MapDataset

    if task.sampling != "tiles":
        raise MissingError("it has no random crops")
    import zarr

    array = task.array()
    group = Path(task.folder) / "group.zarr"  # xarray opens groups alone
    zarr.open_group(group, mode="w")
    (group / "image").symlink_to(Path(task.path).resolve(), target_is_directory=True)
    opened = xarray.open_zarr(group, chunks=None, consolidated=False)["image"]
    patches = MapDataset(BatchGenerator(opened, dict(zip(opened.dims, task.size, strict=True)), preload_batch=False))
    grid = [range(length // size) for length, size in zip(array.shape, task.size, strict=True)]
    begins = np.array(list(itertools.product(*grid))) * task.size
    chosen = np.random.default_rng(0).permutation(len(patches))[: len(task.given())].tolist()
    more: dict[str, Any] = {"persistent_workers": True} if task.workers else {}
    loader: Any = DataLoader(patches, task.batch, sampler=chosen, num_workers=task.workers, **more)
    in_turn: Any = DataLoader(patches, task.batch, sampler=chosen)
    return Side(
        lambda: zip(in_turn, _cut(begins[chosen], task.batch), strict=True),
        lambda: iter(loader),
        lambda starts: decoded_by_slicing(starts, task.size, array.shape, array.chunks),
        _inside(array.shape, task.size),
    )


def zarr_torch_dataset_side(task: Task) -> Side:
    """Boxes at given starts, which are written before, one a row: it reads rows of an array alone."""
    import zarr
    from zarrdataset import ZarrDataLoader, ZarrIterableDataset

    starts, array = task.given(), task.array()
    cut = zarr.create_array(
        Path(task.folder) / "cut.zarr",
        shape=(len(starts), *task.size),
        chunks=(task.batch, *task.size),
        dtype=array.dtype,
        compressors=array.compressors,
    )
    for begin in range(0, len(starts), task.batch):
        boxes = np.zeros((len(starts[begin : begin + task.batch]), *task.size), array.dtype)
        for box, start in zip(boxes, starts[begin : begin + task.batch], strict=True):
            low, high = np.maximum(start, 0), np.minimum(start + np.array(task.size), array.shape)
            inside = tuple(slice(a, b) for a, b in zip((low - start).tolist(), (high - start).tolist(), strict=True))
            box[inside] = array[tuple(slice(a, b) for a, b in zip(low.tolist(), high.tolist(), strict=True))]
        cut[begin : begin + len(boxes)] = boxes

    def made(workers: int, *, shuffle: bool) -> Any:
        # New each time: it keeps what it read, and would read nothing in a later epoch.
        rows = ZarrIterableDataset(
            samples=zarr.open_array(Path(task.folder) / "cut.zarr", mode="r"),
            targets=None,
            shuffle_chunks=shuffle,
            chunks_shuffle_seed=1,
            shuffle_buffer=shuffle,
        )
        workers = min(workers, -(-len(starts) // task.batch))
        return ZarrDataLoader(dataset=rows, num_workers=workers, batch_size=task.batch)

    return Side(
        lambda: zip(made(0, shuffle=False), _cut(starts, task.batch), strict=True),
        lambda: iter(made(task.workers, shuffle=True)),
        lambda _starts: 1.0,
    )


def nnunet_side(task: Task) -> Side:
    """Blocks of a memory-mapped `.b2nd` file, which nnU-Net's own code wrote, with chunks for patches of this size.

    Random crops come from nnU-Net's loader in its processes. It has no tiles: the boxes at given starts are cut by the
    functions that its loader calls, in a DataLoader. nnU-Net makes float32 of all voxels.
    """
    for name in ("nnUNet_raw", "nnUNet_preprocessed", "nnUNet_results"):
        os.environ.setdefault(name, task.folder)
    from nnunetv2.training.dataloading.nnunet_dataset import comp_blosc2_params, nnUNetDatasetBlosc2

    array, starts = task.array(), task.given()
    voxels = array[...][None]
    blocks, chunks = comp_blosc2_params(voxels.shape, task.size, voxels.itemsize)
    # Its loader reads a label with each crop. This one is 0, and costs little.
    label = np.zeros(voxels.shape, np.int8)
    file = str(Path(task.folder) / "volume")
    nnUNetDatasetBlosc2.save_case(voxels, label, {"class_locations": {}}, file, chunks=chunks, blocks=blocks)
    del voxels, label
    dataset = nnUNetDatasetBlosc2(task.folder)
    boxes = nnunet_tiles if task.sampling == "tiles" else nnunet_crops
    return Side(*boxes(task, dataset, starts), lambda of: decoded_by_slicing(of, task.size, array.shape, blocks[1:]))


class Boxes:
    """Boxes at given starts of the volume of nnU-Net, padded with 0, with a channel axis."""

    def __init__(self, volumes: Any, starts: Any, size: Sequence[int]) -> None:
        self._volumes, self._starts, self._size = volumes, starts, size

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, number: int) -> Any:
        import torch
        from acvl_utils.cropping_and_padding.bounding_boxes import crop_and_pad_nd

        voxels, _, _, _ = self._volumes.load_case("volume")
        box = [[begin, begin + size] for begin, size in zip(self._starts[number].tolist(), self._size, strict=True)]
        return torch.from_numpy(crop_and_pad_nd(voxels, box, 0)).float()


def nnunet_tiles(task: Task, dataset: Any, starts: Any) -> tuple[Any, Any]:
    """Return what makes checked and timed batches of tiles."""
    from torch.utils.data import DataLoader

    boxes: Any = Boxes(dataset, starts, task.size)
    more: dict[str, Any] = {"persistent_workers": True} if task.workers else {}
    loader: Any = DataLoader(boxes, task.batch, num_workers=task.workers, **more)
    in_turn: Any = DataLoader(boxes, task.batch)
    return (
        lambda: zip((batch[:, 0] for batch in in_turn), _cut(starts, task.batch), strict=True),
        lambda: (batch[:, 0] for batch in loader),
    )


def nnunet_crops(task: Task, dataset: Any, starts: Any) -> tuple[Any, Any]:
    """Return what makes checked and timed batches of random crops."""
    from batchgenerators.dataloading.nondet_multi_threaded_augmenter import NonDetMultiThreadedAugmenter
    from nnunetv2.training.dataloading.data_loader import nnUNetDataLoader

    count = -(-len(starts) // task.batch)
    labels = SimpleNamespace(all_labels=[1], has_ignore_label=False)

    class Recorded(nnUNetDataLoader):  # type: ignore[misc]
        """Remembers where crops begin."""

        def get_bbox(self, *arguments: Any, **options: Any) -> Any:
            low, high = super().get_bbox(*arguments, **options)
            seen.append(low)
            return low, high

    seen: list[Any] = []

    def checked() -> Iterator[tuple[Any, Any]]:
        loader = Recorded(dataset, task.batch, task.size, task.size, labels)
        for _ in range(count):
            seen.clear()
            yield next(loader)["data"][:, 0], np.array(seen)

    def batches() -> Iterator[Any]:
        loader = nnUNetDataLoader(dataset, task.batch, task.size, task.size, labels)
        processes = max(1, task.workers)
        endless = NonDetMultiThreadedAugmenter(loader, None, processes, num_cached=6, wait_time=0.002)
        for _ in range(processes):  # they run by then
            next(endless)

        def some() -> Iterator[Any]:
            try:
                for _ in range(count):
                    yield next(endless)["data"][:, 0]
            finally:
                endless._finish()  # noqa: SLF001 (so does nnU-Net; else its processes read on, beside other libraries)

        return some()

    return checked, batches


def _inside(shape: Sequence[int], size: Sequence[int]) -> int:
    return int(np.prod(np.array(shape) // size))


def _cut(starts: Any, batch: int) -> Iterator[Any]:
    for begin in range(0, len(starts), batch):
        yield starts[begin : begin + batch]


SIDES: dict[str, Callable[[Task], Side]] = {
    "tensorstore": tensorstore_side,
    "monai": monai_side,
    "torchio": torchio_side,
    "xbatcher": xbatcher_side,
    "zarr-torch-dataset": zarr_torch_dataset_side,
    "nnunet": nnunet_side,
}


def check(side: Side) -> dict[str, Any]:
    """Return where the patches of a pass begin, and their checksums."""
    starts: list[list[int]] = []
    sums: list[int] = []
    shapes, dtypes = set(), set()
    for batch, some in side.checked():
        voxels = batch.numpy()
        starts += np.asarray(some).tolist()
        sums += [zlib.crc32(np.ascontiguousarray(patch).tobytes()) for patch in voxels]
        shapes.add(voxels.shape[1:])
        dtypes.add(str(voxels.dtype))
    decoded = None if side.decoded is None else side.decoded(np.array(starts))
    figures = {"decoded": decoded, "epoch": side.epoch}
    return {"starts": starts, "sums": sums, "shapes": sorted(shapes), "dtypes": sorted(dtypes)} | figures


def main(name: str, task: Task) -> None:
    """Deliver a pass to be checked, and as many that are timed as are asked for."""
    warnings.simplefilter("ignore")
    with contextlib.redirect_stdout(sys.stderr):  # some libraries print
        try:
            side = SIDES[name](task)
        except (ImportError, MissingError) as error:
            print(json.dumps({"missing": str(error)}), file=sys.__stdout__, flush=True)
            return
        print(json.dumps(check(side)), file=sys.__stdout__, flush=True)
        for least_s in sys.stdin:
            seconds, patches = 0.0, 0
            while not patches or seconds < float(least_s):
                batches = side.batches()
                begin = time.perf_counter()
                patches += sum(len(batch) for batch in batches)
                seconds += time.perf_counter() - begin
            print(json.dumps({"seconds": seconds, "patches": patches}), file=sys.__stdout__, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Task(**json.loads(sys.argv[2])))
