"""The arrays that are in the node cache, and the names of their objects there.

The engine reads and writes the cache (`cpp/storage/cache/node_cache.h`). This module decides whether an array is
cached: its store must have a name that is the same tomorrow, and its objects must have versions (`object_versions.py`,
of files `staging.py`). An array that cannot be cached is read as without a cache, and `ArrayCache.why_off` says why.

Invariant: no credentials, and no query of a URL, are in the cache or in a message.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from zarr.abc.store import Store
from zarr.storage import LocalStore, WrapperStore, ZipStore

from zarrfeed.base.errors import StoreReadError
from zarrfeed.base.native import core
from zarrfeed.spec.arrays.array import ArraySpec
from zarrfeed.storage.access.access import StoreAccess
from zarrfeed.storage.access.cache_options import ArrayCache, StoredObjects
from zarrfeed.storage.access.read_store import ReadStore
from zarrfeed.storage.access.zarr_internals import unwrapped
from zarrfeed.storage.chunks.chunk_keys import ChunkKeys
from zarrfeed.storage.chunks.location import StoreSource
from zarrfeed.storage.chunks.object_versions import find_versions, name_store
from zarrfeed.storage.chunks.staging import name_far_table, name_table, stage_array, stage_zip
from zarrfeed.storage.chunks.transcoding import form_of


def with_cache(source: StoreSource, spec: ArraySpec, access: StoreAccess) -> StoreSource:
    """Name the chunks of an array in the cache, if there is one."""
    if access.cache is None:
        return source
    form = form_of(spec, access.cache, source.decoder)
    return replace(source, cached=replace(_named(source, spec.name, spec, access, form), form=form))


def with_cached_objects(source: StoreSource, name: str, access: StoreAccess) -> StoreSource:
    """Name objects that are read as they are in the cache, if there is one; messages call them `name`."""
    return source if access.cache is None else replace(source, cached=_named(source, name, None, access, ""))


def with_staging(spec: ArraySpec, keys: ChunkKeys, access: StoreAccess) -> ArraySpec:
    """Return an array in a local directory, with what it is called in the cache, if there is to be one."""
    if access.cache is None:
        return spec
    return replace(spec, staged=stage_array(access.cache, spec.root, keys, form_of(spec, access.cache, None)))


def cache_of(spec: ArraySpec) -> ArrayCache | None:
    """Return the name of an array in the node cache; None: there is no cache."""
    if isinstance(spec.source, StoreSource):
        return spec.source.cached
    return spec.staged if isinstance(spec.staged, ArrayCache) else None


def _named(source: StoreSource, name: str, spec: ArraySpec | None, access: StoreAccess, form: str) -> ArrayCache:
    options = access.cache
    assert options is not None
    store = _inner(source.store)
    if isinstance(store, LocalStore) and source.chunk_keys is not None:
        root = str((Path(store.root) / source.prefix.rstrip("/")).absolute())
        return stage_array(options, root, source.chunk_keys, form)
    if isinstance(store, ZipStore):
        return stage_zip(options, str(Path(store.path).absolute()), source.prefix, form)
    if source.table is not None and form:
        return name_table(options, source.table, source.prefix)
    if source.far_table is not None:
        return name_far_table(options, name, source.far_table, source.prefix)
    named = name_store(store)
    if named is None and source.table is not None:
        why = "a local file is read in place; zarrfeed.open(..., transcode='lz4') caches chunks of slow codecs"
        return ArrayCache(options, why_off=f"{name}: {why}")
    if named is None:
        kind = type(store.store if isinstance(store, ReadStore) else store).__name__
        return ArrayCache(options, why_off=f"{name}: a {kind} is not cached")
    called, path = named
    made = ArrayCache(options, called, f"{path}/{source.prefix}" if path else source.prefix)
    if options.version is not None:
        return replace(made, versions=core.ObjectVersions("declared " + options.version))
    try:
        found = find_versions(source.store, source.prefix, spec, access)
    except StoreReadError as error:
        return replace(made, why_off=f"{name}: versions of objects cannot be told: {error.strerror}")
    why_off = found.why and f"{name}: {found.why}"
    return replace(made, versions=found.versions, objects=StoredObjects.of(found.sizes), why_off=why_off)


def _inner(store: Store) -> Store:
    while isinstance(store, WrapperStore):
        store = unwrapped(store)
    return store
