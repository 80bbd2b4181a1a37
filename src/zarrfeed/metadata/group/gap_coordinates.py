"""The coordinate along the sample axis in which gaps are found, of each store that has one.

Invariant: nothing is read of samples whose dimension has no name. A coordinate is read once, as a whole. One that
cannot be read is an error, since ranks that read it and ranks that did not would choose different samples. One that is
no coordinate of these samples is left out with a warning: it has another length, lies along another dimension, or its
values have no order. It is an error for a user who asked for more than the default.

In a store that grows, a coordinate that is shorter than the samples, or lacks a value, is an error as well. Its writer
may only be late, and which samples a version has must not depend on the moment at which it is looked at.
"""

from __future__ import annotations

import errno
import warnings
from collections.abc import Iterator

import zarr

from zarrfeed.base.errors import ConfigError, CorruptChunkError, StoreReadError, UnsupportedError
from zarrfeed.base.redaction import without_secrets
from zarrfeed.metadata.array.cf import coordinate_attributes
from zarrfeed.metadata.array.coordinate_values import checked_values, decode_values
from zarrfeed.metadata.array.values import read_values
from zarrfeed.metadata.group.coordinates import Coordinates, NoCoordinateError, UnopenedCoordinates
from zarrfeed.plan.windows.gaps import StoreCoordinate
from zarrfeed.spec.samples.coordinate import Coordinate
from zarrfeed.spec.values.missing import is_missing
from zarrfeed.storage.access.checked_nodes import node_name

_ADVICE = "pass gaps='ignore' to make windows without regard to gaps"


def gap_coordinates(known: Coordinates | None, *, required: bool) -> tuple[StoreCoordinate, ...]:
    """Return the coordinate along the sample axis of each store that has one.

    Parameters
    ----------
    known
        The coordinates of the samples. None: there are none.
    required
        If True, it is an error that there is no coordinate, or none that can be used.

    Raises
    ------
    StoreReadError, CorruptChunkError
        If a coordinate cannot be read.
    ConfigError, UnsupportedError
        If it is required and there is none, or none that can be used.
    """
    found: tuple[StoreCoordinate, ...] = ()
    as_asked = required or (known is not None and known.may_grow)
    try:
        for dim in () if known is None else known.dims:
            assert known is not None
            try:
                found = tuple(_along(known, dim))
            except UnsupportedError:  # such as times of a calendar that needs cftime: their differences need none
                if as_asked:
                    raise
                found = tuple(_undecoded(known, dim))
            if found:
                break
        if known is not None and known.may_grow:
            _check_complete(found)
    except (ConfigError, UnsupportedError) as error:
        if as_asked:
            raise type(error)(f"gaps: {error}; or {_ADVICE}") from error
        warnings.warn(
            without_secrets(f"windows may span gaps, which cannot be looked for: {error}; or {_ADVICE}"), stacklevel=1
        )
        return ()
    except StoreReadError as error:
        raise StoreReadError(error.errno, f"{error.strerror}. It was read to find gaps; {_ADVICE}") from error
    except CorruptChunkError as error:
        raise CorruptChunkError(f"{error}. It was read to find gaps; {_ADVICE}") from error
    if required and not found:
        raise ConfigError(
            "gaps='error' and step= need a coordinate along the sample axis, such as time, and none is stored with "
            "these samples; leave both out, or give segment_ends="
        )
    return found


def _check_complete(found: tuple[StoreCoordinate, ...]) -> None:
    """Raise ConfigError if a sample of a store that grows has no value."""
    for one in found:
        lacks = is_missing(one.coordinate.values)
        if lacks.any():
            raise ConfigError(
                f"{one.coordinate.where}: has no value of sample {int(lacks.argmax())}; whoever appends to the store "
                "has to write the coordinate before the samples"
            )


def _along(known: Coordinates, dim: str) -> Iterator[StoreCoordinate]:
    """Yield the coordinate of a name of each store that has it."""
    try:
        whole = _read(known, dim)
    except ConfigError:  # what no coordinate of several stores is, may be one of each: times and numbers
        if len(known.stores) == 1:
            raise
        whole = None
    first = 0
    for store in known.stores:
        values = None
        if whole is not None:
            values = Coordinate(whole.name, whole.values[first : first + store.num_samples], whole.where)
        elif len(known.stores) > 1:  # some stores have it, perhaps
            values = _read(Coordinates(known.dims, known.other_dims, (store,)), dim)
        if values is not None:
            yield StoreCoordinate(first, values)
        first += store.num_samples


def _undecoded(known: Coordinates, dim: str) -> Iterator[StoreCoordinate]:
    """Yield the coordinate of a name of each store as stored numbers, which lie as far apart as the times."""
    first = 0
    for store in known.stores:
        stored = store.open(store.source).stores[0] if isinstance(store, UnopenedCoordinates) else store
        assert not isinstance(stored, UnopenedCoordinates)
        array = stored.find(dim)
        if not isinstance(array, zarr.Array):
            raise UnsupportedError(f"coordinate {dim!r}: has the dtype {array.dtype}, whose differences mean nothing")
        where = node_name(array)
        attributes = {key: value for key, value in coordinate_attributes(array).items() if key != "units"}
        values = checked_values(decode_values(read_values(array), attributes, where), store.num_samples, where)
        yield StoreCoordinate(first, Coordinate(dim, values, where))
        first += store.num_samples


def _read(known: Coordinates, dim: str) -> Coordinate | None:
    """Return a coordinate; None if one of the stores has none."""
    try:
        return known.read_known(dim)
    except NoCoordinateError:
        return None
    except StoreReadError as error:
        if error.errno in (errno.EACCES, errno.EPERM):  # so some servers say that there is none
            return None
        raise
