"""storage/chunks/blocking_reads.py: blocking calls of obstore read the same as zarr-python's store."""

from __future__ import annotations

import dataclasses
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore, ObjectStore, WrapperStore

from zarrfeed.metadata.array.array import read_layout
from zarrfeed.spec.arrays.array import ArraySpec
from zarrfeed.storage.chunks.blocking_reads import BlockingReads
from zarrfeed.storage.chunks.location import StoreSource

obstore = pytest.importorskip("obstore")
STORED = bytes(range(40))


@pytest.fixture
def memory() -> Any:
    return obstore.store.MemoryStore()


def spec_of(store: Any) -> ArraySpec:
    zarr.create_array(
        store, name="x", data=np.frombuffer(STORED * 2, "u1"), chunks=(40,), compressors=None, filters=None
    )
    return read_layout(zarr.open_array(store, path="x", mode="r"))


def source_of(store: Any) -> StoreSource:
    source = spec_of(store).source
    assert isinstance(source, StoreSource)
    return source


@pytest.mark.parametrize(("begin", "end"), [(0, None), (3, 9), (0, 40), (7, 7), (-5, None), (-40, None), (39, 40)])
def test_parts_of_an_object_are_those_of_a_slice(memory: Any, begin: int, end: int | None) -> None:
    reads = BlockingReads(source_of(ObjectStore(memory)))
    found = reads.get("c/1", begin, end)
    assert found is not None
    assert found.tobytes() == STORED[begin:end]


@pytest.mark.parametrize(("begin", "end"), [(0, None), (3, 9), (-5, None)])
def test_a_chunk_that_was_never_written_is_none_and_an_array_that_is_gone_is_an_error(
    memory: Any, begin: int, end: int | None
) -> None:
    reads = BlockingReads(source_of(ObjectStore(memory)))
    obstore.delete(memory, "x/c/1")
    assert reads.get("c/1", begin, end) is None
    obstore.delete(memory, "x/zarr.json")
    with pytest.raises(FileNotFoundError, match=r"x/zarr\.json is gone"):
        reads.get("c/1", begin, end)


def test_a_store_without_suffix_requests_is_asked_for_the_size_once_it_said_so(
    memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from obstore.exceptions import NotSupportedError

    asked: list[Any] = []
    real_get = obstore.get

    def get(store: Any, path: str, *, options: Any = None) -> Any:
        asked.append(options)
        if isinstance(options["range"], dict):
            raise NotSupportedError("Azure does not support suffix range requests")
        return real_get(store, path, options=options)

    reads = BlockingReads(source_of(ObjectStore(memory)))
    monkeypatch.setattr(obstore, "get", get)
    for size in (5, 60):
        found = reads.get("c/0", -size, None)
        assert found is not None
        assert found.tobytes() == STORED[-size:]
    assert sum(isinstance(options["range"], dict) for options in asked) == 1


class Wrapped(WrapperStore[ObjectStore[Any]]):
    """A store that may do anything before it asks the one below."""


class Extended(ObjectStore[Any]):
    """The same."""


def test_only_a_store_that_does_what_obstore_does_is_read_past_zarr_python(memory: Any) -> None:
    good = source_of(ObjectStore(memory))
    assert BlockingReads.serves(good)
    assert not BlockingReads.serves(source_of(MemoryStore()))
    for store in (Wrapped(ObjectStore(memory)), Extended(memory)):
        assert not BlockingReads.serves(dataclasses.replace(good, store=store))


def test_a_store_with_a_provider_of_credentials_is_left_to_the_event_loop() -> None:
    async def provider() -> Any:
        raise AssertionError

    s3 = obstore.store.S3Store("bucket", region="us-east-1", credential_provider=provider, skip_signature=False)
    good = source_of(ObjectStore(obstore.store.MemoryStore()))
    assert not BlockingReads.serves(dataclasses.replace(good, store=ObjectStore(s3)))


def test_chunks_that_zarr_python_decodes_are_left_to_the_event_loop(memory: Any) -> None:
    store = ObjectStore(memory)
    array = zarr.create_array(
        store, name="x", data=np.arange(8), chunks=(4,), zarr_format=2, compressors=numcodecs.LZMA(), filters=None
    )
    source = read_layout(array).source
    assert isinstance(source, StoreSource)
    assert source.decoder is not None
    assert not BlockingReads.serves(source)
