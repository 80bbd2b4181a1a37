"""What `remote.py` compares: the stored layouts, and each way to read them from a server or from the disk."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import numpy as np
import zarr

import zarrfeed
from benchmarks.data.layouts import LAYOUTS, Layout
from benchmarks.data.stores import Store
from benchmarks.harness import wrk
from benchmarks.harness.checksum import ChecksumError, Hashes
from benchmarks.harness.measure import CpuWatch, Timing, time_loader, verify_loader
from benchmarks.loaders import Loader
from benchmarks.loaders.ceiling import usable_cores
from benchmarks.loaders.insitu import InSitu
from benchmarks.loaders.ours import Zarrfeed
from benchmarks.loaders.tensorstore_rows import TensorStoreRows
from benchmarks.loaders.torch_dataset import TorchDataset
from benchmarks.loaders.zarr_chunkwise import ZarrChunkwise

#: GETs in flight of the sides that only fetch.
_COROUTINES, _THREADS = 32, 16

#: A small layout has at least so many samples.
_SMALL_SAMPLES = 20

#: About 64, 100 and 100 MiB are stored, 2.3 times as much is decoded.
REMOTE_LAYOUTS = {
    "small-objects": replace(
        LAYOUTS["A"],
        name="remote-small-objects",
        description="48 KiB samples, one a chunk: stored objects of about 20 KiB",
        shape=(3072, 3, 64, 64),
        chunks=(1, 3, 64, 64),
    ),
    "objects": replace(
        LAYOUTS["A"],
        name="remote-objects",
        description="48 KiB samples, 16 a chunk: stored objects of about 340 KiB",
        shape=(4800, 3, 64, 64),
        chunks=(16, 3, 64, 64),
    ),
    "shards": replace(
        LAYOUTS["A"],
        name="remote-shards",
        description="64 KiB samples, 16 a chunk, 24 chunks a shard: stored objects of about 10 MiB",
        shape=(3840, 4, 64, 64),
        chunks_per_shard=24,
    ),
}


def small(layout: Layout) -> Layout:
    """Return a layout with few stored objects, of which the last is a short one where objects have many samples."""
    chunks_per_object = min(4, layout.chunks_per_shard)
    rows_per_object = layout.rows_per_chunk * max(1, chunks_per_object)
    rows = max(_SMALL_SAMPLES, 2 * rows_per_object + rows_per_object // 3)
    return replace(layout, shape=(rows, *layout.shape[1:]), chunks_per_shard=chunks_per_object)


def remote_layout(name: str, scale: str) -> Layout:
    """Return a layout of `REMOTE_LAYOUTS` at one of `SCALES`."""
    return REMOTE_LAYOUTS[name] if scale == "full" else small(REMOTE_LAYOUTS[name])


@dataclass(frozen=True)
class Source:
    """A store on the disk, and the same files on a server.

    Attributes
    ----------
    store
        The directory.
    server
        URL of the server, without a slash at the end; the store's directory lies at its root.
    """

    store: Store
    server: str

    @property
    def url(self) -> str:
        """Where the store's directory is on the server."""
        return f"{self.server}/{self.store.path.name}"

    @cached_property
    def objects(self) -> list[Path]:
        """The files of all chunks or shards."""
        return sorted(file for file in (self.store.samples_path / "c").rglob("*") if file.is_file())

    @cached_property
    def object_bytes(self) -> int:
        """The bytes of all chunks or shards: what "stored GB" counts."""
        return sum(file.stat().st_size for file in self.objects)


class ObstoreAsync:
    """`obstore.get_async` and `bytes_async` by a few coroutines on one event loop."""

    def __init__(self, source: Source) -> None:
        self._store = open_http(source.url)
        self.settings: dict[str, object] = {"coroutines": _COROUTINES}

    def fetch(self, keys: Sequence[str], take: Callable[[str, Any], None]) -> None:
        asyncio.run(self._fetch(keys, take))

    def close(self) -> None:
        del self._store

    async def _fetch(self, keys: Sequence[str], take: Callable[[str, Any], None]) -> None:
        import obstore

        left = iter(keys)

        async def work() -> None:
            for key in left:
                take(key, await (await obstore.get_async(self._store, key)).bytes_async())

        async with asyncio.TaskGroup() as group:
            for _ in range(_COROUTINES):
                group.create_task(work())


class ObstoreThreads:
    """`obstore.get` and `bytes`, which block and release the GIL, by a few threads."""

    def __init__(self, source: Source, threads: int = _THREADS) -> None:
        self._store = open_http(source.url)
        self._threads = threads
        self.settings: dict[str, object] = {"threads": threads}

    def fetch(self, keys: Sequence[str], take: Callable[[str, Any], None]) -> None:
        import obstore

        left = iter(keys)  # CPython's iterator of a list can be shared by threads
        errors: list[BaseException] = []

        def work() -> None:
            try:
                for key in left:
                    take(key, obstore.get(self._store, key).bytes())
            except BaseException as error:  # noqa: BLE001 (the thread that started this one raises it)
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(self._threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    def close(self) -> None:
        del self._store


class Wrk:
    """wrk, which GETs stored objects in turns and looks at none of them. Its CPU time is that of a child process."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.settings: dict[str, object] = {"threads": wrk.THREADS, "connections": wrk.CONNECTIONS}

    def run(self, seconds: float) -> Timing:
        """Read for some seconds. What is more or less than whole epochs is taken off all figures, or added to them."""
        path = urlsplit(self._source.url).path
        names = [f"{path}/{file.relative_to(self._source.store.path).as_posix()}" for file in self._source.objects]
        watch = CpuWatch()
        load = wrk.run_wrk(self._source.server, names, seconds)
        cpu_s, foreign_cores = watch.stop()
        epochs = max(1, round(load.requests / len(names)))
        part = epochs * len(names) / load.requests
        return Timing(epochs, 0, 0, part * load.wall_s, part * cpu_s, foreign_cores)

    def close(self) -> None:
        pass


#: A side that fetches stored objects and decodes nothing; it calls `take` with the key and the bytes of each.
Fetcher: TypeAlias = ObstoreAsync | ObstoreThreads
#: A loader, a fetcher, or a program.
Side: TypeAlias = Loader | Fetcher | Wrk


def open_http(url: str) -> Any:
    """Return obstore's HTTP store of a URL."""
    from obstore.store import HTTPStore

    return HTTPStore.from_url(url, client_options={"allow_http": True})


def open_arrays_http(url: str) -> list[zarr.Array[Any]]:
    """Open the samples at a URL with zarr-python alone."""
    store = zarr.storage.ObjectStore(open_http(url), read_only=True)
    return [zarr.open_array(store, path="samples", mode="r")]


def _zarrfeed_http(source: Source) -> Loader:
    return Zarrfeed(source.store, data=zarrfeed.open(f"{source.url}/samples"))


def _zarrfeed_s3(source: Source) -> Loader:
    """Read anonymously, in path style: the first directory of the URL is the bucket."""
    options = {"anon": True, "endpoint_url": source.server, "region": "us-east-1", "allow_http": True}
    options["virtual_hosted_style_request"] = False
    return Zarrfeed(source.store, data=zarrfeed.open(f"s3://{source.store.path.name}/samples", storage_options=options))


def _zarr_chunkwise_http(source: Source) -> Loader:
    opened = partial(open_arrays_http, source.url)
    return ZarrChunkwise(source.store, num_workers=0, num_threads=usable_cores(), open_arrays=opened)


def _torch_dataset_http(source: Source) -> Loader:
    opened = partial(open_arrays_http, source.url)
    return TorchDataset(source.store, num_workers=0, open_arrays=opened)


LOCAL, HTTP = "zarrfeed-local", "zarrfeed-http"

#: What reads with obstore alone and decodes nothing.
CEILINGS = ("obstore-async", "obstore-threads")

#: Name -> how to make it.
SIDES: dict[str, Callable[[Source], Side]] = {
    "wrk": Wrk,
    "obstore-async": ObstoreAsync,
    "obstore-threads": ObstoreThreads,
    LOCAL: lambda source: Zarrfeed(source.store),
    HTTP: _zarrfeed_http,
    "zarrfeed-s3": _zarrfeed_s3,
    "zarr-chunkwise-http": _zarr_chunkwise_http,
    "tensorstore-http": lambda source: TensorStoreRows(source.store, url=source.url),
    "zarr-torch-dataset-http": _torch_dataset_http,
    "insitubatch-http": lambda source: InSitu(source.store, url=source.url),
}


#: Side -> the module that it needs, of those that do not need obstore alone.
_MODULES = {
    "tensorstore-http": "tensorstore",
    "zarr-torch-dataset-http": "zarrdataset",
    "insitubatch-http": "insitubatch",  # for Python 3.12 and later
}
#: Sides over zarr-python, which reads through obstore.
_OVER_ZARR = ("zarr-torch-dataset-http",)


def why_not(side: str) -> str:
    """Return why a side cannot be measured here; "" if it can."""
    if side == "wrk":
        return wrk.why_no_wrk()
    modules = [] if side == LOCAL else [_MODULES.get(side, "obstore"), *(["obstore"] if side in _OVER_ZARR else [])]
    return next((f"{module} is not installed" for module in modules if find_spec(module) is None), "")


def verify_side(name: str, source: Source, expected: Hashes) -> str:
    """Compare what a side delivers with the store, and return what was right, in words.

    Raises
    ------
    ChecksumError
        If a sample is missing, came twice, or is none of the store's; or if a fetched object is not the stored one.
    """
    side = SIDES[name](source)
    try:
        if isinstance(side, Wrk):
            side.run(0)
            return f"{len(source.objects)} objects are answered, and not looked at"
        if not isinstance(side, ObstoreAsync | ObstoreThreads):
            verify_loader(side, source.store, expected)
            return f"{side.samples_per_epoch} samples are right"
        objects = {file.relative_to(source.store.path).as_posix(): file for file in source.objects}
        fetched: list[str] = []
        wrong: list[str] = []

        def take(key: str, data: Any) -> None:
            fetched.append(key)
            if bytes(data) != objects[key].read_bytes():
                wrong.append(key)

        side.fetch(list(objects), take)
        if wrong or sorted(fetched) != sorted(objects):
            raise ChecksumError(f"fetched {len(fetched)} of {len(objects)} objects, {len(wrong)} of them wrong")
        return f"{len(fetched)} objects are right"
    finally:
        side.close()


class Reading:
    """A side that reads epochs: what is measured, for a loader and for a fetcher alike.

    A fetcher gets the objects of several epochs in one call, so that a few large objects do not leave most of its
    threads without work at the end of each epoch.
    """

    def __init__(self, name: str, source: Source) -> None:
        self._source = source
        self._side = SIDES[name](source)
        self._stored_bytes = source.object_bytes
        self._keys = [file.relative_to(source.store.path).as_posix() for file in source.objects]
        self._epoch_s = 0.0
        self.settings = self._side.settings

    def run(self, first_epoch: int, min_wall_s: float, waits: list[float] | None = None) -> Timing:
        """Read whole epochs, at least one, for about `min_wall_s`; fetchers decode 0 bytes.

        `waits` gets the seconds between two batches of an epoch, of a side that has batches.
        """
        if isinstance(self._side, Wrk):
            timing = self._side.run(min_wall_s)
        elif not isinstance(self._side, ObstoreAsync | ObstoreThreads):
            timing = time_loader(
                self._side, self._source.store, first_epoch=first_epoch, min_wall_s=min_wall_s, waits=waits
            )
        else:
            epochs = 1 if not self._epoch_s else max(1, round(min_wall_s / self._epoch_s))
            timing = self._fetch(self._side, first_epoch, epochs)
        self._epoch_s = timing.wall_s / timing.epochs
        return timing

    def close(self) -> None:
        self._side.close()

    def _fetch(self, fetcher: Fetcher, first_epoch: int, epochs: int) -> Timing:
        rng = np.random.default_rng((3, first_epoch))
        keys = [self._keys[i] for _ in range(epochs) for i in rng.permutation(len(self._keys))]
        lengths: list[int] = []
        watch = CpuWatch()
        begin = time.perf_counter()
        fetcher.fetch(keys, lambda _, data: lengths.append(len(data)))
        wall_s = time.perf_counter() - begin
        cpu_s, foreign_cores = watch.stop()
        if sum(lengths) != epochs * self._stored_bytes:
            raise RuntimeError(f"fetched {sum(lengths)} bytes, {epochs} epochs have {epochs * self._stored_bytes}")
        return Timing(epochs, 0, 0, wall_s, cpu_s, foreign_cores)
