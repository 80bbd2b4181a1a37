"""The manifest of a packed store: an attribute that names its source and layout, so that the store can be proved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zarrfeed.base.documents import parse_json
from zarrfeed.metadata.array.known_groups import PACK_MANIFEST

#: Name of the attribute, which the group at the root has, or the array there.
MANIFEST = PACK_MANIFEST


def read_manifest(store: Path) -> dict[str, Any] | None:
    """Return the manifest of a store; None if the store is not there, or was not packed."""
    try:
        known = parse_json((store / "zarr.json").read_bytes())["attributes"][MANIFEST]
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None
    return known if isinstance(known, dict) else None
