"""`Statistics`: mean, standard deviation, bounds and missing values of the arrays of some samples, kept as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrfeed.base.atomic_file import write_whole
from zarrfeed.base.documents import parse_json
from zarrfeed.base.errors import ConfigError
from zarrfeed.base.page import Page, Row

#: The labels of a dimension, such as pressures of "level": numbers or text, one for each index.
Labels: TypeAlias = tuple[Any, ...]

_MARK = "zarrfeed stats, 1"
_NUMBERS = ("mean", "std", "min", "max")
#: Number of channels of an array that are printed.
_PRINTED = 40


@dataclass(frozen=True, eq=False)
class FieldStatistics:
    """The statistics of one array.

    The arrays below have the axes of a sample, and broadcast against it: length 1 along each axis that the statistics
    are taken over.

    Attributes
    ----------
    axes
        The axes along which each entry has statistics of its own: names of dimensions, or numbers of axes of the array.
        Empty: each array below has one number.
    mean, std
        float64; over the values that are not missing, NaN where all are. The standard deviation is that of a population
        (`numpy.std`, ddof=0).
    min, max
        float64; NaN where all values are missing.
    missing
        float64: the share of values that are NaN, in [0, 1].
    count
        int64: number of values, missing ones included, for each entry of the arrays.
    fingerprint
        A hash of the samples' positions, the layout of the array and its decoding, and `axes`; not of where the store
        is. Statistics fit samples that have the same one.
    side
        Side of the batch that has the array: "samples" or "targets". Empty in files that older versions wrote.
    steps
        The steps of `Data` that values had before they were measured, such as "log1p". Empty: none.

    Examples
    --------
    >>> import numpy as np, zarrfeed
    >>> field = zarrfeed.stats({"x": np.arange(6.0).reshape(3, 2)}, axis=1)["x"]
    >>> field.axes, field.mean, field.count
    ((1,), array([2., 3.]), 3)
    """

    axes: tuple[str | int, ...]
    mean: npt.NDArray[np.float64]
    std: npt.NDArray[np.float64]
    min: npt.NDArray[np.float64]
    max: npt.NDArray[np.float64]
    missing: npt.NDArray[np.float64]
    count: int
    fingerprint: str
    side: str = ""
    steps: str = ""

    def mean_std(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return (mean, std) for `Data.normalize`: std 1 in place of 0, and (0, 1) where all values are missing.

        So a constant channel becomes 0, and a missing one stays NaN. The arrays have a first axis of length 1 before
        those of a sample; a single number has no axes.
        """
        unknown = self.missing == 1
        mean, std = np.where(unknown, 0.0, self.mean), np.where(unknown | (self.std == 0), 1.0, self.std)
        shape = () if mean.size == 1 else (1, *mean.shape)
        return mean.reshape(shape), std.reshape(shape)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; NaN is null, and infinity a text."""
        arrays = {name: _to_lists(getattr(self, name).tolist()) for name in (*_NUMBERS, "missing")}
        known = {"axes": list(self.axes), "fingerprint": self.fingerprint, "count": self.count, "side": self.side}
        return {**known, **({"steps": self.steps} if self.steps else {}), **arrays}

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> FieldStatistics:
        """Return the statistics that `to_json` wrote.

        Raises
        ------
        ValueError, KeyError, TypeError
            If it cannot be that.
        """
        arrays = {name: np.array(_from_lists(json[name]), np.float64) for name in (*_NUMBERS, "missing")}
        if len({array.shape for array in arrays.values()}) != 1:
            raise ValueError("arrays of different shapes")
        axes, count, fingerprint = tuple(json["axes"]), int(json["count"]), str(json["fingerprint"])
        side, steps = str(json.get("side", "")), str(json.get("steps", ""))
        return cls(axes, fingerprint=fingerprint, count=count, side=side, steps=steps, **arrays)

    def _same(self, other: FieldStatistics) -> bool:
        return self.to_json() == other.to_json()


@dataclass(frozen=True, eq=False, repr=False)
class Statistics(Page):
    """Statistics of the samples of a `Data`, as `zarrfeed.stats` returns them. `str()` of it is a table.

    Attributes
    ----------
    fields
        Name of an array -> its statistics.
    samples
        Number of samples that the statistics were taken over.
    data
        The expression that describes the samples.
    labels
        Dimension of a sample -> its labels, such as the pressures of "level", where they are stored. Other labels are
        refused by `Data.normalize`.
    units
        Dimension of a sample -> the unit of its labels, such as "hPa", for people.

    Examples
    --------
    >>> import numpy as np, zarrfeed
    >>> statistics = zarrfeed.stats({"x": np.array([[1.0, 10.0], [3.0, np.nan]])}, axis=1)
    >>> statistics["x"].mean, statistics["x"].std, statistics["x"].missing
    (array([ 2., 10.]), array([1., 0.]), array([0. , 0.5]))
    """

    fields: Mapping[str, FieldStatistics]
    samples: int
    data: str
    labels: Mapping[str, Labels] = dataclasses.field(default_factory=dict)
    units: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __getitem__(self, name: str) -> FieldStatistics:
        return self.fields[name]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Statistics):
            return NotImplemented
        ours, theirs = self.fields, other.fields
        same_names = self.samples == other.samples and list(ours) == list(theirs)
        return same_names and all(ours[name]._same(theirs[name]) for name in ours)  # noqa: SLF001 - of the same module

    __hash__ = None  # type: ignore[assignment]

    def mean_std(self) -> dict[str, tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]:
        """Return (mean, std) by the names of all arrays, on both sides, as a mapping for `Data.normalize`.

        Such a mapping normalises every array that it names. It does not know the samples that it was measured on, so
        `Data.normalize` does not check it against their labels and sides, as it checks these statistics themselves.

        Examples
        --------
        >>> import numpy as np, zarrfeed
        >>> train, validation = zarrfeed.open({"x": np.arange(10.0)}).split((0.8, 0.2), by="contiguous")
        >>> validation = validation.normalize(zarrfeed.stats(train).mean_std())
        """
        return {name: field.mean_std() for name, field in self.fields.items()}

    def save(self, path: str | Path) -> None:
        """Write a JSON file, as a whole or not at all.

        Raises
        ------
        OSError
            If it cannot be written.
        """
        fields = {name: field.to_json() for name, field in self.fields.items()}
        labels = {name: _to_lists(list(of)) for name, of in self.labels.items()}
        json_object = {"what": _MARK, "data": self.data, "samples": self.samples, "labels": labels, "fields": fields}
        json_object |= {"units": dict(self.units)} if self.units else {}
        write_whole(Path(path), f"{json.dumps(json_object, indent=1, allow_nan=False)}\n".encode())

    @classmethod
    def load(cls, path: str | Path) -> Statistics:
        """Read the file that `save` wrote.

        Raises
        ------
        ConfigError
            If it is no such file.
        OSError
            If it cannot be read.
        """
        if not isinstance(path, str | os.PathLike):
            raise ConfigError(f"path = {path!r}, must be a path")
        try:
            content = parse_json(Path(path).read_text())
        except ValueError:
            content = None
        if not isinstance(content, dict) or content.get("what") != _MARK:
            raise ConfigError(f"{path}: holds no statistics that this version wrote")
        try:
            fields = {name: FieldStatistics.from_json(of) for name, of in content["fields"].items()}
            labels = {
                name: tuple(math.nan if one is None else one for one in of)
                for name, of in content.get("labels", {}).items()
            }
            units = {str(name): str(of) for name, of in content.get("units", {}).items()}
            return cls(fields, int(content["samples"]), str(content["data"]), labels, units)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"{path}: is damaged ({error!r})") from error

    def rows(self) -> list[Row]:
        """Return the rows of the table that `str()` and notebooks show."""
        rows = [("data", self.data), ("samples", str(self.samples))]
        for name, field in self.fields.items():
            entries = np.ndindex(*field.mean.shape)
            for number, index in zip(range(_PRINTED), entries, strict=False):
                where = f"{_where(field, index, self.labels, self.units)}: " if field.axes else ""
                rows.append(("" if number else name, f"{where}{_entry(field, index)}"))
            if field.mean.size > _PRINTED:
                rows.append(("", f"and {field.mean.size - _PRINTED} more"))
        return rows


def _where(
    field: FieldStatistics, index: tuple[int, ...], labels: Mapping[str, Labels], units: Mapping[str, str]
) -> str:
    """Name an entry of the statistics: "level 850 hPa" by its label, or "axis 1 3" by its index."""
    numbers = [i for i, n in zip(index, field.mean.shape, strict=True) if n > 1] if field.mean.size > 1 else [0]
    names = ", ".join(str(axis) if isinstance(axis, str) else f"axis {axis}" for axis in field.axes)
    shown: list[Any] = list(numbers)
    if len(numbers) == len(field.axes):
        for at, (axis, number) in enumerate(zip(field.axes, numbers, strict=True)):
            known = labels.get(axis, ()) if isinstance(axis, str) else ()
            if number < len(known):
                shown[at] = f"{known[number]} {units.get(str(axis), '')}".rstrip()
    return f"{names} {', '.join(map(str, shown))}"


def _entry(field: FieldStatistics, index: tuple[int, ...]) -> str:
    shown = ", ".join(f"{name} {getattr(field, name)[index]:.6g}" for name in _NUMBERS)
    return f"{shown}, missing {field.missing[index]:.3%}"


def _to_lists(value: Any) -> Any:
    if isinstance(value, list):
        return [_to_lists(one) for one in value]
    if isinstance(value, str):
        return value
    if math.isnan(value):
        return None
    return str(value) if math.isinf(value) else value


def _from_lists(value: Any) -> Any:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_from_lists(one) for one in value]
    return math.nan if value is None else float(value)
