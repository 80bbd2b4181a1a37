"""Stores and objects whose names URLs, patterns and paths read as something else: each is read, or refused.

Each store holds the number of its name, so that any other store is seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from zarr.storage import FsspecStore, MemoryStore, ObjectStore

import zarrfeed
import zarrfeed.objects
from benchmarks.harness.object_server import ObjectServer, Stored
from tests.support.counting_server import CountingServer
from tests.support.later import Later
from zarrfeed import ConfigError, StoreReadError, ZarrDataset, checkpoint
from zarrfeed.compat.dataflux import DatafluxCheckpoint
from zarrfeed.packing.sources.detect import call_of
from zarrfeed.packing.sources.source import SourceOptions
from zarrfeed.storage.access.key_urls import url_of
from zarrfeed.storage.access.portable import as_location
from zarrfeed.storage.chunks.object_versions import name_store

obstore = pytest.importorskip("obstore")
compat: Any = Later("zarrfeed.compat.lightning")

#: Each with the name that a URL library would make of it, where that is another one.
NAMES = (
    "run 3", "run%203", "run", "run#3", "run?3", "run%2F3", "run%", "run+3", "run%2B3", "ü", "%C3%BC", "[1]", "1", "*",
    " lead", "lead", "trail ", "trail", "100%25", "100%", "a&b=c", "ts=2020-01-01 00%3A00", "ts=2020-01-01 00:00",
    "a@b", "~", "{x}", "%zz", "..x", "a;b,c", "s3:", "%FF",
)  # fmt: skip
VALUES = {name: number for number, name in enumerate(NAMES)}


def write_all(store: Any, *, path: str = "") -> None:
    """Write an array of each name, below a folder."""
    for name, number in VALUES.items():
        zarr.create_array(store, name=f"{path}{name}", data=np.full((2, 2), number), chunks=(1, 2))


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectServer]:
    """Start an S3 server with all stores below "many", and an object of each name below "objects"."""
    memory: Any = {}
    write_all(MemoryStore(memory), path="many/")
    with ObjectServer() as started:
        for key, value in memory.items():
            if key.count("/") > 1:
                started.objects[key] = Stored((np.frombuffer(value.to_bytes(), np.uint8),), f'"{key!a}"')
        for name, number in VALUES.items():
            started.objects[f"objects/{name}"] = Stored((np.full(3, number, np.uint8),), f'"{number}"')
        yield started


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, number in VALUES.items():
        zarr.create_array(tmp_path / "many" / name, data=np.full((2, 2), number), chunks=(1, 2))
        (tmp_path / "objects").mkdir(exist_ok=True)
        (tmp_path / "objects" / name).write_bytes(bytes([number] * 3))
    return tmp_path


def value_of(source: Any, **options: Any) -> int:
    return int(ZarrDataset(zarrfeed.open(source, **options))[0][0])


def values_of(data: zarrfeed.Data) -> list[int]:
    """Return the value of each store."""
    return [int(row[0]) for row in ZarrDataset(data)[list(range(0, len(data), 2))]]


def test_each_store_of_a_server_is_read_by_its_url_and_in_a_list(server: ObjectServer, tmp_path: Path) -> None:
    options: dict[str, Any] = {"storage_options": server.options()}
    urls = [url_of("s3://bucket/many", name) for name in NAMES]
    assert [value_of(url, **options) for url in urls] == list(VALUES.values())
    assert values_of(zarrfeed.open(urls, **options)) == list(VALUES.values())
    cached = zarrfeed.open(urls, **options, cache=tmp_path / "cache", cache_limit="1MiB")
    for _ in range(2):
        assert values_of(cached) == list(VALUES.values())


def test_a_pattern_names_the_stores_that_it_lists(server: ObjectServer) -> None:
    """Each store that a pattern found can be opened by the name that the data give it."""
    options: dict[str, Any] = {"storage_options": server.options()}
    data = zarrfeed.open("s3://bucket/many/[!*]*", **options)
    found = sorted(name for name in NAMES if name[0] not in "*." and name != "*")
    assert [VALUES[name] for name in found] == values_of(data)
    assert [value_of(one, **options) for one in data.stores] == values_of(data)
    call = call_of(["s3://bucket/many/[!*]*"], "zarr", SourceOptions(storage_options=server.options()))
    assert call.paths == data.stores


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("run%20*", ["run 3"]),
        ("run%25*", ["run%", "run%203", "run%2B3", "run%2F3"]),
        ("run#*", ["run#3"]),
        ("run?3", ["run?3"]),
        ("*", ["*"]),
        ("%2A*", ["*"]),
        ("[1]", ["[1]"]),
        ("%5B1]*", ["[1]"]),
        ("10[0]%2525", ["100%25"]),
        ("tra?l", ["trail"]),
    ],
)
def test_a_pattern_means_the_same_on_a_server_and_in_a_folder(
    server: ObjectServer, folder: Path, pattern: str, names: list[str]
) -> None:
    options: dict[str, Any] = {"storage_options": server.options()}
    data = zarrfeed.open(f"s3://bucket/many/{pattern}", **options)
    assert values_of(data) == [VALUES[name] for name in names]
    if "?" not in pattern and "#" not in pattern:
        assert values_of(zarrfeed.open(f"file://{folder}/many/{pattern}")) == values_of(data)
    if "%" not in pattern:
        assert values_of(zarrfeed.open(f"{folder}/many/{pattern}")) == values_of(data)


@pytest.mark.parametrize("name", ["run#3", "run?3=", "..", "a//b", "run\n", "%FF*%FF", "x/%2e%2e/*"])
def test_a_url_that_would_name_another_store_is_refused(server: ObjectServer, name: str) -> None:
    with pytest.raises(ConfigError):
        zarrfeed.open(f"s3://bucket/many/{name}", storage_options=server.options())


def test_the_error_of_a_missing_store_says_the_key_that_was_looked_for(server: ObjectServer) -> None:
    with pytest.raises(StoreReadError, match=r"below the key 'many/no:where'; in a URL, %25 stands for a percent"):
        zarrfeed.open("s3://bucket/many/no%3Awhere", storage_options=server.options())


def test_each_store_of_a_folder_is_read_by_path_file_url_and_group(folder: Path) -> None:
    for name, number in VALUES.items():
        path = folder / "many" / name
        assert value_of(path) == value_of(path.as_uri()) == number, name
    data = zarrfeed.open([folder / "many" / name for name in NAMES])
    assert values_of(data) == list(VALUES.values())
    for name in ("run#3", "run?3"):
        with pytest.raises(ConfigError, match="has a query or a fragment; a name with # or"):
            zarrfeed.open(f"file://{folder}/many/{name}")


def test_each_member_of_a_group_is_read(tmp_path: Path) -> None:
    """In a local store and in one that Python reads; zarr-python refuses no name of these."""
    memory = MemoryStore()
    for store in (str(tmp_path / "group"), memory):
        zarr.create_group(store)
        write_all(store)
        data = zarrfeed.open(zarr.open_group(store, mode="r"))
        assert {name: int(rows[0]) for name, rows in ZarrDataset(data)[0].items()} == VALUES


def test_each_object_is_listed_and_read(server: ObjectServer, folder: Path) -> None:
    with CountingServer(folder) as web:
        sources: list[tuple[str, dict[str, Any], bool]] = [
            ("s3://bucket/objects", {"storage_options": server.options()}, True),
            (f"{folder}/objects", {}, True),
            (f"file://{folder}/objects", {}, True),
            (f"{web.url}/objects", {}, False),
        ]
        for source, options, is_listed in sources:
            keys = list(NAMES)
            if is_listed:
                listing = zarrfeed.objects.list_objects(source, **options)
                assert [one.key for one in listing] == sorted(NAMES)
                keys = [one.key for one in listing]
            objects = zarrfeed.objects.open(source, keys=keys, **options)
            dataset = zarrfeed.objects.ObjectDataset(objects, decode=bytes)
            read = [dataset[number] for number in range(len(keys))]
            assert read == [bytes([VALUES[key]] * 3) for key in keys], source


@pytest.mark.parametrize("key", ["a/", "a//b", "..", "a/../b", "./a", "a\nb"])
def test_keys_that_clients_take_for_others_are_refused(server: ObjectServer, folder: Path, key: str) -> None:
    for source, options in (("s3://bucket/objects", server.options()), (f"{folder}/objects", None)):
        with pytest.raises(ConfigError, match="the key"):
            zarrfeed.objects.open(source, keys=[key], storage_options=options)


def test_a_key_without_a_name_is_said_of_what_cannot_be_listed() -> None:
    with ObjectServer() as server:
        server.objects["many/x//y"] = Stored((np.zeros(1, np.uint8),), '"1"')
        for call in (
            lambda: zarrfeed.open("s3://bucket/many/x/*", storage_options=server.options(), retries=2),
            lambda: zarrfeed.objects.list_objects("s3://bucket/many", storage_options=server.options(), retries=2),
        ):
            server.requests.clear()
            with pytest.raises(StoreReadError, match=r"obstore does not list folders with such a key, rename it: .*//"):
                call()
            assert len(server.requests) < 3  # another attempt does not help


def test_each_checkpoint_is_found_and_read(tmp_path: Path) -> None:
    """A checkpoint's name, and its folder's, are what was written, on a server and locally."""
    names = [name for name in NAMES if not name.startswith(".")]
    with ObjectServer() as server:
        for base, options in (("s3://bucket", server.options()), (tmp_path.as_uri(), None)):
            for name in names:
                run = url_of(url_of(base, "runs"), name)
                where = url_of(run, name)
                with checkpoint.writer(where, storage_options=options) as file:
                    file.write(name.encode())
                if options is not None:
                    assert f"runs/{name}/{name}" in server.objects
                else:
                    assert (tmp_path / "runs" / name / name).exists()
                found = checkpoint.newest(run, storage_options=options)
                assert found is not None
                with checkpoint.reader(found, storage_options=options) as file:
                    assert file.read() == name.encode()
                assert checkpoint.retain(run, keep_last=1, storage_options=options).kept == (found,)
    with pytest.raises(ConfigError):
        checkpoint.reader("s3://bucket/run#1/x")


def test_a_checkpoint_is_removed_by_the_name_that_it_was_saved_by(tmp_path: Path) -> None:
    """A URL library makes one name of the other: the one that was named goes, and the other stays."""
    for one, other in (("step 1", "step%201"), ("step%201", "step 1"), ("a#b", "a"), ("a?b", "a")):
        with ObjectServer() as server:
            files = compat.ZarrfeedCheckpointIO(storage_options=server.options())
            for name in (one, other):
                files.save_checkpoint({"name": name}, url_of("s3://bucket/run 1", name))
            files.remove_checkpoint(url_of("s3://bucket/run 1", one))
            assert server.keys() == [f"run 1/{other}"]
            assert files.load_checkpoint(url_of("s3://bucket/run 1", other)) == {"name": other}
        files = compat.ZarrfeedCheckpointIO()
        for name in (one, other):
            files.save_checkpoint({"name": name}, (tmp_path / name).as_uri())
        files.remove_checkpoint((tmp_path / one).as_uri())
        assert [path.name for path in tmp_path.iterdir()] == [other]
        files.remove_checkpoint(tmp_path / other)
        assert not list(tmp_path.iterdir())


def test_a_task_elsewhere_opens_the_same_location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for given, location in (
        ("s3://bucket/a%20b", "s3://bucket/a%20b"), ("file:///d/a%20b", "/d/a b"), ("file:/d/x", "/d/x"),
        ("a%20b#1", f"{tmp_path}/a%20b#1"), ("a/s3://b", f"{tmp_path}/a/s3:/b"),
    ):  # fmt: skip
        assert as_location(given) == location


def test_a_checkpoint_of_dataflux_has_the_name_of_its_object() -> None:
    with ObjectServer() as server:
        checkpoints = DatafluxCheckpoint(None, "bucket", server.options("gs"))
        names = [name for name in NAMES if not name.startswith(".")]
        for name in names:
            with checkpoints.writer(name) as file:
                file.write(name.encode())
        assert server.keys() == sorted(names)
        for name in names:
            with checkpoints.reader(name) as file:
                assert file.read() == name.encode()


def test_other_locations_have_other_names_in_the_node_cache() -> None:
    """One name for two locations would serve the bytes of one for the other."""
    memory = AsyncFileSystemWrapper(fsspec.filesystem("memory"), asynchronous=True)
    web = fsspec.filesystem("http", asynchronous=True)
    stores = [
        *(FsspecStore(memory, path=path) for path in ("/run", "/run#1", "/run%231")),
        *(FsspecStore(web, path=path) for path in ("https://a/run", "https://b/run", "https://a/run#1")),
        *(
            ObjectStore(obstore.store.HTTPStore.from_url(f"https://host/{path}"))
            for path in ("a/b", "a%2Fb", "a%252Fb", "a%23b")
        ),
    ]
    named = [name_store(store) for store in stores]
    assert None not in named
    assert len(set(named)) == len(stores)
    assert name_store(FsspecStore(web, path="https://a/run?token=1")) is None
