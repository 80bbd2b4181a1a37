"""The first pass of a shuffled pack: samples of a run of the source, dealt to the units of the second pass, in a file.

A file has the samples of each unit one after the other, so that a unit reads one run of each file. It begins with the
number of its sections and the bytes of each, as int64. The sections are: for each unit the number of its first row; the
position of each row; of each array the rows, or of bytes and text where each one begins, and the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import CorruptChunkError
from zarrfeed.packing.sources.source import Int64, Rows, as_bytes, bytes_of, objects_of
from zarrfeed.packing.targets.pack_layout import FieldLayout


def spill_parts(rows: Sequence[Rows], positions: Int64, units: Int64, num_units: int) -> list[bytes | memoryview]:
    """Return the content of a file.

    Parameters
    ----------
    rows
        Samples of each array.
    positions, units
        Position of each sample, and the unit that it belongs to.
    num_units
        Number of units.
    """
    by_unit = np.lexsort((positions, units))
    first = np.searchsorted(units[by_unit], np.arange(num_units + 1))
    sections: list[npt.NDArray[Any]] = [first.astype(np.int64), positions[by_unit]]
    for of_field in rows:
        if of_field.dtype == object:
            items = [as_bytes(of_field[number]) for number in by_unit]
            begins = np.cumsum([0, *map(len, items)], dtype=np.int64)
            sections += [begins, np.frombuffer(b"".join(items), np.uint8)]
        else:
            sections.append(np.ascontiguousarray(of_field[by_unit]).reshape(-1).view(np.uint8))
    header = np.array([len(sections), *(section.nbytes for section in sections)], np.int64)
    return [header.tobytes(), *(section.view(np.uint8).data for section in sections)]


def read_spill(
    path: Path, layouts: Sequence[FieldLayout], dtypes: Sequence[Any], unit: int
) -> tuple[Int64, list[Rows]]:
    """Return the positions and the samples that a file has for a unit.

    Parameters
    ----------
    path
        Path of the file.
    layouts, dtypes
        Layouts and dtypes of the arrays; the dtypes are those of the source.
    unit
        Number of the unit.

    Raises
    ------
    CorruptChunkError
        If the file is not whole.
    """
    stored = np.memmap(path, np.uint8, mode="r")
    count = int(stored[:8].view(np.int64)[0]) if len(stored) >= 8 else 0
    sizes = stored[8 : min(len(stored) // 8, count + 1) * 8].view(np.int64)
    ends = 8 * (count + 1) + np.cumsum(sizes)
    if not count or len(ends) != count or len(stored) != ends[-1]:
        raise CorruptChunkError(f"{path}: is no whole file of samples")
    sections = iter([stored[end - size : end] for end, size in zip(ends, sizes, strict=True)])
    begin, end = (int(n) for n in next(sections).view(np.int64)[unit : unit + 2])
    positions = np.array(next(sections).view(np.int64)[begin:end])
    found: list[Rows] = []
    for layout, dtype in zip(layouts, dtypes, strict=True):
        if layout.kind == "number":
            size = bytes_of(layout.shape, np.dtype(dtype))
            content = np.array(next(sections)[begin * size : end * size])
            found.append(content.view(dtype).reshape(end - begin, *layout.shape))
        else:
            begins, content = next(sections).view(np.int64)[begin : end + 1], next(sections)
            items = [bytes(content[first:last]) for first, last in pairwise(begins.tolist())]
            found.append(objects_of([item.decode() for item in items] if layout.kind == "text" else items))
    return positions, found
