"""Paths that lead into a file, such as "x.nc/t2m" or "x.h5::data/x"."""

from __future__ import annotations

from pathlib import Path

from zarrfeed.storage.files.open_file import is_read_in_place

#: Stands between a file and a path in it, where it is no slash.
_BETWEEN = "::"


def split_at_file(path: Path) -> tuple[Path, str]:
    """Return the file that a path leads into, and the path in it; the path itself, and "", if it leads into none.

    Raises
    ------
    OSError
        If the file cannot be read.
    """
    file, separator, inside = str(path).partition(_BETWEEN)
    if separator and _is_file(Path(file)):
        return Path(file), inside.strip("/")
    for parent in path.parents:
        if _is_file(parent):
            return parent, path.relative_to(parent).as_posix()
    return path, ""


def _is_file(path: Path) -> bool:
    return path.is_file() and is_read_in_place(path)
