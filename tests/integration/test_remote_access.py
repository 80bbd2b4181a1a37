"""Stores behind URLs as users meet them: options, credentials, messages, timeouts, and servers with a short queue.

All servers are on 127.0.0.1. No test asks the metadata service of a cloud: the variables that lead there are set to a
server that records what it is asked.
"""

from __future__ import annotations

import errno
import http.server
import json
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import LocalStore, MemoryStore

import zarrfeed
from benchmarks.harness.loopback import LoopbackServer
from tests.support.flat import iterable_dataset
from tests.support.oracle import assert_parity, numbered
from tests.support.stalls import again_after_a_stall
from zarrfeed import ConfigError, StoreReadError, ZarrDataset, ZarrIterableDataset
from zarrfeed.storage.access.obstore_options import _OWN, default_credentials, obstore_options
from zarrfeed.tools.cli import main
from zarrfeed.tools.verify import verify

pytest.importorskip("obstore")

N = 60
TIMEOUT_S = 60.0
#: What would lead out of the machine, or bring the user's own credentials into the tests.
_AMBIENT = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
            "AWS_ENDPOINT_URL", "AWS_ALLOW_HTTP", "AWS_SKIP_SIGNATURE", "AWS_WEB_IDENTITY_TOKEN_FILE",
            "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "GOOGLE_SKIP_SIGNATURE",
            "AWS_EC2_METADATA_DISABLED")  # fmt: skip

Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


class Server:
    """A web server that answers as it is told, and remembers the requests."""

    def __init__(self, answer: Answer) -> None:
        self.requests: list[tuple[str, str, bool]] = []
        seen = self.requests

        class Handler(http.server.BaseHTTPRequestHandler):
            def parse_request(self) -> bool:
                if not super().parse_request():
                    return False
                seen.append((self.command, self.path, "Authorization" in self.headers))
                answer(self)
                return False  # it was answered, whatever the method

            def log_message(self, *_: Any) -> None:
                pass

        self._server = LoopbackServer(Handler)
        self.url = self._server.url
        self._server.__enter__()

    def close(self) -> None:
        self._server.__exit__()


def answer_with(status: int, body: str = "") -> Answer:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body.encode())

    return answer


def error_xml(code: str) -> str:
    return f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>no</Message></Error>'


def files_of(path: Path) -> Answer:
    """Answer as a bucket would, of a directory."""

    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        file = path / urllib.parse.urlsplit(handler.path).path.strip("/")
        if not file.is_file():
            answer_with(404, error_xml("NoSuchKey"))(handler)
            return
        data = file.read_bytes()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(data)))
        handler.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        handler.send_header("ETag", '"1"')
        handler.end_headers()
        handler.wfile.write(data)

    return answer


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], Server]]:
    servers: list[Server] = []

    def start(answer: Answer) -> Server:
        servers.append(Server(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture(autouse=True)
def metadata_service(
    serve: Callable[[Answer], Server], monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Server:
    """Stand in for the metadata service of AWS, which has no credentials."""
    server = serve(answer_with(404))
    home = tmp_path_factory.mktemp("home")
    for name in _AMBIENT:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(home / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(home / "config"))
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", server.url)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    return server


KEYS = {"key": "someone", "secret": "anything", "allow_http": True}


def assert_one_sentence(error: BaseException) -> None:
    text = str(error)
    assert "\n" not in text
    assert "source:" not in text
    assert "Generic" not in text
    assert len(text) < 400


@pytest.fixture
def bucket(tmp_path: Path, serve: Callable[[Answer], Server]) -> tuple[Server, Path]:
    """Start a server of the bucket "data" with an array "a"."""
    data = tmp_path / "data"
    zarr.create_array(data / "a", data=numbered((N, 6)), chunks=(4, 6))
    inside = files_of(tmp_path)

    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        if not handler.path.startswith("/data"):
            answer_with(404, error_xml("NoSuchBucket"))(handler)
        elif handler.path.startswith("/data/private"):
            answer_with(403, error_xml("AccessDenied"))(handler)
        else:
            inside(handler)

    return serve(answer), data


# --- messages ---------------------------------------------------------------------------------------------------


def test_wrong_bucket_wrong_key_and_missing_permission_are_three_messages(bucket: tuple[Server, Path]) -> None:
    options = {**KEYS, "endpoint_url": bucket[0].url}
    for url, code, sentence in (
        ("s3://nowhere/a", errno.ENOENT, "s3://nowhere/a: there is no bucket 'nowhere'"),
        (
            "s3://data/b/c",
            errno.ENOENT,
            "s3://data/b/c: no Zarr array is there: the bucket 'data' has no zarr.json, .zarray or .zgroup below the "
            "key 'b/c'",
        ),
        (
            "s3://data/private",
            errno.EACCES,
            "s3://data/private: permission denied, as the server answered 403 Forbidden, AccessDenied, for .zarray, "
            ".zattrs, .zgroup, .zmetadata, zarr.json; the credentials do not allow to read it, or are wrong; or no "
            "Zarr array is there, since the server answers so for objects that do not exist, too",
        ),
    ):
        for reader in (zarrfeed.open, iterable_dataset, verify):
            with pytest.raises(StoreReadError) as caught:
                reader(url, storage_options=options)
            assert caught.value.strerror == sentence
            assert caught.value.errno == code
            assert_one_sentence(caught.value)
    with pytest.raises(StoreReadError, match="requests have no credentials: set them in storage_options"):
        ZarrIterableDataset(
            zarrfeed.open(
                "s3://data/private", storage_options={"anon": True, "endpoint": bucket[0].url, "allow_http": True}
            )
        )
    with pytest.raises(StoreReadError, match=r"the server has no zarr\.json, \.zarray or \.zgroup below that URL"):
        ZarrIterableDataset(f"{bucket[0].url}/data/nothing")


def test_an_endpoint_without_encryption_names_what_allows_it(
    bucket: tuple[Server, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"key": "a", "secret": "b", "client_kwargs": {"endpoint_url": bucket[0].url}}
    with pytest.raises(StoreReadError, match=r'\{"allow_http": True\} or AWS_ALLOW_HTTP=true') as caught:
        ZarrIterableDataset(zarrfeed.open("s3://data/a", storage_options=options))
    assert_one_sentence(caught.value)
    assert bucket[0].requests == []
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    assert len(list(ZarrIterableDataset(zarrfeed.open("s3://data/a", storage_options=options), batch_size=8))) == 8


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (answer_with(503, error_xml("SlowDown")), "the server answered 503 Service Unavailable, SlowDown"),
        (answer_with(500, "<html>\n<body>oops"), "the server answered 500 Internal Server Error"),
        (lambda h: h.connection.shutdown(socket.SHUT_RDWR), "the server closed the connection before its answer"),
    ],
)
def test_an_error_that_was_retried_says_how_often_and_why(
    answer: Answer, reason: str, serve: Callable[[Answer], Server]
) -> None:
    server = serve(answer)
    with pytest.raises(StoreReadError) as caught:
        ZarrIterableDataset(f"{server.url}/a", faults={"retries": 1})
    assert f"{server.url}/a: the store cannot read it, after 1 retry in " in str(caught.value)
    assert reason in str(caught.value)
    assert_one_sentence(caught.value)
    assert "Debug source" in str(caught.value.__cause__)  # for those who want it
    assert len(server.requests) > 1


def test_a_server_that_is_gone_is_an_error_with_the_url_at_once_and_later(bucket: tuple[Server, Path]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/a"
        with pytest.raises(StoreReadError, match=f"{url}: the store cannot read it, after 2 retries in .* refused"):
            ZarrIterableDataset(url, faults={"retries": 2})
    chunk = bucket[1] / "a/c/7/0"
    kept = chunk.read_bytes()
    server = bucket[0]
    with ZarrIterableDataset(f"{server.url}/data/a", batch_size=8, faults={"retries": 1}) as dataset:
        chunk.unlink()
        (bucket[1] / "a/zarr.json").unlink()
        with pytest.raises(StoreReadError, match=r"/data/a(/| chunk c/7/0: .*)zarr\.json is gone"):
            list(dataset)
        chunk.write_bytes(kept)
        server.close()
        with pytest.raises(
            StoreReadError, match=r"/data/a chunk c/\d+/0: .*after 1 retry in .*: connection refused"
        ) as e:
            list(dataset)
        assert_one_sentence(e.value)


# --- options ----------------------------------------------------------------------------------------------------


def test_storage_options_by_the_names_of_fsspec_and_of_obstore(bucket: tuple[Server, Path], capsys: Any) -> None:
    server, path = bucket
    data = numbered((N, 6))
    spellings: list[dict[str, Any]] = [
        {**KEYS, "endpoint_url": server.url},
        {"key": "a", "secret": "b", "token": "c", "client_kwargs": {"endpoint_url": server.url, "region_name": "x-1"},
         "client_options": {"allow_http": True}},
        {"aws_access_key_id": "a", "aws_secret_access_key": "b", "aws_endpoint": server.url, "allow_http": True},
        {"anon": True, "endpoint_url": server.url, "allow_http": True, "retry_config": {"max_retries": 3}},
    ]  # fmt: skip
    for options in spellings:
        server.requests.clear()
        dataset = assert_parity("s3://data/a", data, storage_options=options)
        assert {signed for _, _, signed in server.requests} == {"anon" not in options}
        assert "anything" not in repr(dataset)
        assert verify("s3://data/a", storage_options=options).ok
        np.testing.assert_array_equal(
            ZarrDataset(zarrfeed.open("s3://data/a", storage_options=options))[[3, 1]], data[[3, 1]]
        )
    both = ZarrIterableDataset(zarrfeed.open("s3://data/a", path / "a", storage_options=spellings[0]), batch_size=8)
    assert len(list(both)) == 8
    for text in (
        [json.dumps(spellings[0])],
        [f"{k}={json.dumps(v) if v is True else v}" for k, v in spellings[0].items()],
    ):
        arguments = [word for one in text for word in ("--storage-option", one)]
        assert main(["verify", "s3://data/a", "--progress-file", "none", *arguments]) == 0
        assert main(["explain", "s3://data/a", *arguments]) == 0
    assert "s3://data/a" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        (
            "s3://b/a",
            {"acces_key_id": "hidden"},
            "'acces_key_id' is not known for such a URL; did you mean 'access_key_id'?",
        ),
        ("s3://b/a", {"annon": True}, "did you mean 'anon'?"),
        ("s3://b/a", {"xyzzy": 1}, r"must be one of access_key_id, .*, anon, "),
        ("s3://b/a", {"key": "hidden", "access_key_id": "hidden"}, "another name of 'access_key_id': give one of them"),
        ("s3://b/a", {"client_kwargs": {"verify": False}}, r"client_kwargs\['verify'\] is not known"),
        ("s3://b/a", {"client_options": {"time_out": 1}}, "did you mean 'timeout'?"),
        ("s3://b/a", [("key", "hidden")], "got a list, must be a dict"),
        ("gs://b/a", {"key": "hidden"}, "'key' is not known"),
        ("http://127.0.0.1:1/a", {"anon": True}, "'anon' is not known"),
    ],
)
def test_options_that_cannot_be_are_refused_without_their_values(url: str, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        ZarrIterableDataset(zarrfeed.open(url, storage_options=options))
    assert "hidden" not in str(caught.value)


def test_options_without_a_url_are_refused(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "a", data=numbered((N, 6)), chunks=(4, 6))
    for reader in (zarrfeed.open, iterable_dataset, verify):
        with pytest.raises(ConfigError, match="storage_options are for URLs such as s3://bucket/key, and none"):
            reader(tmp_path / "a", storage_options={"anon": True})
    assert main(["verify", str(tmp_path / "a"), "--storage-option", "anon=true"]) == 2


def test_every_option_that_is_known_here_is_known_to_obstore() -> None:
    from obstore.exceptions import UnknownConfigurationKeyError
    from obstore.store import AzureStore, GCSStore, S3Store

    makers: dict[str, Callable[..., Any]] = {"s3": S3Store, "gcs": GCSStore, "azure": AzureStore}
    for kind, make in makers.items():
        for name in _OWN[kind]:
            try:
                make(config={name: "true"})
            except UnknownConfigurationKeyError:
                pytest.fail(f"{kind}: {name}")
            except Exception:  # noqa: BLE001, S110 (the name is known, and "true" is no value of it)
                pass


# --- credentials ------------------------------------------------------------------------------------------------


def test_the_metadata_service_is_asked_only_where_nothing_else_is_configured(
    bucket: tuple[Server, Path], metadata_service: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options = {"endpoint_url": bucket[0].url, "allow_http": True}

    def signed(**more: Any) -> bool:
        bucket[0].requests.clear()
        ZarrIterableDataset(zarrfeed.open("s3://data/a", storage_options={**options, **more}))
        assert metadata_service.requests == []
        return all(signed for _, _, signed in bucket[0].requests)

    assert signed(key="a", secret="b")
    assert not signed(anon=True)
    assert not signed(skip_signature=True)
    file = tmp_path / "aws"
    file.write_text("[default]\naws_access_key_id = a\naws_secret_access_key = b\n[other]\nregion = x\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    assert signed()
    monkeypatch.setenv("AWS_PROFILE", "other")
    with pytest.raises(ConfigError, match="AWS_PROFILE = 'other': the profile has no aws_access_key_id"):
        signed()
    monkeypatch.delenv("AWS_PROFILE")
    monkeypatch.delenv("AWS_SHARED_CREDENTIALS_FILE")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert not signed()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    assert signed()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_EC2_METADATA_DISABLED"):
        monkeypatch.delenv(name)
    with pytest.raises(StoreReadError, match=r"no credentials are configured.*\{\"anon\": True\}") as caught:
        ZarrIterableDataset(zarrfeed.open("s3://data/a", storage_options=options))
    assert_one_sentence(caught.value)
    assert set(metadata_service.requests) == {("PUT", "/latest/api/token", False)}


def test_credentials_by_default() -> None:
    assert default_credentials("gs", {}, {"NO_GCE_CHECK": "true"}) == {"skip_signature": True}
    assert default_credentials("gs", {}, {}) == {}
    assert default_credentials("gs", {"service_account": "x"}, {"NO_GCE_CHECK": "true"}) == {}
    assert default_credentials("az", {}, {}) == default_credentials("https", {}, {}) == {}
    assert obstore_options("gs://b", "gs", {"token": "anon"})["config"] == {"skip_signature": True}
    assert obstore_options("gs://b", "gs", {"token": "a.json"})["config"] == {"service_account": "a.json"}
    assert obstore_options("az://b", "az", {"account_name": "x", "sas_token": "y"})["config"] == {
        "account_name": "x",
        "sas_key": "y",
    }


# --- stores in place of URLs ------------------------------------------------------------------------------------


def test_stores_of_zarr_obstore_and_fsspec_are_taken(tmp_path: Path) -> None:
    from obstore.store import LocalStore as ObstoreLocal
    from obstore.store import MemoryStore as ObstoreMemory

    fsspec = pytest.importorskip("fsspec")
    x, y = numbered((N, 6)), numbered((N, 2), "i4")
    group = zarr.create_group(tmp_path / "g")
    group.create_array("x", data=x, chunks=(4, 6))
    group.create_array("y", data=y, chunks=(7, 2))
    memory = MemoryStore()
    zarr.create_array(memory, data=x, chunks=(4, 6))
    arrays: list[Any] = [memory, LocalStore(tmp_path / "g/x"), ObstoreLocal(tmp_path / "g/x")]
    arrays += [fsspec.get_mapper(f"file://{tmp_path}/g/x")]
    for array in arrays:
        assert_parity(array, x)
        assert_parity({"x": array}["x"], x, tmp_path / "g/y", y)
        np.testing.assert_array_equal(ZarrDataset({"x": array})[[5, 3]]["x"], x[[5, 3]])
        assert verify(array).ok
    for root in (LocalStore(tmp_path / "g"), ObstoreLocal(tmp_path / "g"), fsspec.get_mapper(f"file://{tmp_path}/g")):
        with ZarrIterableDataset(root, batch_size=8, shuffle=True, return_index=True) as dataset:
            for batch, index in dataset:
                np.testing.assert_array_equal(batch["x"], x[index])
                np.testing.assert_array_equal(batch["y"], y[index])
        assert verify(root).ok
    for empty in (MemoryStore(), ObstoreMemory(), fsspec.get_mapper("memory://nothing")):
        with pytest.raises(StoreReadError, match="no Zarr array is at the root of this store"):
            ZarrIterableDataset(empty)


# --- time -------------------------------------------------------------------------------------------------------


@contextmanager
def hanging_server(after: int = 0, path: Path | None = None, part: str = "/") -> Iterator[str]:
    """Accept connections, answer some requests, and then nothing more whose path has this part."""
    left, lock, released = [after], threading.Lock(), threading.Event()
    answer = files_of(path) if path is not None else answer_with(404)

    def hang(handler: http.server.BaseHTTPRequestHandler) -> None:
        with lock:
            left[0] -= part in handler.path
            hangs = part in handler.path and left[0] < 0
        if hangs:
            released.wait(TIMEOUT_S)
        else:
            answer(handler)

    server = Server(hang)
    try:
        yield server.url
    finally:
        released.set()
        server.close()


@pytest.mark.parametrize("after", [0, 1, 2, 4])
@again_after_a_stall
def test_the_timeout_holds_while_a_dataset_is_made(after: int, tmp_path: Path) -> None:
    """Whichever request is the first that hangs; without it obstore gives up after a minute."""
    group = zarr.create_group(tmp_path / "g", zarr_format=3)
    group.create_array("x", data=numbered((N, 300)), chunks=(4, 300))
    makers: list[Callable[[str], object]] = [
        lambda url: list(ZarrIterableDataset(url + "/g/x", batch_size=4, faults={"timeout": 0.5})),
        lambda url: ZarrDataset(url + "/g/x", faults={"timeout": 0.5})[[0]],
    ]
    for make in makers:
        with hanging_server(after, tmp_path) as url:
            begin = time.monotonic()
            with pytest.raises(StoreReadError, match=r"did not answer within 0\.5 s") as caught:
                make(url)
            assert time.monotonic() - begin < 30  # and not a minute
            assert caught.value.errno == errno.ETIMEDOUT
            assert url in str(caught.value)
            assert_one_sentence(caught.value)


@again_after_a_stall
def test_the_timeout_of_the_command_line_holds(capsys: Any) -> None:
    for command in (["explain"], ["bench", "--seconds", "1"], ["verify", "--progress-file", "none"]):
        with hanging_server() as url:
            begin = time.monotonic()
            assert main([command[0], f"{url}/a", *command[1:], "--timeout", "0.5"]) == 2
            assert time.monotonic() - begin < 30
        assert f"{url}/a: the store did not answer within 0.5 s (timeout)" in capsys.readouterr().err


@again_after_a_stall
def test_chunks_that_do_not_come_are_findings_of_verify(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "a", data=numbered((8, 6)), chunks=(4, 6))
    with hanging_server(1, tmp_path, "/c/") as url:
        report = verify(f"{url}/a", timeout=0.5)
    assert not report.ok
    assert [finding.cause for finding in report.findings] == ["unreadable"]
    assert all("did not answer within 0.5 s (timeout)" in str(finding) for finding in report.findings)


@again_after_a_stall
def test_chunks_that_wait_for_others_are_no_findings_of_verify(tmp_path: Path) -> None:
    """The server answers all in time, and takes longer than the timeout for all of them together."""
    zarr.create_array(tmp_path / "a", data=numbered((40, 6)), chunks=(1, 6))
    turn, answer = threading.Lock(), files_of(tmp_path)

    def answer_one_by_one(handler: http.server.BaseHTTPRequestHandler) -> None:
        with turn:
            if "/c/" in handler.path:
                time.sleep(0.05)
            answer(handler)

    server = Server(answer_one_by_one)
    try:
        report = verify(f"{server.url}/a", timeout=1.0)
    finally:
        server.close()
    assert report.ok, report.findings


def test_a_server_with_a_short_queue_gets_no_more_connections_than_it_takes(tmp_path: Path) -> None:
    """Without a limit that follows the server, an epoch of http.server takes minutes: dropped connections wait."""
    from zarrfeed.storage.access import request_limiter

    data = numbered((400, 6))
    zarr.create_array(tmp_path / "a", data=data, chunks=(1, 6))
    script = "import http.server, sys; http.server.test(http.server.SimpleHTTPRequestHandler, port=0, bind='127.0.0.1')"
    with subprocess.Popen(
        [sys.executable, "-u", "-c", script], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        try:
            assert server.stdout is not None
            words = server.stdout.readline().split()
            url = f"http://127.0.0.1:{words[words.index('port') + 1]}"
            dataset = assert_parity(f"{url}/a", data)
            limit = request_limiter._limiters[url].controller.limit
            assert limit <= 32  # of 128
            assert dataset.stats().chunks_read == 400
        finally:
            server.kill()
