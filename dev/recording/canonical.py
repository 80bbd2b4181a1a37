"""A value as text that is the same in every process: what two commits are compared by, and what a person reads.

The text names no class of zarrfeed and no module, so it survives their moves. Long arrays are cut: their text has the
first items and a digest of all.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch

_MOST_ITEMS = 48
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d_]*(?:\.\d+)?(?:e[-+]?\d+)?(?![\w.]*\d)")
_ADDRESS = re.compile(r"(memory://|\b0x)[0-9a-f]+")
_DIGITS = 8


def digest(text: str) -> str:
    """Return a short digest of a text."""
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()[:_DIGITS]


def render(value: Any, special: Callable[[Any], str | None] = lambda _: None) -> str:
    """Return a value as text; `special` may render objects of its own kinds.

    Lists and tuples read alike, and so do NumPy's scalars and Python's. Dictionaries keep their order.
    """

    def inner(one: Any) -> str:
        return render(one, special)

    said = special(value)
    if said is not None:
        return said
    match value:
        case np.generic():
            return inner(value.item())
        case enum.Enum():
            return inner(value.value)
        case None | bool() | int() | str() | bytes():
            return repr(value)
        case float():
            return "nan" if math.isnan(value) else repr(value)
        case np.ndarray():
            return _render_array(value, inner)
        case torch.Tensor():
            return _render_tensor(value, inner)
        case PurePath():
            return repr(str(value))
        case slice() | range():
            return f"{type(value).__name__}({value.start}, {value.stop}, {value.step})"
        case Mapping():
            return "{" + ", ".join(f"{inner(key)}: {inner(one)}" for key, one in value.items()) + "}"
        case tuple() | list():
            return "[" + ", ".join(map(inner, value)) + "]"
        case set() | frozenset():
            return "{" + ", ".join(sorted(map(inner, value))) + "}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return inner({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    return repr(value)


def _render_array(array: np.ndarray[Any, Any], inner: Callable[[Any], str]) -> str:
    if array.dtype == object:
        return f"object{list(array.shape)} {inner(array.tolist())}"
    return _render_items(array.dtype.str, array.shape, array.ravel()[:_MOST_ITEMS].tolist(), array.tobytes())


def _render_tensor(tensor: torch.Tensor, inner: Callable[[Any], str]) -> str:
    if tensor.layout == torch.sparse_csr:
        parts = (tensor.crow_indices(), tensor.col_indices(), tensor.values())
        return f"csr{list(tensor.shape)} {' '.join(map(inner, parts))}"
    if tensor.layout == torch.sparse_coo:
        return f"coo{list(tensor.shape)} {inner(tensor.coalesce().indices())} {inner(tensor.coalesce().values())}"
    plain = tensor.detach().clone(memory_format=torch.contiguous_format)
    name = str(tensor.dtype).removeprefix("torch.")
    stored = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    return _render_items(name, tuple(tensor.shape), plain.reshape(-1)[:_MOST_ITEMS].tolist(), stored)


def _render_items(dtype: str, shape: tuple[int, ...], first: list[Any], stored: bytes) -> str:
    count = math.prod(shape)
    cut = f" ... {hashlib.blake2b(stored, digest_size=8).hexdigest()}" if count > _MOST_ITEMS else ""
    return f"{dtype}{list(shape)} {' '.join(map(str, first))}{cut}"


def numbers_of(text: str) -> str:
    """Return the numbers that a text for people has, sorted, so that its words may change, and their sequence."""
    return " ".join(sorted(_NUMBER.findall(text)))


def without_addresses(text: str, folder: Path) -> str:
    """Return a text without a folder's path, and without addresses in memory."""
    return _ADDRESS.sub(r"\1ADDRESS", text.replace(str(folder), "STORES"))


def walk(value: Any, name: str = "", *, clean: Callable[[str], str] = str) -> Iterator[tuple[str, str]]:
    """List the figures of an explanation as (name, figure): of a text its numbers, of a name the name itself.

    A text without a space counts as a name, such as that of a field. Private attributes are left out.
    """
    if isinstance(value, str):
        text = clean(value)
        figures = numbers_of(text) if " " in text else text
        if figures:
            yield name, figures
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from walk(one, f"{name}.{key}", clean=clean)
    elif isinstance(value, tuple | list):
        for number, one in enumerate(value):
            yield from walk(one, f"{name}[{number}]", clean=clean)
    elif isinstance(value, np.generic | np.ndarray | torch.Tensor | int | float):
        yield name, render(value)
    elif value is not None and hasattr(type(value), "__dict__") and dataclasses.is_dataclass(value):
        kept = [field.name for field in dataclasses.fields(value) if not field.name.startswith("_")]
        for attribute in kept:
            below = f"{name}.{attribute}" if name else attribute
            yield from walk(getattr(value, attribute), below, clean=clean)
