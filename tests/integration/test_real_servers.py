"""Servers that others wrote, of S3, Google, Azure and HTTP: samples are zarr-python's, errors say what is wrong.

All servers are on 127.0.0.1. What a client would ask for credentials leads to a closed port.
"""

from __future__ import annotations

import errno
import traceback
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec, ZstdCodec
from zarr.codecs import numcodecs as zarr_numcodecs
from zarr.storage import ObjectStore

import zarrfeed
from tests.support.oracle import AnyArray, assert_parity, numbered, read_all
from tests.support.real_servers import (
    SERVERS,
    Endpoint,
    isolate,
    reading_without_signature,
    serving_or_skip,
)
from zarrfeed import CorruptChunkError, StoreReadError, ZarrDataLoader, ZarrDataset, ZarrIterableDataset, verify
from zarrfeed.storage.access.obstore_options import obstore_options

pytest.importorskip("obstore")
pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in:zarr.errors.ZarrUserWarning")

N = 60
#: Arrays of the store, each stored in another way: by the engine, by zarr-python, in shards, and with chunks missing.
ARRAYS = ("blosc", "v2", "shards", "bz2", "holes")


@dataclass(frozen=True)
class Served:
    """A server, and the directory with the same files."""

    endpoint: Endpoint
    directory: Path

    def open(self, name: str) -> Any:
        return zarrfeed.open(f"{self.endpoint.url}/{name}", storage_options=self.endpoint.options or None)

    def store_of_zarr_python(self, name: str) -> ObjectStore[Any]:
        from obstore.store import from_url

        url = f"{self.endpoint.url}/{name}"
        options = obstore_options(url, url.partition(":")[0], self.endpoint.options)
        if url.startswith("http:"):
            options["client_options"] |= {"allow_http": True}
        return ObjectStore(from_url(url, **options), read_only=True)

    def expected(self, name: str) -> AnyArray:
        return read_all(self.directory / name)

    def names(self) -> list[str]:
        return [name for name in ARRAYS if name != "shards" or self.endpoint.reads_ranges]


def _write(directory: Path) -> None:
    data = numbered((N, 6))
    zarr.create_array(directory / "blosc", data=data, chunks=(4, 6), compressors=BloscCodec(cname="lz4"))
    zarr.create_array(directory / "v2", data=data, chunks=(7, 3), zarr_format=2)
    codecs = (ZstdCodec(), Crc32cCodec())
    zarr.create_array(directory / "shards", data=data, chunks=(4, 6), shards=(20, 6), compressors=codecs)
    zarr.create_array(directory / "bz2", data=data, chunks=(4, 6), compressors=zarr_numcodecs.BZ2())
    holes: zarr.Array[Any] = zarr.create_array(
        directory / "holes", shape=(N, 6), chunks=(4, 6), dtype="f4", fill_value=3
    )
    holes[8:24] = data[8:24]
    zarr.create_array(directory / "cut", data=data, chunks=(4, 6), shards=(20, 6), compressors=codecs)


@pytest.fixture(autouse=True)
def _only_here(monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(monkeypatch)


@pytest.fixture(scope="module", params=SERVERS)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("store")
    _write(directory)
    with serving_or_skip(request.param, directory) as endpoint:
        yield Served(endpoint, directory)


def test_samples_are_those_that_zarr_python_reads(served: Served) -> None:
    for name in served.names():
        expected = served.expected(name)
        for shuffle in (True, False):
            dataset = assert_parity(served.open(name), expected, shuffle=shuffle)
        assert dataset.stats().chunks_missing == (11 if name == "holes" else 0)
        by_index = ZarrDataset(served.open(name))
        np.testing.assert_array_equal(by_index[[31, 2, 59]], expected[[31, 2, 59]])
        array = zarr.open_array(served.store_of_zarr_python(name), mode="r")
        np.testing.assert_array_equal(read_all(array), expected)
        assert_parity(array, expected)


def test_workers_deliver_every_sample_once(served: Served) -> None:
    name = served.names()[-1]
    expected = served.expected(name)
    dataset = ZarrIterableDataset(served.open(name), batch_size=7, shuffle=True, return_index=True)
    loader = ZarrDataLoader(dataset, num_workers=2, multiprocessing_context="forkserver")
    seen: list[int] = []
    for batch in loader:
        rows, index = batch
        np.testing.assert_array_equal(rows, expected[index])
        seen += index.tolist()
    assert sorted(seen) == list(range(N))


def test_verify_finds_every_chunk_and_a_damaged_one(served: Served) -> None:
    options = served.endpoint.options or None
    for name in served.names():
        report = verify(f"{served.endpoint.url}/{name}", storage_options=options)
        assert report.ok
        assert sum(array.good + array.missing for array in report.arrays) == {"v2": 18}.get(name, 15)
    served.endpoint.put("damaged/zarr.json", (served.directory / "blosc/zarr.json").read_bytes())
    served.endpoint.put("damaged/c/3/0", (served.directory / "blosc/c/3/0").read_bytes()[:-5])
    report = verify(f"{served.endpoint.url}/damaged", storage_options=options)
    assert [finding.key for finding in report.findings if finding.cause == "corrupt"] == ["c/3/0"]
    assert {finding.cause for finding in report.findings} == {"corrupt", "missing"}


def _error(url: str, options: dict[str, Any], secrets: tuple[str, ...]) -> StoreReadError:
    """Return the error of opening a URL; fail if it has several lines, or credentials anywhere."""
    with pytest.raises(StoreReadError) as caught:
        zarrfeed.open(url, storage_options=options or None, retries=0)
    _assert_silent(caught.value, secrets)
    return caught.value


def _assert_silent(error: BaseException, secrets: tuple[str, ...]) -> None:
    assert "\n" not in str(error)
    printed = "".join(traceback.format_exception(error))  # its causes, too, which are the client's own
    for secret in secrets:
        assert secret not in printed
        assert urllib.parse.unquote(secret) not in printed


def test_a_wrong_bucket_and_a_wrong_key_are_said(served: Served) -> None:
    endpoint = served.endpoint
    error = _error(f"{endpoint.url}/nothing/here", endpoint.options, endpoint.secrets)
    assert error.errno == errno.ENOENT
    assert f"{endpoint.url}/nothing/here: no Zarr array is there" in str(error)
    if endpoint.nowhere:
        error = _error(f"{endpoint.nowhere}/blosc", endpoint.owner or endpoint.options, endpoint.secrets)
        assert error.errno == errno.ENOENT
        if endpoint.says_no_bucket:
            assert f"{endpoint.nowhere}/blosc: there is no " in str(error)


def test_credentials_that_are_wrong_are_refused_and_not_repeated(served: Served) -> None:
    endpoint = served.endpoint
    if not endpoint.refused:
        pytest.skip("this server takes any credentials")
    for options in endpoint.refused.values():
        error = _error(f"{endpoint.url}/blosc", options, endpoint.secrets)
        assert error.errno == errno.EACCES
        assert "permission denied, as the server answered 403" in str(error)


def test_what_is_open_to_everybody_needs_no_credentials(served: Served) -> None:
    endpoint = served.endpoint
    if not endpoint.open_url:
        pytest.skip("this server asks for no credentials")
    with reading_without_signature(endpoint):
        for name in ("blosc", "shards"):
            data = zarrfeed.open(f"{endpoint.open_url}/{name}", storage_options=endpoint.anonymous)
            assert_parity(data, served.expected(name))
        if endpoint.open_url != endpoint.url:
            error = _error(f"{endpoint.url}/blosc", endpoint.anonymous, endpoint.secrets)
            assert error.errno == errno.EACCES
            assert "requests have no credentials: set them in storage_options" in str(error)


def test_credentials_are_in_no_text_and_in_no_state(served: Served) -> None:
    dataset = ZarrIterableDataset(served.open("blosc"), batch_size=7)
    batches = iter(dataset)
    next(batches)
    texts = [repr(dataset), str(dataset.explain()), str(dataset.stats()), repr(served.open("blosc"))]
    texts.append(repr(dataset.state_dict()))
    dataset.close()
    for text in texts:
        for secret in served.endpoint.secrets:
            assert secret not in text


def test_an_object_that_is_cut_is_an_error_until_it_is_whole_again(served: Served) -> None:
    name = "cut" if served.endpoint.reads_ranges else "blosc"
    chunk, url = "c/1/0", f"{served.endpoint.url}/{name}"
    kept = (served.directory / name / chunk).read_bytes()
    with ZarrIterableDataset(served.open(name), batch_size=8, faults={"retries": 0}) as dataset:
        for length in (len(kept) // 2, 3, 0):  # of a shard: without its index, and without room for one
            served.endpoint.put(f"{name}/{chunk}", kept[:length])
            with pytest.raises((CorruptChunkError, StoreReadError), match=f"{url} (chunk|shard) {chunk}") as caught:
                list(dataset)
            _assert_silent(caught.value, served.endpoint.secrets)
        served.endpoint.put(f"{name}/{chunk}", kept)
        assert len(list(dataset)) == 8


def test_shards_need_a_server_that_sends_parts_of_objects(served: Served) -> None:
    if served.endpoint.reads_ranges:
        pytest.skip("this server sends parts of objects")
    with (
        ZarrIterableDataset(served.open("shards"), batch_size=8) as dataset,
        pytest.raises(
            StoreReadError, match=r"shards chunk c/[012]/0: shard index: .*the server does not know Range requests"
        ),
    ):
        list(dataset)
