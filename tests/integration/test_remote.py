"""URLs through obstore, against an S3 server in a process of its own and a web server; Icechunk repositories."""

from __future__ import annotations

import builtins
import functools
import http.server
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import numcodecs as zarr_numcodecs
from zarr.storage import ObjectStore

from benchmarks.harness.loopback import LoopbackServer
from tests.support.oracle import ZARR_FORMATS, AnyArray, Layout, ZarrFormat, assert_parity, numbered, read_all
from zarrfeed import ConfigError, CorruptChunkError, StoreReadError, UnsupportedError, ZarrIterableDataset
from zarrfeed.metadata.array.array import read_layout
from zarrfeed.storage.access.urls import URL_SCHEMES

pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in:zarr.errors.ZarrUserWarning")

N = 60
TIMEOUT_S = 60.0

_MOTO = """
import sys
from moto.core import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends
from moto.server import ThreadedMotoServer
s3_backends[DEFAULT_ACCOUNT_ID]["aws"].create_bucket("data", "us-east-1")
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print("port", server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
"""


@pytest.fixture(scope="module")
def s3_server() -> Iterator[str]:
    """Start an S3 server with an empty bucket "data", in a process of its own; yield its endpoint."""
    pytest.importorskip("moto", exc_type=ImportError)
    pytest.importorskip("obstore")
    server = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", _MOTO], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    watchdog = threading.Timer(TIMEOUT_S, server.kill)
    watchdog.start()
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        words = server.stdout.readline().split()
        assert words[:1] == ["port"], "the S3 server did not start"
        watchdog.cancel()
        yield f"http://127.0.0.1:{words[1]}"
    finally:
        watchdog.cancel()
        server.stdin.close()
        server.stdout.close()
        try:
            server.wait(240)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait(240)


@pytest.fixture
def s3(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Set what a user would set to reach the server; returns the URL of the bucket."""
    for name, value in {
        "AWS_ENDPOINT_URL": s3_server,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "someone",
        "AWS_SECRET_ACCESS_KEY": "anything",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    return "s3://data"


def writable(url: str) -> ObjectStore[Any]:
    from obstore.store import from_url

    return ObjectStore(from_url(url))


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """Serve `tmp_path` on the web; yield the URL."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    with LoopbackServer(functools.partial(Quiet, directory=tmp_path)) as server:
        yield server.url


# --- object stores ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zarr_format", ZARR_FORMATS)
def test_an_array_in_s3(zarr_format: ZarrFormat, s3: str) -> None:
    layout = Layout(zarr_format=zarr_format, shape=(23, 6, 5), chunks=(5, 4, 2), codec="blosc-lz4-shuffle")
    url = f"{s3}/deep/array-{zarr_format}"
    layout.write(writable(url))
    for shuffle in (False, True):
        dataset = assert_parity(url, layout.data(), shuffle=shuffle)
    assert dataset.explain().fields[0].source == url
    assert dataset.explain().memory.max_requests > 0
    assert assert_parity(url + "/", layout.data()).stats().chunks_missing == 0
    assert url in repr(dataset)


def test_a_group_in_s3_and_an_array_of_it_as_targets(s3: str) -> None:
    x, y = numbered((N, 6)), numbered((N, 2), "i4")
    group = zarr.create_group(writable(f"{s3}/group"))
    group.create_array("x", data=x, chunks=(4, 6))
    group.create_array("y", data=y, chunks=(4, 2))
    with ZarrIterableDataset(f"{s3}/group", batch_size=8, shuffle=True, return_index=True) as dataset:
        for batch, index in dataset:
            np.testing.assert_array_equal(batch["x"], x[index])
            np.testing.assert_array_equal(batch["y"], y[index])
    assert_parity(f"{s3}/group/x", x, f"{s3}/group/y", y)


def test_codecs_of_zarr_python_and_missing_chunks_in_s3(s3: str) -> None:
    array: zarr.Array[Any] = zarr.create_array(
        writable(f"{s3}/slow"), shape=(N, 6), chunks=(4, 6), dtype="f4", fill_value=3, compressors=zarr_numcodecs.BZ2()
    )
    array[8:24] = numbered((16, 6))
    dataset = assert_parity(f"{s3}/slow", read_all(array), shuffle=False)
    assert dataset.stats().chunks_missing == 11
    assert dataset.stats().chunks_read == 4


def test_what_is_wrong_in_s3_is_an_error_with_the_url(s3: str) -> None:
    url = f"{s3}/wrong"
    with pytest.raises(StoreReadError, match="s3://data/wrong: no Zarr array is there: the bucket 'data' has no"):
        ZarrIterableDataset(url)
    with pytest.raises(StoreReadError, match="s3://nowhere/wrong: there is no bucket 'nowhere'"):
        ZarrIterableDataset("s3://nowhere/wrong")
    data = numbered((N, 6))
    store = writable(url)
    zarr.create_array(store, data=data, chunks=(4, 6))
    store.store.put("c/7/0", b"\xff" * 40)
    with (
        ZarrIterableDataset(url, batch_size=8) as dataset,
        pytest.raises(CorruptChunkError, match=f"{url} chunk c/7/0"),
    ):
        list(dataset)
    with ZarrIterableDataset(url, batch_size=8) as dataset:
        for entry in ["zarr.json", *(f"c/{i}/0" for i in range(15))]:
            store.store.delete(entry)
        with pytest.raises(StoreReadError, match=r"zarr\.json is gone"):
            list(dataset)


def test_a_dataset_of_a_url_can_be_pickled(s3: str) -> None:
    data = numbered((N, 6))
    zarr.create_array(writable(f"{s3}/pickled"), data=data, chunks=(4, 6))
    dataset = ZarrIterableDataset(f"{s3}/pickled", batch_size=8, return_index=True)
    again = pickle.loads(pickle.dumps(dataset))
    seen: list[int] = []
    for rows, index in again:
        np.testing.assert_array_equal(rows, data[index])
        seen += index.tolist()
    assert seen == list(range(N))
    assert str(read_layout(f"{s3}/pickled").source.store) == f"{s3}/pickled"  # type: ignore[union-attr]
    again.close()


# --- web servers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zarr_format", ZARR_FORMATS)
@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part:zarr.errors.ZarrUserWarning")
def test_arrays_and_consolidated_groups_on_a_web_server(zarr_format: ZarrFormat, web: str, tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    x, y = numbered((N, 6)), numbered((N, 2), "i4")
    group = zarr.create_group(tmp_path / "g", zarr_format=zarr_format)
    group.create_array("x", data=x, chunks=(4, 6))
    group.create_array("y", data=y, chunks=(4, 2))
    zarr.consolidate_metadata(tmp_path / "g")
    assert_parity(f"{web}/g/x", x, f"{web}/g/y", y)
    with ZarrIterableDataset(f"{web}/g", batch_size=8, return_index=True) as dataset:
        for batch, index in dataset:
            np.testing.assert_array_equal(batch["x"], x[index])
            np.testing.assert_array_equal(batch["y"], y[index])
    with pytest.raises(StoreReadError, match=f"{web}/nothing: no Zarr array is there"):
        ZarrIterableDataset(f"{web}/nothing")


# --- URLs that are refused --------------------------------------------------------------------------------------


def test_credentials_in_a_url_are_refused_and_not_repeated() -> None:
    pytest.importorskip("obstore")
    for url in ("https://me:secret@host/a", "https://host/a?token=secret", "s3://me:secret@bucket/a"):
        with pytest.raises(ConfigError, match="has a user, a query or a fragment") as caught:
            ZarrIterableDataset(url)
        assert "secret" not in str(caught.value)


def test_a_url_without_obstore_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **options: Any) -> Any:
        if name.startswith("obstore"):
            raise ImportError(name)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    for scheme in URL_SCHEMES:
        with pytest.raises(ConfigError, match=r"need obstore: pip install 'zarrfeed\[remote\]'"):
            ZarrIterableDataset(f"{scheme}://somewhere/a")


def test_a_url_that_obstore_does_not_take_is_an_error() -> None:
    pytest.importorskip("obstore")
    with pytest.raises((ConfigError, UnsupportedError), match="https:///"):
        ZarrIterableDataset("https:///")


# --- Icechunk ---------------------------------------------------------------------------------------------------


def icechunk_session(path: Path, x: AnyArray, y: AnyArray) -> Any:
    """Write a repository on disk; return a session that reads it."""
    icechunk = pytest.importorskip("icechunk")
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(path)))
    session = repository.writable_session("main")
    group = zarr.create_group(session.store)
    group.create_array("x", data=x, chunks=(4, 6))
    group.create_array("y", data=y, chunks=(7, 2), compressors=zarr_numcodecs.LZMA())
    session.commit("numbered samples")
    return repository.readonly_session("main")


def test_an_icechunk_repository_on_disk(tmp_path: Path) -> None:
    x, y = numbered((N, 6)), numbered((N, 2), "i4")
    session = icechunk_session(tmp_path / "repository", x, y)
    group = zarr.open_group(session.store, mode="r")
    assert_parity(group["x"], x, group["y"], y)
    with ZarrIterableDataset(group, batch_size=8, shuffle=True, return_index=True) as dataset:
        for batch, index in dataset:
            np.testing.assert_array_equal(batch["x"], x[index])
            np.testing.assert_array_equal(batch["y"], y[index])
        assert [f.native for f in dataset.explain().fields] == [True, False, True]
