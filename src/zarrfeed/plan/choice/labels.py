"""`Data.sel`: the positions of labels along a coordinate, by the rules of xarray and pandas.

Invariant: a slice includes both ends, and needs a sorted coordinate. A date string names the whole period: as the end
of a slice its last instant, and alone all samples in it. In a list, it is its first instant. A label that the
coordinate lacks is an error, and so is one of a list that the coordinate has more than once. A sample whose value is
missing (`spec.missing`) has no label: no label finds it, and neither does a slice, also one without ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.suggestions import did_you_mean
from zarrfeed.plan.samples.date_strings import nanoseconds, period, period_like
from zarrfeed.plan.samples.selection import Int64
from zarrfeed.plan.windows.gap_step import duration_ns
from zarrfeed.spec.samples.coordinate import UNIT_NS, Coordinate
from zarrfeed.spec.values.missing import is_missing

Method: TypeAlias = Literal["nearest"]
METHODS: tuple[Method, ...] = ("nearest",)

_INT64 = np.iinfo(np.int64)
_KINDS = {
    "M": "times: dates as text, such as '2015-03-04', datetime64, or datetime",
    "m": "time differences: a length of time, such as '6h', timedelta64, or timedelta",
    "i": "numbers",
    "f": "numbers",
    "b": "True or False",
    "U": "text",
    "O": "times of cftime, or dates as text",
}


@dataclass(frozen=True, eq=False)
class LabelIndex:
    """A coordinate in which labels are looked up.

    Attributes
    ----------
    coordinate
        Its values are those of the samples that are looked up among.
    samples
        The index in the array of each of them, for messages; None: they are all of the array.
    noun
        The noun for a position in messages: a sample, a segment, or an item of another axis. An item may be named
        several times, and only by a label that no other item has.
    """

    coordinate: Coordinate
    samples: range | Int64 | None = None
    noun: Literal["sample", "segment", "item"] = "sample"

    def find(self, label: Any, method: Method | None = None) -> slice | Int64:
        """Return the positions of a label, of a list of labels, or of a slice of them.

        Parameters
        ----------
        label
            A slice of labels, both ends included; labels, as a list or an array with one axis; a mask with a flag a
            sample; or one label.
        method
            "nearest": of labels that the coordinate lacks, the nearest value is taken.

        Returns
        -------
        A slice without negative numbers, or positions in the order of the labels, each once.

        Raises
        ------
        ConfigError
            If a label is missing, or ambiguous; if the coordinate is not sorted, and a slice is asked for; or if there
            is nothing between the ends of a slice.
        """
        label = self._without_names(label)
        if not (isinstance(label, slice) or np.ndim(label) == 0):
            labels = np.asarray(label)
            if labels.dtype.kind == "b" and labels.ndim == 1 and labels.size and self._kind != "b":
                return self._flagged(labels)
        lacks = is_missing(self.coordinate.values)
        if lacks.any():
            present: Int64 = np.flatnonzero(~lacks)
            return _as_slice(present[self._among(present, label).find(label, method)])
        if isinstance(label, slice):
            if method is not None:
                raise ConfigError(f"sel: method = {method!r} is for labels, {self.name} = {label!r} is a slice")
            return self._between(label)
        if np.ndim(label) == 0:
            label = np.asarray(label)[()] if hasattr(label, "__array__") else label
            return self._in_period(label) if method is None else self._positions(np.asarray([label]), nearest=True)
        labels = np.asarray(label)
        if labels.ndim != 1 or not labels.size:
            raise ConfigError(f"sel: {self.name} has labels of shape {labels.shape}, must be a list of at least one")
        return self._positions(labels, nearest=method is not None)

    def _without_names(self, label: Any) -> Any:
        """Return codes in place of their names."""
        names = self.coordinate.names
        is_text = isinstance(label, str) or (np.ndim(label) == 1 and np.asarray(label).dtype.kind in "UT")
        if names is None or not is_text:
            return label
        codes = {one: code for code, one in names.items()}
        wanted = [label] if isinstance(label, str) else [str(one) for one in label]
        for one in wanted:
            if one not in codes:
                raise ConfigError(
                    f"sel: {self.name} = {one!r}, must be a code, or one of the names of {self.coordinate.where}: "
                    f"{', '.join(map(repr, codes))}{did_you_mean(one, codes)}"
                )
        return codes[label] if isinstance(label, str) else [codes[one] for one in wanted]

    def _among(self, present: Int64, label: Any) -> LabelIndex:
        """Return the index of the positions that have a value."""
        if not len(present):
            raise ConfigError(f"sel: {self.name} = {label!r}: {self.coordinate.where} has no value of any sample")
        samples = present if self.samples is None else np.asarray(self.samples, dtype=np.int64)[present]
        return LabelIndex(replace(self.coordinate, values=self.coordinate.values[present]), samples, self.noun)

    @property
    def name(self) -> str:
        """The name of the coordinate."""
        return self.coordinate.name

    @property
    def _kind(self) -> str:
        return self.coordinate.values.dtype.kind

    @cached_property
    def _keys(self) -> npt.NDArray[Any]:
        """Values that compare as the coordinate does: times are integers, in its unit. Shape (positions,)."""
        values = self.coordinate.values
        return values.view(np.int64) if self._kind in "mM" else values

    @cached_property
    def _unit_ns(self) -> int:
        return UNIT_NS[np.datetime_data(self.coordinate.values.dtype)[0]]

    @cached_property
    def _first_descent(self) -> int | None:
        """The first position whose value is below, or not comparable with, that of the one before; None: sorted."""
        return _first_where(~_as_bool(self._keys[1:] >= self._keys[:-1]))

    @cached_property
    def _descends(self) -> bool:
        """True if values are sorted from the largest to the smallest."""
        return self._first_descent is not None and bool(_as_bool(self._keys[1:] <= self._keys[:-1]).all())

    @cached_property
    def _order(self) -> Int64 | None:
        """Positions in ascending order of values; None: they ascend as they are."""
        if self._first_descent is None:
            return None
        order: Int64 = np.argsort(self._keys, kind="stable")
        return order

    @cached_property
    def _sorted(self) -> npt.NDArray[Any]:
        return self._keys if self._order is None else self._keys[self._order]

    def _between(self, label: slice) -> slice:
        step = 1 if label.step is None else label.step
        if isinstance(step, bool) or not isinstance(step, int | np.integer) or step < 1:
            raise ConfigError(f"sel: {self.name} = {label!r}, the step must be a number of {self.noun}s, at least 1")
        if self._first_descent is not None and not self._descends:
            at = self._first_descent
            raise ConfigError(
                f"sel: {self.name} = {label!r} needs a sorted coordinate; {self.coordinate.where} has "
                f"{self._text(at)} behind {self._text(at - 1)}. Give a list of labels, or a mask"
            )
        keys = self._keys[::-1] if self._descends else self._keys
        low, high = (label.stop, label.start) if self._descends else (label.start, label.stop)
        begin = 0 if low is None else self._sorted_index(keys, self._ends(low)[0], "left")
        end = len(keys) if high is None else self._sorted_index(keys, self._ends(high)[1], "right")
        if end <= begin:
            raise ConfigError(f"sel: {self.name} = {label!r} selects nothing: {self._range_text()}")
        if self._descends:
            begin, end = len(keys) - end, len(keys) - begin
        return slice(begin, end, int(step))

    def _in_period(self, label: Any) -> slice | Int64:
        """Return the positions of all samples that one label names."""
        low, high = self._ends(label)
        begin, end = self._sorted_index(self._sorted, low, "left"), self._sorted_index(self._sorted, high, "right")
        if end <= begin:
            raise self._lacks(label)
        if self._order is None:
            return slice(begin, end, 1)
        return np.sort(self._order[begin:end])

    def _positions(self, labels: npt.NDArray[Any], *, nearest: bool) -> Int64:
        """Return the position of each of some labels."""
        if nearest and self._kind not in "mMifO":
            raise ConfigError(f"sel: method = 'nearest' needs times or numbers, {self.name} has {self._kind_text()}")
        keys, wanted = self._comparable(labels)
        index = np.searchsorted(keys, wanted)
        last = np.minimum(index, len(keys) - 1)
        if nearest:
            index = nearest_indices(keys, wanted, index)
        else:
            lacking = _first_where(~_as_bool(keys[last] == wanted))
            if lacking is not None:
                raise self._lacks(labels[lacking - 1])
            counts = np.searchsorted(keys, wanted, side="right") - index
            again = _first_where(counts > 1)
            if again is not None and self.noun != "item":  # a filter: each label names all samples that have it
                index = np.repeat(index - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
            elif again is not None:
                first, second = (self._at(int(index[again - 1]) + i) for i in (0, 1))
                raise ConfigError(
                    f"sel: {self.name} = {_shown(labels[again - 1])} is ambiguous: {self.coordinate.where} has "
                    f"{self._text(first)} and {self._text(second)}"
                )
        positions: Int64 = index if self._order is None else self._order[index]
        ordered = np.sort(positions)
        twice = _first_where(ordered[1:] == ordered[:-1])
        if twice is not None and self.noun != "item":
            raise ConfigError(f"sel: two labels name {self._text(int(ordered[twice]))}, must name each sample once")
        return positions

    def _flagged(self, mask: npt.NDArray[Any]) -> Int64:
        count = len(self.coordinate.values)
        if len(mask) != count:
            raise ConfigError(f"sel: {self.name} is a mask of {len(mask)} flags, must have one a {self.noun}, {count}")
        flagged: Int64 = np.flatnonzero(mask)
        if not len(flagged):
            raise ConfigError(f"sel: {self.name} is a mask that selects nothing")
        return flagged

    # --- labels -> keys ---------------------------------------------------------------------------------------------

    def _ends(self, label: Any) -> tuple[Any, Any]:
        """Return the smallest and the largest key that a label stands for; the second is below the first for none."""
        kind = self._kind
        if kind == "M":
            if isinstance(label, str):
                first, behind = self._parsed(period, label)
                return _up(first, self._unit_ns), _up(behind, self._unit_ns) - 1
            return _within(nanoseconds(self._as_time(label)), self._unit_ns)
        if kind == "m":
            return _within(nanoseconds(self._as_difference(label)), self._unit_ns)
        if kind == "O":
            if isinstance(label, str):
                low, high = self._parsed(lambda text: period_like(text, self._keys[0]), label)
                return low, high
            if getattr(label, "calendar", None) != self._keys[0].calendar:
                raise self._wrong(label)
            return label, label
        if kind in "if":
            is_number = isinstance(label, int | float | np.number) and not isinstance(label, bool | np.timedelta64)
            if not is_number or label != label:
                raise self._wrong(label)
            if kind == "f":
                number = self._keys.dtype.type(label)
                return number, number
            if math.isinf(label):
                return (_INT64.max, _INT64.max - 1) if label > 0 else (_INT64.min + 1, _INT64.min)
            return math.ceil(label), math.floor(label)
        if not isinstance(label, str if kind == "U" else bool | np.bool_):
            raise self._wrong(label)
        return label, label

    def _parsed(self, parse: Callable[[str], tuple[Any, Any]], text: str) -> tuple[Any, Any]:
        try:
            return parse(text)
        except ConfigError as error:
            raise ConfigError(f"sel: {self.name} = {text!r}: {error}") from error

    def _as_time(self, label: Any) -> np.datetime64:
        label = label.to_datetime64() if hasattr(label, "to_datetime64") and not _has_zone(label) else label
        if isinstance(label, date) and not _has_zone(label):
            label = np.datetime64(label)
        if not isinstance(label, np.datetime64) or np.isnat(label):
            raise self._wrong(label)
        return label

    def _as_difference(self, label: Any) -> np.timedelta64:
        label = label.to_timedelta64() if hasattr(label, "to_timedelta64") else label
        if isinstance(label, str):
            length_ns = duration_ns(label)
            is_known = length_ns is not None and abs(length_ns) <= _INT64.max
            label = np.timedelta64(length_ns, "ns") if is_known else label
        if isinstance(label, timedelta):
            label = np.timedelta64(label)
        if not isinstance(label, np.timedelta64) or np.isnat(label) or np.datetime_data(label.dtype)[0] in "YM":
            raise self._wrong(label)
        return label

    def _comparable(self, labels: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the sorted keys, and those of some labels, in one unit."""
        keys, kind = self._sorted, labels.dtype.kind
        if self._kind in "if":
            if kind not in "iuf" or np.isnan(labels).any():
                wrong = (one for one in labels.tolist() if not isinstance(one, int | float) or one != one)
                raise self._wrong(labels[0] if kind in "mM" else next(wrong))
            return keys, labels.astype(keys.dtype) if self._kind == "f" else labels
        if self._kind not in "mM":
            wanted = [self._ends(one)[0] for one in labels.tolist()]
            return keys, np.array(wanted, dtype=keys.dtype if self._kind in "bO" else None)
        if kind == self._kind and np.datetime_data(labels.dtype) in _COARSE_UNITS:
            labels = labels.astype(f"{kind}8[s]")
        if kind == self._kind and np.datetime_data(labels.dtype) in _SIMPLE_UNITS:
            if np.isnat(labels).any():
                raise self._wrong(labels[np.isnat(labels)][0])
            unit_ns, ticks = UNIT_NS[np.datetime_data(labels.dtype)[0]], labels.view(np.int64)
        else:
            unit_ns = 1
            exact = [self._instant(one) for one in labels]
            while unit_ns < self._unit_ns and not any(one % (1000 * unit_ns) for one in exact):
                unit_ns *= 1000
            if not all(_INT64.min < one // unit_ns <= _INT64.max for one in exact):
                raise ConfigError(f"sel: {self.name} has labels that are too far away for datetime64")
            ticks = np.array([one // unit_ns for one in exact], dtype=np.int64)
        return self._in_one_unit(keys, ticks, unit_ns)

    def _instant(self, label: Any) -> int:
        """Return a time as nanoseconds: of a date string, the first instant."""
        if self._kind == "M":
            if isinstance(label, str):
                return int(self._parsed(period, str(label))[0])
            return nanoseconds(self._as_time(label))
        return nanoseconds(self._as_difference(label))

    def _in_one_unit(self, keys: Int64, ticks: Int64, unit_ns: int) -> tuple[Int64, Int64]:
        if unit_ns < self._unit_ns:
            more = self._unit_ns // unit_ns
            if not (ticks % more).any():
                return keys, ticks // more
            return self._multiplied(keys, more), ticks
        return keys, self._multiplied(ticks, unit_ns // self._unit_ns)

    def _multiplied(self, ticks: Int64, factor: int) -> Int64:
        if max(abs(int(ticks.min())), abs(int(ticks.max()))) * factor > _INT64.max:
            raise ConfigError(
                f"sel: {self.name} has labels in another unit than {self.coordinate.where}, which has "
                f"{self.coordinate.values.dtype}, and no unit holds both"
            )
        return ticks * factor

    def _sorted_index(self, keys: npt.NDArray[Any], key: Any, side: Literal["left", "right"]) -> int:
        if keys.dtype == np.int64:
            if key > _INT64.max:
                return len(keys)
            key = np.int64(max(int(key), _INT64.min))
        if keys.dtype == object:
            boxed = np.empty(1, dtype=object)
            boxed[0] = key
            return int(np.searchsorted(keys, boxed, side)[0])
        return int(np.searchsorted(keys, key, side))

    # --- messages ---------------------------------------------------------------------------------------------------

    def _at(self, index: int) -> int:
        """Return the position of an index in the sorted order."""
        return index if self._order is None else int(self._order[index])

    def _text(self, position: int) -> str:
        sample = position if self.samples is None else self.samples[position]
        return f"{self.coordinate.values[position]} (index {sample})"

    def _range_text(self) -> str:
        first, last = self._at(0), self._at(len(self._keys) - 1)
        return f"{self.coordinate.where} has values from {self._text(first)} to {self._text(last)}"

    def _kind_text(self) -> str:
        return _KINDS[self._kind].partition(":")[0]

    def _lacks(self, label: Any) -> ConfigError:
        advice = "; method='nearest' takes the nearest value" if self._kind in "mMif" else ""
        near = self._near_text(label)
        return ConfigError(f"sel: {self.name} has no {_shown(label)}: {self._range_text()}{near}{advice}")

    def _near_text(self, label: Any) -> str:
        """Return the values next to a label that is not there; for text, those with a similar spelling."""
        if self._kind == "U":
            return did_you_mean(str(label), self.coordinate.values.tolist())
        if self._kind not in "mMif":
            return ""
        at = self._sorted_index(self._sorted, self._ends(label)[0], "left")
        around = [self._text(self._at(i)) for i in (at - 1, at) if 0 < i < len(self._keys) - 1]
        return f"; near it are {' and '.join(around)}" if around else ""

    def _wrong(self, label: Any) -> ConfigError:
        if isinstance(label, np.datetime64 | np.timedelta64) and np.isnat(label):
            return ConfigError(
                f"sel: {self.name} = NaT finds no sample: those without a value have no label; use select()"
            )
        return ConfigError(
            f"sel: {self.name} = {_shown(label)} is a {type(label).__name__}; labels of "
            f"{self.coordinate.where} must be {_KINDS[self._kind]}"
        )


_COARSE_UNITS = {(unit, 1) for unit in "WDhm"}
_SIMPLE_UNITS = {(unit, 1) for unit in UNIT_NS}


def _shown(label: Any) -> str:
    if isinstance(label, np.datetime64 | np.timedelta64):
        return str(label)
    return repr(label.item() if isinstance(label, np.generic) else label)


def _as_slice(positions: Int64) -> slice | Int64:
    """Return ascending positions that follow each other as a slice; others as they are."""
    is_run = len(positions) > 0 and bool((np.diff(positions) == 1).all())
    return slice(int(positions[0]), int(positions[-1]) + 1, 1) if is_run else positions


def _has_zone(label: Any) -> bool:
    return getattr(label, "tzinfo", None) is not None


def _up(exact_ns: int, unit_ns: int) -> int:
    return -(-exact_ns // unit_ns)


def _within(exact_ns: int, unit_ns: int) -> tuple[int, int]:
    """Return the first tick from an instant on, and the last one up to it."""
    return _up(exact_ns, unit_ns), exact_ns // unit_ns


def _as_bool(flags: Any) -> npt.NDArray[np.bool_]:
    return np.asarray(flags, dtype=bool)  # comparisons of objects make arrays of objects


def _first_where(flags: npt.NDArray[np.bool_]) -> int | None:
    """Return the number of the first flag that is set, counted from 1; None for none."""
    return int(flags.argmax()) + 1 if flags.any() else None


def nearest_indices(keys: npt.NDArray[Any], wanted: npt.NDArray[Any], index: Int64) -> Int64:
    """Return the indices of the nearest keys; the larger one of two that are as near, as in pandas."""
    above, below = np.minimum(index, len(keys) - 1), np.maximum(index - 1, 0)
    up, down = keys[above] - wanted, wanted - keys[below]
    if keys.dtype == np.int64 and wanted.dtype == np.int64:
        up, down = up.view(np.uint64), down.view(np.uint64)  # both are from 0 on, and may not fit in an int64
    found: Int64 = np.where((index < len(keys)) & ((index == 0) | (up <= down)), above, below)
    return found
