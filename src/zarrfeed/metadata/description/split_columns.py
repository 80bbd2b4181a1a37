"""Columns of the samples that are chosen: values to choose by, labels of groups and classes, weights, gaps in time."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.validate import check_int
from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.plan.choice.crop_starts import CropStarts
from zarrfeed.plan.choice.part_rows import RowGap
from zarrfeed.plan.samples.deal_units import SampleLabels
from zarrfeed.plan.samples.expected_counts import balancing_weights
from zarrfeed.plan.samples.sample_set import Int64, as_index, rank_of
from zarrfeed.plan.windows.gap_step import GapStep
from zarrfeed.spec.samples.coordinate import UNIT_NS
from zarrfeed.spec.values.missing import is_missing

_LONGEST_GAP = 2**40


def sample_labels(resolved: ResolvedData, argument: str, column: Any) -> SampleLabels | None:
    """Return a label for each sample that is chosen; None for no column.

    Parameters
    ----------
    resolved
        The samples.
    argument
        The user's name of the column: "groups" or "stratify".
    column
        Its name; an array, or a stored one, with a value for each sample of the arrays, or for each that is chosen.

    Raises
    ------
    ConfigError, UnsupportedError, StoreReadError, CorruptChunkError
        If it cannot be read, or a sample has no label.
    """
    if column is None:
        return None
    name, values = chosen_values(resolved, argument, column)
    units = labelled(resolved)
    return SampleLabels.found(name, values, units, max(len(units), resolved.choice.num_samples))


def chosen_values(resolved: ResolvedData, argument: str, column: Any) -> tuple[str, npt.NDArray[Any]]:
    """Return the name of a column, and a value for each sample that is chosen; arguments are those of `sample_labels`.

    Of random crops, it is a value for each recording that has a crop: that of its first row, or given for recordings.

    Raises
    ------
    ConfigError, UnsupportedError, StoreReadError, CorruptChunkError
        If it cannot be read, or has another number of values.
    """
    samples, num_samples = resolved.choice.listed(), resolved.choice.num_samples
    if isinstance(column, str):
        if resolved.origin.coordinates is None and resolved.origin.segments is None:
            raise ConfigError(f"{argument} = {column!r}: these samples have no stored columns; give an array of values")
        remedy = "select(mask) chooses by values of your own" if argument == "where" else "give an array of its values"
        name, values = column, resolved.coordinate(column, remedy=remedy).values
    elif isinstance(column, Path | zarr.Array):
        name, values = argument, resolved.coordinate(argument, column).values
    else:
        name, values = argument, np.asarray(column)
    crops, recordings = resolved.expected if isinstance(resolved.expected, CropStarts) else None, ""
    if crops is not None and values.ndim == 1:
        assert resolved.choice.borders is not None
        has_crop = np.diff(rank_of(resolved.choice.ascending(), resolved.choice.borders)) > 0
        if len(values) in (len(crops.ends), len(has_crop)):
            return name, values[has_crop] if len(values) == len(has_crop) else values
        recordings = f"for each of the {len(has_crop)} recordings, "
    if values.ndim != 1 or len(values) not in (num_samples, len(samples)):
        chosen_alone = f", or for each of the {len(samples)} that are chosen" * (len(samples) < num_samples)
        raise ConfigError(
            f"{argument}: has the shape {values.shape}, must have a value {recordings}for each of the {num_samples} "
            f"samples of the arrays{chosen_alone}"
        )
    chosen = values[as_index(samples)] if len(values) == num_samples else values
    return name, chosen if crops is None else chosen[crops.begins]


def labelled(resolved: ResolvedData) -> range | Int64:
    """Return all that has a label or a weight: the chosen samples, or the numbers of recordings with random crops."""
    crops = resolved.expected
    return range(len(crops.ends)) if isinstance(crops, CropStarts) else resolved.choice.listed()


def sample_weights(resolved: ResolvedData, weights: Any) -> npt.NDArray[Any]:
    """Return a weight for each sample that is chosen; `weights` is the argument of `Data.weight`.

    Raises
    ------
    ConfigError, UnsupportedError, StoreReadError, CorruptChunkError
        If a column cannot be read, or a function does not give a weight for each sample.
    """
    functions: list[tuple[list[str], Any]]
    if isinstance(weights, Mapping):
        functions = [([name], function) for name, function in weights.items()]
        if not functions or not all(callable(function) for _, function in functions):
            raise ConfigError(
                f"weights = {weights!r}, must map columns to functions, such as {{'obs/n_genes': np.log1p}}"
            )
    elif callable(weights) and not hasattr(weights, "__array__"):
        functions = [(list(inspect.signature(weights).parameters), weights)]
    else:
        return chosen_values(resolved, "weights", weights)[1]
    product: npt.NDArray[Any] = np.ones(1)
    for names, function in functions:
        columns = [chosen_values(resolved, "weights", name)[1] for name in names]
        product = product * np.asarray(function(*columns))
    if product.shape != (len(labelled(resolved)),):
        raise ConfigError(
            f"weights: the function gives an array of shape {product.shape}, must give a weight for each of the "
            f"{len(labelled(resolved))} samples, from columns that its parameters name: lambda quality: quality**2"
        )
    return product


def class_weights(labels: SampleLabels, samples: range | Int64, power: float) -> npt.NDArray[np.float64]:
    """Return a weight for each of some samples: a power of one over the samples of its class."""
    return balancing_weights(labels.codes[as_index(samples)], power)


def row_gap(resolved: ResolvedData, gap: Any) -> RowGap | None:
    """Return the rows of a gap between parts, which is a number of rows, or a length of time; None for None.

    Raises
    ------
    ConfigError
        If it is neither, or the times of the samples do not ascend.
    """
    if gap is None:
        return None
    if not isinstance(gap, str | timedelta | np.timedelta64):
        check_int("gap", gap, 0, _LONGEST_GAP)
        return RowGap(int(gap), written=str(gap))
    step = None
    with suppress(ConfigError):  # which is about `step=`
        step = GapStep.parse(gap)
    if step is None or step.unit != "ns":
        raise ConfigError(f"gap = {gap!r}, must be a number of rows, or a length of time such as '30D' or a timedelta")
    times = resolved.coordinate()
    if times.values.dtype.kind not in "MO":
        raise ConfigError(f"gap = {gap!r} is a time, and {times.where} has values of {times.values.dtype}: give rows")
    ticks, tick_ns = (np.zeros(0, np.int64), 1) if is_missing(times.values).any() else _since_first(times.values)
    if len(ticks) < len(times.values) or not (np.diff(ticks) >= 0).all():
        raise ConfigError(f"gap = {gap!r} is a time, and {times.where} does not ascend: give a number of rows")
    return RowGap.in_time(ticks, -(-int(step.count) // tick_ns), str(step))


def _since_first(times: npt.NDArray[Any]) -> tuple[Int64, int]:
    """Return times, of any calendar, as ticks since the first one, and the nanoseconds of a tick."""
    since = times - times[:1]
    since = since.astype("m8[us]") if times.dtype.kind == "O" else since
    return since.view(np.int64), UNIT_NS[np.datetime_data(since.dtype)[0]]
