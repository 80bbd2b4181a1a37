"""The complete rows of a stored array, as far as a reader can tell: those whose chunks all exist.

A writer such as `zarr.Array.append` sets the shape first and writes the chunks afterwards. So a reader that trusted the
shape would read the fill value for chunks that are still to come. Invariant: rows count only up to the first stored
object (chunk, or shard) that does not exist, and only whole stored objects count.
"""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import zarr
from zarr.storage import LocalStore

from zarrfeed.storage.access.access import StoreAccess

#: Objects that a store is asked for at once.
_AT_ONCE = 256


def complete_rows(
    array: zarr.Array[Any], stored_shape: tuple[int, ...], axis: int, *, known: int, access: StoreAccess
) -> int:
    """Return the number of complete rows along an axis.

    Parameters
    ----------
    array
        With the metadata as they are now.
    stored_shape
        Shape of a stored object: of a shard, or of a chunk where there are none.
    axis
        Number of the sample axis.
    known
        Rows that are complete without asking.
    access
        The way to ask a store that is not local.
    """
    rows = stored_shape[axis]
    first, end = known // rows, array.shape[axis] // rows
    counts = [-(-n // c) for n, c in zip(array.shape, stored_shape, strict=True)]
    counts[axis] = 1
    cells = list(itertools.product(*map(range, counts)))
    per_round = max(1, _AT_ONCE // len(cells))
    for begin in range(first, end, per_round):
        numbers = range(begin, min(begin + per_round, end))
        keys = [
            array.metadata.encode_chunk_key((*cell[:axis], number, *cell[axis + 1 :]))
            for number in numbers
            for cell in cells
        ]
        missing = _first_missing(array, keys, access)
        if missing is not None:
            return max(known, (begin + missing // len(cells)) * rows)
    return max(known, end * rows)


def _first_missing(array: zarr.Array[Any], keys: list[str], access: StoreAccess) -> int | None:
    """Return the index of the first key without an object; None if all exist."""
    store, path = array.store_path.store, array.store_path.path
    prefix = f"{path}/" if path else ""
    if type(store) is LocalStore:
        root = Path(store.root) / path
        return next((index for index, key in enumerate(keys) if not (root / key).exists()), None)

    async def ask() -> list[bool]:
        return await asyncio.gather(*(store.exists(prefix + key) for key in keys))

    exists = access.ask(ask, str(array.store_path))
    return None if all(exists) else exists.index(False)
