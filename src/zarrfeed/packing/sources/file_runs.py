"""Names and ends of the files that a packed store was made of: arrays in its group `meta`, or in its manifest.

| array of `meta` | has |
|---|---|
| `file_names` | a key for each file |
| `file_ends` | the index after the last sample of each file; only in the order of the source |
| `segment_ends` | the same of what windows must not leave; `zarrfeed.open` reads it, where the manifest names it |
| `file_numbers` | the number of the file that each sample is of; only if samples were shuffled |

If a store is a single array, the manifest has lists of these names. Invariant: each part of a store has lists of its
own, so that its ends count from its own first sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from zarrfeed.metadata.array.known_groups import PACK_MANIFEST, PACK_SEGMENTS, member_of
from zarrfeed.packing.sources.source import Int64, Runs, objects_of

GROUP = "meta"
_NAMES, _ENDS, _NUMBERS = "file_names", "file_ends", "file_numbers"


def arrays_of_runs(runs: Runs, begin: int, end: int, numbers: Int64 | None) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of `meta` for a part of a store.

    Parameters
    ----------
    runs
        Runs of the source.
    begin, end
        The positions of the part, over all parts.
    numbers
        The number in the source of each sample of the part. None: they are in the order of the source.

    Examples
    --------
    >>> made = arrays_of_runs(Runs(("a", "b"), np.array([3, 5]), np.array([3, 5])), 2, 5, None)
    >>> {name: values.tolist() for name, values in made.items()}
    {'file_names': ['a', 'b'], 'file_ends': [1, 3], 'segment_ends': [1, 3]}
    """
    names = objects_of(runs.names)
    if numbers is not None:
        of_samples = np.searchsorted(runs.ends, numbers, side="right").astype(np.int32)
        return {_NAMES: names, _NUMBERS: of_samples}
    begins = np.append(0, runs.ends[:-1])
    inside = (runs.ends > begin) & (begins < end)
    made = {_NAMES: names[inside], _ENDS: np.minimum(runs.ends[inside], end) - begin}
    if runs.segment_ends is not None:
        ends = np.clip(runs.segment_ends, begin, end) - begin
        made[PACK_SEGMENTS] = np.unique(np.append(ends[ends > 0], end - begin))
    return made


def manifest_of(made: Mapping[str, npt.NDArray[Any]], *, inline: bool) -> dict[str, Any]:
    """Return the entries of the manifest for these arrays: their paths, or with `inline` their values."""
    return {name: values.tolist() if inline else f"{GROUP}/{name}" for name, values in made.items()}


def runs_note(runs: Runs | None, *, shuffled: bool) -> tuple[str, ...]:
    """Return the sentences of a report that say where names and ends are stored."""
    if runs is None:
        return ()
    if shuffled:
        return (f"the store has the file of each sample in {GROUP}/{_NUMBERS}, and names in {GROUP}/{_NAMES}",)
    recorded = f"the store has their ends in {GROUP}/{_ENDS}, and names in {GROUP}/{_NAMES}"
    return (f"{recorded}; windows do not leave one",) if runs.segment_ends is not None else (recorded,)


def runs_in(node: zarr.Array[Any] | zarr.Group) -> Runs | None:
    """Return the runs of a packed store in the order of its samples; None if it has none."""
    manifest = dict(node.attrs).get(PACK_MANIFEST)
    if not isinstance(manifest, dict) or _NAMES not in manifest or _ENDS not in manifest:
        return None
    found: dict[str, npt.NDArray[Any]] = {}
    for name in (_NAMES, _ENDS, PACK_SEGMENTS):
        value = manifest.get(name)
        array = member_of(node, value) if isinstance(value, str) and isinstance(node, zarr.Group) else None
        if isinstance(array, zarr.Array):
            found[name] = np.asarray(array[...])
        elif isinstance(value, list):
            found[name] = np.array(value)
    if _NAMES not in found or _ENDS not in found:
        return None
    segments = found.get(PACK_SEGMENTS)
    ends = found[_ENDS].astype(np.int64)
    return Runs(tuple(map(str, found[_NAMES].tolist())), ends, None if segments is None else segments.astype(np.int64))


def nested_runs(stores: Runs, inside: Sequence[Runs | None]) -> Runs:
    """Return the runs of several stores; packed stores among them know the files that they were made of."""
    if not any(inside):
        return stores
    names: list[str] = []
    ends: list[Int64] = []
    segments: list[Int64] = [] if stores.segment_ends is None else [stores.segment_ends]
    begins = np.append(0, stores.ends[:-1])
    for name, begin, end, own in zip(stores.names, begins, stores.ends, inside, strict=True):
        if own is None:
            names.append(name)
            ends.append(np.array([end]))
            continue
        names += [f"{name}/{one}" for one in own.names]
        ends.append(begin + own.ends)
        if own.segment_ends is not None:
            segments.append(begin + own.segment_ends)
    total = stores.ends[-1:]
    return Runs(tuple(names), np.concatenate(ends), np.unique(np.concatenate([*segments, total])) if segments else None)
