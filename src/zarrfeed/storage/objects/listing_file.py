"""Listings in files, so that a bucket of millions of objects is not listed at every start.

Invariant: a file is replaced as a whole or not at all; it counts for the same source and the same pattern alone; its
checksums are checked when it is read; and a file that is none of ours is never written to.
"""

from __future__ import annotations

import errno
import io
import json
from pathlib import Path

import numpy as np

from zarrfeed.base.atomic_file import write_whole
from zarrfeed.base.documents import parse_json
from zarrfeed.base.errors import ConfigError, StoreReadError
from zarrfeed.storage.access.store_errors import errno_of, reason_of
from zarrfeed.storage.objects.listing import Listing

_MARK = "zarrfeed listing, 1"


class ListingFile:
    """One file: NumPy's .npz, with the arrays of the listing and a description in JSON. Nothing in it is pickled.

    Parameters
    ----------
    path
        Path of the file; its folder must be there.
    source
        Name of the source.
    prefix, glob
        The keys that are listed; "" and None: all.
    """

    def __init__(self, path: Path, source: str, prefix: str, glob: str | None) -> None:
        self.path = path
        self._of = {"what": _MARK, "source": source, "prefix": prefix, "glob": glob}

    def load(self) -> Listing | None:
        """Return the listing in the file; None if there is no file.

        Raises
        ------
        ConfigError
            If the file is no listing, is damaged, or is of another source or pattern.
        StoreReadError
            If it cannot be read.
        """
        try:
            with self.path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                found = parse_json(arrays["about"].tobytes())
                if not isinstance(found, dict) or found.get("what") != _MARK:
                    raise ConfigError(self._is("is no listing of this version"))
                listing = Listing(arrays["blob"].tobytes(), arrays["ends"], arrays["sizes"])
        except FileNotFoundError:
            return None
        except ConfigError:
            raise
        except OSError as error:
            if error.errno in (None, errno.EINVAL):  # a header that points outside of the file
                raise ConfigError(self._is(f"is damaged ({error})")) from error
            raise StoreReadError(errno_of(error), f"{self.path}: cannot be read: {reason_of(error)}") from error
        except Exception as error:  # of any class: what parsers raise on damaged files
            raise ConfigError(self._is(f"is no listing, or is damaged ({error})")) from error
        for name, meant in self._of.items():
            if found.get(name) != meant:
                raise ConfigError(self._is(f"has the listing of {name} = {found.get(name)!r}, not of {meant!r}"))
        if not listing.is_sound():
            raise ConfigError(self._is("is damaged"))
        return listing

    def save(self, listing: Listing) -> None:
        """Write the listing.

        Raises
        ------
        OSError
            If it cannot be written; what was there before is still there.
        """
        content = io.BytesIO()
        about = np.frombuffer(json.dumps(self._of).encode(), np.uint8)
        np.savez(content, allow_pickle=False, about=about, **listing.arrays())
        write_whole(self.path, content.getbuffer())

    def _is(self, what: str) -> str:
        return f"listing_file {self.path}: {what}; name another file, or remove it"
