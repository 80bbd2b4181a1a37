"""Our errors for exceptions of zarr-python where it opens an array; they name the array."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

from zarrfeed.base.documents import parse_json
from zarrfeed.base.errors import ConfigError, ZarrfeedError
from zarrfeed.storage.access.store_errors import reason_of
from zarrfeed.storage.access.zarr_internals import check_document, grid_error, make_codec

#: Characters of a value that a message shows.
_MOST_CHARS = 200


def open_error(name: str, error: Exception, folder: Path | None = None) -> ZarrfeedError:
    """Return the error to raise where zarr-python cannot open an array or a group.

    Parameters
    ----------
    name
        The path or URL that messages name.
    error
        The exception of zarr-python. Its parsers raise exceptions of any class.
    folder
        The array's local folder, if it has one: its metadata say which codec was refused.
    """
    # Releases before 3.2 do not know such grids; later ones refuse them as long as a flag of their own is not set.
    if re.search(r"rectilinear chunk|unknown chunk grid\. got rectilinear", str(error), re.IGNORECASE):
        return grid_error(name, "rectilinear")
    refused = "" if folder is None else _refused_codec(folder) or _refused_member(folder) or _refused_attributes(folder)
    return ConfigError(f"{name}: zarr-python cannot open it: {refused}{reason_of(error)}")


def _parsed(path: Path) -> Any:
    """Parse a document of metadata; None if it is not there, cannot be read, or is no JSON."""
    with contextlib.suppress(OSError, ValueError):
        return parse_json(path.read_bytes())
    return None


def _refused_codec(folder: Path) -> str:
    """Return the codec that zarr-python or numcodecs refuses in the metadata of a folder, to begin a message; or ""."""
    for key, is_v3 in (("zarr.json", True), (".zarray", False)):
        document = _parsed(folder / key)
        with contextlib.suppress(LookupError, TypeError, AttributeError):
            codecs = document["codecs"] if is_v3 else [*(document["filters"] or ()), document["compressor"]]
            for codec in filter(None, codecs):
                try:
                    make_codec(codec)
                except Exception:  # noqa: BLE001 (constructors raise exceptions of any class)
                    return f"codec {json.dumps(codec)}: "
    return ""


def _refused_member(folder: Path) -> str:
    """Return the member of the metadata document in a folder that zarr-python refuses, to begin a message; or "".

    It is the member without which, or with a plain value in its place, the document would be taken.
    """
    for key, zarr_format in (("zarr.json", 3), (".zarray", 2)):
        document = _parsed(folder / key)
        if not isinstance(document, dict):
            continue
        if zarr_format == 3 and document.get("node_type") == "group":
            return "" if isinstance(document.get("attributes", {}), dict) else _said_of("attributes", document)
        if _is_taken(document, zarr_format):  # something else is wrong
            continue
        for member, values in _plain_values(document, zarr_format).items():
            if any(_is_taken({**document, member: value}, zarr_format) for value in values):
                return _said_of(member, document)
    return ""


def _refused_attributes(folder: Path) -> str:
    """Return the attributes of a node of format 2 that are no object, to begin a message; or ""."""
    attributes = _parsed(folder / ".zattrs")
    return (
        "" if attributes is None or isinstance(attributes, dict) else _said_of("attributes", {"attributes": attributes})
    )


def _plain_values(document: dict[str, Any], zarr_format: int) -> dict[str, list[Any]]:
    """Return values for the members of an array's document that go with all others; one of each goes."""
    shape: Any = document.get("shape")
    ones = [1] * len(shape if isinstance(shape, list) else ())
    plain: dict[str, list[Any]] = {
        "fill_value": [0, False, "", "AAAA", [0, 0]],
        "shape": [[1], [1, 1], [1, 1, 1], ones],
    }
    if zarr_format == 2:
        return {
            **plain,
            "chunks": [ones],
            "dtype": ["<i4", "|S4"],
            "order": ["C"],
            "compressor": [None],
            "filters": [None],
            "dimension_separator": ["."],
            "zarr_format": [2],
        }
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    return {
        **plain,
        "data_type": ["int32", "float32", "string", "bool"],
        "chunk_grid": [{"name": "regular", "configuration": {"chunk_shape": ones}}],
        "chunk_key_encoding": [{"name": "default", "configuration": {"separator": "/"}}],
        "codecs": [[little], [{"name": "vlen-utf8"}]],
        "attributes": [{}],
        "dimension_names": [None],
        "storage_transformers": [[]],
        "node_type": ["array"],
        "zarr_format": [3],
    }


def _is_taken(document: dict[str, Any], zarr_format: int) -> bool:
    try:
        check_document(document, zarr_format)
    except Exception:  # noqa: BLE001 (parsers raise exceptions of any class)
        return False
    return True


def _said_of(member: str, document: dict[str, Any]) -> str:
    if member not in document:
        return f"it lacks {member!r}: "
    if member == "attributes":
        return f"attributes = {shown(document[member])}, must be an object of JSON: "
    if member == "fill_value" and document[member] is None:
        return "fill_value = null, must be an item of the dtype, such as 0, in an array of format 3: "
    return f"{member} = {shown(document[member])}: "


def shown(value: object, most_chars: int = _MOST_CHARS) -> str:
    """Return a value of a document as JSON, cut short."""
    text = json.dumps(value, default=repr)
    return text if len(text) <= most_chars else f"{text[:most_chars]}..."
