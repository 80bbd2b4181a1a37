"""What encoded images cost: JPEGs in an array of bytes in Zarr, beside the same files in a folder, and a DataLoader.

python -m benchmarks.images
python -m benchmarks.images --sides zarrfeed,dataloader-files --step-ms 20 --repeats 5
python -m benchmarks.images --scale small --checksum-only

Every side delivers shuffled batches of shape (64, 3, 224, 224), resized by Pillow. Before anything is timed, each side
delivers an epoch, whose images must be those that Pillow makes of the files, each once.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import zarr
from PIL import Image
from torch.utils.data import DataLoader

import zarrfeed
import zarrfeed.objects
from benchmarks.harness.machine import machine_line, write_document
from benchmarks.harness.options import add_suite_options, names, not_negative, positive
from benchmarks.report.tables import make_console, print_rows
from zarrfeed.base.system import usable_cores

#: Images, their height and width, and the size that they are resized to.
SCALES = {"full": (1536, (375, 500), (224, 224)), "small": (96, (48, 64), (24, 32))}
_CHUNK = 16
_BATCH = 64


@dataclass(frozen=True)
class Task:
    """What is read: the store `images.zarr` or the folder `files` of a folder; `size` is what images are resized to."""

    folder: Path
    size: tuple[int, int]
    workers: int


@dataclass(frozen=True)
class Row:
    """One turn of one side: images a second while the loop does nothing, or steps of `step_ms`."""

    side: str
    repeat: int
    images_per_s: float


def write(folder: Path, count: int, shape: tuple[int, int]) -> None:
    """Write JPEGs into a folder and into an array of bytes."""
    files = jpegs(count, shape)
    (folder / "files").mkdir()
    for number, file in enumerate(files):
        (folder / "files" / f"{number:06d}.jpg").write_bytes(file)
    write_array(folder / "images.zarr", files)


def jpegs(count: int, shape: tuple[int, int]) -> npt.NDArray[np.object_]:
    """Return JPEG files as smooth and as noisy as photographs, each of its own."""

    def made(number: int) -> bytes:
        rng = np.random.default_rng(number)
        coarse = rng.integers(0, 256, (shape[0] // 16 + 1, shape[1] // 16 + 1, 3), dtype=np.uint8)
        smooth = np.asarray(Image.fromarray(coarse).resize(shape[::-1], Image.Resampling.BICUBIC))
        noisy = np.clip(smooth + rng.normal(0, 8, smooth.shape), 0, 255).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(noisy).save(file, "jpeg", quality=85)
        return file.getvalue()

    files = np.empty(count, dtype=object)
    with ThreadPoolExecutor(usable_cores()) as threads:
        files[:] = list(threads.map(made, range(count)))
    return files


def write_array(path: Path, files: npt.NDArray[np.object_]) -> None:
    """Write encoded images into an array of bytes."""
    array = zarr.create_array(
        path,
        shape=files.shape,
        chunks=(_CHUNK,),
        dtype=zarr.dtype.VariableLengthBytes(),
        zarr_format=2,
        compressors=None,
    )
    array[:] = files


def resized(data: Any, size: tuple[int, int]) -> torch.Tensor:
    """Decode and resize an image, as scripts do."""
    with Image.open(io.BytesIO(data)) as image:
        pixels = np.asarray(image.convert("RGB").resize(size[::-1], Image.Resampling.BILINEAR))
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(pixels, -1, 0)))


class Files(torch.utils.data.Dataset[torch.Tensor]):
    """A map-style dataset of the files of a folder."""

    def __init__(self, task: Task) -> None:
        self._files = sorted((task.folder / "files").iterdir())
        self._size = task.size

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, number: int) -> torch.Tensor:
        return resized(self._files[number].read_bytes(), self._size)


class ZarrItems(torch.utils.data.Dataset[torch.Tensor]):
    """A map-style dataset of the items of the array, each read by zarr-python."""

    def __init__(self, task: Task) -> None:
        self._array: Any = zarr.open_array(task.folder / "images.zarr", mode="r")
        self._size = task.size

    def __len__(self) -> int:
        return int(self._array.shape[0])

    def __getitem__(self, number: int) -> torch.Tensor:
        return resized(self._array[number].item(), self._size)


Batches = Iterable[torch.Tensor]


def _ours(task: Task) -> AbstractContextManager[Batches]:
    data = zarrfeed.open(task.folder / "images.zarr").decode("image", size=task.size)
    return zarrfeed.ZarrIterableDataset(data, batch_size=_BATCH, shuffle=True)


def _objects(task: Task) -> AbstractContextManager[Batches]:
    return zarrfeed.objects.ObjectIterableDataset(
        str(task.folder / "files"),
        decode=partial(resized, size=task.size),
        transform=torch.stack,
        batch_size=_BATCH,
        shuffle=True,
    )


class _Loader(DataLoader[torch.Tensor]):
    def close(self) -> None:
        self._iterator = None  # which ends the workers


def _loaded(dataset: Callable[[Task], Any], task: Task) -> AbstractContextManager[Batches]:
    more: dict[str, Any] = {"multiprocessing_context": "forkserver", "persistent_workers": True}
    return closing(_Loader(dataset(task), _BATCH, shuffle=True, num_workers=task.workers, **more))


SIDES: dict[str, Callable[[Task], AbstractContextManager[Batches]]] = {
    "zarrfeed": _ours,
    "zarrfeed-objects": _objects,
    "dataloader-files": partial(_loaded, Files),
    "dataloader-zarr": partial(_loaded, ZarrItems),
}


def _digest(pixels: npt.NDArray[np.uint8]) -> int:
    return zlib.crc32(np.ascontiguousarray(pixels).tobytes())


def wrong_images(batches: Batches, task: Task) -> str:
    """Return what is wrong with an epoch; "" if each image came once, as Pillow makes it of its file."""
    files = Files(task)
    expected = Counter(_digest(files[number].numpy()) for number in range(len(files)))
    found = Counter(_digest(image.numpy()) for batch in batches for image in batch)
    if found == expected:
        return ""
    return f"{(expected - found).total()} images of {len(files)} are missing, {(found - expected).total()} are others"


def _rate(batches: Batches, step_ms: float) -> float:
    """Return the images a second of an epoch, with a step of a training loop after each batch."""
    count, begin = 0, time.perf_counter()
    for batch in batches:
        count += len(batch)
        time.sleep(step_ms / 1000)  # as for a step that a GPU makes
    return count / (time.perf_counter() - begin)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status."""
    options = _parse(arguments)
    console = make_console()
    count, shape, size = SCALES[options.scale]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as directory:
        task = Task(Path(directory), size, options.workers)
        write(task.folder, count, shape)
        for side in options.sides:
            with SIDES[side](task) as batches:
                wrong = wrong_images(batches, task)
            console.print(f"{side}: {wrong or 'every image once'}", highlight=False)
            if wrong:
                return 1
        if options.checksum_only:
            return 0
        for repeat in range(options.repeats):
            for side in options.sides:
                with SIDES[side](task) as batches:
                    _rate(batches, 0)  # workers start
                    rows.append(Row(side, repeat, _rate(batches, options.step_ms)))
    write_document(options.out / "images.json", step_ms=options.step_ms, rows=[asdict(row) for row in rows])
    rates = {side: median(row.images_per_s for row in rows if row.side == side) for side in options.sides}
    first = rates[options.sides[0]]
    print_rows(
        console,
        ["", "images/s", f"ratio to {options.sides[0]}"],
        [[side, f"{rate:.0f}", f"{rate / first:.2f}"] for side, rate in rates.items()],
        words=1,
    )
    console.print(machine_line(), highlight=False, soft_wrap=True)
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.images", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sides", type=names(SIDES), default=list(SIDES))
    parser.add_argument("--repeats", type=positive, default=3)
    parser.add_argument("--workers", type=positive, default=2, help="of a DataLoader, for sides that need some")
    parser.add_argument("--step-ms", type=not_negative, default=0.0, help="the loop waits so long after each batch")
    add_suite_options(parser, SCALES)
    parser.set_defaults(scale="full")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
