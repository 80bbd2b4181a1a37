"""The arrays of a store: all of them, in groups of any depth, or those that are named. Reads metadata only.

Invariants: one array or group that cannot be opened is a problem of its own, and the others are still found. Groups are
entered one after the other, not one inside of the other, so depth costs no stack. In a local store each directory is
entered once, however many links lead to it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import zarr
from zarr.api.asynchronous import open as open_async
from zarr.storage import LocalStore, StorePath

from zarrfeed.base.errors import ConfigError, ZarrfeedError, printable
from zarrfeed.base.validate import check_list
from zarrfeed.metadata.array.array_changes import metadata_changes
from zarrfeed.metadata.array.dask_arrays import refuse_dask
from zarrfeed.metadata.array.known_groups import member_of
from zarrfeed.metadata.array.open import open_source
from zarrfeed.metadata.array.own_metadata import OwnMetadata, read_own, stale_text
from zarrfeed.storage.access.access import StoreAccess
from zarrfeed.storage.access.checked_nodes import checked, node_name
from zarrfeed.storage.access.local_files import METADATA_NAMES, check_metadata_files
from zarrfeed.storage.access.open_errors import open_error
from zarrfeed.storage.access.store_errors import reason_of
from zarrfeed.storage.access.urls import wrap_node
from zarrfeed.storage.access.zarr_internals import async_group


@dataclass
class Found:
    """The contents of a store.

    Attributes
    ----------
    store
        Name of the store, the same in every run.
    arrays
        The arrays by path.
    problems
        Path of an array or group that cannot be opened -> the reason.
    ignored
        Paths in groups where neither is.
    root
        Directory of a local store; None for others.
    stale
        Path of an array whose description in consolidated metadata differs from its own document -> the difference.
    """

    store: str
    arrays: dict[str, zarr.Array[Any]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    root: Path | None = None
    stale: dict[str, str] = field(default_factory=dict)


def find_arrays(source: Any, names: Sequence[str] | None, access: StoreAccess) -> Found:
    """Find the arrays of a store.

    Parameters
    ----------
    source
        A path, a URL, an array or a group of zarr-python, or a store.
    names
        Paths of arrays or groups in it; None: all.
    access
        The access to the store.

    Raises
    ------
    ConfigError
        If there is nothing by such a name, or `source` is no store.
    StoreReadError
        If the store cannot be read.
    """
    node = open_source(source, access)
    if not isinstance(node, zarr.Array | zarr.Group):
        refuse_dask(source)
        raise ConfigError(f"got a {type(source).__name__}, must be a path, a URL, a zarr.Array or a zarr.Group")
    found = Found(node_name(node))
    if type(node.store) is LocalStore:
        found.root = Path(os.path.realpath(Path(node.store.root) / node.path))
        found.store = str(found.root)
    if names is not None:
        names = check_list("arrays", names, "names")
    if isinstance(node, zarr.Array):
        if names is not None:
            raise ConfigError(f"arrays = {names!r}: {printable(found.store)} is an array, and not a group of some")
        found.arrays[""] = node
        if source is node:  # it may have been opened by consolidated metadata, or before a change
            note_stale(found, {"": node}, read_own([node], access))
        return found
    walk = _Walk(node, found, access)
    if names is None:
        walk.enter("", node)
    for name in names or ():
        segments = name.strip("/").split("/")
        if {"", ".", ".."} & set(segments) or "\\" in name or not walk.visit("/".join(segments)):
            raise ConfigError(f"arrays: {printable(found.store)} has no array or group {name!r}")
    walk.run()
    walk.compare()
    found.arrays = dict(sorted(found.arrays.items()))
    return found


class _Walk:
    def __init__(self, root: zarr.Group, found: Found, access: StoreAccess) -> None:
        self._root, self._found, self._access = root, found, access
        self._store, self._format = root.store, root.metadata.zarr_format
        self._groups: list[tuple[str, zarr.Group]] = []
        self._entered: set[str] = set()
        self._copies: dict[str, zarr.Group] = {"": root}  # groups with consolidated metadata
        self._lists = self._store.supports_listing and self._can_list()

    def run(self) -> None:
        while self._groups:
            path, group = self._groups.pop()
            try:
                names = self._children(path, group)
            except Exception as error:  # noqa: BLE001 (of any class: a store is anybody's code)
                self._found.problems[path] = f"the group cannot be listed: {reason_of(error)}"
                continue
            for name in names:
                below = f"{path}/{name}" if path else name
                if not self.visit(below):
                    self._found.ignored.append(below)

    def enter(self, path: str, group: zarr.Group) -> None:
        directory = self._directory(path)
        if directory is not None:
            real = os.path.realpath(directory)
            if real in self._entered:
                return
            self._entered.add(real)
        if group.metadata.consolidated_metadata is not None:
            self._copies[path] = group
        self._groups.append((path, group))

    def compare(self) -> None:
        """Note the arrays whose own documents say something else than the consolidated metadata of a group."""
        if not self._lists:  # consolidated metadata is all that was read
            note_stale(self._found, self._found.arrays, read_own(list(self._found.arrays.values()), self._access))
            return
        for path, group in self._copies.items():
            if group.metadata.consolidated_metadata is None:
                continue
            for name, own in self._found.arrays.items():
                below = name.removeprefix(f"{path}/") if path else name
                copy = member_of(group, below) if not path or name.startswith(f"{path}/") else None
                changes = metadata_changes(copy.metadata, own.metadata) if isinstance(copy, zarr.Array) else []
                if changes:
                    self._found.stale.setdefault(
                        name, stale_text(node_name(own), own.metadata.zarr_format, "; ".join(changes))
                    )

    def visit(self, path: str) -> bool:
        """Note the array or the group at a path below the root; return whether there is one, or was meant to be."""
        found = self._found
        if path in found.arrays or path in found.problems:
            return True
        try:
            directory = self._directory(path)
            if directory is not None:
                check_metadata_files(directory)
            node: Any = self._open(path)
        except (FileNotFoundError, KeyError):
            return False
        except ZarrfeedError as error:
            found.problems[path] = str(error)
            return True
        except Exception as error:  # noqa: BLE001 (what zarr-python's parsers raise is of any class)
            folder = self._directory(path)
            found.problems[path] = str(open_error(path, error, folder)).removeprefix(f"{path}: ")
            return True
        if isinstance(node, zarr.Array):
            found.arrays[path] = node
        else:
            self.enter(path, node)
        return True

    def _open(self, path: str) -> zarr.Array[Any] | zarr.Group:
        whole = f"{self._root.path}/{path}".strip("/")
        if not self._lists:
            return wrap_node(self._access.ask(lambda: async_group(self._root).getitem(path), whole))
        store_path = StorePath(self._store, whole)
        if self._found.root is not None:
            return checked(zarr.open(store=store_path, mode="r", zarr_format=self._format))
        return wrap_node(
            self._access.ask(lambda: open_async(store=store_path, mode="r", zarr_format=self._format), str(store_path))
        )

    def _can_list(self) -> bool:
        """Return whether the store can be listed; where it cannot, as most web servers, consolidated metadata serve."""
        try:
            self._access.ask(partial(self._names, ""), self._found.store)
        except Exception:  # noqa: BLE001 (of any class: a store is anybody's code)
            return self._root.metadata.consolidated_metadata is None  # then it is told that it cannot be listed
        return True

    async def _names(self, path: str) -> list[str]:
        prefix = f"{self._root.path}/{path}".strip("/")
        return [name.strip("/") async for name in self._store.list_dir(prefix)]

    def _directory(self, path: str) -> Path | None:
        if self._found.root is None or ".." in path.split("/"):
            return None
        return self._found.root / path

    def _children(self, path: str, group: zarr.Group) -> Iterator[str]:
        """Return the names of a group's members, without those of metadata and, in a local store, of files."""
        if not self._lists:
            return iter(sorted(self._access.ask(lambda: _keys(group), f"{self._found.store}/{path}")))
        directory = self._directory(path)
        return (
            name
            for name in sorted(self._access.ask(partial(self._names, path), f"{self._found.store}/{path}"))
            if name not in METADATA_NAMES and (directory is None or not (directory / name).is_file())
        )


def note_stale(found: Found, arrays: Mapping[str, zarr.Array[Any]], owns: Sequence[OwnMetadata]) -> None:
    """Note the arrays whose own documents differ from the metadata that they were opened by."""
    for (path, array), own in zip(arrays.items(), owns, strict=True):
        if own.changes:
            found.stale[path] = stale_text(node_name(array), array.metadata.zarr_format, own.changes)


async def _keys(group: zarr.Group) -> list[str]:
    return [name async for name in async_group(group).keys()]  # noqa: SIM118 (it has no __aiter__)
