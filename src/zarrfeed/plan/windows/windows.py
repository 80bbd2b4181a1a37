"""`Data.window`: samples that are windows of rows, and which samples have all of their rows.

Invariant: row k of the window of sample i is row i + offsets[k] of the array. A sample is read only if all of its
rows, in every field, are in the array, and in its own segment where segments are named.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.suggestions import did_you_mean
from zarrfeed.base.validate import check_int
from zarrfeed.plan.samples.sample_set import Int64, Samples
from zarrfeed.plan.windows.window_samples import whole_windows
from zarrfeed.spec.samples.window import Borders, Lead, Pad, Window

#: Distances from a sample's own row; a bare number takes that row and adds no axis.
Offsets: TypeAlias = "int | Lead | Sequence[int | Lead]"

#: The padding of rows that windows lack: "edge", "nan", or a number.
PadLike: TypeAlias = "str | float"

_FARTHEST = 2**40
#: Rows of a window, which are listed one by one.
_LONGEST = 2**24
#: Distances that may be drawn: planning looks at each.
_MOST_LEADS = 4096
#: A block is to have so many times the chunks that windows reach beyond it: they are read for the next one, too.
_BLOCK_REACHES = 4


def with_length_as_rows(offsets: Any) -> Any:
    """Return the rows of a window that is given by its length alone, from a sample's own row on; all else as it is.

    >>> with_length_as_rows(3), with_length_as_rows((3,))
    (range(0, 3), (3,))

    Raises
    ------
    ConfigError
        If it is an integer that is no length.
    """
    if not isinstance(offsets, int | np.integer) or isinstance(offsets, bool):
        return offsets
    if offsets < 1:
        raise ConfigError(
            f"offsets = {offsets}: an integer is the number of rows of a window, and must be at least 1; ({offsets},) "
            f"has one row at that distance, and {{name: {offsets}}} has it without an axis"
        )
    return range(int(offsets))


def parse_window(name: str, offsets: Offsets | None) -> Window | None:
    """Parse the user's offsets of the field `name`; None for nothing.

    Raises
    ------
    ConfigError
        If it is neither an integer nor a sequence of some.
    """
    if offsets is None:
        return None
    if isinstance(offsets, range):
        for bound in (offsets.start, offsets.stop):
            check_int(f"offsets of {name}", bound, -_FARTHEST, _FARTHEST)
        check_int(f"rows in the offsets of {name}", len(offsets), 0, _LONGEST)
    alone = isinstance(offsets, int | np.integer | Lead | Mapping) or not isinstance(offsets, Iterable)
    rows: list[Any] = [offsets] if alone else list(offsets)  # type: ignore[arg-type]
    if not rows:
        raise ConfigError(f"offsets of {name} = {offsets!r}, must be an integer or a sequence of at least one integer")
    rows = [_parse_lead(name, row) if isinstance(row, Mapping) else row for row in rows]
    leads = {row for row in rows if isinstance(row, Lead)}
    if len(leads) > 1:
        raise ConfigError(
            f"offsets of {name} = {offsets!r}, must have one zarrfeed.lead, as one distance is drawn for a sample"
        )
    lead = next(iter(leads), None)
    drawn = tuple(index for index, row in enumerate(rows) if isinstance(row, Lead))
    fixed = [row.low if isinstance(row, Lead) else row for row in rows]
    for row in fixed:
        check_int(f"offsets of {name}", row, -_FARTHEST, _FARTHEST)
    return Window(tuple(map(int, fixed)), stacked=not alone, lead=lead, drawn=drawn)


def lead(low: int, high: int) -> Lead:
    """Draw a distance for each sample: to be used among the `offsets` of `Data.window`.

    Parameters
    ----------
    low, high
        The least and the greatest distance along the sample axis. Each sample draws one uniformly, anew in each epoch,
        by the seed of the dataset; it is the same for all arrays of the sample, on all ranks, and after resuming. A
        batch has it as "lead", int64 of shape (batch,).

    Raises
    ------
    ConfigError
        If they are no integers, or `low` is above `high`.

    Examples
    --------
    >>> import numpy as np, zarrfeed
    >>> data = zarrfeed.open({"x": np.arange(100)}).window({"x": (0, zarrfeed.lead(1, 40))})
    >>> batch = next(iter(zarrfeed.ZarrIterableDataset(data, batch_size=16, shuffle=True)))
    >>> bool((batch["x"][:, 1] - batch["x"][:, 0] == batch["lead"]).all())
    True
    """
    check_int("low", low, -_FARTHEST, _FARTHEST)
    check_int("high", high, -_FARTHEST, _FARTHEST)
    if low > high or high - low > _MOST_LEADS:
        raise ConfigError(f"lead({low}, {high}): must ascend, and name at most {_MOST_LEADS} distances")
    return Lead(int(low), int(high))


def _parse_lead(name: str, row: Mapping[str, Any]) -> Lead:
    """Return the lead that a state names as {"lead": [low, high]}."""
    bounds = row.get("lead")
    if set(row) != {"lead"} or not isinstance(bounds, list | tuple) or len(bounds) != 2:
        raise ConfigError(f"offsets of {name} have {row!r}, must be integers or zarrfeed.lead(low, high)")
    return lead(*bounds)


def lead_of(windows: Iterable[Window | None]) -> Lead | None:
    """Return the lead that samples draw; None if they draw none.

    Raises
    ------
    ConfigError
        If fields have different ones.
    """
    leads = {window.lead for window in windows if window is not None and window.lead is not None}
    if len(leads) > 1:
        raise ConfigError(
            f"offsets have {' and '.join(sorted(map(repr, leads)))}, must have one zarrfeed.lead, as one distance is "
            "drawn for a sample"
        )
    return next(iter(leads), None)


def reach(windows: Iterable[Window | None]) -> tuple[int, int]:
    """Return the number of rows that windows reach before, and after, a sample's own; both from 0."""
    offsets = [offset for window in windows if window is not None for offset in window.reads]
    return max(0, -min(offsets, default=0)), max(0, max(offsets, default=0))


def offsets_of(windows: Iterable[Window | None]) -> tuple[int, ...]:
    """Return the distances of all rows that a sample consists of, ascending; its own row, 0, is always among them."""
    return tuple(sorted({0, *(offset for window in windows if window is not None for offset in window.reads)}))


def chunks_in_block(rows_per_chunk: int, sample_bytes: int, windows: Sequence[Window | None], block_bytes: int) -> int:
    """Return the number of chunks of a block, so that few are read for two: at most as many as fit in `block_bytes`.

    Without windows it is one.
    """
    before, after = reach(windows)
    wanted = _BLOCK_REACHES * (-(-before // rows_per_chunk) - (-after // rows_per_chunk))
    return max(1, min(wanted, block_bytes // max(1, rows_per_chunk * sample_bytes)))


def unpadded(windows: Iterable[Window | None]) -> list[Window | None]:
    """Return the windows, without those whose rows are padded where there are none."""
    return [None if window is not None and window.pad is not None else window for window in windows]


def with_borders(window: Window | None, borders: Borders | None) -> Window | None:
    """Return a window that is padded at the borders of segments."""
    if window is None or window.pad is None:
        return window
    return replace(window, pad=replace(window.pad, borders=borders))


def parse_pad(name: str, pad: object) -> Pad | None:
    """Parse the user's padding of the field `name`; None for nothing.

    Raises
    ------
    ConfigError
        If it is neither "edge", nor "nan", nor a number.
    """
    if pad is None:
        return None
    if pad == "edge":
        return Pad("edge")
    if isinstance(pad, str) and pad.lower() == "nan":
        return Pad("fill", math.nan)
    if isinstance(pad, int | float | np.integer | np.floating) and not isinstance(pad, bool):
        return Pad("fill", float(pad) if isinstance(pad, float | np.floating) else int(pad))
    raise ConfigError(f"pad of {name} = {pad!r}, must be 'edge', 'nan' or a number{did_you_mean(pad, ('edge', 'nan'))}")


def samples_with_windows(
    windows: Sequence[Window | None], num_samples: int, segment_ends: npt.ArrayLike | None = None
) -> Samples | None:
    """Return the samples that have all of their rows, ascending; None where there is nothing to heed.

    Rows that are padded need not be there.

    Raises
    ------
    ConfigError
        If there is none, or `segment_ends` are no ends of segments.
    """
    if all(window is None for window in windows):
        if segment_ends is not None:
            raise ConfigError("segment_ends is given without offsets: single rows lie in one segment each")
        return None
    before, after = reach(unpadded(windows))
    if segment_ends is None:
        found = whole_windows(num_samples, None, before, after)
        if not found:
            raise ConfigError(f"offsets reach from {-before} to {after:+d}, and there are {num_samples} samples only")
        return found
    ends = check_segment_ends(segment_ends, num_samples)
    found = whole_windows(num_samples, ends, before, after)
    if not found:
        longest = np.diff(ends, prepend=0).max()
        raise ConfigError(f"offsets reach from {-before} to {after:+d}, and the longest segment has {longest} samples")
    return found


def check_segment_ends(segment_ends: npt.ArrayLike, num_samples: int) -> Int64:
    """Return the ends of segments, shape (segments,).

    Raises
    ------
    ConfigError
        If they are no ends of segments of `num_samples` samples.
    """
    named = np.asarray(segment_ends)
    if named.ndim != 1 or named.size == 0 or named.dtype.kind not in "iu":
        raise ConfigError(
            f"segment_ends has shape {named.shape} and dtype {named.dtype}, must be a 1-d array of integers"
        )
    ends = named.astype(np.int64)
    if ends[0] < 0 or (np.diff(ends) < 0).any():
        raise ConfigError("segment_ends must ascend, from 0: each is the sample after the last one of its segment")
    if ends[-1] != num_samples:
        raise ConfigError(f"segment_ends ends with {ends[-1]}, must end with the number of samples, {num_samples}")
    return ends
