"""Samples that wait for their unit, as the arrays of batches; and the checks of a batch that is appended."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrfeed.base.array_names import why_no_name
from zarrfeed.base.errors import ConfigError

#: Samples of each array by its name; "" for a store that is one array.
Rows = dict[str, npt.NDArray[Any]]

#: Exceptions of NumPy and zipfile for a file that was cut, emptied or filled with zeros.
_DAMAGED = (ValueError, EOFError, KeyError, NotImplementedError, RuntimeError, zipfile.BadZipFile)


def rows_of(batch: Any) -> Rows:
    """Return the arrays of a batch by their names, in the byte order of the machine.

    Raises
    ------
    ConfigError
        If a name cannot be that of an array, or the values are no samples of numbers, as many in each array.
    """
    named = batch if isinstance(batch, Mapping) else {"": batch}
    rows: Rows = {}
    for name, values in named.items():
        if isinstance(batch, Mapping):
            _check_name(name)
        try:
            array = np.asarray(values)
        except Exception as error:  # of torch, for a tensor on a device or of a dtype that NumPy lacks
            raise ConfigError(f"batch {name!r}: cannot become a NumPy array: {error}") from error
        if array.ndim == 0 or array.dtype.hasobject:
            raise ConfigError(f"batch {name!r}: shape {array.shape}, dtype {array.dtype}; must be numbers of samples")
        rows[name] = _as_native(array)
    lengths = {name: len(values) for name, values in rows.items()}
    if not rows:
        raise ConfigError("batch is an empty mapping, must name at least one array")
    if len(set(lengths.values())) != 1:
        raise ConfigError(f"batch has arrays of lengths {lengths}, must have one length")
    return rows


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not name or "/" in name or name[0] in "._":
        raise ConfigError(f"batch has the key {name!r}, names must be text without '/' that begins with a letter")
    why = why_no_name(name)
    if why is not None:
        raise ConfigError(f"batch has the key {name[:80]!r}, which {why}: it cannot be the name of an array")


def native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a dtype in the byte order of the machine: a store says of itself in which order it keeps numbers."""
    return dtype.newbyteorder("=")


def _as_native(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return values.astype(native(values.dtype), copy=False)


def check_rows(rows: Rows, arrays: Mapping[str, Any]) -> None:
    """Refuse rows that are not of the arrays of a store.

    Raises
    ------
    ConfigError
        If names, dtypes or shapes of samples differ.
    """
    if set(rows) != set(arrays):
        got, known = (", ".join(map(repr, sorted(names))) or "none" for names in (rows, arrays))
        raise ConfigError(f"batch has the arrays {got}, the store has {known}")
    for name, values in rows.items():
        array = arrays[name]
        if values.dtype != native(array.dtype) or values.shape[1:] != array.shape[1:]:
            raise ConfigError(
                f"batch {name!r}: samples of shape {values.shape[1:]} and dtype {values.dtype}, the store has "
                f"{array.shape[1:]} and {array.dtype}"
            )


def length_of(rows: Rows) -> int:
    """Return the number of samples of some rows."""
    return len(next(iter(rows.values())))


def joined(parts: Sequence[Rows]) -> Rows:
    """Return rows one after the other; a copy only if there are several."""
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def save_rows(path: Path, rows: Rows) -> None:
    """Write rows to a new file, and wait until the disk has its content.

    Raises
    ------
    OSError
        If it cannot be written; nothing is left of it.
    """
    named: dict[str, Any] = {f"rows/{name}": values for name, values in rows.items()}
    try:
        with path.open("xb") as file:
            np.savez(file, **named)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def load_rows(path: Path, arrays: Mapping[str, Any]) -> Rows | None:
    """Return rows of a file, if they are samples of these arrays; None if the file is gone or damaged.

    Raises
    ------
    OSError
        If it cannot be read for another reason.
    """
    try:
        with path.open("rb") as file, np.load(file) as loaded:
            rows = {name.removeprefix("rows/"): _as_native(loaded[name]) for name in loaded.files}
        check_rows(rows, arrays)
        return rows if len({len(values) for values in rows.values()}) == 1 else None
    except (FileNotFoundError, *_DAMAGED):  # ConfigError is a ValueError
        return None


class RowBuffer:
    """Samples in the order in which they came."""

    def __init__(self) -> None:
        self._parts: list[Rows] = []
        self.length = 0

    def add(self, rows: Rows) -> None:
        """Take samples after the others; arrays are not copied."""
        if length_of(rows):
            self._parts.append(rows)
            self.length += length_of(rows)

    def put_back(self, rows: Rows) -> None:
        """Take samples before the others."""
        self._parts.insert(0, rows)
        self.length += length_of(rows)

    def take(self, count: int) -> Rows:
        """Return the first samples and forget them; a copy only if they are of several batches."""
        parts: list[Rows] = []
        self.length -= count
        while count:
            first = self._parts[0]
            there = length_of(first)
            parts.append({name: values[:count] for name, values in first.items()})
            if there > count:
                self._parts[0] = {name: values[count:] for name, values in first.items()}
            else:
                del self._parts[0]
            count -= min(there, count)
        return joined(parts)

    def all(self) -> Rows:
        """Return all samples; there is at least one."""
        return joined(self._parts)

    def clear(self) -> None:
        """Forget all samples."""
        self._parts, self.length = [], 0

    def own(self) -> None:
        """Copy the samples, so that the arrays of batches may be changed."""
        if self.length:
            self._parts = [{name: values.copy() for name, values in self.all().items()}]
