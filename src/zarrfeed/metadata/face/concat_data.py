"""`zarrfeed.concat`: several descriptions as one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.suggestions import checks_option_names
from zarrfeed.base.validate import check_flags
from zarrfeed.metadata.array.conversion import TorchDtypeLike
from zarrfeed.metadata.description.resolved import IN_ORDER, ResolvedData
from zarrfeed.metadata.face.data import Data
from zarrfeed.metadata.face.open_data import open_each
from zarrfeed.metadata.stores.concat import Run, concat_runs
from zarrfeed.metadata.stores.packed_sources import concat_packed
from zarrfeed.plan.choice.buckets import Buckets
from zarrfeed.spec.description.expression import ConcatCall, Expression
from zarrfeed.spec.samples.row_map import GridRows


@checks_option_names
def concat(data: Iterable[Data | Any], *, dtype: TorchDtypeLike | None = None, contiguous: bool = False) -> Data:
    """Describe the samples of several descriptions, one after another: a store a year, a plate, a volume, an episode.

    Samples keep their order, and are numbered through. Batches mix samples of all stores. `zarrfeed.open([path1, path2,
    ...])` is a shorthand for stores that are read alike.

    Parameters
    ----------
    data
        A `Data` each, or whatever `zarrfeed.open` takes as `samples`; URLs are opened side by side. All have arrays of
        the same names, sample shapes and dtypes, in memory, or stored and chunked as they like. Each may be selected
        from and converted before; windows have the same offsets, and are better made of the result. Where all are cut
        into the same patches, each is a volume of its own size.
    dtype
        The dtype of `Data.cast`, for each of `data`: makes dtypes that differ the same.
    contiguous
        True if the first sample of each description follows the last one of the description before, such as January
        after December. Windows then reach from one into the next. False: windows do not leave a store.

    Raises
    ------
    ConfigError
        If the arrays do not fit together; the message names the store.

    Examples
    --------
    >>> import numpy as np, zarr, zarrfeed
    >>> first, second = (zarr.array(np.arange(n), chunks=(4,)) for n in (10, 6))
    >>> data = zarrfeed.concat([first, zarrfeed.open(second).select(slice(2, None))])
    >>> zarrfeed.ZarrDataset(data)[[0, 9, 10, 13]]
    tensor([0, 9, 2, 5])
    >>> data.locate(15)
    (1, 5)
    """
    joined = as_one("concat", data, dtype=dtype, contiguous=contiguous)
    call = ConcatCall(tuple(one.expression for one in joined.given), bool(contiguous))
    return Data(Expression(call), joined.resolved)


@dataclass(frozen=True)
class JoinedData:
    """Several descriptions, and the one description that they make, one after another."""

    given: tuple[Data, ...]
    resolved: ResolvedData


def as_one(function: str, data: Iterable[Data | Any], *, dtype: TorchDtypeLike | None, contiguous: bool) -> JoinedData:
    """Return descriptions one after another; `function` of zarrfeed was called with them."""
    if isinstance(data, str | bytes | Data) or not isinstance(data, Iterable):
        raise ConfigError(f"zarrfeed.{function}: got {data!r}, must be a list of descriptions")
    given = list(data)
    opened = iter(open_each([one for one in given if not isinstance(one, Data)]))
    given = [one if isinstance(one, Data) else next(opened) for one in given]
    if not given:
        raise ConfigError(f"zarrfeed.{function}: got no description, must get at least one")
    for one in given:
        if one.growth is not None:
            raise ConfigError(f"{one!r}: a store that is opened with refresh cannot be an input of zarrfeed.{function}")
        if one.resolved.blend is not None:
            raise ConfigError(
                f"{one!r}: a mixture cannot be an input of zarrfeed.{function}; give its sources to one zarrfeed.mix"
            )
        if one.resolved.patching is not None and function != "concat":
            _check_passes_are_alike(one, function)
        drawn = one.resolved.expected
        if function == "concat" and drawn is not None:
            raise ConfigError(f"{one!r}: {drawn.noun} cannot be an input of zarrfeed.concat; {drawn.verb} the result")
        if isinstance(drawn, Buckets):
            raise ConfigError(
                f"{one!r}: {drawn.noun} cannot be a source of zarrfeed.{function}, whose turns they break"
            )
        later = one.resolved.called_last
        if later:
            raise ConfigError(f"{one!r}: call {later} after zarrfeed.{function}()")
        if one.resolved.given is not None:
            remedy = "select of the result" if function == "concat" else "mix takes its sources by weights"
            raise ConfigError(f"{one!r}: {IN_ORDER}, and cannot be an input of zarrfeed.{function}; {remedy}")
        if one.resolved.stacks:
            raise ConfigError(f"{one!r}: call stack() after zarrfeed.{function}()")
        if any(field.is_of_segments for field in one.resolved.fields):
            raise ConfigError(f"{one!r}: call segment_field() after zarrfeed.{function}()")
        is_joined = any(not isinstance(field.row_map, GridRows | None) for field in one.resolved.fields)
        if is_joined and one.resolved.packed is None:
            raise ConfigError(
                f"{one!r}: a join cannot be an input of zarrfeed.{function}; "
                "concatenate its inputs, and join the results"
            )
    check_flags(contiguous=contiguous)
    converted = given if dtype is None else [one.cast(dtype) for one in given]
    parts = [one.resolved if function == "concat" else _without_number(one.resolved) for one in converted]
    names = [_name_of(one) for one in converted]
    if any(one.packed is not None for one in parts):
        return JoinedData(tuple(converted), concat_packed(parts, names))
    runs = [Run(part, [part.choice.num_samples], [name]) for part, name in zip(parts, names, strict=True)]
    return JoinedData(tuple(converted), concat_runs(runs, contiguous=bool(contiguous)))


def _check_passes_are_alike(one: Data, function: str) -> None:
    """Raise ConfigError for patches of which epochs have different numbers."""
    if one.resolved.patching is not None and one.resolved.patching.request.sampling == "tiles":
        raise ConfigError(
            f'{one!r}: patches of sampling = "tiles", of which epochs have different numbers, cannot be a source of '
            f'zarrfeed.{function}; must be of sampling = "random", where n is the patches of a pass, "grid" or '
            '"positions"'
        )


def _without_number(resolved: ResolvedData) -> ResolvedData:
    """Return a description whose patches may differ from those of others in their number."""
    patching = resolved.patching
    return resolved if patching is None else replace(resolved, patching=patching.without_number())


def _name_of(data: Data) -> str:
    """Return the name of a description in messages: the stores that were opened, shortened."""
    name, stores = data.expression.source_name(), data.resolved.origin.stores
    if stores is None or len(stores.names) < 2 or not name.startswith("["):
        return name
    more = len(stores.names) - 1
    return f"{stores.names[0]} and {more} more store{'s' * (more > 1)}"
