"""One loader of objects in a process of its own: `python object_probe.py SIDE` with a JSON of `Task` on stdin.

It imports nothing of this package, so that a peer can run it in a virtual environment of its own. Two epochs are read:
the first one says whether every object came once and whole, the second one is timed. Listing is not timed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

BUCKET, PREFIX = "data", "objects"
#: Each object begins with its number in so many bytes.
NUMBER_BYTES = 8


class Task:
    """What is to be read: `url` of the server, `count` objects of `size` bytes, in batches, by so many workers."""

    def __init__(self, url: str, count: int, size: int, batch_size: int, workers: int) -> None:
        self.url, self.count, self.size, self.batch_size, self.workers = url, count, size, batch_size, workers

    def names(self) -> list[str]:
        return [f"{PREFIX}/{i:06d}" for i in range(self.count)]

    def options(self) -> Any:
        return {"base_url": self.url, "bearer_token": "token"}


def as_list(batch: list[Any]) -> list[Any]:
    """Leave the objects of a batch as they are."""
    return batch


def loader_of(dataset: Any, task: Task, workers: int) -> Iterable[list[Any]]:
    """Return a DataLoader of torch that shuffles, with workers that persist; clients do not survive a fork."""
    import torch.utils.data

    more: dict[str, Any] = {"multiprocessing_context": "forkserver", "persistent_workers": True} if workers else {}
    return torch.utils.data.DataLoader(
        dataset, task.batch_size, shuffle=True, num_workers=workers, collate_fn=as_list, **more
    )


class Keys:
    """A map-style dataset of keys: a subclass says how one is read."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.keys = task.names()
        self._client: Any = None

    def __len__(self) -> int:
        return len(self.keys)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_client": None}

    @property
    def client(self) -> Any:
        if self._client is None:
            self._client = self.connect()
        return self._client

    def connect(self) -> Any:
        raise NotImplementedError


class ByObstore(Keys):
    """`obstore.get`, one object after the other."""

    def connect(self) -> Any:
        from obstore.store import GCSStore

        return GCSStore(BUCKET, config=self.task.options(), client_options={"allow_http": True})

    def __getitem__(self, index: int) -> bytes:
        import obstore

        return bytes(obstore.get(self.client, self.keys[index]).bytes())


class ByObstoreAtOnce(ByObstore):
    """`obstore.get_async`, all objects of a batch at once."""

    def __getitems__(self, indices: list[int]) -> list[bytes]:
        import obstore

        async def one(index: int) -> bytes:
            return bytes(await (await obstore.get_async(self.client, self.keys[index])).bytes_async())

        async def all_of_them() -> list[bytes]:
            return list(await asyncio.gather(*map(one, indices)))

        return asyncio.run(all_of_them())


class ByGcsfs(Keys):
    """`cat_file` of gcsfs."""

    def connect(self) -> Any:
        os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"  # asks by gRPC, which the server does not speak
        import gcsfs

        return gcsfs.GCSFileSystem(endpoint_url=self.task.url, token="anon", skip_instance_cache=True)

    def __getitem__(self, index: int) -> bytes:
        return bytes(self.client.cat_file(f"{BUCKET}/{self.keys[index]}"))


def by_keys(kind: type[Keys]) -> Callable[[Task], Iterable[list[Any]]]:
    return lambda task: loader_of(kind(task), task, task.workers)


def by_dataflux(task: Task, *, composes: bool) -> Iterable[list[Any]]:
    """dataflux-pytorch as its README has it, in workers."""
    os.environ["STORAGE_EMULATOR_HOST"] = task.url
    from dataflux_pytorch import dataflux_mapstyle_dataset
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    config = dataflux_mapstyle_dataset.Config(
        prefix=f"{PREFIX}/", disable_compose=not composes, num_processes=1, threads_per_process=4
    )
    client = storage.Client(project="project", credentials=AnonymousCredentials()) if not composes else None
    dataset = dataflux_mapstyle_dataset.DataFluxMapStyleDataset("project", BUCKET, config, storage_client=client)
    return loader_of(dataset, task, task.workers)


def by_s3torchconnector(task: Task) -> Iterable[list[Any]]:
    from s3torchconnector import S3ClientConfig, S3MapDataset

    config = S3ClientConfig(force_path_style=True, unsigned=True)
    uris = [f"s3://{BUCKET}/{name}" for name in task.names()]  # it does not understand how this server lists
    dataset = S3MapDataset.from_objects(
        uris, region="us-east-1", endpoint=task.url, s3client_config=config, transform=read_all
    )
    return loader_of(dataset, task, task.workers)


def read_all(reader: Any) -> bytes:
    return bytes(reader.read())


def _objects(task: Task) -> Any:
    import zarrfeed.objects

    return zarrfeed.objects.open(f"gs://{BUCKET}/{PREFIX}", storage_options={**task.options(), "allow_http": True})


def by_zarrfeed(task: Task) -> Iterable[list[Any]]:
    from zarrfeed.objects import ObjectIterableDataset

    return ObjectIterableDataset(_objects(task), batch_size=task.batch_size, shuffle=True)


def by_zarrfeed_index(task: Task) -> Iterable[list[Any]]:
    from zarrfeed.objects import ObjectDataset

    return loader_of(ObjectDataset(_objects(task)), task, 0)


SIDES: dict[str, Callable[[Task], Iterable[list[Any]]]] = {
    "zarrfeed": by_zarrfeed,
    "zarrfeed-index": by_zarrfeed_index,
    "obstore": by_keys(ByObstore),
    "obstore-batch": by_keys(ByObstoreAtOnce),
    "gcsfs": by_keys(ByGcsfs),
    "dataflux": lambda task: by_dataflux(task, composes=False),
    "dataflux-compose": lambda task: by_dataflux(task, composes=True),
    "s3torchconnector": by_s3torchconnector,
}


def numbers_of(batches: Iterable[list[Any]], task: Task) -> Iterator[int]:
    """Yield the number of each object of an epoch, which has to be whole."""
    for batch in batches:
        for one in batch:
            if len(one) != task.size:
                raise ValueError(f"an object has {len(one)} bytes, not {task.size}")
            data = memoryview(one.numpy() if hasattr(one, "numpy") else one)
            yield int.from_bytes(bytes(data[:NUMBER_BYTES]), "little")


def main() -> None:
    """Verify an epoch, time another one, and print what it took as JSON."""
    side, task = sys.argv[1], Task(**json.loads(sys.stdin.read()))
    try:
        batches = SIDES[side](task)
    except ImportError as error:
        print(json.dumps({"missing": str(error)}))
        return
    if sorted(numbers_of(batches, task)) != list(range(task.count)):
        raise ValueError("an object is missing, or came twice")
    begin, cpu = time.perf_counter(), time.process_time()
    count = sum(len(batch) for batch in batches)
    seconds = time.perf_counter() - begin
    print(json.dumps({"seconds": seconds, "bytes": count * task.size, "cpu_s": time.process_time() - cpu}))


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # some clients wait at exit
