"""The one module that uses what zarr-python does not document, for every release that pyproject.toml allows.

Invariant: no other module of the package imports `zarr.core` or a private module of zarr or numcodecs, or reads a
private attribute of their objects (`tests/repo/test_codebase.py`). So a new release of zarr-python can break this file
only.
Names that zarr-python documents (`zarr.abc`, `zarr.buffer`, `zarr.codecs`, `zarr.dtype`, `zarr.storage`) are imported
where they are used.
"""

from __future__ import annotations

import asyncio
import warnings
import zipfile
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

import numcodecs.blosc
import numcodecs.registry
import zarr
from zarr.abc.store import Store
from zarr.storage import MemoryStore, WrapperStore, ZipStore

from zarrfeed.base.errors import ConfigError, UnsupportedError
from zarrfeed.base.waits import wait_for

#: The oldest and the newest release of zarr-python that pass the tests; pyproject.toml promises the oldest.
TESTED_RELEASES = ("3.1.4", "3.4.2")

try:
    from zarr.buffer import cpu
    from zarr.codecs._v2 import V2Codec
    from zarr.core.array_spec import ArrayConfig, ArraySpec
    from zarr.core.codec_pipeline import BatchedCodecPipeline
    from zarr.core.metadata import ArrayV2Metadata, ArrayV3Metadata
    from zarr.core.sync import _get_executor, _get_loop
    from zarr.core.sync import loop as _loop
    from zarr.core.sync import sync as _sync
    from zarr.dtype import ZDType
    from zarr.errors import ZarrUserWarning
    from zarr.registry import get_codec_class
except ImportError as error:
    _oldest, _newest = TESTED_RELEASES
    raise ImportError(
        f"zarrfeed does not work with zarr {zarr.__version__}: {error}. It is tested with zarr {_oldest} to {_newest}: "
        f"pip install 'zarr>={_oldest},<={_newest}'"
    ) from error

__all__ = [
    "TESTED_RELEASES",
    "ArrayMetadata",
    "ArrayV2Metadata",
    "ArrayV3Metadata",
    "BatchedCodecPipeline",
    "ChunkSpec",
    "V2Codec",
    "async_group",
    "check_document",
    "chunk_spec",
    "configured",
    "dtype_name",
    "event_loop",
    "has_event_loop",
    "fill_of",
    "fill_scalar",
    "grid_error",
    "has_snappy",
    "make_codec",
    "memory_of",
    "numcodecs_codec",
    "open_store",
    "read_document",
    "regular_chunk_shape",
    "sync",
    "unwrapped",
    "with_archive",
    "with_fill",
    "with_length",
    "with_metadata",
    "with_store",
]

_T = TypeVar("_T")

#: The parsed metadata of an array, as `zarr.Array.metadata` has it.
ArrayMetadata: TypeAlias = ArrayV2Metadata | ArrayV3Metadata
#: The facts that a codec pipeline gets about one chunk: shape, dtype, fill value, memory order.
ChunkSpec: TypeAlias = ArraySpec


def grid_error(name: str, grid: str) -> UnsupportedError:
    """Return the error for an array whose chunks differ in shape."""
    return UnsupportedError(f"{name}: chunk grid {grid!r}, must be 'regular', with chunks of one shape")


def regular_chunk_shape(metadata: ArrayMetadata, name: str) -> tuple[int, ...]:
    """Return the shape of an array's stored chunks, or of its shards where it has some.

    Raises
    ------
    UnsupportedError
        If its chunks differ in shape, as those of a rectilinear grid do; names the array.
    ConfigError
        If the store has a length below 1, which zarr-python takes for 1 since 3.4.1, so that it reads fill values.
    """
    stored = _stored_chunk_shape(metadata)
    if stored is not None and not all(isinstance(n, int) and n >= 1 for n in stored):
        raise ConfigError(f"{name}: chunk shape {tuple(stored)}, every length must be at least 1")
    if isinstance(metadata, ArrayV2Metadata):
        return tuple(int(n) for n in metadata.chunks)
    grid: dict[str, Any] = dict(metadata.chunk_grid.to_dict())
    if grid["name"] != "regular":
        raise grid_error(name, str(grid["name"]))
    return tuple(int(n) for n in grid["configuration"]["chunk_shape"])


def _stored_chunk_shape(metadata: ArrayMetadata) -> list[Any] | None:
    """Return the chunk shape as it stands in the store, if zarr-python repaired the metadata; else None."""
    document: Any = getattr(metadata, "_stored_document", None)  # newer releases have it
    try:
        shape = document["chunks"] if "chunks" in document else document["chunk_grid"]["configuration"]["chunk_shape"]
    except (TypeError, KeyError):
        return None
    return shape if isinstance(shape, list) else None


def chunk_spec(metadata: ArrayMetadata, shape: tuple[int, ...]) -> ChunkSpec:
    """Return the facts that a codec pipeline needs to decode a chunk of a shape."""
    return ArraySpec(
        shape=shape,
        dtype=metadata.dtype,
        fill_value=metadata.fill_value,
        config=ArrayConfig(
            order=metadata.order if isinstance(metadata, ArrayV2Metadata) else "C", write_empty_chunks=False
        ),
        prototype=cpu.buffer_prototype,
    )


def fill_scalar(spec: ChunkSpec) -> Any:
    """Return the fill value of a chunk. Zarr v2 lets metadata omit it; zarr-python then takes the dtype's default."""
    return spec.dtype.default_scalar() if spec.fill_value is None else spec.fill_value


def dtype_name(dtype: ZDType[Any, Any]) -> str:
    """Return the name of a dtype in Zarr v3's metadata."""
    return str(type(dtype)._zarr_v3_name)


def numcodecs_codec(codec: Any) -> Any:
    """Return the numcodecs object that a codec of zarr-python wraps, which is loaded here; other codecs as they are.

    Raises
    ------
    Exception
        An exception of any class, if the codec's library cannot be imported or refuses the configuration.
    """
    return getattr(codec, "_codec", codec)


def has_snappy() -> bool:
    """Return whether numcodecs' Blosc was built with the compressor snappy."""
    return "snappy" in numcodecs.blosc.list_compressors()


def with_length(array: zarr.Array[Any], length: int) -> zarr.Array[Any]:
    """Return an array with another length of its first axis, whose store keeps the length that it has.

    Writes to it store whole chunks, also those that hold nothing but the fill value.
    """
    metadata = array.metadata.update_shape((length, *array.shape[1:]))
    config = ArrayConfig(order="C", write_empty_chunks=True)
    return zarr.Array(zarr.AsyncArray(metadata=metadata, store_path=array.store_path, config=config))


def with_metadata(array: zarr.Array[Any], metadata: ArrayMetadata) -> zarr.Array[Any]:
    """Return an array that zarr-python reads and writes by other metadata; nothing is stored."""
    config = ArrayConfig(order="C", write_empty_chunks=False)
    return zarr.Array(zarr.AsyncArray(metadata=metadata, store_path=array.store_path, config=config))


def make_codec(described: dict[str, Any]) -> Any:
    """Return a codec as it stands in the metadata of an array, of format 2 or 3.

    Raises
    ------
    Exception
        An exception of any class, if there is no such codec, or it refuses its configuration.
    """
    if "id" in described:
        return numcodecs.registry.get_codec(dict(described))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ZarrUserWarning)
        return get_codec_class(described["name"]).from_dict(described)


def check_document(document: dict[str, Any], zarr_format: int) -> None:
    """Parse the metadata document of an array, and drop the result.

    Raises
    ------
    Exception
        An exception of any class, if zarr-python does not take it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warned when it opened the array
        (ArrayV3Metadata if zarr_format == 3 else ArrayV2Metadata).from_dict(document)


def fill_of(array: zarr.Array[Any]) -> Any:
    """Return the value of the items that an array's store lacks."""
    metadata = array.metadata
    return metadata.dtype.default_scalar() if metadata.fill_value is None else metadata.fill_value


def with_fill(array: zarr.Array[Any], value: Any) -> zarr.Array[Any]:
    """Return an array that is read with another fill value; nothing is stored."""
    fill: Any = array.metadata.dtype.cast_scalar(value)
    return with_metadata(array, replace(array.metadata, fill_value=fill))


def configured(codec: Any, changes: dict[str, Any]) -> Any:
    """Return a codec of numcodecs in an array of format 3 with another configuration."""
    with warnings.catch_warnings():  # zarr-python warned of the codec when it opened the array
        warnings.simplefilter("ignore", ZarrUserWarning)
        return type(codec)(**{**codec.codec_config, **changes})


def read_document(array: zarr.Array[Any], key: str) -> bytes | None:
    """Return the content of a metadata document of an array; None if the store does not have it.

    Raises
    ------
    Exception
        The store's exception, of any class.
    """
    content = sync((array.store_path / key).get())
    return None if content is None else content.to_bytes()


def sync(read: Coroutine[Any, Any, _T], timeout: float | None = None) -> _T:
    """Run a coroutine on zarr-python's event loop, as `zarr.core.sync.sync` does, and return its result.

    Ctrl-C ends the wait, also if the interrupt came before the wait began, which zarr-python's function leaves out.

    Raises
    ------
    TimeoutError
        If the coroutine has not returned after `timeout` seconds; it goes on. And whatever the coroutine raises.
    """
    loop = _get_loop()
    if asyncio._get_running_loop() is loop or loop.is_closed():
        return _sync(read)  # raises what zarr-python raises
    if zarr.config.get("threading.max_workers", None) is not None:
        _get_executor()
    reading = asyncio.run_coroutine_threadsafe(_caught(read), loop)
    if not wait_for([reading], timeout):
        raise TimeoutError(f"Coroutine {read} failed to finish within {timeout} s")
    result, error = reading.result()
    if error is not None:
        raise error
    return result  # type: ignore[return-value]


async def _caught(read: Coroutine[Any, Any, _T]) -> tuple[_T | None, Exception | None]:
    """Return the result of a coroutine, or its exception: asyncio would raise some exceptions anew, as others."""
    try:
        return await read, None
    except Exception as error:  # noqa: BLE001 (it is raised where the result is awaited)
        return None, error


def event_loop() -> asyncio.AbstractEventLoop:
    """Return the loop on which zarr-python reads, in a thread of its own."""
    loop: asyncio.AbstractEventLoop = sync(_running_loop())
    return loop


def has_event_loop() -> bool:
    """Return whether zarr-python has started its loop, and has not closed it."""
    return _loop[0] is not None and not _loop[0].is_closed()


async def _running_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


async def open_store(store: Store) -> None:
    """Open a store that is not open yet."""
    await store._ensure_open()


def async_group(group: zarr.Group) -> Any:
    """Return the asynchronous group behind one: its methods return coroutines, which can be given up."""
    return group._async_group


def unwrapped(store: WrapperStore[Store]) -> Store:
    """Return the store that another one wraps."""
    return store._store


def with_archive(store: ZipStore, read: Callable[[zipfile.ZipFile], _T]) -> _T:
    """Return what a function reads of the archive of a store; nobody else reads it meanwhile."""
    if not store._is_open:
        store._sync_open()
    with store._lock:
        return read(store._zf)


def memory_of(store: MemoryStore) -> object:
    """Return the dict that a memory store keeps its objects in: several stores may share one."""
    return store._store_dict


def with_store(wrapper: WrapperStore[Store], store: Store) -> Store:
    """Return a wrapper like this one around another store."""
    return wrapper._with_store(store)
