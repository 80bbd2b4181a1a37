"""One turn of one side of the image packing benchmark, in a process of its own: pack a folder, or read what was packed.

`pack` prints the seconds and the CPU seconds, those of child processes included. Libraries are imported before; the
clock runs until the files are on the disk. `read` prints the number of images, and the sum of the hashes of their keys,
labels and contents, as each library reads its own files.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

#: Bytes of a stored object of all sides, at most.
_SHARD_BYTES = 64 << 20
#: key (path below the folder), label, JPEG or pixels.
Item = tuple[str, int, bytes]


@dataclass(frozen=True)
class Task:
    """What is packed: a folder of class folders. `size` 0 keeps the bytes, else images become (3, size, size)."""

    source: str
    out: str
    size: int
    workers: int


def files_of(source: str) -> list[tuple[str, int]]:
    """Return the key and the label of each image."""
    classes = sorted(entry.name for entry in os.scandir(source))
    return [
        (f"{name}/{file}", label)
        for label, name in enumerate(classes)
        for file in sorted(os.listdir(f"{source}/{name}"))  # noqa: PTH208 - 20 000 of them
    ]


def content_of(path: str, size: int) -> bytes:
    """Return the bytes of a file, or its pixels, as uint8 of shape (3, size, size)."""
    data = Path(path).read_bytes()
    if not size:
        return data
    with Image.open(io.BytesIO(data)) as image:
        pixels = np.asarray(image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR))
    return np.ascontiguousarray(np.moveaxis(pixels, -1, 0)).tobytes()


def digest(items: Iterable[Item]) -> tuple[int, str]:
    """Return the number of images, and a digest that does not depend on their order."""
    count = total = 0
    for key, label, content in items:
        made = hashlib.blake2b(f"{key}\0{label}\0".encode(), digest_size=16)
        made.update(content)
        count, total = count + 1, (total + int.from_bytes(made.digest(), "little")) % (1 << 128)
    return count, f"{total:032x}"


def items_of_folder(source: str, size: int) -> Iterator[Item]:
    """Yield the images of a folder, as all sides must have them."""
    for key, label in files_of(source):
        yield key, label, content_of(f"{source}/{key}", size)


def _by_pack(task: Task) -> None:
    from zarrfeed import pack

    resize = (task.size, task.size) if task.size else None
    # The peers compress nothing.
    pack(task.source, task.out, resize=resize, jobs=task.workers, codec="none" if resize else None, shard=_SHARD_BYTES)


def _of_pack(task: Task) -> Iterator[Item]:
    import zarr

    group: Any = zarr.open_group(task.out, mode="r")
    images, labels, keys = (group[name] for name in ("image", "label", "key"))
    for begin in range(0, images.shape[0], 1024):
        rows = [np.asarray(array[begin : begin + 1024]) for array in (images, labels, keys)]
        for image, label, key in zip(*rows, strict=True):
            yield str(key), int(label), image.tobytes() if task.size else bytes(image)


def _litdata_sample(source: str, size: int, file: tuple[str, int]) -> dict[str, Any]:
    content: Any = content_of(f"{source}/{file[0]}", size)
    if size:
        content = np.frombuffer(content, np.uint8).reshape(3, size, size)
    return {"key": file[0], "label": file[1], "image": content}


def _by_litdata(task: Task) -> None:
    import litdata

    litdata.optimize(
        fn=partial(_litdata_sample, task.source, task.size),
        inputs=files_of(task.source),
        output_dir=task.out,
        chunk_bytes=_SHARD_BYTES,
        num_workers=task.workers,
        reorder_files=False,
        start_method="fork",
        verbose=False,
    )


def _of_litdata(task: Task) -> Iterator[Item]:
    import litdata

    for sample in litdata.StreamingDataset(task.out):
        image = sample["image"]
        yield sample["key"], sample["label"], image.tobytes() if task.size else image


def _in_processes(write: Callable[[Task, int], None], task: Task) -> None:
    """Call a writer that has no workers of its own in several processes; each one writes a run of the files."""
    context = multiprocessing.get_context("fork")
    running = [context.Process(target=write, args=(task, number)) for number in range(task.workers)]
    for one in running:
        one.start()
    for one in running:
        one.join()
        if one.exitcode:
            raise SystemExit(f"a writer ended with status {one.exitcode}")


def _share(task: Task, number: int) -> list[tuple[str, int]]:
    files = files_of(task.source)
    return files[len(files) * number // task.workers : len(files) * (number + 1) // task.workers]


def _write_mds(task: Task, number: int) -> None:
    from streaming import MDSWriter

    columns = {
        "key": "str",
        "label": "int",
        "image": "bytes" if not task.size else f"ndarray:uint8:3,{task.size},{task.size}",
    }
    with MDSWriter(columns=columns, out=f"{task.out}/{number}", size_limit=_SHARD_BYTES) as writer:
        for file in _share(task, number):
            writer.write(_litdata_sample(task.source, task.size, file))


def _by_mds(task: Task) -> None:
    from streaming.base.util import merge_index

    _in_processes(_write_mds, task)
    merge_index(task.out)


def _of_mds(task: Task) -> Iterator[Item]:
    from streaming import LocalDataset

    for number in range(task.workers):
        dataset = LocalDataset(f"{task.out}/{number}")
        for i in range(len(dataset)):
            sample = dataset[i]
            yield sample["key"], sample["label"], sample["image"].tobytes() if task.size else sample["image"]


def _write_tar(task: Task, number: int) -> None:
    from webdataset import ShardWriter

    with ShardWriter(f"{task.out}/{number}-%06d.tar", maxsize=_SHARD_BYTES, verbose=0) as writer:
        for key, label in _share(task, number):
            stem, _, suffix = key.rpartition(".")
            writer.write({"__key__": stem, suffix: content_of(f"{task.source}/{key}", 0), "cls": label})


def _by_webdataset(task: Task) -> None:
    Path(task.out).mkdir()
    _in_processes(_write_tar, task)


def _of_webdataset(task: Task) -> Iterator[Item]:
    from webdataset import WebDataset

    tars = sorted(str(path) for path in Path(task.out).iterdir())
    for sample in WebDataset(tars, shardshuffle=False):
        yield f"{sample['__key__']}.jpg", int(sample["cls"]), sample["jpg"]


@dataclass(frozen=True)
class Side:
    """How a library packs and reads; `modules` are imported before the clock runs."""

    pack: Callable[[Task], None]
    read: Callable[[Task], Iterator[Item]]
    modules: tuple[str, ...]
    #: Of the distribution whose version is told.
    distribution: str
    resizes: bool = True


SIDES = {
    "zarrfeed": Side(_by_pack, _of_pack, ("zarrfeed.packing.pack", "zarr"), "zarrfeed"),
    "litdata": Side(_by_litdata, _of_litdata, ("litdata",), "litdata"),
    "mds": Side(_by_mds, _of_mds, ("streaming",), "mosaicml-streaming"),
    "webdataset": Side(_by_webdataset, _of_webdataset, ("webdataset",), "webdataset", resizes=False),
}


def _allow_loopback_alone() -> None:
    """Refuse connections that leave the machine: libraries ask for newer versions of themselves."""
    connect = socket.socket.connect

    def checked(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise OSError(f"{address}: only loopback is allowed")
        connect(self, address)

    socket.socket.connect = checked  # type: ignore[method-assign, assignment]


def main(arguments: list[str]) -> None:
    """Do one turn: `pack` or `read`, the side, and the task as JSON."""
    verb, name, text = arguments
    task, side = Task(**json.loads(text)), SIDES[name]
    warnings.simplefilter("ignore")
    _allow_loopback_alone()
    for part in ("text", "vision"):  # of MosaicML streaming, which need transformers and torchvision
        sys.modules[f"streaming.{part}"] = types.ModuleType(f"streaming.{part}")
    for module in side.modules:
        importlib.import_module(module)
    if verb == "read":
        print(json.dumps(digest(side.read(task))))
        return
    os.sync()
    begin, before = time.perf_counter(), sum(os.times()[:4])
    side.pack(task)
    subprocess.run(["sync", "--file-system", task.out], check=True)
    print(json.dumps([time.perf_counter() - begin, sum(os.times()[:4]) - before]))


if __name__ == "__main__":
    # Under its own name, so that what the processes of libraries are sent can be found by it.
    importlib.import_module("benchmarks.suites.packing_images_probe").main(sys.argv[1:])
