"""The arrays and groups that lie in a group of zarr-python.

zarr-python's own listing warns of each file that is no node. At the first member that it cannot open it leaves its
other tasks alone, and asyncio logs a traceback for each of them. Invariants: other files are passed over, every
task ends, and the error is that of the first damaged member in the order of names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import zarr
from zarr.storage import LocalStore

from zarrfeed.base.redaction import redact
from zarrfeed.storage.access.checked_nodes import checked, node_name
from zarrfeed.storage.access.local_files import METADATA_NAMES
from zarrfeed.storage.access.open_errors import open_error
from zarrfeed.storage.access.store_errors import is_transient
from zarrfeed.storage.access.zarr_internals import async_group, sync

#: Members that are opened at once.
_AT_ONCE = 64


def members_of(group: zarr.Group) -> dict[str, zarr.Array[Any] | zarr.Group]:
    """Return the members of a group by name, in the order of names.

    Raises
    ------
    ConfigError, UnsupportedError
        If a member is damaged, or its attributes are no object; names it.
    Exception
        An exception of any class, if the store cannot be listed or read.
    """
    return checked_members(sync(read_members(group)))


def checked_members(members: Mapping[str, Any]) -> dict[str, zarr.Array[Any] | zarr.Group]:
    """Convert the members that `read_members` returned to arrays and groups that are no longer asynchronous."""
    return {
        name: checked(zarr.Group(one) if isinstance(one, zarr.AsyncGroup) else zarr.Array(one))
        for name, one in members.items()
    }


def arrays_of(group: zarr.Group) -> dict[str, zarr.Array[Any]]:
    """Return the arrays in a group by name, in the order of names. Raises as `members_of`."""
    return {name: one for name, one in members_of(group).items() if isinstance(one, zarr.Array)}


async def read_members(group: zarr.Group) -> dict[str, Any]:
    """Return the members as asynchronous arrays and groups; on zarr-python's event loop."""
    node = async_group(group)
    if node.metadata.consolidated_metadata is not None:  # they are listed there, and cost no request
        return dict(sorted([(name, one) async for name, one in node.members()]))
    names = sorted({name.rstrip("/") async for name in node.store.list_dir(node.path)} - set(METADATA_NAMES))
    gate = asyncio.Semaphore(_AT_ONCE)

    async def read(name: str) -> Any:
        async with gate:
            return await node.getitem(name)

    found = await asyncio.gather(*map(read, names), return_exceptions=True)
    members: dict[str, Any] = {}
    for name, one in zip(names, found, strict=True):
        if not isinstance(one, BaseException):
            members[name] = one
        elif not _says_no_node(one, name):
            redact(one)  # it was returned, and is not handled here
            if not isinstance(one, Exception) or isinstance(one, OSError) or is_transient(one):
                raise one
            path = node_name(group)
            folder = Path(group.store.root, group.path, name) if isinstance(group.store, LocalStore) else None
            raise open_error(f"{path}/{name}", one, folder) from one
    return members


def _says_no_node(error: BaseException, name: str) -> bool:
    """Return whether there is no node of that name, and none that is damaged."""
    if not isinstance(error, KeyError):
        return False
    return isinstance(error.__cause__, FileNotFoundError) or (error.__cause__ is None and error.args == (name,))
