"""The mark of a store that an `Appender` writes: an attribute of each array, which readers trust.

Invariant: the length of an array with the mark covers complete samples only, from the sample on that the mark names as
the first one. Metadata are replaced in one step, by one process at a time (`append_journal.py` has the lock), and are
on the disk when `change_metadata` returns.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zarr

from zarrfeed.base.documents import parse_json
from zarrfeed.base.durable_files import replace_whole, sync_folder

#: Attribute of arrays; `Marks` describes its value.
ATTRIBUTE = "zarrfeed"


@dataclass(frozen=True)
class Marks:
    """The attributes by which an `Appender` marks a store.

    Attributes
    ----------
    store
        Id of the store.
    disposable
        True if its oldest samples may be deleted.
    depth
        Number of directories from the array up to the store: 1 in a group, else 0.
    first
        The oldest sample that is not deleted.
    """

    store: str
    disposable: bool
    depth: int = 0
    first: int = 0


def new_marks(*, depth: int, disposable: bool) -> dict[str, dict[str, Any]]:
    """Return the attributes of a store that an `Appender` begins to write."""
    store = secrets.token_hex(8)
    return {ATTRIBUTE: {"appender": 1, "store": store, "disposable": disposable, "depth": depth, "first": 0}}


def marks_of(array: zarr.Array[Any]) -> Marks | None:
    """Return the mark of an array, as of when it was opened; None if no `Appender` writes the array."""
    return _parsed(array.attrs.asdict())


def marks_in(directory: Path) -> Marks | None:
    """Return the mark that the array in a directory has now."""
    path = directory / "zarr.json"
    if path.exists():
        return _parsed(parse_json(path.read_bytes()).get("attributes", {}))
    path = directory / ".zattrs"
    return _parsed(parse_json(path.read_bytes())) if path.exists() else None


def length_in(directory: Path) -> int:
    """Return the length that the array in a directory has now."""
    path = directory / "zarr.json"
    document = parse_json((path if path.exists() else directory / ".zarray").read_bytes())
    return int(document["shape"][0])


def change_metadata(
    directory: Path, *, length: int | None = None, attributes: Mapping[str, Any] | None = None, first: int | None = None
) -> None:
    """Change the metadata of the array in a directory, each file in one step: its length, which only grows, or more.

    Parameters
    ----------
    directory
        Directory of the array.
    length
        The new length of its first axis; a smaller one than it has is left alone.
    attributes
        Attributes that are added.
    first
        The oldest sample that is not deleted.
    """
    path = directory / "zarr.json"
    is_v3 = path.exists()
    path = path if is_v3 else directory / ".zarray"
    if length is not None:
        document = parse_json(path.read_bytes())
        if document["shape"][0] < length:
            document["shape"][0] = length
            replace_whole(path, json.dumps(document).encode())
            sync_folder(directory)
    if attributes is None and first is None:
        return
    attributes_path = path if is_v3 else directory / ".zattrs"
    document = parse_json(attributes_path.read_bytes()) if attributes_path.exists() else {}
    known: dict[str, Any] = document.setdefault("attributes", {}) if is_v3 else document
    known.update(attributes or {})
    if first is not None:
        known[ATTRIBUTE]["first"] = first
    replace_whole(attributes_path, json.dumps(document).encode())
    sync_folder(directory)


def _parsed(attributes: Mapping[str, Any]) -> Marks | None:
    marks = attributes.get(ATTRIBUTE)
    if not isinstance(marks, Mapping) or marks.get("appender") != 1:
        return None
    depth, first = marks.get("depth"), marks.get("first")
    return Marks(
        str(marks.get("store")),
        disposable=marks.get("disposable") is True,
        depth=1 if depth == 1 else 0,
        first=first if isinstance(first, int) and first > 0 else 0,
    )
