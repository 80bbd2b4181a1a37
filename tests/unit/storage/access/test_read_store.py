"""Servers that refuse what does not exist, and objects that have a Content-Encoding."""

from __future__ import annotations

import errno
import gzip
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import ClassVar

import numpy as np
import obstore
import pytest
import zarr
from numcodecs import AsType
from obstore.store import HTTPStore
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.buffer import cpu
from zarr.storage import ObjectStore

import zarrfeed as zf
from benchmarks.harness.loopback import LoopbackServer
from tests.support.fault_server import Act, Exchange, Fault, FaultServer, Reply, refusal
from zarrfeed import objects
from zarrfeed.base.errors import ConfigError, StoreReadError
from zarrfeed.storage.access.read_store import BlockingObjectReads, ReadStore
from zarrfeed.storage.access.zarr_internals import sync

VALUES = np.arange(240, dtype="i4").reshape(60, 4) + 1
HTTP = {"allow_http": True}


class HidingServer(FaultServer):
    """Answers 403 for what does not exist, as S3 does without s3:ListBucket, and for the keys in `secret`."""

    def __init__(self, root: Path) -> None:
        self.secret: set[str] = set()
        self.hides = True
        super().__init__(root)

    def _reply(self, path: str, asked: str | None, authorization: str) -> Reply:
        reply = super()._reply(path, asked, authorization)
        is_refused = (reply.status == 404 and self.hides) or any(path.endswith(key) for key in self.secret)
        return refusal(403, "AccessDenied") if is_refused else reply


class EncodingServer(FaultServer):
    """Serves all objects with a Content-Encoding."""

    encoding = "gzip"

    def _reply(self, path: str, asked: str | None, authorization: str) -> Reply:
        reply = super()._reply(path, asked, authorization)
        if reply.status < 300:
            reply.headers["Content-Encoding"] = self.encoding
        return reply


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HidingServer]:
    with HidingServer(tmp_path) as one:
        yield one


def _write(root: Path, zarr_format: int, *, in_group: bool = False) -> None:
    if in_group:
        zarr.create_group(root, zarr_format=zarr_format)  # type: ignore[arg-type]
        root = root / "x"
    zarr.create_array(root, data=VALUES, chunks=(10, 4), zarr_format=zarr_format, fill_value=7)  # type: ignore[arg-type]


def _read(data: zf.Data, *, shuffle: bool = False) -> dict[int, list[int]]:
    batches = zf.ZarrIterableDataset(data, batch_size=20, shuffle=shuffle, seed=1, return_index=True)
    rows: dict[int, list[int]] = {}
    for x, index in batches:
        rows |= dict(zip(index.tolist(), (x["x"] if isinstance(x, dict) else x).tolist(), strict=True))
    return rows


EXPECTED = dict(enumerate(VALUES.tolist()))


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_server_that_refuses_what_does_not_exist_cannot_be_opened(server: HidingServer, zarr_format: int) -> None:
    _write(server.root / "a.zarr", zarr_format)
    _write(server.root / "g.zarr", zarr_format, in_group=True)
    with pytest.warns(match="onsolidated") if zarr_format == 3 else nullcontext():
        zarr.consolidate_metadata(server.root / "g.zarr")
    for name, store in (("a", None), ("g", None), ("a", HTTPStore), ("a", ObjectStore)):
        url = f"{server.url}/{name}.zarr"
        if store is None:
            data = zf.open(url, storage_options=HTTP)
        else:
            raw = HTTPStore.from_url(url, client_options={"allow_http": True})
            data = zf.open(raw if store is HTTPStore else ObjectStore(raw))
        assert _read(data) == EXPECTED, (name, store)
    for zarr_given in (2, 3):
        if zarr_given == zarr_format:
            assert len(zf.open(f"{server.url}/a.zarr", storage_options=HTTP, zarr_format=zarr_given)) == 60
            assert len(zf.open(server.root / "a.zarr", zarr_format=zarr_given)) == 60
        else:
            with pytest.raises(StoreReadError, match="permission denied"):
                zf.open(f"{server.url}/a.zarr", storage_options=HTTP, zarr_format=zarr_given)
            with pytest.raises(StoreReadError, match="no Zarr array is there"):
                zf.open(server.root / "a.zarr", zarr_format=zarr_given)


def test_a_format_that_is_given_is_looked_for_all_the_same(server: HidingServer) -> None:
    _write(server.root / "a.zarr", 2)
    zf.open(f"{server.url}/a.zarr", storage_options=HTTP, zarr_format=2)
    assert server.gets("/a.zarr/zarr.json") == 0
    with pytest.raises(ConfigError, match="zarr_format = 4"):
        zf.open(f"{server.url}/a.zarr", storage_options=HTTP, zarr_format=4)  # type: ignore[arg-type]


def test_an_array_of_format_2_without_attributes_is_refused_in_each_epoch(server: HidingServer) -> None:
    _write(server.root / "a.zarr", 2)
    (server.root / "a.zarr/.zattrs").unlink()
    data = zf.open(f"{server.url}/a.zarr", storage_options=HTTP)
    dataset = zf.ZarrIterableDataset(data, batch_size=20, shuffle=True, seed=1, return_index=True)
    for _ in range(2):  # a look at the documents that fails would be a warning
        assert sorted(i for _, index in dataset for i in index.tolist()) == list(range(60))


def test_a_refused_document_counts_as_absent_where_the_server_says_what_is_absent(server: HidingServer) -> None:
    _write(server.root / "a.zarr", 2)
    server.hides, server.secret = False, {".zattrs"}
    with pytest.raises(StoreReadError, match="permission denied, as the server answered 403") as caught:
        zf.open(f"{server.url}/a.zarr", storage_options=HTTP)
    assert caught.value.errno == errno.EACCES


def test_the_message_does_not_name_the_keys_that_were_refused(server: HidingServer) -> None:
    with pytest.raises(StoreReadError, match=r"403 Forbidden.*zarr\.json.*does not exist|zarr\.json") as caught:
        zf.open(f"{server.url}/nothing.zarr", storage_options=HTTP)
    assert caught.value.errno == errno.EACCES
    for key in (".zarray", ".zgroup", "zarr.json", "no Zarr array is there"):
        assert key in str(caught.value), key


@pytest.mark.parametrize("shuffle", [False, True])
def test_refused_chunks_are_read_as_fill_values_without_being_asked(server: HidingServer, shuffle: bool) -> None:
    _write(server.root / "a.zarr", 3)
    (server.root / "a.zarr/c/2/0").unlink()
    url = f"{server.url}/a.zarr"
    data = zf.open(url, storage_options=HTTP)
    with pytest.raises(StoreReadError, match=r"c/2/0.*403 Forbidden.*forbidden_is_missing"):
        _read(data, shuffle=shuffle)
    for value in (True, "true"):
        lenient = zf.open(url, storage_options=HTTP | {"forbidden_is_missing": value})
        expected = EXPECTED | {i: [7] * 4 for i in range(20, 30)}
        assert _read(lenient, shuffle=shuffle) == expected
    with pytest.raises(ConfigError, match=r"forbidden_is_missing.*must be true or false"):
        zf.open(url, storage_options=HTTP | {"forbidden_is_missing": "perhaps"})


@pytest.mark.filterwarnings("ignore:.*whether the array changed since it was opened")
@pytest.mark.parametrize("codec", ["engine", "python"])
def test_credentials_that_end_make_fill_values(server: HidingServer, codec: str) -> None:
    filters = None if codec == "engine" else [AsType("i4", "i4")]
    zarr.create_array(server.root / "a.zarr", data=VALUES, chunks=(10, 4), filters=filters, zarr_format=2)
    data = zf.open(f"{server.url}/a.zarr", storage_options=HTTP | {"forbidden_is_missing": True})
    server.secret = {"/3.0", ".zarray"}
    with pytest.raises(StoreReadError, match="403 Forbidden"):
        _read(data)


def test_chunks_count_as_missing_where_nothing_shows_that_the_array_is_still_readable(server: HidingServer) -> None:
    _write(server.root / "g.zarr", 3, in_group=True)
    with pytest.warns(match="onsolidated"):
        zarr.consolidate_metadata(server.root / "g.zarr")
    server.secret = {"x/zarr.json"}
    with pytest.raises(ConfigError, match=r"forbidden_is_missing needs the array's own zarr\.json"):
        zf.open(f"{server.url}/g.zarr", storage_options=HTTP | {"forbidden_is_missing": True})
    assert _read(zf.open(f"{server.url}/g.zarr", storage_options=HTTP)) == EXPECTED


def test_chunks_that_are_missing_cost_the_cache_their_versions(server: HidingServer, tmp_path: Path) -> None:
    _write(server.root / "a.zarr", 3)
    (server.root / "a.zarr/c/2/0").unlink()
    options = HTTP | {"forbidden_is_missing": True}
    data = zf.open(f"{server.url}/a.zarr", storage_options=options, cache=tmp_path / "cache", cache_limit="1GiB")
    dataset = zf.ZarrIterableDataset(data, batch_size=20)
    for _ in range(2):
        assert sum(len(x) for x in dataset) == 60
    assert dataset.stats().cache.hits >= 5
    assert dataset.stats().cache.troubles == ()


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "GZIP, identity"])
def test_objects_with_a_content_encoding_are_read_encoded(tmp_path: Path, zarr_format: int, encoding: str) -> None:
    _write(tmp_path / "a.zarr", zarr_format)
    shards = {"chunks": (5, 4), "shards": (20, 4)} if zarr_format == 3 else {"chunks": (5, 4)}
    zarr.create_array(tmp_path / "s.zarr", data=VALUES, zarr_format=zarr_format, **shards)  # type: ignore[arg-type]
    for path in tmp_path.rglob("*"):
        if path.is_file():
            path.write_bytes(gzip.compress(path.read_bytes()))
    with EncodingServer(tmp_path) as server:
        server.encoding = encoding
        for name in ("a", "s"):
            url = f"{server.url}/{name}.zarr"
            assert _read(zf.open(url, storage_options=HTTP)) == EXPECTED, name
            kept = zf.open(url, storage_options=HTTP, cache=tmp_path / f"cache{name}", cache_limit="1GiB")
            assert _read(kept) == _read(kept) == EXPECTED, f"{name} in a cache"


def test_an_encoding_that_nobody_knows_is_read_as_it_is(tmp_path: Path) -> None:
    _write(tmp_path / "a.zarr", 3)
    with EncodingServer(tmp_path) as server:
        with pytest.raises(StoreReadError, match="Content-Encoding 'gzip', and its bytes are not gzip"):
            zf.open(f"{server.url}/a.zarr", storage_options=HTTP)
        server.encoding = "br"
        with pytest.raises(StoreReadError, match="Content-Encoding 'br', supported: gzip"):
            zf.open(f"{server.url}/a.zarr", storage_options=HTTP)
        assert server.gets("/a.zarr/zarr.json") <= 4, "an error that lasts was tried again"


def test_parts_of_an_encoded_object_are_parts_of_its_encoding(tmp_path: Path) -> None:
    content = bytes(range(256)) * 4
    (tmp_path / "object").write_bytes(gzip.compress(content))
    with EncodingServer(tmp_path) as server:
        raw = HTTPStore.from_url(server.url, client_options={"allow_http": True})
        store = ReadStore(raw)
        parts = {
            (0, None): None,
            (10, 300): RangeByteRequest(10, 300),
            (-7, None): SuffixByteRequest(7),
            (1000, None): OffsetByteRequest(1000),
        }
        for (begin, end), asked in parts.items():
            found = sync(store.get("object", cpu.buffer_prototype, asked))
            assert found is not None
            assert found.to_bytes() == content[begin:end], asked
            assert bytes(BlockingObjectReads(raw).read_now("object", (begin, end))) == content[begin:end], asked
        assert bytes(obstore.get(raw, "object").bytes()) != content


def test_objects_that_are_read_as_they_are_are_decoded(tmp_path: Path) -> None:
    stored = gzip.compress(b"sample")
    (tmp_path / "object").write_bytes(stored)
    with EncodingServer(tmp_path) as server:
        opened = objects.open(server.url, keys=["object"], storage_options=HTTP)
        ((read,),) = objects.ObjectIterableDataset(opened, batch_size=1)
        assert bytes(read.numpy()) == stored


def _sends_no_length(exchange: Exchange, reply: Reply) -> None:
    exchange.send_response(reply.status)
    exchange.send_header("Transfer-Encoding", "chunked")
    exchange.end_headers()
    exchange.wfile.write(b"%x\r\n" % len(reply.body) + reply.body + b"\r\n0\r\n\r\n")


def _ignores_ranges(root: Path) -> Act:
    def act(exchange: Exchange, _: Reply) -> None:
        exchange.send(Reply(200, (root / exchange.path.strip("/")).read_bytes()))

    return act


def test_answers_that_will_be_no_better_next_time_are_asked_for_again(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "a.zarr", data=VALUES, chunks=(5, 4), shards=(20, 4))
    with FaultServer(tmp_path) as server:
        url = f"{server.url}/a.zarr"
        data = zf.open(url, storage_options=HTTP)
        for act, sentence in (
            (_sends_no_length, "sends no Content-Length, which obstore needs; open it with zarr-python over fsspec"),
            (_ignores_ranges(tmp_path), "does not know Range requests, which shards need"),
        ):
            server.fault = Fault(act, {"/a.zarr/c/0/0"})
            dataset = zf.ZarrIterableDataset(data, batch_size=20)
            with pytest.raises(StoreReadError, match=sentence):
                next(iter(dataset))
            assert server.fault.acted <= 2, sentence
            assert dataset.stats().retries == 0, sentence
        server.fault = Fault(_sends_no_length)
        with pytest.raises(StoreReadError, match="sends no Content-Length"):
            zf.open(url, storage_options=HTTP)
        assert server.fault.acted <= 12, "a refusal that lasts was tried again"


def test_a_group_on_a_web_server_that_cannot_list_is_refused_at_once(tmp_path: Path) -> None:
    """Python's own server answers 501 to a request for a listing, which was asked five times again, for 14 s."""

    class Quiet(SimpleHTTPRequestHandler):
        asked: ClassVar[list[str]] = []

        def log_message(self, *_: object) -> None:
            pass

        def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
            self.asked.append(f"{self.command} {code}")
            super().send_error(code, message, explain)

    group = zarr.create_group(tmp_path / "g", zarr_format=2)
    group.create_array("x", data=VALUES, chunks=(10, 4))
    with LoopbackServer(partial(Quiet, directory=str(tmp_path))) as server:
        url = f"{server.url}/g"
        with pytest.raises(ConfigError, match=r'501 Not Implemented; a web server .*name the arrays.*/g/x"\}$'):
            zf.open(url)
        assert Quiet.asked.count("PROPFIND 501") == 1
        assert len(zf.open({"x": f"{url}/x"})) == len(VALUES)
        zarr.consolidate_metadata(tmp_path / "g")
        assert len(zf.open(url)) == len(VALUES)
