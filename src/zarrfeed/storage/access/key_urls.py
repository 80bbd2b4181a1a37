"""URLs of keys: `KeyUrl.of` reads a URL, `url_of` writes one, and they are inverse.

Invariant: `KeyUrl.of(url_of(url, key)).key` is the key of `url`, a slash, and `key`, character by character. The path
of a URL is percent-decoded once: `%23` stands for `#`, and a `%` that begins no escape stands for itself. What URL
libraries drop or change is refused: a query, a fragment, a name that is empty or `.` or `..`, a control character, and
bytes that are not UTF-8. A path of this machine is no URL unless it begins as one.
"""

from __future__ import annotations

import glob
import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote, unquote_to_bytes

from zarrfeed.base.errors import ConfigError, printable

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)(.*)", re.DOTALL)
#: The beginning of a URL, also one that is refused: without a scheme, or a chain of fsspec, such as zip::https://host/a.zip.
_BEGIN = re.compile(r"(?:[A-Za-z0-9_+.-]+::)*(?:[A-Za-z][A-Za-z0-9+.-]*)?://")
#: A file URL may lack the host, as Java writes it.
_FILE_URL = re.compile(r"file:(?://([^/]*)(/.*|$)|(/.*))", re.DOTALL | re.IGNORECASE)
_ESCAPES = re.compile(r"(?:%[0-9A-Fa-f]{2})+")
#: In the path of a web server: a percent sign that begins no escape, and what has to be escaped.
_UNSAFE = re.compile(r"%(?![0-9A-Fa-f]{2})|[^%/A-Za-z0-9._~:@!$&'()*+,;=-]")
#: obstore refuses keys with them, and URL libraries drop some of them.
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
#: In a key: characters that a URL, or a pattern of URLs, reads as something else than themselves.
_RESERVED = re.compile(r"[%#?*\[\]\\]|^\s|\s$")
_QUOTED_NAME = "a name with # or ? in it is written with %23 or %3F"


@dataclass(frozen=True)
class KeyUrl:
    """A URL, read.

    Attributes
    ----------
    scheme
        Scheme of the URL, such as s3, in lower case.
    authority
        The bucket, or the user, the host and the port.
    path
        The path as it is written, without slashes at its ends; "" is the root.

    Examples
    --------
    >>> url = KeyUrl.of("s3://bucket/runs/a%23b 100%.zarr/")
    >>> url.origin, url.key, url.quoted
    ('s3://bucket', 'runs/a#b 100%.zarr', 's3://bucket/runs/a%23b%20100%25.zarr')
    """

    scheme: str
    authority: str
    path: str

    @classmethod
    def of(cls, text: str) -> KeyUrl:
        """Read a URL.

        Raises
        ------
        ConfigError
            If it is no URL, or one that names no single key.
        """
        found = _URL.fullmatch(text)
        if found is None:
            raise ConfigError(f"{printable(text)}: is no URL, must be a URL such as s3://bucket/key")
        scheme, authority, rest = found[1].lower(), found[2], found[3]
        has_user = "@" in authority and not scheme.startswith("abfs")  # there it is container@account
        path = re.split(r"[?#]", rest, maxsplit=1)[0]
        shown = printable(f"{scheme}://{authority.rpartition('@')[2] if has_user else authority}{path}")
        if path != rest or has_user:
            raise ConfigError(
                f"{shown}: has a user, a query or a fragment, which are not read from URLs; set credentials in "
                f"storage_options or in the environment, or pass a zarr.Array on a store that you made; {_QUOTED_NAME}"
            )
        if _CONTROL.search(authority) or re.search(r"[\s\\]", authority):
            raise ConfigError(f"{shown}: names no bucket and no host, which have no spaces and no backslashes")
        url = cls(scheme, authority, path[1:].removesuffix("/"))
        if path not in ("", "/"):
            key = unquote(url.path) if url.is_web else url.key
            check_key(shown, key, may_have_empty_names=url.is_web)
        return url

    @property
    def is_web(self) -> bool:
        """True for the URL of a web server, to which `%2F` and a slash are not the same."""
        return self.scheme in ("http", "https")

    @property
    def origin(self) -> str:
        """The URL of the bucket or the server."""
        return f"{self.scheme}://{self.authority}"

    @property
    def key(self) -> str:
        """The path without escapes: the key of the object, or what the keys below it begin with.

        Raises
        ------
        ConfigError
            If escapes stand for bytes that are not UTF-8.
        """
        try:
            return unquote(self.path, errors="strict")
        except UnicodeDecodeError:
            raise ConfigError(f"{printable(self)}: its escapes are not UTF-8, must be UTF-8 as keys are") from None

    @property
    def quoted(self) -> str:
        """The same URL with an escape for each character that a URL library might read as something else.

        In URLs of a web server, escapes stay as they are: `%2F` may be another name than a slash.
        """
        path = _UNSAFE.sub(lambda found: quote(found[0]), self.path) if self.is_web else quote(self.key)
        return f"{self.origin}/{path}" if path else self.origin

    def __str__(self) -> str:
        return f"{self.origin}/{self.path}" if self.path else self.origin


def is_url(source: object) -> bool:
    """Return whether this is a URL of anything but a local file."""
    found = _BEGIN.match(str(source)) if isinstance(source, str | Path) else None
    return found is not None and found[0].lower() != "file://"


def url_of(url: str, key: str) -> str:
    """Return the URL of a key below a URL; characters that a URL reads as something else are escaped.

    >>> url_of("s3://bucket/runs", "a#b 100%.zarr")
    's3://bucket/runs/a%23b 100%25.zarr'
    """
    return f"{url}/{_RESERVED.sub(lambda found: quote(found[0], safe=''), key)}"


def path_of(text: str) -> Path | None:
    """Return the path that a file:// URL names; None if the text is no such URL, and so a path itself.

    Raises
    ------
    ConfigError
        If the URL is of another host, or has a query or a fragment.

    >>> path_of("file:///data/run%232")
    PosixPath('/data/run#2')
    """
    path = _path_in(text)
    if path is None:
        return None
    named = unquote_to_bytes(os.fsencode(path))  # names of files are bytes
    if b"\0" in named:
        raise ConfigError(f"{printable(text)}: has a zero byte, which no path has")
    return Path(os.fsdecode(named))


def path_pattern_of(text: str) -> str | None:
    """Return the pattern of paths that a file:// URL is; None if the text is no such URL, and so a pattern itself.

    >>> path_pattern_of("file:///data/run%5B2%5D*")
    '/data/run[[]2]*'
    """
    path = _path_in(text)
    return None if path is None else as_glob(path, errors="surrogateescape")


def _path_in(text: str) -> str | None:
    """Return the path of a file:// URL, with its escapes; raises as `path_of`."""
    found = _FILE_URL.fullmatch(text)
    if found is None:
        return None
    host, path = found[1] or "", found[2] or found[3] or ""
    if host not in ("", "localhost"):
        raise ConfigError(f"{printable(text)}: is on another host; must be file:///path")
    if re.search(r"[?#]", path):
        raise ConfigError(f"{printable(text)}: has a query or a fragment; {_QUOTED_NAME}, or give the path itself")
    return path


def check_key(name: str, key: str, *, may_have_empty_names: bool = False) -> None:
    """Refuse a key that clients of object stores refuse, or take for another one.

    Parameters
    ----------
    name
        The name of the key in the message.
    key
        Without a slash at its end.
    may_have_empty_names
        If True, two slashes may stand in a row.

    Raises
    ------
    ConfigError
        If one of its names is empty, `.` or `..`, or it has a control character or is no UTF-8.
    """
    names = key.split("/")
    if not may_have_empty_names and "" in names:
        raise ConfigError(f"{name}: has two slashes in a row or at an end; keys with an empty part cannot be read")
    for one in names:
        if one in (".", ".."):
            raise ConfigError(f"{name}: has the name {one!r}, which clients of object stores resolve")
    control = _CONTROL.search(key)
    if control is not None:
        raise ConfigError(f"{name}: has the control character {control[0]!r}; such keys cannot be read")
    try:
        key.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{name}: is not UTF-8, must be UTF-8 as keys are") from None


def as_glob(text: str, errors: str = "strict") -> str:
    """Return a pattern of keys for a pattern of URLs: what an escape stands for is no wildcard.

    Raises
    ------
    ConfigError
        If escapes stand for bytes that are not UTF-8.

    >>> as_glob("run%20*%2A")
    'run *[*]'
    """
    try:
        return _ESCAPES.sub(lambda found: glob.escape(unquote(found[0], errors=errors)), text)
    except UnicodeDecodeError:
        raise ConfigError(f"{printable(text)}: its escapes are not UTF-8, must be UTF-8 as keys are") from None
