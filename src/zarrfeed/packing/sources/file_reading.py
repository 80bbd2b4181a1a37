"""Files become samples: each is one sample, or a run of samples along an axis; and where the runs end.

Invariant: nothing is guessed. Files of several lengths are runs, files of single items are samples, and the report says
so. Files that could be either are refused, unless the user says what they are. The packed store keeps ends and names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError, printable
from zarrfeed.metadata.array.cf_times import in_known_unit
from zarrfeed.metadata.array.coordinate_values import are_same_coordinates
from zarrfeed.metadata.array.meaning import normal_units
from zarrfeed.packing.sources.same_meaning import Stored
from zarrfeed.packing.sources.source import FilesAre, Int64, Runs, SourceOptions
from zarrfeed.spec.samples.coordinate import UNIT_NS
from zarrfeed.spec.values.missing import is_missing

#: Dimensions of space, as files of weather and images call them; and CF's standard names of such coordinates.
_SPATIAL_DIMS = frozenset(
    (
        *("lat", "latitude", "nlat", "lon", "longitude", "nlon", "x", "y", "z", "rlat", "rlon", "xc", "yc", "ncells"),
        *("lev", "level", "plev", "height", "depth", "altitude", "row", "col", "channel", "band"),
    )
)
_STANDARD_NAMES = frozenset(
    (
        *("latitude", "longitude", "grid_latitude", "grid_longitude", "altitude", "height", "depth", "air_pressure"),
        *("projection_x_coordinate", "projection_y_coordinate"),
    )
)
#: Two steps of a coordinate that differ by less than this share of them are equal but for rounding.
_ROUNDED = 1e-3


@dataclass(frozen=True)
class Reading:
    """The reading of files, and the number of samples that each has.

    Attributes
    ----------
    files_are
        "samples" or "runs".
    lengths
        Samples of each file.
    note
        A sentence for the report; "" for a single file.
    """

    files_are: FilesAre
    lengths: list[int]
    note: str = ""


def choose_reading(
    files: Sequence[object],
    shapes: Mapping[str, tuple[int, ...]],
    options: SourceOptions,
    *,
    as_samples: Callable[[], object],
    as_runs: Callable[[], list[int]],
) -> Reading:
    """Return the reading of files that the user names, or the only one that is possible.

    Parameters
    ----------
    files
        Paths of the source's files, in their order.
    shapes
        Shapes of the arrays of the first file, by their names.
    options
        `files_are` and `sample_axis`.
    as_samples, as_runs
        Raise ConfigError if a file cannot be a sample, or a run; the latter returns how many samples each has.

    Raises
    ------
    ConfigError
        If files could be samples, and `files_are` does not say what they are; if they are no runs, as `as_runs` says.
    """
    count, axis = len(files), options.sample_axis
    samples = Reading("samples", [1] * count, samples_note(count))
    if options.files_are == "samples" or (options.files_are is None and count > 1 and not any(shapes.values())):
        as_samples()
        return samples
    asks = options.files_are is None and count > 1 and _fits(as_samples)
    try:
        lengths = as_runs()
    except ConfigError as error:
        if not asks:
            raise
        raise ConfigError(f"{error}; or say files_are='samples' (--files-are samples), if each file is one") from error
    if asks:
        raise _both(files, shapes, axis, sum(lengths))
    return Reading("runs", lengths, "" if count == 1 else run_note(count, f"axis {axis}"))


def samples_note(count: int) -> str:
    """Return a sentence for the report."""
    return f"each of the {count} files is one sample" if count > 1 else ""


def run_note(count: int, along: str, what: str = "files") -> str:
    """Return a sentence for the report."""
    return f"each of the {count} {what} is a run of samples along {along}"


def check_no_grid(stores: Sequence[object], dim: str, lengths: Sequence[int], coordinate: Sequence[Stored]) -> None:
    """Raise ConfigError if several files have the same coordinates in space along a dimension that nobody named.

    Parameters
    ----------
    stores
        The files, for messages.
    dim, lengths
        The dimension along which samples would lie, and how many each file has.
    coordinate
        The values of the coordinate in each file; none where a file has no coordinate.
    """
    if len(set(lengths)) > 1 or lengths[0] < 2 or not _is_in_space(dim, coordinate[0].attributes if coordinate else {}):
        return
    values = [one.decoded() for one in coordinate]
    if not all(are_same_coordinates(one, values[0]) for one in values[1:]):
        return
    raise ConfigError(
        f"{stores[0]} and {len(stores) - 1} more have the same {lengths[0]} coordinates along {dim!r}, and nobody said "
        f"that samples lie there: is each file one sample (files_are='samples'), or a run of samples along {dim!r} "
        f"(sample_dim={dim!r})? Say which; on the command line --files-are samples, or --sample-dim {dim}"
    )


def _is_in_space(dim: str, attributes: Mapping[str, Any]) -> bool:
    """Return whether a dimension is one of space: by its name, or by the attributes of its coordinate."""
    told = str(attributes.get("standard_name", "")), str(attributes.get("units", ""))
    is_told = told[0] in _STANDARD_NAMES or normal_units(told[1]) in ("degrees_north", "degrees_east")
    return dim.lower() in _SPATIAL_DIMS or is_told or str(attributes.get("axis", "")).upper() in ("X", "Y", "Z")


def _fits(check: Callable[[], object]) -> bool:
    try:
        check()
    except ConfigError:
        return False
    return True


def _both(files: Sequence[object], shapes: Mapping[str, tuple[int, ...]], axis: int, total: int) -> ConfigError:
    """Return the error for files that could be samples and runs of samples; it shows what each reading makes."""

    def told(shape_of: Callable[[tuple[int, ...]], tuple[int, ...]]) -> str:
        return ", ".join(f"{name} of {shape_of(shape)}" for name, shape in shapes.items())

    def without_axis(shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(n for number, n in enumerate(shape) if number != axis % len(shape)) if shape else shape

    return ConfigError(
        f"{files[0]} and {len(files) - 1} more files have arrays of the same shapes: is each file one sample, "
        f"{len(files)} samples with {told(lambda shape: shape)} (files_are='samples'), or a run of samples along axis "
        f"{axis}, {total} samples with {told(without_axis)} (files_are='runs')? Say which; on the command line "
        "--files-are samples, or --files-are runs"
    )


def runs_of(paths: Sequence[object], lengths: Sequence[int], *, segments: Int64 | None) -> Runs | None:
    """Return the runs of several files or stores; None of a single one.

    Parameters
    ----------
    paths
        Paths of the files or stores.
    lengths
        Number of samples of each.
    segments
        The numbers of the files whose last sample ends a segment, as in `segments_by`. None: no file ends one.
    """
    if len(paths) < 2:
        return None
    ends = np.cumsum(np.asarray(lengths, np.int64))
    return Runs(_names_of([str(path) for path in paths]), ends, None if segments is None else ends[segments])


def _names_of(paths: Sequence[str]) -> tuple[str, ...]:
    """Return the ends of paths, below the folder that all of them are in: they tell the paths apart."""
    parts = [path.rstrip("/").split("/") for path in paths]
    folders = takewhile(lambda level: len(set(level)) == 1, zip(*(one[:-1] for one in parts), strict=False))
    common = sum(1 for _ in folders)
    return tuple(printable("/".join(one[common:])) for one in parts)


def segments_by(coordinates: Sequence[npt.NDArray[Any]] | None, count: int) -> Int64 | None:
    """Return the numbers of the files after which no next file goes on; None if all are one axis.

    Parameters
    ----------
    coordinates
        Decoded values along the samples of each file. A file continues the file before it if the step between the last
        value of the one and the first value of the other is a step within a file. None: there is no coordinate, and no
        file continues another.
    count
        Number of files.

    Examples
    --------
    >>> segments_by([np.array([0, 1, 2]), np.array([3, 4]), np.array([0, 1])], 3)
    array([1, 2])
    """
    every = np.arange(count)
    if coordinates is None:
        return every
    values = [_numbers(one) for one in coordinates]
    given = [one for one in values if one is not None]
    if len(given) < count:
        return every
    inner = [np.diff(one) for one in given if len(one) > 1]
    steps = [step for one in inner for step in (one.min(), one.max())]
    ended: list[int] = []
    last: Any = None
    for number, (one, other) in enumerate(pairwise(given)):
        last = one[-1] if len(one) else last
        if last is None or not len(other):
            continue
        step = other[0] - last
        has_direction = all(each > 0 for each in (step, *steps)) or all(each < 0 for each in (step, *steps))
        is_near = not steps or abs(step) <= max(map(abs, steps)) * (1 + _ROUNDED)
        if not (has_direction and is_near):
            ended.append(number)
    return np.array([*ended, count - 1]) if ended else None


def _numbers(values: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    """Return the values of a coordinate that are not missing, if their dtype has differences; else None."""
    values = values[~is_missing(values)]
    if values.dtype.kind in "iu":
        return values.astype(np.int64)
    if values.dtype.kind == "M":
        values = in_known_unit(values)
        return values.astype(np.int64) * (UNIT_NS[np.datetime_data(values.dtype)[0]] / 10**9)  # in seconds
    if values.dtype.kind == "O" and all(hasattr(one, "calendar") for one in values):
        return np.array([one.toordinal(fractional=True) for one in values])
    return values.astype(np.float64) if values.dtype.kind == "f" else None
