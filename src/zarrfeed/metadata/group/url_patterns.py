"""Patterns of URLs, such as s3://bucket/train/*.zarr: the stores that match them."""

from __future__ import annotations

import errno
import glob
import re
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import unquote

from zarrfeed.base.errors import ConfigError, StoreReadError, UnsupportedError, printable
from zarrfeed.metadata.array.side_by_side import side_by_side
from zarrfeed.storage.access.access import StoreAccess
from zarrfeed.storage.access.key_urls import as_glob, check_key, url_of
from zarrfeed.storage.access.shared_access import SharedAccess
from zarrfeed.storage.access.store_errors import errno_of, says_no_bucket
from zarrfeed.storage.access.urls import make_store, what_is_wrong

#: A question mark that begins the query of a URL, and does not stand for a character.
_QUERY = re.compile(r"\?[^/]*=")


def is_pattern(url: str) -> bool:
    """Return whether a URL is a pattern. Brackets around the address of a host, and queries, are none."""
    rest = url.partition("://")[2]
    if url.startswith(("http://", "https://")):
        rest = rest.partition("/")[2].partition("?")[0]
    return glob.has_magic(rest) and not _QUERY.search(rest)


def matching_urls(pattern: str, access: StoreAccess, shared: SharedAccess) -> list[str]:
    """Return the URLs of folders that match a pattern, sorted by keys: `*` in one name of the path, as in a shell.

    Escapes of the pattern are decoded, as those of any URL, and stand for no wildcard. A pattern that is itself the
    name of a folder names that folder. Folders are listed side by side. `shared` ends that.

    Raises
    ------
    ConfigError, UnsupportedError
        If the URL names no store that is listed.
    StoreReadError
        If a folder cannot be listed.
    """
    scheme, _, rest = pattern.partition("://")
    bucket, *names = rest.rstrip("/").split("/")
    if scheme in ("http", "https"):
        raise UnsupportedError(f"{printable(pattern)}: a web server does not list its files; give a list of URLs")
    if glob.has_magic(bucket):
        raise ConfigError(f"{scheme}://{rest.rpartition('@')[2]}: the name of the bucket must be given")
    root = make_store(f"{scheme}://{bucket}", access, root=True)
    check_key(printable(pattern), as_glob("/".join(names)))
    literal = "".join(f"{unquote(name)}/" for name in names)
    first = next(number for number, name in enumerate(names) if glob.has_magic(name))
    found = ["".join(f"{unquote(name)}/" for name in names[:first])]
    for name in names[first:]:

        def children(folder: str, name: str = name) -> list[str]:
            if not glob.has_magic(name):
                inside = f"{folder}{unquote(name)}/"
                return [] if _folders(root, inside, access, shared) is None else [inside]
            wanted, hides = as_glob(name), not name.startswith(".")
            return [
                f"{folder}{child}/"
                for child in _folders(root, folder, access, shared) or ()
                if fnmatchcase(child, wanted) and not (hides and child.startswith("."))
            ]

        found = [one for some in side_by_side(children, found, shared) for one in some]
    # Names with * or ? match themselves; those with brackets do not.
    if literal in found or ("[" in pattern and _folders(root, literal, access, shared) is not None):
        found = [literal]
    return [url_of(f"{scheme}://{bucket}", key) for key in sorted(path.rstrip("/") for path in found)]


def _folders(root: Any, folder: str, access: StoreAccess, shared: SharedAccess) -> list[str] | None:
    """Return the names of the folders in a folder of a bucket; None if nothing is in it."""
    import obstore

    name = f"{root}/{folder}"
    try:
        listed = access.ask(
            lambda: shared.run(obstore.list_with_delimiter_async(root.store, prefix=folder or None)), name
        )
    except StoreReadError:
        raise
    except Exception as error:  # of any class
        if says_no_bucket(error):
            raise StoreReadError(errno.ENOENT, f"{root}: the bucket does not exist") from error
        raise StoreReadError(errno_of(error), f"{name}: {what_is_wrong(root, error)}") from error
    folders = [str(one).rstrip("/").rpartition("/")[2] for one in listed["common_prefixes"]]
    return folders if folders or listed["objects"] else None
