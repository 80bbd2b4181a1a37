"""The methods of `Data` about segments, such as episodes: segments, segment_field, sel_segments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from dataclasses import field as argument
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from zarrfeed.base.errors import ConfigError, UnsupportedError
from zarrfeed.metadata.array.conversion import Items
from zarrfeed.metadata.array.host_memory import field_in_memory
from zarrfeed.metadata.description.method_call import MethodCall, applied_only, frozen_by
from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.metadata.description.sample_calls import IndexerCall, freeze_conditions
from zarrfeed.metadata.group.batch_columns import Array, OpenedField
from zarrfeed.metadata.group.segment_columns import segments_known
from zarrfeed.metadata.group.source_names import name_source
from zarrfeed.spec.description.freeze import FrozenMapping, freeze_labels, freeze_rows
from zarrfeed.spec.fields.segment_text import SegmentTextField
from zarrfeed.spec.samples.segments import Segments


def _digest_of(segments: Segments | None) -> str | None:
    return None if segments is None else segments.digest


def _freeze_ends(ends: Any) -> Any:
    return name_source(ends) if isinstance(ends, str | Path | zarr.Array) else freeze_rows(ends)


def _refuse_growth(method: str) -> None:
    raise ConfigError(f"{method}() cannot follow open(..., refresh='epoch'): the last segment moves")


@dataclass(frozen=True)
class SegmentsCall(MethodCall):
    """`.segments(ends)`; `found` are the segments, whose ends were read once and take part in comparisons."""

    function = ".segments"

    ends: Any = argument(default=None, metadata=frozen_by(_freeze_ends))
    found: Segments | None = argument(kw_only=True, default=None, repr=False, metadata=frozen_by(_digest_of))

    def apply(self, resolved: ResolvedData) -> ResolvedData:
        """Let windows stay inside segments."""
        resolved.check_rows("segments")
        resolved.choice.check_rows_are_open("segments")
        if any(one.field.is_of_segments for one in resolved.columns):
            raise ConfigError("segments() follows segment_field(), must precede it")
        assert self.found is not None
        stores = resolved.origin.stores
        borders = np.concatenate([np.zeros(1, np.int64) if stores is None else stores.first, self.found.ends])
        origin = replace(resolved.origin, segments=self.found, segment_values={})
        return replace(resolved, origin=origin, choice=resolved.choice.with_segments(np.unique(borders)))

    def check_may_grow(self) -> None:
        """Refuse every one."""
        _refuse_growth("segments")


@dataclass(frozen=True)
class SegmentFieldCall(MethodCall):
    """`.segment_field(name, ..., name=values, ...)`; `values` are those of each segment, which were read once."""

    function = ".segment_field"

    names: tuple[str, ...] = argument(metadata=frozen_by(tuple))
    arrays: Any = argument(
        metadata=frozen_by(lambda given: FrozenMapping(tuple((name, name_source(one)) for name, one in given.items())))
    )
    values: Mapping[str, npt.NDArray[Any]] = argument(
        kw_only=True, repr=False, compare=False, metadata=frozen_by(applied_only)
    )

    def apply(self, resolved: ResolvedData) -> ResolvedData:
        """Add values of segments to the samples."""
        if resolved.blend is not None:
            raise ConfigError("segment_field: samples are a mixture; zarrfeed.concat keeps the segments of its inputs")
        segments = segments_known(resolved.origin, "segment_field")
        for name, values in self.values.items():
            if name in resolved.taken_names():
                raise ConfigError(f"segment_field {name!r}: the samples already have an array of this name")
            resolved = resolved.with_array(_made(name, values, segments))
        known = {**resolved.origin.segment_values, **self.values}
        return replace(resolved, origin=replace(resolved.origin, segment_values=known))

    def check_may_grow(self) -> None:
        """Refuse every one."""
        _refuse_growth("segment_field")

    def _arguments(self) -> Iterator[str]:
        yield from map(repr, self.names)
        yield from (f"{name}={source!r}" for name, source in self.arrays.items)


def _made(name: str, values: npt.NDArray[Any], segments: Segments) -> Array:
    """Return the values of segments as an array of the samples."""
    items = Items("samples", name, None, (len(segments.of_samples), *values.shape[1:]), 0, is_coordinate=True)
    if values.dtype.kind in "mM" or (values.dtype.kind == "O" and not _is_text(values)):
        raise UnsupportedError(
            f"segment_field {name!r}: has values of {values.dtype}, which are no tensors: give numbers, {name}=values"
        )
    if values.dtype.kind in "SUTO":
        if values.ndim > 1:
            raise UnsupportedError(f"segment_field {name!r}: is text of shape {values.shape}, must have one axis")
        text: OpenedField = SegmentTextField(items.name, tuple(values.tolist()), segments.rows)
        return Array(text, items)
    field = replace(field_in_memory(items.name, values, 0), row_map=segments.rows)
    return Array(field, replace(items, dtype=field.dtype_name))


def _is_text(values: npt.NDArray[Any]) -> bool:
    return all(isinstance(one, str | bytes) for one in values.flat)


def _freeze_labels_or_conditions(indexers: Any) -> Any:
    """Return what stands for segments: positions, or labels and conditions by their columns."""
    if not isinstance(indexers, Mapping):
        return indexers if isinstance(indexers, str) else freeze_rows(indexers)
    frozen = []
    for name, one in indexers.items():
        is_function = callable(one)
        frozen.append((name, freeze_conditions({name: one}).items[0][1] if is_function else freeze_labels(one)))
    return FrozenMapping(tuple(frozen))


@dataclass(frozen=True)
class SelSegmentsCall(IndexerCall):
    """`.sel_segments(positions)` or `.sel_segments(column=label, ...)`; equal if the same samples were found."""

    function = ".sel_segments"

    indexers: Any = argument(metadata=frozen_by(_freeze_labels_or_conditions))
    samples: Any = argument(kw_only=True, default=None, repr=False, metadata=frozen_by(freeze_rows))

    def _arguments(self) -> Iterator[str]:
        if isinstance(self.indexers, FrozenMapping):
            return super()._arguments()
        return iter((repr(self.indexers),))

    def check_may_grow(self) -> None:
        """Refuse every one."""
        _refuse_growth("sel_segments")
