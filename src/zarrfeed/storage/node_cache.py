"""Which arrays are in the node cache, and what their objects are called there.

The engine reads and writes the cache (`cpp/storage/node_cache.h`). This module decides whether an array is cached: its
store must have a name that is the same tomorrow, and its objects must have versions (`object_versions.py`). An array
that cannot be cached is read as without a cache, and `ArrayCache.why_off` says why.

What holds: no credentials, and no query of a URL, are in the cache or in a message.
"""

from __future__ import annotations

from dataclasses import replace

from zarrfeed.base.errors import StoreReadError
from zarrfeed.base.native import core
from zarrfeed.spec.array import ArraySpec
from zarrfeed.storage.access import StoreAccess
from zarrfeed.storage.cache_options import ArrayCache, StoredObjects
from zarrfeed.storage.location import StoreSource
from zarrfeed.storage.object_versions import find_versions, name_store


def with_cache(source: StoreSource, spec: ArraySpec, access: StoreAccess) -> StoreSource:
    """Return where the chunks of an array are, with what they are called in the cache, if there is to be one."""
    return source if access.cache is None else replace(source, cached=_named(source, spec.name, spec, access))


def with_cached_objects(source: StoreSource, name: str, access: StoreAccess) -> StoreSource:
    """Return the same for objects that are read as they are; messages call them `name`."""
    return source if access.cache is None else replace(source, cached=_named(source, name, None, access))


def _named(source: StoreSource, name: str, spec: ArraySpec | None, access: StoreAccess) -> ArrayCache:
    options = access.cache
    assert options is not None
    named = name_store(source.store)
    if named is None:
        return ArrayCache(options, why_off=f"{name}: a {type(source.store).__name__} is not cached")
    store, path = named
    made = ArrayCache(options, store, f"{path}/{source.prefix}" if path else source.prefix)
    if options.version is not None:
        return replace(made, versions=core.ObjectVersions("declared " + options.version))
    try:
        found = find_versions(source.store, source.prefix, spec, access)
    except StoreReadError as error:
        return replace(made, why_off=f"{name}: versions of objects cannot be told: {error.strerror}")
    why_off = found.why and f"{name}: {found.why}"
    return replace(made, versions=found.versions, objects=StoredObjects.of(found.sizes), why_off=why_off)
