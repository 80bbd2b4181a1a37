"""Arrays in groups of a group, which `variables=` names by their paths: "s1/x"."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

import zarr

from zarrfeed.base.errors import ConfigError, StoreReadError, printable
from zarrfeed.base.suggestions import did_you_mean
from zarrfeed.metadata.group.beside import StoredPath, open_beside
from zarrfeed.metadata.group.field_sources import arrays_in
from zarrfeed.storage.access.access import StoreAccess


def nested_arrays(
    side: str, group: zarr.Group, variables: Sequence[str] | None, access: StoreAccess
) -> dict[str, zarr.Array[Any]]:
    """Return the arrays whose names have a slash, by these names. One name is one request; nothing is listed.

    Raises
    ------
    ConfigError, UnsupportedError, StoreReadError
        If there is no array at a path, or it cannot be read; names the arrays that lie there.
    """
    found = {}
    for name in variables or ():
        if "/" in name:
            node = _node_at(group, name, access)
            if not isinstance(node, zarr.Array):
                raise _refusal(side, group, name, node, access)
            found[name] = node
    return found


def _node_at(group: zarr.Group, name: str, access: StoreAccess) -> Any:
    """Return the array or the group at a path below a group; None if nothing is there."""
    if {"", ".", ".."} & {*name.split("/")}:
        return None
    try:
        return open_beside(StoredPath(group.store_path.store, f"{group.path}/{name}".lstrip("/")), access)
    except StoreReadError as error:
        if error.errno != errno.ENOENT:
            raise
        return None


def _refusal(side: str, group: zarr.Group, name: str, node: Any, access: StoreAccess) -> ConfigError:
    """Return the error for a name at which no array is: it lists what lies in the nearest group above."""
    above = name
    while node is None and above:
        above = above.rpartition("/")[0]
        node = _node_at(group, above, access) if above else group
    where, prefix = (f" in {above}", f"{above}/") if above else ("", "")
    nearest = node if isinstance(node, zarr.Group) else group
    arrays = [f"{prefix}{one}" for one in arrays_in(side, nearest, access)]
    groups = [f"{prefix}{one}" for one in sorted(nearest.group_keys())] if not arrays else []
    lists = f"groups{where}: {', '.join(groups)}" if groups else f"arrays{where}: {', '.join(arrays) or 'none'}"
    return ConfigError(f"variables: {printable(name)!r} is no array in {side}; {lists}{did_you_mean(name, arrays)}")
