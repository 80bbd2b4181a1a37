"""Names that an array of a Zarr group can have as a member of that group, on a file system and in a store."""

from __future__ import annotations

#: Documents of Zarr v2 and v3 that lie beside the members of a group.
_DOCUMENTS = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")
#: The most bytes of a name on the file systems of Linux.
_MOST_BYTES = 255


def why_no_name(name: str) -> str | None:
    """Return the reason why an array of a group cannot have a name, as the end of a sentence; None if it can.

    >>> why_no_name("x"), why_no_name("zarr.json")
    (None, 'is the name of a document of Zarr')
    """
    if not name.strip("."):
        return "is empty or a path to another folder"
    if "/" in name or "\\" in name or "\0" in name:
        return "has a slash, a backslash or a NUL in it"
    if name.startswith("__"):
        return "begins with two underscores, which Zarr reserves"
    if name.lower() in _DOCUMENTS:
        return "is the name of a document of Zarr"
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "is not UTF-8"
    return f"has {size} bytes, more than {_MOST_BYTES}" if size > _MOST_BYTES else None
