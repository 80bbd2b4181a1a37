"""Listings of obstore that are given up while a request is under way: nothing is printed, and the process ends well."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import zarr
from obstore.store import from_url
from zarr.storage import ObjectStore

import zarrfeed
from benchmarks.harness.listing_server import ListingServer
from zarrfeed.objects import list_objects
from zarrfeed.storage.access.page_stream import PageStream
from zarrfeed.storage.access.read_store import ReadStore
from zarrfeed.storage.chunks.chunk_keys import keys_of as keys_of_array
from zarrfeed.storage.chunks.chunk_keys import misplaced_key

KEYS = [(f"key-{number:03d}", 1) for number in range(30)]
LIMIT_S = 60.0


class Gate:
    """Holds back the answers of a server until it is opened, and tells when one was sent."""

    def __init__(self, server: ListingServer) -> None:
        self._server = server
        self._may_answer = threading.Event()
        server.fault = self._wait

    def _wait(self, _: int) -> None:
        self._may_answer.wait(LIMIT_S)

    def let_answer(self) -> None:
        """Let the server answer; return when its threads have sent their answers."""
        self._may_answer.set()
        for _ in range(int(LIMIT_S / 0.01)):
            with self._server.counting:
                if self._server.at_once == 0:
                    break
            threading.Event().wait(0.01)
        else:
            raise AssertionError("the server still answers")
        threading.Event().wait(0.2)  # the client's runtime reads the answer, which nobody can watch


@pytest.fixture
def server() -> Iterator[ListingServer]:
    with ListingServer(KEYS, page=10) as serving:
        yield serving


def store_at(server: ListingServer) -> Any:
    """Return a new client: a pool that had a connection before needs no runtime."""
    config: Any = {"endpoint": server.endpoint, "skip_signature": "true", "region": "us-east-1"}
    return from_url("s3://bucket", config=config, client_options={"allow_http": True})


async def keys_of(pages: PageStream) -> list[list[str]]:
    return [[meta["path"] for meta in page] async for page in pages]


def test_the_pages_are_those_of_the_server(server: ListingServer) -> None:
    names = [key for key, _ in KEYS]
    found = asyncio.run(keys_of(PageStream(store_at(server), "", size=10)))
    assert found == [names[:10], names[10:20], names[20:]]
    after = asyncio.run(keys_of(PageStream(store_at(server), "", after=names[4], size=100)))
    assert after == [names[5:]]


def test_a_listing_that_is_given_up_ends(server: ListingServer) -> None:
    gate = Gate(server)
    pages = PageStream(store_at(server), "")

    async def give_up() -> list[list[str]]:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(pages), 0.1)
        return await keys_of(pages)

    assert asyncio.run(give_up()) == []
    gate.let_answer()


@pytest.mark.parametrize("through", ["pages", "store", "list_objects"])
def test_a_page_that_comes_after_it_was_given_up_prints_nothing(
    server: ListingServer, capfd: pytest.CaptureFixture[str], through: str
) -> None:
    """A client that nobody has used panics if its first request ends where there is no runtime."""
    gate = Gate(server)
    kept: list[Any] = []  # as a cycle keeps it, until the garbage collector comes by

    async def first_key(store: ReadStore) -> str:
        keys = store.list_prefix("")
        kept.append(keys)
        return await anext(keys)

    async def first_page() -> object:
        kept.append(PageStream(store_at(server), ""))
        return await anext(kept[0])

    if through == "list_objects":
        with pytest.raises(zarrfeed.StoreReadError, match=r"did not answer within 0\.1 s"):
            list_objects("s3://bucket", storage_options=server.options, progress=False, timeout=0.1, retries=0)
    else:
        with pytest.raises(TimeoutError):
            asyncio.run(
                asyncio.wait_for(first_page() if through == "pages" else first_key(ReadStore(store_at(server))), 0.1)
            )
    gate.let_answer()
    kept.clear()
    gc.collect()
    assert capfd.readouterr().err == ""


def test_a_store_of_zarr_python_is_listed_so_too(server: ListingServer, capfd: pytest.CaptureFixture[str]) -> None:
    gate = Gate(server)
    store: ObjectStore[Any] = ObjectStore(store_at(server), read_only=True)
    keys = keys_of_array(zarr.create_array({}, shape=(40,), chunks=(1,), dtype="u1"))
    assert keys is not None
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(misplaced_key(store, "", keys), 0.1))
    gate.let_answer()
    gc.collect()
    assert capfd.readouterr().err == ""


def test_a_listing_that_fails_gives_up_its_other_requests(server: ListingServer) -> None:
    """An answer that comes while Python exits aborts the process, so a script that ends by the error must have none."""
    may_answer, are_waiting = threading.Event(), threading.Event()

    def answer(number: int) -> int | None:
        if number == 1:
            are_waiting.wait(LIMIT_S)
            return 404
        if number > 1:
            if number == 3:
                are_waiting.set()
            may_answer.wait(LIMIT_S)
        return None

    server.put([(f"{number % 16:x}/{number:06d}", 1) for number in range(20_000)])
    server.page, server.fault = 1000, answer
    before = set(threading.enumerate())
    try:
        with pytest.raises(zarrfeed.StoreReadError, match="NoSuchBucket"):
            list_objects("s3://bucket", storage_options=server.options, progress=False, requests=4, retries=0)
        for thread in set(threading.enumerate()) - before:
            if "_work" in thread.name:
                thread.join(LIMIT_S / 2)
                assert not thread.is_alive(), "a thread of the listing still waits for the server"
    finally:
        may_answer.set()
