"""Arguments as plain values that compare, hash, pickle and print, as an `Expression` holds them."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from zarrfeed.base.validate import check_list
from zarrfeed.spec.samples.window import Lead

#: Arrays of at most so many numbers are printed; a longer array is printed as its length and its hash.
PRINTED_NUMBERS = 16
#: Numbers of an array that are hashed at a time.
_HASHED_AT_ONCE = 1 << 18


@dataclass(frozen=True)
class Named:
    """A value that is printed as a text: a source such as `<zarr.Array memory://1/x>`."""

    text: str

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True)
class FrozenSlice:
    """A slice (slices have no hash before Python 3.12)."""

    start: Hashable
    stop: Hashable
    step: Hashable

    def __repr__(self) -> str:
        shown = [self.stop] if self.start is None and self.step is None else [self.start, self.stop]
        return f"slice({', '.join(map(repr, shown if self.step is None else [*shown, self.step]))})"


@dataclass(frozen=True)
class FrozenMapping:
    """A mapping, in its order."""

    items: tuple[tuple[Hashable, Hashable], ...]

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{key!r}: {value!r}" for key, value in self.items) + "}"


@dataclass(frozen=True)
class FrozenArray:
    """Numbers of an array, known by their shape, kind and hash.

    Attributes
    ----------
    shape
        Shape of the array.
    digest
        SHA-256 over the kind of the numbers and their bytes: integers of any width have one kind.
    text
        The numbers of a short array; what stands for them of a long one.
    """

    shape: tuple[int, ...]
    digest: str
    text: str = dataclasses.field(compare=False)

    @classmethod
    def of(cls, values: Any) -> FrozenArray:
        """Return the numbers of a sequence, an array or a tensor."""
        array = np.asarray(values)
        kind = array.dtype
        if array.dtype.kind in "iu" or array.size == 0:
            kind = np.dtype("<i8")
        elif array.dtype.kind == "f":
            kind = np.dtype("<f8")
        hashed, flat = hashlib.sha256(kind.str.encode()), array.reshape(-1)
        for begin in range(0, array.size, _HASHED_AT_ONCE):  # no copy of a long array is made
            hashed.update(np.ascontiguousarray(flat[begin : begin + _HASHED_AT_ONCE], dtype=kind).tobytes())
        digest = hashed.hexdigest()
        if array.size > PRINTED_NUMBERS:
            text = f"<{'x'.join(map(str, array.shape))} {kind.name}, sha256 {digest[:12]}>"
        else:
            text = repr(array.astype(kind).tolist())
        return cls(array.shape, digest, text)

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Secrets:
    """Options whose values are neither kept nor printed: names, and a hash that tells the values apart."""

    names: tuple[str, ...]
    digest: str

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Secrets:
        """Return the names of options, and the hash of their values."""
        text = repr(sorted((str(name), repr(value)) for name, value in options.items()))
        return cls(tuple(map(str, options)), hashlib.sha256(text.encode()).hexdigest())

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{name!r}: ..." for name in self.names) + "}"


@dataclass(frozen=True)
class FrozenList:
    """A list, such as the names of variables, or of stores; the first and the last of a long one are printed."""

    values: tuple[Hashable, ...]

    def __repr__(self) -> str:
        if len(self.values) <= PRINTED_NUMBERS:
            return repr(list(self.values))
        return f"[{self.values[0]!r}, <{len(self.values) - 2} more>, {self.values[-1]!r}]"


def freeze(value: Any) -> Any:
    """Return a hashable value that stands for an argument, and prints as it would be written.

    >>> freeze({"t2m": (278.4, 21.1), "z": ([0.5, 1.5], 1)}), freeze(["t2m", "z"])
    ({'t2m': (278.4, 21.1), 'z': ([0.5, 1.5], 1)}, ['t2m', 'z'])
    """
    if value is None or isinstance(value, str | bytes | bool | int | float):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, FrozenSlice):
        return value
    if isinstance(value, Mapping):
        return FrozenMapping(tuple((key, freeze(one)) for key, one in value.items()))
    if isinstance(value, tuple) and len(value) <= PRINTED_NUMBERS:
        return tuple(map(freeze, value))
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return FrozenList(tuple(value))
    return FrozenArray.of(value)


def freeze_names(names: Any) -> Any:
    """Freeze names: one name, or several in a list or a tuple.

    >>> freeze_names("t2m"), freeze_names(("t2m", "z"))
    ('t2m', ['t2m', 'z'])
    """
    return names if names is None or isinstance(names, str) else freeze(list(names))


def freeze_rows(rows: Any) -> Any:
    """Freeze an argument that names samples or rows: a slice, indices, or a mask.

    >>> freeze_rows(slice(0, 40_000)), freeze_rows((3, 1)), freeze_rows(range(100))
    (slice(0, 40000), [3, 1], <100 int64, sha256 11eb31b5c152>)
    """
    if isinstance(rows, slice):
        return FrozenSlice(*map(freeze, (rows.start, rows.stop, rows.step)))
    return rows if rows is None or isinstance(rows, str) else FrozenArray.of(rows)


def freeze_labels(labels: Any) -> Any:
    """Freeze labels: one label, a slice, or a list of labels.

    >>> freeze_labels(slice("2015", np.datetime64("2018-01"))), freeze_labels(["a", "b"])
    (slice('2015', 2018-01), ['a', 'b'])
    """
    if isinstance(labels, slice):
        return FrozenSlice(*map(freeze_labels, (labels.start, labels.stop, labels.step)))
    if labels is None or isinstance(labels, str | bool | int | float):
        return labels
    if np.ndim(labels) == 0:
        value = np.asarray(labels)[()] if hasattr(labels, "__array__") else labels
        is_time = isinstance(value, np.datetime64 | np.timedelta64) or not isinstance(value, np.generic)
        return Named(str(value)) if is_time else value.item()
    listed = np.asarray(labels)
    return FrozenArray.of(listed.astype(str) if listed.dtype.kind in "OmM" else listed)


def freeze_variables(variables: Any) -> Any:
    """Freeze the names of variables, for one side or for both.

    >>> freeze_variables(("t2m", "z")), freeze_variables({"samples": ["t2m"], "targets": ("z",)})
    (['t2m', 'z'], {'samples': ['t2m'], 'targets': ['z']})
    """
    if isinstance(variables, Mapping):
        return freeze({side: freeze_variables(names) for side, names in variables.items()})
    return freeze(None if variables is None else check_list("variables", variables, "names"))


def freeze_levels(levels: Any) -> Any:
    """Freeze the levels of an image, given by their paths or their numbers.

    >>> freeze_levels(("0", 2))
    ['0', 2]
    """
    return FrozenList(tuple(map(freeze, levels))) if isinstance(levels, list | tuple) else freeze(levels)


def freeze_offsets(offsets: Any) -> Any:
    """Freeze the offsets of a window, for all arrays or by their names.

    >>> freeze_offsets(range(-1, 1)), freeze_offsets({"x": [0, 1]})
    ((-1, 0), {'x': (0, 1)})
    """
    if isinstance(offsets, Mapping):
        return FrozenMapping(tuple((str(name), _freeze_rows_of(one)) for name, one in offsets.items()))
    return _freeze_rows_of(offsets)


def _freeze_rows_of(offsets: Any) -> Any:
    """Freeze the offsets of one array; drawn offsets may be written as a state has them."""
    if isinstance(offsets, Lead):
        return offsets
    if isinstance(offsets, Mapping):
        return Lead(*offsets["lead"])
    return freeze(offsets) if np.ndim(offsets) == 0 else tuple(map(_freeze_rows_of, offsets))


def freeze_pairs(mean_std: Any) -> Any:
    """Freeze (mean, std), for all arrays or by their names; "auto" stays what it is.

    >>> freeze_pairs((278.4, 21.1)), freeze_pairs({"x": ([0.5, 1.5], 1)})
    ((278.4, 21.1), {'x': ([0.5, 1.5], 1)})
    """
    if isinstance(mean_std, Mapping):
        return FrozenMapping(tuple((str(name), freeze_pairs(one)) for name, one in mean_std.items()))
    if isinstance(mean_std, str):
        return mean_std
    mean, std = mean_std
    return tuple(freeze(one) if isinstance(one, int | float) else freeze(np.asarray(one)) for one in (mean, std))
