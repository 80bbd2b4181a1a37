"""Arrays in groups of a group: those that `variables=` names by their paths, such as "s1/x", or all to a depth."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

import zarr

from zarrfeed.base.errors import ConfigError, StoreReadError, printable
from zarrfeed.base.suggestions import did_you_mean
from zarrfeed.metadata.array.cf import data_variables, dimension_names
from zarrfeed.metadata.array.known_groups import refusal
from zarrfeed.metadata.group.beside import StoredPath, open_beside
from zarrfeed.metadata.group.field_sources import members_in, naming
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


def names_below(side: str, group: zarr.Group, depth: int, sample_dims: Sequence[str], access: StoreAccess) -> list[str]:
    """Return the paths of the data variables in a group, and in the groups in it down to a depth; its own come first.

    Only those that have all sample dimensions that are named.

    Raises
    ------
    ConfigError, UnsupportedError, StoreReadError
        If a member is damaged, or a group is of a kind whose arrays are no fields of one sample.
    """
    known = refusal(group)
    if known is not None:
        with naming(side):
            raise known
    members = members_in(side, group, access)
    arrays = {name: one for name, one in members.items() if isinstance(one, zarr.Array)}
    names = [
        name
        for name in data_variables(arrays, dict(group.attrs))
        if set(sample_dims) <= set(dimension_names(arrays[name]) or ())
    ]
    groups = {name: one for name, one in members.items() if isinstance(one, zarr.Group)}
    for name, inside in groups.items() if depth else ():
        names += [f"{name}/{below}" for below in names_below(side, inside, depth - 1, sample_dims, access)]
    return names


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
    members = members_in(side, nearest, access)
    arrays = [f"{prefix}{name}" for name, one in members.items() if isinstance(one, zarr.Array)]
    groups = [f"{prefix}{name}" for name, one in members.items() if isinstance(one, zarr.Group)]
    lists = f"arrays{where}: {', '.join(arrays) or 'none'}"
    if groups and not arrays:
        lists = f"groups{where}: {', '.join(groups)}"
    return ConfigError(f"variables: {printable(name)!r} is no array in {side}; {lists}{did_you_mean(name, arrays)}")
