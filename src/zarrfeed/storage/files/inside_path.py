"""Paths that lead into a file, such as "x.nc/t2m" or "x.h5::data/x", and patterns of such paths."""

from __future__ import annotations

import glob
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from zipfile import is_zipfile

from zarrfeed.storage.files.open_file import is_read_in_place, open_file

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
    if separator and _may_have_arrays(Path(file)):
        return Path(file), inside.strip("/")
    for parent in path.parents:
        if _may_have_arrays(parent):
            return parent, path.relative_to(parent).as_posix()
    return path, ""


def matching_in_files(pattern: str) -> list[str]:
    """Return the paths of groups and arrays in files that a pattern names, such as "demo.hdf5/data/demo_*", sorted.

    The names of the files may be patterns, too. A wildcard stands for no slash.

    Raises
    ------
    ConfigError, StoreReadError, UnsupportedError, OSError
        If one of the files cannot be read.
    """
    outside, separator, inside = pattern.partition(_BETWEEN)
    splits = [(outside, inside)] if separator else [(str(one), _below(pattern, one)) for one in Path(pattern).parents]
    for files, wanted in splits:
        found = [Path(one) for one in glob.glob(files) if _is_file(Path(one))]  # noqa: PTH207 - as of many stores
        if found:
            names = wanted.strip("/").split("/")
            return sorted(f"{file}/{node}" for file in found for node in _nodes_in(file) if _matches(node, names))
    return []


def _below(pattern: str, folder: Path) -> str:
    return Path(pattern).relative_to(folder).as_posix()


def _nodes_in(file: Path) -> Iterator[str]:
    """Yield the path of each group and each array in a file but the root."""
    store = open_file(file)
    assert store is not None
    yield from dict.fromkeys(node for key in store.documents if (node := key.rpartition("/")[0]))


def _matches(node: str, names: list[str]) -> bool:
    given = node.split("/")
    return len(given) == len(names) and all(map(fnmatchcase, given, names))


def _is_file(path: Path) -> bool:
    return path.is_file() and is_read_in_place(path)


def _may_have_arrays(path: Path) -> bool:
    return path.is_file() and (is_zipfile(path) or is_read_in_place(path))
