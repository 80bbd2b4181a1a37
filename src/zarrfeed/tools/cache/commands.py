"""Run `zarrfeed cache` with the arguments of the command line."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.executors import open_executor
from zarrfeed.base.units import format_bytes, parse_bytes
from zarrfeed.metadata.array.open import check_storage_options
from zarrfeed.metadata.stores.many_stores import as_stores
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.storage.access.access import StoreAccess
from zarrfeed.storage.access.cache_options import CacheOptions
from zarrfeed.storage.access.key_urls import is_url, path_of
from zarrfeed.storage.access.local_files import local_path
from zarrfeed.storage.access.urls import make_store
from zarrfeed.storage.chunks.object_versions import name_store
from zarrfeed.storage.chunks.staging import STORE, ZIP_STORE
from zarrfeed.tools.cache.entries import CacheInfo, CheckedCache, check_cache, clear_cache, describe_cache
from zarrfeed.tools.cache.shared_warming import WarmJob, token_in, warm_by
from zarrfeed.tools.cache.warm import Warming, WarmReport
from zarrfeed.tools.verify.find_arrays import find_arrays
from zarrfeed.tools.verify.terminal import show_progress


def warm(arguments: argparse.Namespace, storage_options: dict[str, Any] | None) -> WarmReport:
    """Copy a store, or all that a pattern names, into a cache: here, or by an executor whose workers see its directory.

    Raises
    ------
    ConfigError, StoreReadError, UnsupportedError
        If there is no such store, it cannot be read, an argument cannot work, or a worker does not see the cache.
    LostWorkerError
        If workers of the executor died, again and again.
    """
    budget = parse_bytes(arguments.memory_budget)
    access = StoreAccess(Faults(timeout=arguments.timeout), storage_options, zarr_format=arguments.zarr_format)
    check_storage_options(access, arguments.path)
    stores = [str(store) for store in as_stores(arguments.path, access) or [arguments.path]]
    found = {store: find_arrays(store, arguments.arrays, access) for store in stores}
    cache = CacheOptions.parse(arguments.cache, arguments.cache_limit, arguments.cache_version, _group_of(arguments))
    assert cache is not None
    report = WarmReport(arguments.path if len(stores) > 1 else found[stores[0]].store, cache.path, cache.limit)
    with show_progress() as progress, ExitStack() as stack:
        cached = replace(access, cache=cache)
        warming = Warming(cached, memory_budget=budget, on_progress=progress)
        if arguments.executor is not None:
            pool, at_once = stack.enter_context(open_executor(arguments.executor, None))
        for store, one in found.items():
            if arguments.executor is None:
                warmed = [warming.run(array, name) for name, array in one.arrays.items()]
            else:
                job = WarmJob.of(store, cached, budget)
                with token_in(job):
                    warmed = [
                        warm_by(pool, at_once, job, warming, array, name, progress)
                        for name, array in one.arrays.items()
                    ]
            before = len(report.arrays)
            report.arrays += warmed
            report.add_problems(one.problems)
            if len(stores) > 1:
                for array in report.arrays[before:]:
                    array.name = f"{store}/{array.name}".rstrip("/")
    return report


def info(arguments: argparse.Namespace) -> CacheInfo:
    """Count the entries of a cache. Raises ConfigError if there is none, or it is another user's."""
    return describe_cache(arguments.directory, _group_of(arguments))


def check(arguments: argparse.Namespace) -> CheckedCache:
    """Check all entries of a cache. Raises ConfigError if there is none, or it is another user's."""
    with show_progress() as progress:
        return check_cache(arguments.directory, progress, _group_of(arguments))


def clear(arguments: argparse.Namespace, storage_options: dict[str, Any] | None) -> str:
    """Delete entries of a cache, and return a report.

    Raises
    ------
    ConfigError, UnsupportedError
        If there is no cache, it is another user's, or `--store` is no URL of a store that is cached.
    """
    group = _group_of(arguments)
    access = StoreAccess(Faults(timeout=arguments.timeout), storage_options)
    if arguments.store is None:
        check_storage_options(access)
        return f"{format_bytes(clear_cache(arguments.directory, group=group))} deleted"
    if not is_url(arguments.store) or path_of(arguments.store) is not None:
        path = str(local_path(arguments.store).absolute())
        freed = sum(clear_cache(arguments.directory, (name, path), group=group) for name in (STORE, ZIP_STORE))
        return f"{format_bytes(freed)} deleted"
    named = name_store(make_store(arguments.store, access))
    if named is None:
        raise ConfigError(f"--store {arguments.store!r}: such a store is not cached")
    return f"{format_bytes(clear_cache(arguments.directory, named, group=group))} deleted"


def _group_of(arguments: argparse.Namespace) -> str | int | None:
    """Return the group that shares the cache; digits alone are its number."""
    text: str | None = getattr(arguments, "cache_group", None)
    return int(text) if text is not None and text.isdecimal() else text
