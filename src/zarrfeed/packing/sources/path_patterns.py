"""Paths that a user names: patterns and braces become the paths that they match, in the order of code points."""

from __future__ import annotations

import errno
import glob
import os
import re
from pathlib import Path

from zarrfeed.base.errors import ConfigError, StoreReadError, printable
from zarrfeed.metadata.group.url_patterns import is_pattern, matching_urls
from zarrfeed.packing.sources.source import SourceOptions
from zarrfeed.storage.access.key_urls import is_url, path_pattern_of
from zarrfeed.storage.access.local_files import lacking, local_path
from zarrfeed.storage.access.shared_access import SharedAccess
from zarrfeed.storage.files.inside_path import matching_in_files, split_at_file

_BRACES = re.compile(r"\{([^{}]*)\}")
_NUMBERS = re.compile(r"([0-9]+)\.\.([0-9]+)")
#: More files than a list of sources can be meant to have.
_MOST = 10_000_000


def expanded(path: str, options: SourceOptions, *, patterns: bool = True) -> list[str]:
    """Return the absolute paths, or the URLs, that a path stands for.

    Parameters
    ----------
    path
        A path or a URL. `*`, `?` and `[...]` match names, in the order of code points; `{a,b}` and `{00..12}` stand for
        several, in the order written, each of which must be there. A path that exists stands for itself, and so does
        the path of a group or an array in a file, such as "x.h5/train".
    options
        Options for reading URLs.
    patterns
        True if the path may be a pattern.

    Raises
    ------
    StoreReadError
        If there is nothing at a local path, or a pattern matches nothing; names what is similar.
    ConfigError
        If braces cannot be meant.
    """
    if is_url(path):
        if not patterns or not is_pattern(path):
            return [path]
        access = options.access
        return _some(matching_urls(path, access, SharedAccess()), path)
    local = os.path.abspath(local_path(path))  # noqa: PTH100 - resolving links would change the names
    if os.path.lexists(local):
        if not Path(local).exists():
            raise StoreReadError(errno.ENOENT, f"{printable(local)}: is a link to a file that is missing")
        return [local]
    made = []
    pattern = os.path.abspath(path_pattern_of(path) or path)  # noqa: PTH100 - as above
    for one in without_braces(pattern) if patterns else [local]:
        if patterns and glob.has_magic(one) and not os.path.lexists(one):
            found = sorted(glob.glob(one, recursive=True))  # noqa: PTH207 - Path.glob needs a root
            made += _some(found or matching_in_files(one), one)
        elif Path(one).exists() or split_at_file(Path(one))[1]:
            made.append(one)
        else:
            raise _missing(one)
    return made


def _some(found: list[str], pattern: str) -> list[str]:
    if not found:
        raise StoreReadError(errno.ENOENT, f"{printable(pattern)}: nothing matches this pattern")
    return found


def _missing(path: str) -> StoreReadError:
    """Return the error for a path without anything."""
    return StoreReadError(errno.ENOENT, f"{printable(path)}: {lacking(Path(path))}")


def without_braces(text: str) -> list[str]:
    """Return the texts that a text with braces stands for.

    >>> without_braces("{train,val}-{08..10}.tar")[:4]
    ['train-08.tar', 'train-09.tar', 'train-10.tar', 'val-08.tar']
    """
    made = [""]
    end = 0
    for found in _BRACES.finditer(text):
        head, end = text[end : found.start()], found.end()
        if "{" in head:
            raise ConfigError(f"{printable(text)}: braces in braces are not understood; name the paths one by one")
        chosen = _alternatives(found[1], text)
        if len(made) * len(chosen) > _MOST:
            raise ConfigError(f"{printable(text)}: stands for more than {_MOST} paths")
        made = [before + head + one for before in made for one in chosen]
    return [before + text[end:] for before in made]


def _alternatives(inside: str, text: str) -> list[str]:
    numbers = _NUMBERS.fullmatch(inside)
    if numbers is None:
        return inside.split(",") if "," in inside else [f"{{{inside}}}"]
    first, last = int(numbers[1]), int(numbers[2])
    if not first <= last < first + _MOST:
        raise ConfigError(f"{printable(text)}: {{{inside}}} must rise, by less than {_MOST}")
    is_padded = any(len(one) > 1 and one.startswith("0") for one in numbers.groups())
    width = max(map(len, numbers.groups())) if is_padded else 0
    return [f"{number:0{width}d}" for number in range(first, last + 1)]
