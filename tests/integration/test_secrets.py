"""Each public call fails with a secret in its URL, and with one in its options; nothing that is said has it."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import io
import json
import re
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr
from torch.distributed.checkpoint.api import CheckpointException
from zarr.storage import FsspecStore, ObjectStore

import zarrfeed
import zarrfeed.objects
from benchmarks.harness.object_server import Act, ObjectServer
from tests.support.dcp import dcp
from tests.support.later import Later
from tests.support.paths import ROOT
from tests.support.real_servers import isolate
from zarrfeed import ZarrfeedError, checkpoint
from zarrfeed.base import executors, redaction
from zarrfeed.packing.sources.source import SourceOptions
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.storage.access.access import StoreAccess
from zarrfeed.storage.access.retry import reading
from zarrfeed.storage.checkpoint import checkpoint_sink
from zarrfeed.storage.checkpoint.shard_folder import Transfer
from zarrfeed.storage.objects.object_source import ObjectSource
from zarrfeed.tools import cli

obstore = pytest.importorskip("obstore")
compat: Any = Later("zarrfeed.compat.lightning")

SECRET = "S3CRET"
#: Nobody listens there.
CLOSED = "127.0.0.1:9"
CONNECTION = {"region": "us-east-1", "allow_http": True, "retry_config": {"max_retries": 0}}
AZURE = {"account_name": "a", "endpoint": f"http://{CLOSED}", "allow_http": True}
URLS = (
    f"https://user:{SECRET}@{CLOSED}/x", f"https://{CLOSED}/x?sig={SECRET}&sv=1", f"s3://user:{SECRET}@b/x",
    f"s3://b/x?X-Amz-Signature={SECRET}", f"https://{CLOSED}/x#access_token={SECRET}", f"https://user:a/{SECRET}@h/x",
    f"hdfs://user:{SECRET}@h/x", f"file://user:{SECRET}@h/x", f"file:///x?sig={SECRET}", f"https://{SECRET}@{CLOSED}/x",
    f"gs://b/x?X-Goog-Signature={SECRET}", f"abfs://c@a.dfs.core.windows.net/x?se=1&sig={SECRET}",
)  # fmt: skip
OPTIONS: tuple[tuple[str, Any], ...] = (
    ("s3://b/x", {**CONNECTION, "key": "a", "secret": SECRET, "endpoint_url": f"http://user:{SECRET}@{CLOSED}"}),
    ("s3://b/x", {**CONNECTION, "key": "a", "secret": "b", "endpoint": f"http://{CLOSED}/?sig={SECRET}"}),
    ("s3://b/x", {**CONNECTION, "anon": True, "client_options": {"timeout": SECRET}, "endpoint": f"http://{CLOSED}"}),
    ("s3://b/x", {"secret": SECRET, "nonsense": SECRET}),
    ("s3://b/x", {"key": SECRET, "access_key_id": SECRET}),
    ("gs://b/x", {"service_account_key": json.dumps({"private_key": SECRET})}),
    ("gs://b/x", {"bearer_token": SECRET, "allow_http": True, "base_url": f"http://u:{SECRET}@{CLOSED}"}),
    ("az://c/x", {**AZURE, "account_key": SECRET}),
    ("az://c/x", {**AZURE, "sas_token": f"sv=1&sig={SECRET}"}),
    (f"https://{CLOSED}/x", {"headers": {"Authorization": f"Bearer {SECRET}"}, "timeout": SECRET}),
    (f"https://{CLOSED}/x", {SECRET: SECRET}),
    (f"https://{CLOSED}/x", SECRET),
)


@pytest.fixture(autouse=True)
def no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(monkeypatch)
    monkeypatch.setattr(redaction, "_values", {})
    monkeypatch.setattr(redaction, "_any_value", None)


def failing_calls(folder: Path) -> Iterator[tuple[str, Callable[[str, Any], Any]]]:
    """Yield each public call of a URL and of storage options, by a name."""
    once: dict[str, Any] = {"retries": 0, "timeout": 1}
    state = {"a": torch.zeros(2)}
    yield "open", lambda url, options: zarrfeed.open(url, storage_options=options, **once)
    yield "open with a retry", lambda url, options: zarrfeed.open(url, storage_options=options, retries=1, timeout=1)
    yield "open a list", lambda url, options: zarrfeed.open([url, url], storage_options=options, **once)
    yield "open a pattern", lambda url, options: zarrfeed.open(f"{url}/*.zarr", storage_options=options, **once)
    yield "open by name", lambda url, options: zarrfeed.open({"x": url}, np.zeros(3), storage_options=options, **once)
    yield "open targets", lambda url, options: zarrfeed.open(np.zeros(3), url, storage_options=options, **once)
    yield "open with a cache", lambda url, options: zarrfeed.open(url, storage_options=options, cache=folder, **once)
    yield (
        "list_objects",
        lambda url, options: zarrfeed.objects.list_objects(
            url, storage_options=options, listing_file=folder / "listing", progress=True, **once
        ),
    )
    yield "objects.open", lambda url, options: zarrfeed.objects.open(url, storage_options=options, **once)
    yield "ObjectIterableDataset", lambda url, options: list(
        zarrfeed.objects.ObjectIterableDataset(
            zarrfeed.objects.open(url, keys=["a"], storage_options=options, **once),
            batch_size=1, decode=bytes, faults=once,
        )
    )  # fmt: skip
    yield "checkpoint.writer", lambda url, options: _written(checkpoint.writer(url, storage_options=options, **once))
    yield "checkpoint.reader", lambda url, options: checkpoint.reader(url, storage_options=options, **once)
    yield "newest", lambda url, options: checkpoint.newest(url, storage_options=options, **once)
    yield "retain", lambda url, options: checkpoint.retain(url, keep_last=1, storage_options=options, **once)
    yield (
        "ZarrfeedWriter",
        lambda url, options: dcp.save(
            state, storage_writer=checkpoint.ZarrfeedWriter(url, storage_options=options, **once), no_dist=True
        ),
    )
    yield (
        "ZarrfeedReader",
        lambda url, options: dcp.load(
            state, storage_reader=checkpoint.ZarrfeedReader(url, storage_options=options, **once), no_dist=True
        ),
    )
    yield (
        "ZarrfeedCheckpointIO",
        lambda url, options: compat.ZarrfeedCheckpointIO(**once).save_checkpoint({}, url, storage_options=options),
    )
    yield "verify", lambda url, options: zarrfeed.verify(url, storage_options=options, timeout=1)
    yield "pack", lambda url, options: zarrfeed.pack(url, folder / "o.zarr", storage_options=options, timeout=1)
    yield "pack to it", lambda url, _: zarrfeed.pack(folder, url)


def calls_of_urls(folder: Path) -> Iterator[tuple[str, Callable[[str], Any]]]:
    """Yield public calls that take no storage options, by a name."""
    yield "concat", lambda url: zarrfeed.concat([url, url])
    yield "mix", lambda url: zarrfeed.mix([url, url], weights=[1, 1])
    yield "join", lambda url: zarrfeed.join({"a": url, "b": url})
    yield "ZarrDataset", zarrfeed.ZarrDataset
    yield "ZarrIterableDataset", lambda url: zarrfeed.ZarrIterableDataset(url, batch_size=1)
    yield "stats", zarrfeed.stats
    yield "patch_weights", lambda url: zarrfeed.patch_weights(url, {1: 1.0}, cell=2)
    yield "Appender", zarrfeed.Appender
    yield "cache", lambda url: zarrfeed.open(np.zeros(3), cache=url)
    yield "objects.open of a key", lambda url: zarrfeed.objects.open(str(folder), keys=[url, url])


def _written(file: Any) -> None:
    with file:
        file.write(b"1")


def said_by(call: Callable[[], Any]) -> str:
    """Return all that a failing call says: the traceback with its causes, warnings, what it prints."""
    printed = io.StringIO()
    with (
        warnings.catch_warnings(record=True) as warned,
        contextlib.redirect_stderr(printed),
        contextlib.redirect_stdout(printed),
    ):
        warnings.simplefilter("always")
        try:
            call()
        except (ZarrfeedError, SystemExit, CheckpointException) as error:
            said = "".join(traceback.format_exception(error)) + str(error) + repr(error)
            cause: BaseException | None = error
            while cause is not None:
                said += repr(cause) + str(cause)
                cause = cause.__cause__ or cause.__context__
        else:
            raise AssertionError("the call did not fail")
    return said + printed.getvalue() + "".join(str(one.message) for one in warned)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.timeout(300)
def test_no_failing_call_says_a_secret_of_a_url(tmp_path: Path) -> None:
    """But for patterns: a question mark of theirs is no query."""
    for url in URLS:
        for name, call in failing_calls(tmp_path):
            said = said_by(lambda call=call, url=url: call(url, None))  # type: ignore[misc]
            assert SECRET not in said, (name, url)
        for name, one in calls_of_urls(tmp_path):
            said = said_by(lambda one=one, url=url: one(url))  # type: ignore[misc]
            assert SECRET not in said, (name, url)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.timeout(300)
def test_no_failing_call_says_a_secret_of_its_options(tmp_path: Path) -> None:
    for url, options in OPTIONS:
        for name, call in failing_calls(tmp_path):
            said = said_by(lambda call=call, url=url, options=options: call(url, options))  # type: ignore[misc]
            assert SECRET not in said, (name, url, options)


def test_the_command_line_says_no_secret(tmp_path: Path) -> None:
    options = {"secret": SECRET, "nonsense": SECRET}
    for url in (*URLS[:4], f"s3://b/x*?token={SECRET}"):
        for command in (
            ["info", url], ["verify", url, url, "--json", "-"], ["stats", url], ["pack", url, str(tmp_path / "o.zarr")],
            ["pack", str(tmp_path), url], ["cache", "clear", url], ["cache", "warm", url, "--cache", str(tmp_path)],
            ["info", url, "--storage-option", SECRET], ["info", "s3://b/x", "--storage-option", json.dumps(options)],
            ["info", "s3://b/x", "--storage-option", f"nonsense={SECRET}"], ["info", url, "--nonsense", url],
            ["nonsense", url], ["info", str(tmp_path), "--executor", url],
        ):  # fmt: skip
            said = said_by(lambda command=command: _raise_status(cli.main(command)))  # type: ignore[misc]
            assert SECRET not in said, command


def _raise_status(status: int) -> None:
    raise SystemExit(status)


def test_an_error_of_a_given_store_says_no_secret() -> None:
    """Stores of obstore, mappers of fsspec, arrays of zarr-python: their clients put URLs into their errors."""
    fsspec = pytest.importorskip("fsspec")
    pytest.importorskip("aiohttp")
    at_once = {"client_options": {"allow_http": True}, "retry_config": {"max_retries": 0}}
    for url in (f"http://u:{SECRET}@{CLOSED}/x", f"http://{CLOSED}/x?sig={SECRET}"):
        store = obstore.store.HTTPStore.from_url(url, **at_once)
        web = fsspec.get_mapper(url)
        for source in (store, web, ObjectStore(store, read_only=True), FsspecStore.from_mapper(web, read_only=True)):
            said = said_by(lambda source=source: zarrfeed.open(source, retries=0, timeout=5))  # type: ignore[misc]
            assert SECRET not in said, source
        source = zarrfeed.objects.open(store, keys=["a"])
        assert SECRET not in f"{source!r} {source.source!r} {source.stored!r} {source.access!r}"


def test_a_skipped_chunk_and_a_failed_read_say_no_secret(tmp_path: Path) -> None:
    """Behind an endpoint with a password; the store is whole, until a chunk cannot be read."""
    with ObjectServer() as server:
        options = {**server.options(), "endpoint": server.options()["endpoint"].replace("//", f"//me:{SECRET}@")}
        zarr.create_array(tmp_path / "x", data=np.arange(12), chunks=(2,))
        bucket = obstore.store.from_url("s3://bucket/x", **_as_obstore(server.options()))
        for file in (tmp_path / "x").rglob("*"):
            if file.is_file():
                obstore.put(bucket, str(file.relative_to(tmp_path / "x")), file.read_bytes())
        data = zarrfeed.open("s3://bucket/x", storage_options=options)
        assert SECRET not in repr(data) + data._repr_html_()
        server.fault = lambda request: Act("status", 403) if request.key.endswith("c/3") else None
        with zarrfeed.ZarrIterableDataset(data, batch_size=4, faults={"retries": 0}) as dataset:
            assert SECRET not in said_by(lambda: list(dataset))
            assert SECRET not in str(dataset.explain()) + str(dataset.stats()) + repr(dataset)
        skipping = zarrfeed.ZarrIterableDataset(data, batch_size=4, faults={"retries": 0, "on_error": "skip"})
        with skipping, warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            assert sum(map(len, skipping)) == 12
            assert any("skipped" in str(one.message) for one in warned)
            assert SECRET not in "".join(str(one.message) for one in warned) + str(skipping.stats())
            assert SECRET not in repr(skipping.stats()) + str(skipping.explain())


def _as_obstore(options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `obstore.store.from_url` for the options of the test server."""
    from zarrfeed.storage.access.obstore_options import obstore_options

    made = obstore_options("s3://bucket", "s3", options)
    return {name: value for name, value in made.items() if value}


def test_objects_with_options_print_none_of_them() -> None:
    options = {"secret": SECRET, "endpoint_url": f"http://me:{SECRET}@h"}
    for made in (Transfer(options), StoreAccess(storage_options=options), SourceOptions(storage_options=options)):
        assert SECRET not in f"{made!r} {made}"
    source = ObjectSource.of(obstore.store.HTTPStore.from_url(f"https://u:{SECRET}@h/x"), StoreAccess())
    assert SECRET not in f"{source!r} {source} {source.name}"


def test_no_dataclass_prints_storage_options_or_a_client() -> None:
    """A field that holds them says `repr=False`, wherever a class is added."""
    found = 0
    for path in (ROOT / "src" / "zarrfeed").rglob("*.py"):
        text = path.read_text()
        if not re.search(r"^ +(storage_options|store) *:", text, re.MULTILINE):
            continue  # no class of the module has such a field
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.ClassDef) or not any(
                "dataclass" in ast.unparse(d) for d in node.decorator_list
            ):
                continue
            for field in node.body:
                if not isinstance(field, ast.AnnAssign):
                    continue
                name, kind = ast.unparse(field.target), ast.unparse(field.annotation)
                if (name == "storage_options" and "Secrets" not in kind) or (name == "store" and kind != "str"):
                    found += 1
                    default = "" if field.value is None else ast.unparse(field.value)
                    assert "repr=False" in default, f"{path.name}: {node.name}.{name}"
    assert found > 5


def test_a_cause_that_was_caught_elsewhere_says_no_secret() -> None:
    """Errors that a thread or a future hands over are not handled where an error of ours is raised from them."""

    def failing() -> OSError:
        return OSError(5, f"GET https://u:{SECRET}@h/x?sig={SECRET}")

    async def read() -> None:
        raise failing()

    async def ask() -> None:
        await reading(Faults(retries=1, timeout=5), read, is_far=False)

    def lost() -> None:
        error = type("WorkerLostError", (Exception,), {})(f"https://u:{SECRET}@h/x")
        executors._fail(error)

    def upload() -> None:
        error = failing()
        raise checkpoint_sink._cannot_be_written("x", error) from error

    for call in (lambda: asyncio.run(ask()), lost, upload):
        assert SECRET not in said_by(call)
