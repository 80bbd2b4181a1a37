"""Nodes that zarr-python opened, checked for what it lets pass and the rest of the package relies on.

Invariant: the attributes of a node that passed are an object of JSON.
"""

from __future__ import annotations

from typing import Any, TypeVar

import zarr

from zarrfeed.base.errors import ConfigError, printable
from zarrfeed.storage.access.open_errors import shown

Node = TypeVar("Node")
#: Characters of a value that a message shows.
_MOST_CHARS = 100


def node_name(node: zarr.Array[Any] | zarr.Group) -> str:
    """Return the path or URL by which messages name an array or a group."""
    return printable(str(node.store_path).removeprefix("file://"))


def checked(node: Node, name: str | None = None) -> Node:
    """Return an array or a group as it is; anything else, too.

    Parameters
    ----------
    node
        The result of zarr-python's open function.
    name
        Path or URL that messages name. None: the node's own.

    Raises
    ------
    ConfigError
        If its attributes are no object.
    """
    if isinstance(node, zarr.Array | zarr.Group):
        attributes: object = node.metadata.attributes
        if not isinstance(attributes, dict):
            name = name or node_name(node)
            raise ConfigError(
                f"{name}: attributes = {shown(attributes, _MOST_CHARS)}, must be an object of JSON, such as {{}}"
            )
    return node
