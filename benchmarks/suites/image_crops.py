"""The cost of random-resized crops of JPEGs, in processor time: zarrfeed beside DataLoaders and WebDataset.

python -m benchmarks.image_crops
python -m benchmarks.image_crops --scale full --repeats 3
python -m benchmarks.image_crops --scale small --checksum-only

Every side delivers shuffled batches of uint8 crops of shape (64, 3, 224, 224), a half of them mirrored. The images are
few pictures under many names. Before anything is timed, zarrfeed's crops must be those of Pillow.
Every side must deliver as many images as there are. Figures are processor seconds of the process and its workers:
other work of the machine changes them little.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader

import zarrfeed
from benchmarks.harness.machine import machine_line, write_document
from benchmarks.harness.measure import process_cpu_s
from benchmarks.harness.options import add_suite_options, names, positive
from benchmarks.report.tables import make_console, print_rows
from benchmarks.suites.images import jpegs, write_array
from zarrfeed.plan.order.image_crops import ImageDraw
from zarrfeed.spec.fields.images import Crop, Images

#: Images, different ones, their height and width, and the size of crops.
SCALES = {"full": (20_000, 200, (375, 500), 224), "small": (96, 24, (48, 64), 24)}
_BATCH = 64
_SHARDS = 16
_SCALE, _RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


@dataclass(frozen=True)
class Task:
    """The data that sides read: the store `images.zarr`, the folder `files`, and the archives `shards` of a folder."""

    folder: Path
    size: int
    workers: int


@dataclass(frozen=True)
class Row:
    """One epoch of one side."""

    side: str
    repeat: int
    images: int
    cpu_s: float
    wall_s: float


def write(folder: Path, count: int, distinct: int, shape: tuple[int, int]) -> None:
    """Write JPEGs into an array of bytes, into a folder, and into archives of WebDataset."""
    few = jpegs(distinct, shape)
    write_array(folder / "images.zarr", few[np.arange(count) % distinct])
    (folder / "files").mkdir()
    (folder / "shards").mkdir()
    for number, file in enumerate(few):
        (folder / "files" / f"{number:06d}.jpg").write_bytes(file)
    for number in range(distinct, count):
        os.link(folder / "files" / f"{number % distinct:06d}.jpg", folder / "files" / f"{number:06d}.jpg")
    for shard in range(_SHARDS):
        with tarfile.open(folder / "shards" / f"{shard:04d}.tar", "w") as archive:
            for number in range(shard, count, _SHARDS):
                member = tarfile.TarInfo(f"{number:06d}.jpg")
                member.size = len(few[number % distinct])
                archive.addfile(member, io.BytesIO(few[number % distinct]))


def pillow_crop(data: Any, size: int) -> torch.Tensor:
    """Decode, crop, resize and mirror an image by Pillow, as scripts do without torchvision."""
    with Image.open(io.BytesIO(data)) as image:
        whole = image.convert("RGB")
    width, height = whole.size
    number = random.getrandbits(62)
    draw = ImageDraw(_images(size), seed=number, epoch=0, sample=0)
    made = whole.crop(draw.box(width, height)).resize((size, size), Image.Resampling.BILINEAR)
    made = made.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if draw.mirrors else made
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(np.asarray(made), -1, 0)))


def _images(size: int) -> Images:
    return Images("RGB", (size, size), Crop("random", _SCALE), 0.5)


def _torchvision(size: int) -> Callable[[Any], torch.Tensor]:
    """Return a function that crops by torchvision's transforms."""
    # a build for CUDA lacks its operators beside a torch without; transforms need none of them
    with mock.patch.object(torch.library, "register_fake", return_value=lambda function: function):
        from torchvision import transforms
    cropped = transforms.Compose(
        [
            transforms.RandomResizedCrop(size, antialias=True),
            transforms.RandomHorizontalFlip(),
            transforms.PILToTensor(),
        ]
    )

    def made(data: Any) -> torch.Tensor:
        with Image.open(io.BytesIO(data)) as image:
            tensor: torch.Tensor = cropped(image.convert("RGB"))
        return tensor

    return made


class Files(torch.utils.data.Dataset[torch.Tensor]):
    """A map-style dataset of the files of a folder."""

    def __init__(self, task: Task, crop: Callable[[int], Callable[[Any], torch.Tensor]]) -> None:
        self._files = sorted((task.folder / "files").iterdir())
        self._crop, self._size = crop, task.size
        self._made: Callable[[Any], torch.Tensor] | None = None

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, number: int) -> torch.Tensor:
        if self._made is None:  # in the worker
            self._made = self._crop(self._size)
        return self._made(self._files[number].read_bytes())


Batches = Iterable[torch.Tensor]


def _ours(task: Task) -> AbstractContextManager[Batches]:
    data = zarrfeed.open(task.folder / "images.zarr").decode("image", size=task.size, crop="random", flip=0.5)
    return zarrfeed.ZarrIterableDataset(data, batch_size=_BATCH, shuffle=True)


class _Loader(DataLoader[torch.Tensor]):
    def close(self) -> None:
        self._iterator = None  # which ends the workers


def _loader(dataset: Any, task: Task, **options: Any) -> AbstractContextManager[Batches]:
    more: dict[str, Any] = {"multiprocessing_context": "forkserver", "persistent_workers": True}
    return closing(_Loader(dataset, num_workers=task.workers, **more, **options))


def _files(crop: Callable[[int], Callable[[Any], torch.Tensor]], task: Task) -> AbstractContextManager[Batches]:
    return _loader(Files(task, crop), task, batch_size=_BATCH, shuffle=True)


def _by_pillow(size: int) -> Callable[[Any], torch.Tensor]:
    return partial(pillow_crop, size=size)


def _webdataset(task: Task) -> AbstractContextManager[Batches]:
    import webdataset

    shards = [str(path) for path in sorted((task.folder / "shards").iterdir())]
    dataset = webdataset.WebDataset(shards, shardshuffle=len(shards), nodesplitter=webdataset.split_by_node)
    made = dataset.shuffle(1000).map(partial(_of_member, size=task.size)).batched(_BATCH, collation_fn=torch.stack)
    return _loader(made, task, batch_size=None)


def _of_member(member: dict[str, Any], size: int) -> torch.Tensor:
    return pillow_crop(member["jpg"], size)


SIDES: dict[str, Callable[[Task], AbstractContextManager[Batches]]] = {
    "zarrfeed": _ours,
    "dataloader-pillow": partial(_files, _by_pillow),
    "dataloader-torchvision": partial(_files, _torchvision),
    "webdataset": _webdataset,
}


def wrong_crops(task: Task, most: int = 256) -> str:
    """Return what is wrong with the first crops of zarrfeed; "" if they are Pillow's."""
    items = zarrfeed.ZarrDataset(zarrfeed.open(task.folder / "images.zarr"))
    data = zarrfeed.open(task.folder / "images.zarr").decode("image", size=task.size, crop="random", flip=0.5)
    seen = 0
    with zarrfeed.ZarrIterableDataset(data, batch_size=_BATCH, shuffle=True, return_index=True) as dataset:
        for batch, index in dataset:
            for image, sample in zip(batch.numpy(), index.tolist(), strict=True):
                draw = ImageDraw(_images(task.size), seed=0, epoch=0, sample=sample)
                with Image.open(io.BytesIO(items[sample])) as file:
                    plain = file.convert("RGB").crop(draw.box(*file.size))
                made = plain.resize((task.size, task.size), Image.Resampling.BILINEAR)
                made = made.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if draw.mirrors else made
                if not np.array_equal(image, np.moveaxis(np.asarray(made), -1, 0)):
                    return f"sample {sample} is another crop"
            seen += len(batch)
            if seen >= most:
                break
    return ""


def _cpu_s(batches: Any) -> float:
    """Return the processor seconds of this process and of the workers of a loader, so far."""
    workers = getattr(getattr(batches, "_iterator", None), "_workers", [])
    return time.process_time() + sum(process_cpu_s(worker.pid) for worker in workers)


def measure(side: str, repeat: int, task: Task) -> Row:
    """Read an epoch to start the workers, and a second one that counts."""
    with SIDES[side](task) as batches:
        count = sum(len(batch) for batch in batches)
        cpu, wall, count = _cpu_s(batches), time.perf_counter(), 0
        for batch in batches:
            count += len(batch)
        return Row(side, repeat, count, _cpu_s(batches) - cpu, time.perf_counter() - wall)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status."""
    options = _parse(arguments)
    console = make_console()
    count, distinct, shape, size = SCALES[options.scale]
    count = options.images or count
    with tempfile.TemporaryDirectory() as directory:
        task = Task(Path(directory), size, options.workers)
        write(task.folder, count, min(count, distinct), shape)
        wrong = wrong_crops(task)
        console.print(f"zarrfeed: {wrong or 'the crops of Pillow'}", highlight=False)
        if wrong or options.checksum_only:
            return int(bool(wrong))
        rows = [measure(side, repeat, task) for repeat in range(options.repeats) for side in options.sides]
    for row in rows:
        if row.images != count:
            console.print(f"{row.side}: {row.images} images of {count}", highlight=False)
            return 1
    write_document(options.out / "image_crops.json", rows=[asdict(row) for row in rows])
    cpu = {side: median(row.cpu_s / row.images for row in rows if row.side == side) for side in options.sides}
    first = cpu[options.sides[0]]
    print_rows(
        console,
        ["", "CPU ms an image", "images/s a core", f"times {options.sides[0]}"],
        [[side, f"{1000 * one:.2f}", f"{1 / one:.0f}", f"{one / first:.2f}"] for side, one in cpu.items()],
        words=1,
    )
    console.print(machine_line(), highlight=False, soft_wrap=True)
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.image_crops", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sides", type=names(SIDES), default=list(SIDES))
    parser.add_argument("--repeats", type=positive, default=2)
    parser.add_argument("--images", type=positive, help="as many images, of those of the scale")
    parser.add_argument("--workers", type=positive, default=2, help="of a DataLoader")
    add_suite_options(parser, SCALES)
    parser.set_defaults(scale="full")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
