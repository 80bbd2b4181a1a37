"""Arrays and groups below a store, drawn as a tree: `zarrfeed info --tree`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import zarr

from zarrfeed.base.errors import printable
from zarrfeed.metadata.array.cf import dimension_names
from zarrfeed.metadata.array.open import check_storage_options, open_source
from zarrfeed.metadata.group.field_sources import members_in
from zarrfeed.storage.access.access import StoreAccess

#: Lines that are drawn, at most; and groups one in the other, which links of a file system can make endless.
_MOST_LINES, _MOST_LEVELS = 2000, 32


def store_tree(source: str, access: StoreAccess) -> str:
    """Return an array, or a group with all that lies in it, a line each: dimensions, type, chunks.

    Raises
    ------
    ConfigError, UnsupportedError, StoreReadError
        If nothing is there, or it cannot be read; as `zarrfeed.open` raises them.
    """
    check_storage_options(access, source)
    node = open_source(source, access)
    lines = [printable(source) + _layout(node)]
    for line in _below(node, access, "", _MOST_LEVELS) if isinstance(node, zarr.Group) else ():
        if len(lines) == _MOST_LINES:
            lines.append(f"... (only the first {_MOST_LINES} lines are drawn; give the path of a group)")
            break
        lines.append(line)
    return "\n".join(lines)


def _below(group: zarr.Group, access: StoreAccess, margin: str, levels: int) -> Iterator[str]:
    """Yield the lines of a group's members, each with those that lie in it."""
    members = members_in("", group, access)
    for number, (name, node) in enumerate(members.items(), 1):
        is_last = number == len(members)
        yield f"{margin}{'└── ' if is_last else '├── '}{printable(name)}{_layout(node)}"
        if isinstance(node, zarr.Group) and levels:
            yield from _below(node, access, margin + ("    " if is_last else "│   "), levels - 1)


def _layout(node: zarr.Array[Any] | zarr.Group) -> str:
    """Return dimensions, type and chunks of an array, behind its name; "" for a group."""
    if isinstance(node, zarr.Group):
        return ""
    names = dimension_names(node) or (None,) * node.ndim
    sizes = [
        f"{size}" if name is None else f"{printable(name)}: {size}"
        for name, size in zip(names, node.shape, strict=True)
    ]
    chunks = f", chunks {_by(node.chunks)}" if node.ndim else ""
    shards = "" if node.shards is None else f", shards {_by(node.shards)}"
    return f"  ({', '.join(sizes)}) {node.dtype}{chunks}{shards}"


def _by(sizes: tuple[int, ...]) -> str:
    return " x ".join(map(str, sizes))
