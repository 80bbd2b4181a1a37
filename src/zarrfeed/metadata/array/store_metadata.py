"""The metadata documents of a local store, and what tells apart two stores that are alike but for their length.

zarr-python takes about a millisecond to open a store. A store whose documents are those of a store that was opened
before, but for its length and for attributes that nobody here heeds, holds its arrays in the same way: only the lengths
and the paths differ. Invariant: whatever is not as expected is left to zarr-python, which says what is wrong.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zarrfeed.base.documents import parse_json
from zarrfeed.metadata.array.known_groups import PACK_MANIFEST, PACK_SEGMENTS
from zarrfeed.storage.access.local_files import METADATA_NAMES, MOST_METADATA_BYTES

#: The attributes of arrays and groups that decide how they are read; of others stores may have any.
_HEEDED = frozenset(
    (
        *("_ARRAY_DIMENSIONS", "coordinates", "dtype", "scale_factor", "add_offset", "_FillValue", "missing_value"),
        *("_Unsigned", "ome", "multiscales", "plate", "well", "labels", "bioformats2raw.layout", "encoding-type"),
        *("flag_values", "flag_masks", "flag_meanings", "names", "positive"),
    )
)
#: Marks of an `Appender`: such stores are opened one by one.
_MARKED = "zarrfeed"
#: Documents are anybody's: whatever is not as expected is one of these.
_UNEXPECTED = (OSError, ValueError, KeyError, TypeError, AttributeError)
#: Most bytes of an array whose stored form is compared.
_MOST_STORED_BYTES = 1 << 20


@dataclass(frozen=True)
class StoreMetadata:
    """The documents of an array, or of the arrays in a group.

    Attributes
    ----------
    is_group
        True for a group.
    shapes
        Shape of each array, by its name in the group; "" for an array at the root.
    signature
        Equal for stores that are read alike, but for the lengths of the arrays' axes.
    copied
        Description of each array by its name, if it comes from consolidated metadata. Else empty.
    """

    is_group: bool
    shapes: Mapping[str, tuple[int, ...]]
    signature: str
    copied: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> StoreMetadata | None:
        """Return the documents of the store at a path; None where zarr-python has to say what it is."""
        try:
            group, arrays, is_copy = _documents(path)
            return cls._of(group, arrays, is_copy=is_copy)
        except _UNEXPECTED:
            return None

    def agrees(self, path: Path, names: Iterable[str], *, have_own: bool) -> bool:
        """Return whether the own documents of some arrays say the same, if these are consolidated metadata.

        With `have_own` False, whether these arrays have no documents of their own, either.
        """
        try:
            expected = self.copied if have_own else {}
            return not self.copied or all(_own_document(path / name) == expected.get(name) for name in names)
        except _UNEXPECTED:
            return False

    @classmethod
    def _of(
        cls, group: dict[str, Any] | None, arrays: dict[str, dict[str, Any]], *, is_copy: bool
    ) -> StoreMetadata | None:
        shapes, described = {}, {}
        attributes = {} if group is None else group
        of_all = [attributes, *(document.get("attributes", {}) for document in arrays.values())]
        if any(_has_segments(one) for one in of_all):
            return None  # of its own, which another store has not
        for name, document in arrays.items():
            if _MARKED in document.get("attributes", {}):
                return None
            shape, described[name] = _divided(document)
            if not shape or not all(type(n) is int and n > 0 for n in shape):
                return None
            shapes[name] = shape
        if not shapes:
            return None
        text = json.dumps([group is not None, _heeded(attributes), described], sort_keys=True)
        copied = {name: (shapes[name], described[name]) for name in shapes} if is_copy else {}
        return cls(group is not None, shapes, text, copied)


def _divided(document: dict[str, Any]) -> tuple[tuple[int, ...], list[Any]]:
    """Return the shape of an array, and what else its documents say that decides how it is read."""
    attributes = document.pop("attributes", {})
    shape = tuple(document.pop("shape"))
    return shape, [document, len(shape), _heeded(attributes)]


def _own_document(path: Path) -> tuple[tuple[int, ...], list[Any]] | None:
    """Parse the own documents of an array at a path; None if it has none."""
    document = _parsed(path / "zarr.json")
    if document is None and (document := _parsed(path / ".zarray")) is not None:
        document["attributes"] = _parsed(path / ".zattrs") or {}
    return None if document is None else _divided(document)


def stored_bytes(folder: Path) -> bytes | None:
    """Return all that is stored of a small array but its metadata; None if it is large, or cannot be read."""
    parts, size = [], 0
    try:
        for root, folders, names in os.walk(folder):
            folders.sort()
            for name in sorted(name for name in names if name not in METADATA_NAMES):
                parts.append(Path(root, name).read_bytes())
                size += len(parts[-1])
                if size > _MOST_STORED_BYTES:
                    return None
    except OSError:
        return None
    return b"".join(parts)


def _has_segments(attributes: dict[str, Any]) -> bool:
    """Return whether a packed store names the ends of its segments."""
    return PACK_SEGMENTS in attributes.get(PACK_MANIFEST, {})


def _heeded(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes that decide how an array is read; of units of times, that they are such."""
    heeded = {name: value for name, value in attributes.items() if name in _HEEDED}
    units = attributes.get("units")
    return {**heeded, "units": "times" if " since " in str(units) else units}


def _documents(path: Path) -> tuple[dict[str, Any] | None, dict[str, dict[str, Any]], bool]:
    """Read the documents at a path.

    The attributes of the group, None for an array; the documents of its arrays; and whether these are consolidated.
    """
    root = _parsed(path / "zarr.json")
    if root is None:
        return _documents_v2(path)
    if (path / ".zarray").exists() or (path / ".zgroup").exists():
        raise ValueError("of both formats")
    if root["node_type"] == "array":
        return None, {"": root}, False
    consolidated = root.get("consolidated_metadata")
    if consolidated is not None:
        members = {name: one for name, one in consolidated["metadata"].items() if "/" not in name}
    else:
        members = {name: one for name in _folders(path) if (one := _parsed(path / name / "zarr.json")) is not None}
    arrays = {name: one for name, one in members.items() if one["node_type"] == "array"}
    return root.get("attributes", {}), arrays, consolidated is not None


def _documents_v2(path: Path) -> tuple[dict[str, Any] | None, dict[str, dict[str, Any]], bool]:
    root = _parsed(path / ".zarray")
    if root is not None:
        return None, {"": {**root, "attributes": _parsed(path / ".zattrs") or {}}}, False
    if _parsed(path / ".zgroup") is None:
        raise ValueError("no node")
    consolidated = _parsed(path / ".zmetadata")
    if consolidated is not None:
        known = consolidated["metadata"]
        names = [key.removesuffix("/.zarray") for key in known if key.endswith("/.zarray") and key.count("/") == 1]
        members = {name: {**known[f"{name}/.zarray"], "attributes": known.get(f"{name}/.zattrs", {})} for name in names}
        return known.get(".zattrs", {}), members, True
    members = {
        name: {**one, "attributes": _parsed(path / name / ".zattrs") or {}}
        for name in _folders(path)
        if (one := _parsed(path / name / ".zarray")) is not None
    }
    return _parsed(path / ".zattrs") or {}, members, False


def _folders(path: Path) -> Iterator[str]:
    with os.scandir(path) as entries:
        yield from [entry.name for entry in entries if entry.is_dir()]


def _parsed(path: Path) -> dict[str, Any] | None:
    """Return a document; None if there is none.

    Raises
    ------
    ValueError
        If it is no regular file, too large, or no JSON object.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_METADATA_BYTES:
            raise ValueError("no metadata")
        document = parse_json(file.read())
    if not isinstance(document, dict):
        raise ValueError("no object")
    return document
