"""What zarr-python's exceptions mean where it opens an array: our errors, which name the array."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path

from zarrfeed.base.errors import ConfigError, ZarrfeedError
from zarrfeed.storage.errors import reason_of
from zarrfeed.storage.zarr_internals import grid_error, make_codec


def open_error(name: str, error: Exception, folder: Path | None = None) -> ZarrfeedError:
    """Return the error to raise where zarr-python cannot open an array or a group.

    Parameters
    ----------
    name
        The path or URL that messages name.
    error
        What zarr-python raised. Its parsers raise exceptions of any class.
    folder
        The array's local folder, if it has one: its metadata say which codec was refused.
    """
    # Releases before 3.2 do not know such grids; later ones refuse them as long as a flag of their own is not set.
    if re.search(r"rectilinear chunk|unknown chunk grid\. got rectilinear", str(error), re.IGNORECASE):
        return grid_error(name, "rectilinear")
    codec = _refused_codec(folder) if folder is not None else ""
    return ConfigError(f"{name}: zarr-python cannot open it: {codec}{reason_of(error)}")


def _refused_codec(folder: Path) -> str:
    """Return the codec that zarr-python or numcodecs refuses in the metadata of a folder, to begin a message; or ""."""
    for key, is_v3 in (("zarr.json", True), (".zarray", False)):
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            document = json.loads((folder / key).read_bytes())
            codecs = document["codecs"] if is_v3 else [*(document["filters"] or ()), document["compressor"]]
            for codec in filter(None, codecs):
                try:
                    make_codec(codec)
                except Exception:  # noqa: BLE001 (constructors raise exceptions of any class)
                    return f"codec {json.dumps(codec)}: "
    return ""
