"""Servers that others wrote, on 127.0.0.1: S3 (moto), Google (fake-gcs-server), Azure (azurite), nginx, http.server.

Each `serving_...` starts a server in a process of its own, uploads the files of a directory and yields an `Endpoint`;
`NotHereError` says why a server cannot be had on this machine. Neither servers nor clients ask for anything elsewhere:
azurite's telemetry is off, and `CLOSED` leads the look-up of credentials to a port that nobody listens on.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.utils import formatdate
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.fake_gcs import INSTALL, find_fake_gcs
from benchmarks.harness.nginx import NoNginxError, serve

TIMEOUT_S = 60.0
#: Name of a bucket or container that needs credentials; of one that needs none; and of none.
BUCKET, OPEN_BUCKET, NO_BUCKET = "data", "open", "nowhere"
_REGION = "us-east-1"

#: What would bring the user's credentials or proxies into a test.
AMBIENT = (
    "AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
    "AWS_ENDPOINT_URL", "AWS_ALLOW_HTTP", "AWS_SKIP_SIGNATURE", "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "GOOGLE_SKIP_SIGNATURE",
    "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_BEARER_TOKEN", "AZURE_STORAGE_ACCOUNT_NAME",
    "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_KEY", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy",
    "https_proxy", "all_proxy",
)  # fmt: skip
#: Where the clients would look for credentials if they did: files without any, and a port that refuses connections.
CLOSED = {
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_METADATA_ENDPOINT": "http://127.0.0.1:1",
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_CONFIG_FILE": os.devnull,
    "NO_GCE_CHECK": "true",
    "GCE_METADATA_HOST": "127.0.0.1:1",
    "GCE_METADATA_ROOT": "127.0.0.1:1",
    "GCE_METADATA_IP": "127.0.0.1:1",
    "IDENTITY_ENDPOINT": "http://127.0.0.1:1",
    "NO_PROXY": "127.0.0.1",
    "no_proxy": "127.0.0.1",
}


def isolate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients find no credentials of the user's, and look for none elsewhere."""
    for name in AMBIENT:
        monkeypatch.delenv(name, raising=False)
    for name, value in CLOSED.items():
        monkeypatch.setenv(name, value)


class NotHereError(Exception):
    """A server that is not installed on this machine; the message says what would install it."""


@dataclass(frozen=True)
class Endpoint:
    """A bucket, a container or a web server with the files of a directory.

    Attributes
    ----------
    url
        Of the directory, without a slash at the end.
    options
        `storage_options` with which it can be read.
    nowhere
        URL of a bucket that does not exist; "" for a web server.
    refused
        What is wrong -> `storage_options` which are refused.
    anonymous
        `storage_options` without credentials with which `open_url` can be read.
    open_url
        Of the files that everybody may read; "" if there are none.
    owner
        `storage_options` that are allowed everything, where `options` are not.
    secrets
        Must not be in any message.
    put
        Writes an object: key below `url`, content.
    reads_ranges
        Whether the server sends parts of objects.
    says_no_bucket
        Whether the server says of a bucket that it does not exist.
    lists
        Whether the server tells which objects it has.
    """

    url: str
    options: dict[str, Any] = field(default_factory=dict)
    nowhere: str = ""
    refused: dict[str, dict[str, Any]] = field(default_factory=dict)
    anonymous: dict[str, Any] = field(default_factory=dict)
    open_url: str = ""
    owner: dict[str, Any] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    put: Callable[[str, bytes], None] = lambda _key, _data: None
    reads_ranges: bool = True
    says_no_bucket: bool = True
    lists: bool = True


def _upload(directory: Path, *puts: Callable[[str, bytes], None]) -> None:
    """Write all files of a directory, by their paths in it."""
    for file in directory.rglob("*"):
        if file.is_file():
            for put in puts:
                put(file.relative_to(directory).as_posix(), file.read_bytes())


def _ask(url: str, method: str, headers: dict[str, str] | None = None, data: bytes | None = None) -> bytes:
    without_proxy = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with without_proxy.open(urllib.request.Request(url, data, headers or {}, method=method), timeout=30) as answer:
        body: bytes = answer.read()
    return body


@contextlib.contextmanager
def _started(command: list[str], *, variables: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """Start a server whose stdout is read; it is killed if it says nothing for a minute, and at the end in any case."""
    with tempfile.TemporaryDirectory(prefix="zarrfeed-server-") as directory:
        server = subprocess.Popen(
            command,
            cwd=directory,  # azurite writes there
            env={name: value for name, value in os.environ.items() if name not in AMBIENT} | CLOSED | (variables or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            yield server
        finally:
            for pipe in (server.stdin, server.stdout):
                assert pipe is not None
                pipe.close()
            server.terminate()
            try:
                server.wait(240)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait(240)


def _first_line(server: subprocess.Popen[str], sign: str) -> str:
    """Return the first line that a server prints with this sign."""
    assert server.stdout is not None
    watchdog = threading.Timer(TIMEOUT_S, server.kill)
    watchdog.start()
    try:
        for line in server.stdout:
            if sign in line:
                return line
    finally:
        watchdog.cancel()
    raise RuntimeError(f"{server.args!r} did not start")


# --- S3 ---------------------------------------------------------------------------------------------------------

_MOTO = """
import json, os, sys
os.environ["INITIAL_NO_AUTH_ACTION_COUNT"] = "0"  # signatures are checked
from moto.core import DEFAULT_ACCOUNT_ID
from moto.iam.models import iam_backends
from moto.s3.models import s3_backends
from moto.server import ThreadedMotoServer
closed, open, region = sys.argv[1:]

def allows(**more):
    return json.dumps({"Version": "2012-10-17", "Statement": [{"Effect": "Allow", **more}]})

buckets, users = s3_backends[DEFAULT_ACCOUNT_ID]["aws"], iam_backends[DEFAULT_ACCOUNT_ID]["aws"]
buckets.create_bucket(closed, region)
buckets.create_bucket(open, region)
reading = ["s3:GetObject", "s3:HeadObject"]
buckets.put_bucket_policy(open, allows(Principal="*", Action=reading, Resource=f"arn:aws:s3:::{open}/*").encode())
users.create_user(region, "reader")
key = users.create_access_key("reader")
users.put_user_policy("reader", "all", allows(Action="s3:*", Resource="*"))
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(json.dumps([server.get_host_and_port()[1], key.access_key_id, key.secret_access_key]), flush=True)
sys.stdin.read()
server.stop()
"""


@contextlib.contextmanager
def serving_s3(directory: Path) -> Iterator[Endpoint]:
    """Start moto, which checks keys and signatures."""
    if importlib.util.find_spec("moto") is None:
        raise NotHereError("moto is not installed: pip install 'moto[server]'")
    with _started([sys.executable, "-W", "ignore", "-c", _MOTO, BUCKET, OPEN_BUCKET, _REGION]) as server:
        port, key, secret = json.loads(_first_line(server, "["))
        connection = {"endpoint": f"http://127.0.0.1:{port}", "region": _REGION, "allow_http": True}
        options = {**connection, "access_key_id": key, "secret_access_key": secret}
        wrong = "not-the-secret-that-belongs-to-the-key"
        endpoint = Endpoint(
            f"s3://{BUCKET}",
            options,
            nowhere=f"s3://{NO_BUCKET}",
            refused={
                "wrong secret": {**options, "secret_access_key": wrong},
                "wrong key": {**options, "access_key_id": "AKIANOBODYHASTHISKEY"},
            },
            anonymous={**connection, "anon": True},
            open_url=f"s3://{OPEN_BUCKET}",
            secrets=(secret, wrong),
            put=_put_by_obstore(f"s3://{BUCKET}", options),
        )
        _upload(directory, endpoint.put, _put_by_obstore(endpoint.open_url, options))
        yield endpoint


@contextlib.contextmanager
def reading_without_signature(endpoint: Endpoint) -> Iterator[None]:
    """Let moto look at requests that are not signed, which it refuses to do while it checks signatures."""
    if not endpoint.url.startswith("s3:") or "endpoint" not in endpoint.options:
        yield
        return
    switch = f"{endpoint.options['endpoint']}/moto-api/reset-auth"
    plain = {"Content-Type": "text/plain"}
    _ask(switch, "POST", plain, b"inf")
    try:
        yield
    finally:
        _ask(switch, "POST", plain, b"0")


def _put_by_obstore(url: str, options: dict[str, Any]) -> Callable[[str, bytes], None]:
    from obstore.store import from_url

    config = {name: value for name, value in options.items() if name != "allow_http"}
    store: Any = from_url(url, config=config, client_options={"allow_http": True})  # type: ignore[call-overload]

    def put(key: str, data: bytes) -> None:
        store.put(key, data)

    return put


# --- Google -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def serving_gcs(directory: Path) -> Iterator[Endpoint]:
    """Start fake-gcs-server, which takes any credentials."""
    program = find_fake_gcs()
    if program is None:
        raise NotHereError(INSTALL)
    with socket.create_server(("127.0.0.1", 0)) as listener:  # it must be told a port
        port = listener.getsockname()[1]
    address = f"127.0.0.1:{port}"
    url = f"http://{address}"
    command = [program, "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-public-host", address]
    with _started([*command, "-backend", "memory", "-log-level", "error"]) as server:
        _wait_for(server, f"{url}/storage/v1/b")
        named = json.dumps({"name": BUCKET}).encode()
        _ask(f"{url}/storage/v1/b?project=tests", "POST", {"Content-Type": "application/json"}, named)

        def put(key: str, data: bytes) -> None:  # obstore uploads in a way that this server does not know
            name = urllib.parse.quote(key, safe="")
            headers = {"Content-Type": "application/octet-stream"}
            _ask(f"{url}/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={name}", "POST", headers, data)

        token = "a-token-that-nobody-may-read"
        endpoint = Endpoint(
            f"gs://{BUCKET}",
            {"endpoint_url": url, "bearer_token": token, "allow_http": True},
            nowhere=f"gs://{NO_BUCKET}",
            anonymous={"endpoint_url": url, "token": "anon", "allow_http": True},
            open_url=f"gs://{BUCKET}",
            secrets=(token,),
            put=put,
            says_no_bucket=False,
        )
        _upload(directory, endpoint.put)
        yield endpoint


def _wait_for(server: subprocess.Popen[str], url: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while server.poll() is None and time.monotonic() < deadline:
        try:
            _ask(url, "GET")
        except (OSError, HTTPException):  # nobody listens yet
            time.sleep(0.02)
        else:
            return
    raise RuntimeError(f"{server.args!r} did not start")


# --- Azure ------------------------------------------------------------------------------------------------------

_ACCOUNT, _AZURE_VERSION = "someone", "2021-12-02"
_ACCOUNT_KEY = base64.b64encode(b"a key of tests that nobody may read").decode()


def _find_azurite() -> list[str]:
    if shutil.which("node") is None:
        raise NotHereError("node is not installed, which azurite runs on")
    found = shutil.which("azurite-blob")
    if found is None:
        raise NotHereError("azurite is not installed: npm install --global azurite")
    return [found]


def _signed(text: str, key: str = _ACCOUNT_KEY) -> str:
    return base64.b64encode(hmac.new(base64.b64decode(key), text.encode(), hashlib.sha256).digest()).decode()


def _create_container(url: str, name: str, **more: str) -> None:
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": _AZURE_VERSION, **more}
    lines = "".join(f"{key}:{value}\n" for key, value in sorted(headers.items()))
    signed = _signed(f"PUT{12 * chr(10)}{lines}/{_ACCOUNT}/{_ACCOUNT}/{name}\nrestype:container")
    headers |= {"Authorization": f"SharedKey {_ACCOUNT}:{signed}", "Content-Length": "0"}
    _ask(f"{url}/{name}?restype=container", "PUT", headers)


def _sas_token(container: str, key: str = _ACCOUNT_KEY) -> str:
    """Return a token with which a container can be read and listed, until 2099."""
    until, where = "2099-01-01T00:00:00Z", f"/blob/{_ACCOUNT}/{container}"
    parts = ["rl", "", until, where, "", "", "http,https", _AZURE_VERSION, "c", *[""] * 7]
    fields = {"sv": _AZURE_VERSION, "sp": "rl", "se": until, "sr": "c", "spr": "http,https"}
    return urllib.parse.urlencode({**fields, "sig": _signed("\n".join(parts), key)})


@contextlib.contextmanager
def serving_azure(directory: Path) -> Iterator[Endpoint]:
    """Start azurite, which checks keys and tokens."""
    command = [*_find_azurite(), "--blobPort", "0", "--inMemoryPersistence", "--disableTelemetry", "--silent"]
    accounts = {"AZURITE_ACCOUNTS": f"{_ACCOUNT}:{_ACCOUNT_KEY}"}
    with _started([*command, "--skipApiVersionCheck"], variables=accounts) as server:
        url = _first_line(server, "successfully listens on").split()[-1] + f"/{_ACCOUNT}"
        _create_container(url, BUCKET)
        _create_container(url, OPEN_BUCKET, **{"x-ms-blob-public-access": "blob"})
        connection = {"account_name": _ACCOUNT, "endpoint": url, "allow_http": True}
        options = {**connection, "account_key": _ACCOUNT_KEY}
        wrong_key = base64.b64encode(b"not the key of the account").decode()
        token, wrong_token = _sas_token(BUCKET), _sas_token(BUCKET, wrong_key)
        endpoint = Endpoint(
            f"az://{BUCKET}",
            {**connection, "sas_token": token},
            nowhere=f"az://{NO_BUCKET}",
            refused={
                "wrong key": {**connection, "account_key": wrong_key},
                "wrong token": {**connection, "sas_token": wrong_token},
                "no credentials": {**connection, "anon": True},
            },
            anonymous={**connection, "anon": True},
            open_url=f"az://{OPEN_BUCKET}",
            owner=options,
            secrets=(_ACCOUNT_KEY, wrong_key, *(one.partition("sig=")[2] for one in (token, wrong_token))),
            put=_put_by_obstore(f"az://{BUCKET}", options),
        )
        _upload(directory, endpoint.put, _put_by_obstore(endpoint.open_url, options))
        yield endpoint


# --- web servers ------------------------------------------------------------------------------------------------


def _put_file(directory: Path) -> Callable[[str, bytes], None]:
    def put(key: str, data: bytes) -> None:
        (directory / key).parent.mkdir(parents=True, exist_ok=True)
        (directory / key).write_bytes(data)

    return put


@contextlib.contextmanager
def _nginx(directory: Path) -> Iterator[str]:
    try:
        with serve(directory, files_change=True) as nginx:
            yield nginx.url
    except NoNginxError as error:
        raise NotHereError(str(error)) from error


@contextlib.contextmanager
def serving_nginx(directory: Path) -> Iterator[Endpoint]:
    """Start nginx, as a web server."""
    with _nginx(directory) as url:
        yield Endpoint(url, put=_put_file(directory), lists=False)


@contextlib.contextmanager
def serving_nginx_as_s3(directory: Path) -> Iterator[Endpoint]:
    """Start nginx, as an S3 endpoint for requests that are not signed."""
    with _nginx(directory.parent) as url:
        options = {"endpoint_url": url, "anon": True, "region": _REGION, "allow_http": True}
        url = f"s3://{directory.name}"
        yield Endpoint(url, options, f"s3://{NO_BUCKET}", put=_put_file(directory), says_no_bucket=False, lists=False)


@contextlib.contextmanager
def serving_http_server(directory: Path) -> Iterator[Endpoint]:
    """Start http.server of the standard library, which has a short queue and knows no ranges."""
    code = "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=0, bind='127.0.0.1')"
    command = [sys.executable, "-u", "-c", f"import os, sys; os.chdir(sys.argv[1]); {code}", str(directory)]
    with _started(command) as server:
        words = _first_line(server, "port").split()
        url = f"http://127.0.0.1:{words[words.index('port') + 1]}"
        yield Endpoint(url, put=_put_file(directory), reads_ranges=False, lists=False)


@contextlib.contextmanager
def serving_or_skip(name: str, directory: Path) -> Iterator[Endpoint]:
    """Start a server by its name, for clients that find no credentials; skip the test where it is not here."""
    with pytest.MonkeyPatch.context() as monkeypatch, contextlib.ExitStack() as stack:
        isolate(monkeypatch)
        try:
            endpoint = stack.enter_context(SERVERS[name](directory))
        except NotHereError as error:
            pytest.skip(str(error))
        yield endpoint


#: Name of a server -> what starts it.
SERVERS: dict[str, Callable[[Path], contextlib.AbstractContextManager[Endpoint]]] = {
    "moto": serving_s3,
    "fake-gcs-server": serving_gcs,
    "azurite": serving_azure,
    "nginx": serving_nginx,
    "nginx-as-s3": serving_nginx_as_s3,
    "http.server": serving_http_server,
}
