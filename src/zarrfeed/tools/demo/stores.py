"""Stores that appear complete or not at all, and are reused only if they have the wanted content."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zarr

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.own_files import check_side_folder

_ATTRIBUTE = "zarrfeed_demo"
#: Number of attempts to remove a partly written store, and the seconds between two of them.
_TRIES, _PAUSE_S = 100, 0.01


def build_store(path: Path, description: dict[str, Any], write: Callable[[zarr.Group], None]) -> bool:
    """Write a Zarr group, unless it is there.

    Parameters
    ----------
    path
        Path of the group.
    description
        A description of the group's content, in JSON's types. It is written to the group's attributes, by which the
        next run recognises the group.
    write
        Fills the group. It is called on another path next to `path`, which is renamed at the end: an interrupted run
        leaves nothing that looks like a store.

    Returns
    -------
    True if a store was there and is reused.

    Raises
    ------
    ConfigError
        If something else is at `path`.
    """
    if path.exists():
        if _description(path) != description:
            raise ConfigError(
                f"{path}: is not the store that this run would write ({description}); remove it or name another --dir"
            )
        return True
    partial = path.with_name(path.name + ".partial")
    check_side_folder(partial)
    shutil.rmtree(partial, ignore_errors=True)
    try:
        group = zarr.create_group(store=partial, attributes={_ATTRIBUTE: description})
        write(group)
        partial.rename(path)
    except BaseException:
        _remove(partial)
        raise
    return False


def _remove(partial: Path) -> None:
    """Remove a partly written store. Threads of zarr-python may still write other chunks after the first error."""
    for _ in range(_TRIES):
        shutil.rmtree(partial, ignore_errors=True)
        time.sleep(_PAUSE_S)
        if not partial.exists():
            return


def _description(path: Path) -> object:
    try:
        return zarr.open_group(store=path, mode="r").attrs.get(_ATTRIBUTE)
    except (ValueError, KeyError, TypeError, OSError):
        return None  # not a Zarr group, hence not ours
