"""`join`: arrays of several stores, each with a coordinate of its own, as one `Data` along a common axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import zarr

from zarrfeed.base.errors import ConfigError, StoreReadError, UnsupportedError, ZarrfeedError
from zarrfeed.base.suggestions import checks_option_names
from zarrfeed.base.validate import check_choice
from zarrfeed.metadata.array.cf import dimension_names
from zarrfeed.metadata.array.open import open_source
from zarrfeed.metadata.description.resolved import IN_ORDER, ResolvedData
from zarrfeed.metadata.face.data import Data
from zarrfeed.metadata.face.open_data import open as open_data
from zarrfeed.metadata.group.batch_columns import Array, Column, OpenedField, Origin
from zarrfeed.metadata.group.coordinates import Coordinates
from zarrfeed.metadata.group.fields import Source
from zarrfeed.plan.choice.join import HOWS, MISSINGS, How, Joined, JoinInput, Missing, join_axes, joined_borders
from zarrfeed.plan.choice.sample_choice import SampleChoice
from zarrfeed.plan.samples.sample_set import as_index
from zarrfeed.plan.samples.selection import Int64
from zarrfeed.spec.description.expression import Expression, JoinCall
from zarrfeed.spec.description.freeze import FrozenMapping, freeze_labels
from zarrfeed.spec.samples.coordinate import Coordinate
from zarrfeed.spec.samples.row_map import NO_ROW, RowMap
from zarrfeed.storage.access.group_members import arrays_of


@checks_option_names
def join(
    inputs: Mapping[str, Data | Source],
    on: str | None = None,
    *,
    how: How = "inner",
    missing: Missing = "drop",
    coords: Mapping[str, Any] | None = None,
) -> Data:
    """Join arrays by the values of a coordinate, such as the time: a sample has the row of each array with its value.

    Each array is stored and chunked as it likes. Nothing is copied or resampled: the join is settled in index space,
    and only the coordinates are read.

    Parameters
    ----------
    inputs
        Name -> a `Data`, or anything that `zarrfeed.open` takes. A batch has a dict: a single array is under its name
        here; arrays of a group or a mapping are under both names, such as "era5/t2m". Targets stay targets. Of a
        `Data`, what was selected is joined, and `cast` and `normalize` hold; windows are made of the result, and leave
        no store or segment of an input.
    on
        The name of the coordinate, for all inputs. None: that of the sample dimension, if it is the same for all.
    how
        "inner": samples are the values that every input has. Windows that span a gap between these are left out, as
        `Data.window` says. "outer": samples are the values that any input has, and `missing` says what becomes of gaps.
    missing
        The rule for a sample whose value an input lacks, in an outer join. "drop": it is left out, and so is a sample
        whose window reads such a row. "nearest": the input's row with the nearest value takes its place. "nan": the
        input's items are NaN, which only float dtypes have.
    coords
        Name of an input -> its coordinate, where none is stored, or where it has another name than `on`: a value for
        each of its samples, selected or not; or its array. As `coords` of `Data.sel`.

    Returns
    -------
    A description of the joined samples. Their coordinate is known: `sel` selects along it.

    Raises
    ------
    ConfigError
        If a coordinate is missing, not sorted, or has a value twice (the message names array, index and value); if no
        value is in all arrays; or with missing="nan", if a dtype has no NaN.

    Examples
    --------
    >>> import numpy as np, zarrfeed
    >>> days = np.arange("2020-01-01", "2020-01-11", dtype="M8[D]")
    >>> t2m, rain = np.arange(10.0), np.arange(4.0)
    >>> data = zarrfeed.join({"t2m": t2m, "rain": rain}, "time", coords={"t2m": days, "rain": days[::3]})
    >>> zarrfeed.ZarrDataset(data)[1]
    {'t2m': tensor(3., dtype=torch.float64), 'rain': tensor(1., dtype=torch.float64)}
    """
    check_choice("how", how, HOWS)
    check_choice("missing", missing, MISSINGS)
    if how == "inner" and missing != "drop":
        raise ConfigError(f"missing = {missing!r} is for how='outer': an inner join lacks no row")
    parts = _opened(inputs, on)
    given = _checked_coords(coords, parts)
    name = _name_of(parts, on, given)
    joined = join_axes([_join_input(key, data, name, given.get(key)) for key, data in parts.items()], how, missing)
    resolved = _combined(parts, joined, name, drops=missing == "drop")
    call = JoinCall(
        FrozenMapping(tuple((key, data.expression) for key, data in parts.items())),
        on,
        how,
        missing,
        None if coords is None else FrozenMapping(tuple((key, freeze_labels(value)) for key, value in given.items())),
    )
    return Data(Expression(call), resolved)


def _opened(inputs: Mapping[str, Data | Source], on: str | None) -> dict[str, Data]:
    """Return the descriptions that are joined, opened where they are none."""
    if not isinstance(inputs, Mapping) or len(inputs) < 2:
        raise ConfigError(f"join: got {inputs!r}, must be a mapping of names to at least two arrays or Data")
    if on is not None and not isinstance(on, str):
        raise ConfigError(f"on = {on!r}, must be the name of a coordinate, such as 'time'")
    opened = {}
    for key, source in inputs.items():
        if not isinstance(key, str) or not key:
            raise ConfigError(f"join: has the key {key!r}, names must be text")
        try:
            data = source if isinstance(source, Data) else _open(source, on)
        except StoreReadError as error:
            raise StoreReadError(error.errno, f"join: {key!r}: {error.strerror}") from error
        except ZarrfeedError as error:
            raise type(error)(f"join: {key!r}: {error}") from error
        _check_can_join(key, data)
        opened[key] = data
    return opened


def _open(source: Any, on: str | None) -> Data:
    """Open an array or a group; of a group, the arrays that have the dimension."""
    node = open_source(source)
    arrays = list(arrays_of(node).values()) if isinstance(node, zarr.Group) else []
    if isinstance(node, zarr.Array):
        arrays = [node]
    if on is not None and any(on in (dimension_names(array) or ()) for array in arrays):
        return open_data(source, sample_dim=on)
    return open_data(source)


def _check_can_join(key: str, data: Data) -> None:
    """Raise ConfigError for a description whose samples are no rows of arrays that stay as they are."""
    if data.resolved.blend is not None:
        raise ConfigError(f"join: {key!r} is a mixture; join its sources, and mix the results")
    if data.growth is not None or any(one.array.stored for one in data.resolved.columns):
        raise ConfigError(f"join: {key!r} is a store that grows, or loses samples, whose rows would not stay the same")
    if data.resolved.choice.windowed:
        raise ConfigError(f"join: {key!r} has windows; make them of the result: zarrfeed.join(...).window(...)")
    if data.resolved.patching is not None:
        raise ConfigError(f"{data!r}: call patch() after zarrfeed.join()")
    if data.resolved.expected is not None:
        drawn = data.resolved.expected
        raise ConfigError(f"join: {key!r}: samples are {drawn.state}; {drawn.verb} the result of zarrfeed.join")
    if data.resolved.given is not None:
        raise ConfigError(f"join: {key!r}: {IN_ORDER}; select of the result: zarrfeed.join(...).select(...)")
    if data.resolved.stacks:
        raise ConfigError(f"join: {key!r} has a stack; stack arrays of the result: zarrfeed.join(...).stack(...)")
    if data.resolved.statics:
        raise ConfigError(f"join: {key!r} has static arrays; add them to the result: zarrfeed.join(...).static(...)")


def _checked_coords(coords: Mapping[str, Any] | None, parts: Mapping[str, Data]) -> dict[str, Any]:
    if coords is None:
        return {}
    if not isinstance(coords, Mapping):
        kind = type(coords).__name__
        raise ConfigError(f"coords: got a {kind}, must be a mapping of names of inputs to coordinates")
    for key in coords:
        if key not in parts:
            raise ConfigError(f"coords names {key!r}, must be one of {', '.join(map(repr, parts))}")
    return dict(coords)


def _name_of(parts: Mapping[str, Data], on: str | None, given: Mapping[str, Any]) -> str:
    """Return the name of the coordinate that inputs are joined by."""
    if on is not None:
        return on
    found = {}
    for key, data in parts.items():
        known = data.resolved.origin.coordinates
        if known is not None and known.dims:
            found[key] = known.dims[0]
        elif key not in given:
            raise ConfigError(f"join: {key!r} has no names of dimensions: name the coordinate, on=, or coords=")
    names = set(found.values())
    if len(names) > 1:
        described = ", ".join(f"{key!r} has {name!r}" for key, name in found.items())
        raise ConfigError(f"join: the sample dimensions differ: {described}; name the coordinate, on=")
    return names.pop() if names else "samples"


def _join_input(key: str, data: Data, name: str, given: Any) -> JoinInput:
    """Return the coordinate of the samples that an input has."""
    coordinate = data.resolved.coordinate(name, given)
    samples = data.resolved.choice.listed()
    return JoinInput(key, Coordinate(name, coordinate.values[as_index(samples)], coordinate.where), samples)


def _combined(parts: Mapping[str, Data], joined: Joined, name: str, *, drops: bool) -> ResolvedData:
    """Return the columns of all inputs along the joined axis, with those samples chosen that are complete."""
    every = [
        _mapped(key, one, rows, note)
        for (key, data), rows, note in zip(parts.items(), joined.rows, joined.notes, strict=True)
        for one in data.resolved.columns
    ]
    samples, targets = ([one for one in every if one.items.side == side] for side in ("samples", "targets"))
    _check_names_differ(samples)
    _check_names_differ(targets)
    others = [data.resolved.origin.coordinates for data in parts.values()]
    known = Coordinates.joined(
        Coordinate(name, joined.values, f"the joined {name}"), [one for one in others if one is not None]
    )
    choice = SampleChoice.all_of(len(joined.values))
    if drops:
        choice = replace(choice, samples=joined.complete)
    choices = [data.resolved.choice for data in parts.values()]
    choice = replace(
        choice,
        left_out=(*(one for other in choices for one in other.left_out), *joined.left_out),
        borders=joined_borders(joined.rows, [other.borders for other in choices]),
        has_segments=any(other.has_segments for other in choices),
    )
    resolved = ResolvedData((*samples, *targets), Origin(coordinates=known, drops_gaps=drops), choice)
    if not drops:
        _check_hold_nan(resolved)
    return resolved


def _mapped(input_name: str, column: Column, rows: range | Int64, note: str) -> Column:
    """Return a column of an input as the result has it, under the name of the input."""
    own = input_name if column.items.key is None else f"{input_name}/{column.items.key}"
    first, *others = (replace(one, key=own) for one in column.array.all_items)
    field = replace(_with_rows(column.field, rows, first.name, note), name=first.name)
    return Column(Array(field, first, tuple(others)), before=column.conversions)


def _with_rows(field: OpenedField, rows: range | Int64, name: str, note: str) -> OpenedField:
    """Return a field whose samples have other rows than before."""
    before = field.row_map
    if before is not None:
        rows, note = _through(before, rows), "; ".join(filter(None, (before.note, note)))
    elif isinstance(rows, range) and rows == range(field.num_samples):
        return field
    if not field.has_rows:
        raise UnsupportedError(
            f"{name}: is {field.described_items}, which is joined only where its array has one row for each sample of "
            "the join, in order; leave it out"
        )
    return field.with_row_map(RowMap(rows, note))


def _through(before: RowMap, rows: range | Int64) -> range | Int64:
    """Return the rows that a row map has for samples, some of which there may be none of."""
    if isinstance(before.rows, range) and isinstance(rows, range):
        return before.rows[rows.start : rows.stop : rows.step]
    listed = np.asarray(rows, dtype=np.int64)
    return np.where(listed == NO_ROW, NO_ROW, before.rows_of(np.maximum(listed, 0)))


def _check_names_differ(side: Sequence[Column]) -> None:
    keys = [one.items.key for one in side]
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigError(f"join: two arrays would have the name {key!r}: give an input another name")


def _check_hold_nan(resolved: ResolvedData) -> None:
    """Raise ConfigError if an array lacks rows and has a dtype without NaN."""
    for field, info in zip(resolved.fields, resolved.infos(), strict=True):
        rows = field.row_map
        if rows is None or not rows.lacks_some or "float" in info.dtype:
            continue
        raise ConfigError(
            f"missing = 'nan': {info.name!r} lacks rows, and is {info.dtype}, which has no NaN: cast the input to a "
            "float dtype, or let missing be 'drop' or 'nearest'"
        )
