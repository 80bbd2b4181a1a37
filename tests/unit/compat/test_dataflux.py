"""The interface of dataflux-pytorch: what is called in which way, and what comes of it."""

from __future__ import annotations

import inspect
import os
import pickle
from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import IO, Any, cast

import numpy as np
import pytest
import torch
import torch.utils.data

import zarrfeed
from benchmarks.harness.object_server import ObjectServer, Stored
from tests.support.real_servers import isolate
from zarrfeed.compat.dataflux import (
    DatafluxCheckpoint,
    DataFluxIterableDataset,
    DataFluxMapStyleDataset,
    dataflux_iterable_dataset,
    dataflux_mapstyle_dataset,
)
from zarrfeed.compat.dataflux.bucket import ObjectList, storage_options_of, timeout_of
from zarrfeed.objects import Listing

N = 23
NAMES = [f"fld/img_{i:03d}" for i in range(N)]


@pytest.fixture(autouse=True)
def _only_here(monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(monkeypatch)


def put(server: ObjectServer, name: str, data: bytes) -> None:
    server.objects[name] = Stored((np.frombuffer(data, np.uint8),), f'"{name}"')


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    with ObjectServer() as server:
        for i, name in enumerate(NAMES):
            put(server, name, b"%d" % i)
        put(server, "fle", b"another")
        put(server, "fl/1", b"another")
        yield server


def map_style(server: ObjectServer, **options: Any) -> DataFluxMapStyleDataset:
    config = dataflux_mapstyle_dataset.Config(prefix="fld", **options)
    return DataFluxMapStyleDataset("project", "bucket", config, storage_client=server.options("gs"))


def iter_by_index(dataset: Any) -> Iterator[Any]:
    """Iterate as Python does it where there is no `__iter__`: an IndexError is the end."""
    assert not hasattr(dataset, "__iter__")
    return iter(dataset)


def test_arguments_and_defaults_are_those_of_the_original() -> None:
    def arguments(of: Any) -> list[tuple[str, Any]]:
        return [(p.name, p.default) for p in inspect.signature(of).parameters.values()]

    common = [
        ("sort_listing_results", False), ("max_composite_object_size", 100_000_000), ("num_processes", os.cpu_count()),
        ("prefix", None), ("max_listing_retries", 3), ("disable_compose", False), ("list_retry_config", None),
        ("download_retry_config", None),
    ]  # fmt: skip
    assert arguments(dataflux_iterable_dataset.Config) == common
    assert arguments(dataflux_mapstyle_dataset.Config) == [*common[:5], ("threads_per_process", 1), *common[5:]]
    empty = inspect.Parameter.empty
    expected = ["project_name", "bucket_name", "config", "data_format_fn", "storage_client"]
    for dataset in (DataFluxMapStyleDataset, DataFluxIterableDataset):
        assert [name for name, _ in arguments(dataset)] == expected
        assert [default is empty for _, default in arguments(dataset)] == [True, True, False, False, False]
    assert arguments(DatafluxCheckpoint) == [("project_name", empty), ("bucket_name", empty), ("storage_client", None)]


def test_objects_by_index(server: ObjectServer) -> None:
    dataset = map_style(server)
    assert len(dataset) == N
    assert dataset.objects == [(name, len(str(i))) for i, name in enumerate(NAMES)]
    assert dataset[5] == b"5"
    assert dataset.__getitems__([3, 1, 3]) == [b"3", b"1", b"3"]
    assert list(iter_by_index(dataset)) == [b"%d" % i for i in range(N)]


def test_objects_are_formatted_one_by_one_in_the_thread_that_asks(server: ObjectServer) -> None:
    config = dataflux_mapstyle_dataset.Config(prefix="fld/img_00")
    dataset = DataFluxMapStyleDataset("project", "bucket", config, int, server.options("gs"))
    assert dataset.__getitems__([9, 0]) == [9, 0]
    assert list(iter_by_index(dataset)) == list(range(10))
    stream = DataFluxIterableDataset("project", "bucket", config, int, server.options("gs"))
    assert list(stream) == list(stream) == list(range(10))
    assert len(stream.objects) == 10


def test_without_a_prefix_all_objects_are_there(server: ObjectServer) -> None:
    dataset = DataFluxMapStyleDataset("project", "bucket", storage_client=server.options("gs"))
    assert [name for name, _ in dataset.objects] == ["fl/1", *NAMES, "fle"]


def test_workers_share_the_objects(server: ObjectServer) -> None:
    config = dataflux_iterable_dataset.Config(prefix="fld")
    stream = DataFluxIterableDataset("project", "bucket", config, storage_client=server.options("gs"))
    for dataset in (stream, map_style(server)):
        loader = torch.utils.data.DataLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context="forkserver")
        assert sorted(int(one) for batch in loader for one in batch) == list(range(N))


def test_a_pickle_has_no_client(server: ObjectServer) -> None:
    dataset = map_style(server)
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy.storage_client is None
    assert copy.objects == dataset.objects
    assert copy[7] == b"7"


def test_the_server_that_stands_in_for_google_is_taken_from_the_environment(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"127.0.0.1:{server.port}")
    dataset = DataFluxMapStyleDataset("project", "bucket", dataflux_mapstyle_dataset.Config(prefix="fld/img_01"))
    assert len(dataset) == 10


def client(credentials: Any, address: str) -> Any:
    return SimpleNamespace(_credentials=credentials, _connection=SimpleNamespace(API_BASE_URL=address))


class AnonymousCredentials:
    """By its name, as google-auth has it."""


def test_address_and_credentials_of_a_client_are_taken(server: ObjectServer) -> None:
    assert storage_options_of(None) is None
    anonymous = client(AnonymousCredentials(), f"http://127.0.0.1:{server.port}")
    expected = {"base_url": f"http://127.0.0.1:{server.port}", "allow_http": True, "skip_signature": True}
    assert storage_options_of(anonymous) == expected
    asked = 0

    class Credentials:
        token = "secret"
        expiry = datetime(2100, 1, 1)  # without a time zone, as google-auth has it

        @property
        def valid(self) -> bool:
            nonlocal asked
            asked += 1
            return True

    options = storage_options_of(client(Credentials(), "https://storage.googleapis.com"))
    assert options is not None
    assert list(options) == ["credential_provider"]
    assert options["credential_provider"]() == {"token": "secret", "expires_at": datetime(2100, 1, 1, tzinfo=UTC)}
    own = client(Credentials(), f"http://127.0.0.1:{server.port}")
    dataset = DataFluxMapStyleDataset("p", "bucket", dataflux_mapstyle_dataset.Config(prefix="fld"), storage_client=own)
    assert dataset[1] == b"1"
    assert asked >= 2


@pytest.mark.parametrize(
    ("retry", "seconds"),
    [
        (None, 300.0),
        (SimpleNamespace(timeout=20), 20.0),
        (SimpleNamespace(deadline=1e9), 1e6),
        (SimpleNamespace(timeout=None, deadline=None), 300.0),
        ("retry", 300.0),
    ],
)
def test_the_timeout_of_a_retry_is_taken(retry: Any, seconds: float) -> None:
    assert timeout_of(retry) == seconds


def test_composite_objects_are_never_made_and_a_size_for_them_is_told_so(server: ObjectServer) -> None:
    before = server.keys()
    with pytest.warns(UserWarning, match="max_composite_object_size = 5000000 has no effect"):
        dataset = map_style(server, max_composite_object_size=5_000_000)
    assert dataset.config.max_composite_object_size == 5_000_000
    assert dataset.__getitems__(list(range(N))) == [b"%d" % i for i in range(N)]
    assert server.keys() == before
    assert map_style(server, disable_compose=True).config.max_composite_object_size == 0
    assert map_style(server, max_composite_object_size=0).config.max_composite_object_size == 0


@pytest.mark.parametrize(
    "options",
    [
        {"sort_listing_results": 1}, {"disable_compose": "no"}, {"max_composite_object_size": -1}, {"num_processes": 0},
        {"max_listing_retries": -1}, {"threads_per_process": 0}, {"num_processes": 1.5},
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(zarrfeed.ConfigError, match=f"{next(iter(options))} = "):
        dataflux_mapstyle_dataset.Config(**options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("p", ""), "bucket_name = '', must be the name of a bucket"),
        (("p", "gs://bucket"), "without gs:// and folders"),
        (("p", "bucket", {"prefix": "fld"}), "config: got a dict, must be a Config"),
        (("p", "bucket", None, bytes, 3), "storage_client: got a int, must be a google.cloud.storage.Client"),
        (("p", "bucket", dataflux_mapstyle_dataset.Config(prefix="/fld")), "prefix = '/fld'"),
    ],
)
def test_arguments_that_cannot_be_are_refused(arguments: Any, message: str) -> None:
    for dataset in (DataFluxMapStyleDataset, DataFluxIterableDataset):
        with pytest.raises(zarrfeed.ConfigError, match=message):
            dataset(*arguments)


def test_a_prefix_without_objects_is_an_error(server: ObjectServer) -> None:
    config = dataflux_mapstyle_dataset.Config(prefix="nothing")
    with pytest.raises(zarrfeed.ConfigError, match="gs://bucket: no object is there"):
        DataFluxMapStyleDataset("project", "bucket", config, storage_client=server.options("gs"))


def test_the_list_of_objects_is_like_a_list() -> None:
    objects = ObjectList(Listing.of([("a", 1), ("b", 2), ("c", 3), ("d", 4)]))
    assert (len(objects), objects[-1], objects[1:3]) == (4, ("d", 4), [("b", 2), ("c", 3)])
    assert objects == [("a", 1), ("b", 2), ("c", 3), ("d", 4)]
    assert objects != [("a", 1)]
    assert objects != 3
    assert ("c", 3) in objects
    assert repr(objects) == "[('a', 1), ('b', 2), ('c', 3), ...]"


def test_a_checkpoint_is_written_and_read(server: ObjectServer) -> None:
    checkpoint = DatafluxCheckpoint("project", "bucket", server.options("gs"))
    state: dict[str, Any] = {"weight": torch.arange(1000.0), "step": 7}
    with checkpoint.writer("checkpoints/epoch0.ckpt") as writer:
        torch.save(state, cast(IO[bytes], writer))
    with checkpoint.reader("checkpoints/epoch0.ckpt") as reader:
        found = torch.load(cast(IO[bytes], reader))
    assert found["step"] == 7
    assert torch.equal(found["weight"], state["weight"])
    put(server, "plain", b"written by something else")
    with checkpoint.reader("plain") as reader:
        assert reader.read() == b"written by something else"
    with pytest.raises(zarrfeed.StoreReadError):
        checkpoint.reader("nothing")
    for name in ("", "/", None):
        with pytest.raises(zarrfeed.ConfigError, match="object_name = "):
            checkpoint.writer(name)  # type: ignore[arg-type]
