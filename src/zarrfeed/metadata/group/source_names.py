"""The name of an opened source in an expression: a path or a URL as text, anything else by its type and its place."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from zarrfeed.base.errors import printable
from zarrfeed.base.optional_torch import is_tensor
from zarrfeed.spec.description.freeze import FrozenList, FrozenMapping, Named
from zarrfeed.storage.access.checked_nodes import node_name
from zarrfeed.storage.access.given_stores import is_mapper


def name_source(source: Any) -> Hashable:
    """Return the name of a source in an expression: it compares, hashes and prints.

    >>> name_source(Path("era5.zarr")), name_source({"x": "a.zarr/x", "y": np.zeros((3, 2), "f4")})
    ('era5.zarr', {'x': 'a.zarr/x', 'y': <numpy.ndarray (3, 2) float32>})
    """
    if source is None:
        return None
    if isinstance(source, str | Path):
        return str(source)
    if isinstance(source, list | tuple):
        return FrozenList(tuple(map(name_source, source)))
    if isinstance(source, zarr.Array | zarr.Group):
        return Named(f"<zarr.{type(source).__name__} {printable(source.store_path)}>")
    if is_tensor(source):
        return Named(f"<torch.Tensor {tuple(source.shape)} {str(source.dtype).removeprefix('torch.')}>")
    if isinstance(source, np.ndarray):
        return Named(f"<numpy.ndarray {source.shape} {source.dtype}>")
    if isinstance(source, Mapping) and not is_mapper(source):
        return FrozenMapping(tuple((str(key), name_source(one)) for key, one in source.items()))
    kind = type(source)
    return Named(f"<{kind.__module__.partition('.')[0]}.{kind.__name__} {printable(source)}>")


def store_name(source: Any) -> str:
    """Return the name of one of many stores in messages: its path or URL, or its name in an expression."""
    if isinstance(source, zarr.Array | zarr.Group):
        return node_name(source)
    return printable(source) if isinstance(source, str | Path) else str(name_source(source))


def name_xarray(source: Any, arrays: Any) -> Hashable:
    """Return the name of an object of xarray in an expression: its class, and the stored arrays that are read of it."""
    if arrays is source:
        return name_source(source)
    kind = f"xarray.{type(source).__name__}"
    if isinstance(arrays, Mapping):
        paths = ", ".join(f"{name}: {printable(array.store_path)}" for name, array in arrays.items())
        return Named(f"<{kind} {paths}>")
    return Named(f"<{kind} {printable(arrays.store_path)}>")
