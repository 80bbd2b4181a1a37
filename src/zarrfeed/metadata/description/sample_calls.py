"""The methods of `Data` that say which samples there are, and what rows they have.

These are select, where, sel, isel, blocks, window, patch and split; `weighting_calls.py` has weight and balance.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from dataclasses import field as argument
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.validate import check_choice, check_flags, check_int
from zarrfeed.metadata.array.conversion import by_field
from zarrfeed.metadata.description.method_call import MethodCall, applied_only, frozen_by
from zarrfeed.metadata.description.resolved import IN_ORDER, ResolvedData, Windowing
from zarrfeed.metadata.description.split_columns import row_gap, sample_labels
from zarrfeed.metadata.group.batch_columns import Column
from zarrfeed.metadata.group.gap_coordinates import gap_coordinates
from zarrfeed.metadata.group.source_names import name_source
from zarrfeed.metadata.group.static_channels import check_not_named
from zarrfeed.metadata.patches.patch_request import PatchRequest
from zarrfeed.metadata.patches.read_weights import frozen_weights
from zarrfeed.metadata.patches.selected_items import parse_isel
from zarrfeed.plan.blocks.blocks import plan_blocks
from zarrfeed.plan.choice.split import SplitRule
from zarrfeed.plan.samples.field_rows import check_gaps_can_be_nan
from zarrfeed.plan.samples.split_part import far_from
from zarrfeed.plan.windows.gap_step import GapStep
from zarrfeed.plan.windows.gaps import GAP_MODES, GapMode, GapRule, Gaps
from zarrfeed.plan.windows.windows import (
    lead_of,
    parse_pad,
    parse_window,
    reach,
    with_borders,
    with_length_as_rows,
)
from zarrfeed.spec.description.expression import Expression
from zarrfeed.spec.description.freeze import (
    FrozenArray,
    FrozenMapping,
    Named,
    freeze,
    freeze_labels,
    freeze_offsets,
    freeze_rows,
)
from zarrfeed.spec.fields.field import BLOCK_KINDS, BlockKind
from zarrfeed.spec.samples.segments import Segments
from zarrfeed.spec.samples.window import Window


@dataclass(frozen=True)
class SelectCall(MethodCall):
    """`.select(samples, keep_order=...)`."""

    function = ".select"

    samples: Any = argument(metadata=frozen_by(freeze_rows))
    keep_order: bool = argument(default=False, metadata=frozen_by(bool))

    def apply(self, resolved: ResolvedData) -> ResolvedData:
        """Choose samples by their positions among those that are chosen."""
        check_flags(keep_order=self.keep_order)
        return resolved.select(self.samples, keep_order=self.keep_order)

    def check_may_grow(self) -> None:
        """Refuse a list or a mask, and an order."""
        if self.keep_order:
            raise ConfigError(
                "select(keep_order=True) cannot follow open(..., refresh='epoch'): the list would not grow"
            )
        if not isinstance(self.samples, slice):
            raise ConfigError("select of a store that is opened with refresh='epoch' must be a slice")


@dataclass(frozen=True)
class IndexerCall(MethodCall):
    """A call that names samples, or items of other axes, by their dimensions; what it names was found once.

    Attributes
    ----------
    indexers
        Labels or positions by the names of dimensions.
    samples
        The positions of samples among those that were chosen before. None: no sample is named.
    items
        The items of other axes.
    """

    indexers: Mapping[Any, Any]
    samples: Any = argument(kw_only=True, default=None, repr=False, compare=False, metadata=frozen_by(applied_only))
    items: Any = argument(kw_only=True, default=(), repr=False, compare=False, metadata=frozen_by(applied_only))

    def apply(self, resolved: ResolvedData) -> ResolvedData:
        """Choose the samples and the items that were found."""
        if self.samples is not None:
            resolved.check_choice(self.function[1:])
            resolved = resolved.select(self.samples)
        for one in self.items:
            resolved = one.apply(resolved)
        return resolved

    def check_may_grow(self) -> None:
        """Refuse samples that are no slice."""
        if self.samples is not None:
            SelectCall(self.samples).check_may_grow()

    def _arguments(self) -> Iterator[str]:
        _, *others = super()._arguments()
        named = dict(getattr(self.indexers, "items", ()))
        if all(isinstance(name, str) and name.isidentifier() for name in named):
            yield from (f"{name}={label!r}" for name, label in named.items())
        else:
            yield repr(self.indexers)
        yield from others


def freeze_conditions(conditions: Mapping[Any, Any]) -> FrozenMapping:
    """Return the text of conditions; functions are known by their names."""
    items: list[tuple[Hashable, Hashable]] = []
    for column, one in conditions.items():
        items.append((column, one if isinstance(one, str) else Named(getattr(one, "__name__", type(one).__name__))))
    return FrozenMapping(tuple(items))


@dataclass(frozen=True)
class WhereCall(IndexerCall):
    """`.where(column=condition)`; the samples that meet the conditions take part in comparisons."""

    function = ".where"

    indexers: Mapping[Any, Any] = argument(metadata=frozen_by(freeze_conditions))
    samples: Any = argument(kw_only=True, default=None, repr=False, metadata=frozen_by(freeze_rows))

    def _arguments(self) -> Iterator[str]:
        table, *others = named = dict(getattr(self.indexers, "items", ()))
        if not others and isinstance(named[table], str):
            return (repr(text) for text in (table, named[table]) if text)
        return super()._arguments()


def _freeze_indexers(freezer: Callable[[Any], Any]) -> Callable[[Any], FrozenMapping]:
    return lambda given: FrozenMapping(tuple((name, freezer(one)) for name, one in given.items()))


def freeze_coords(coords: Any) -> Any:
    """Return the form of a coordinate in an expression: where it is stored, or its values."""
    if isinstance(coords, Mapping):
        return FrozenMapping(tuple((name, freeze_coords(one)) for name, one in coords.items()))
    is_stored = coords is None or isinstance(coords, str | Path | zarr.Array)
    return name_source(coords) if is_stored else freeze_labels(coords)


@dataclass(frozen=True)
class SelCall(IndexerCall):
    """`.sel(time=label, level=..., method=..., coords=...)`."""

    function = ".sel"

    indexers: Mapping[Any, Any] = argument(metadata=frozen_by(_freeze_indexers(freeze_labels)))
    method: str | None = None
    coords: Any = argument(default=None, metadata=frozen_by(freeze_coords))


@dataclass(frozen=True)
class IselCall(IndexerCall):
    """`.isel(time=position, level=...)`."""

    function = ".isel"

    indexers: Mapping[Any, Any] = argument(metadata=frozen_by(_freeze_indexers(freeze_rows)))


def _refuse_dealing(method: str) -> None:
    raise ConfigError(
        f"{method}() cannot follow open(..., refresh='epoch'): it would deal the samples anew in every version; choose "
        "samples by select(slice(...))"
    )


@dataclass(frozen=True)
class BlocksCall(MethodCall):
    """`.blocks(blocks, of=...)`."""

    function = ".blocks"

    blocks: Any = argument(metadata=frozen_by(FrozenArray.of))
    of: BlockKind = "chunk"

    def apply(self, resolved: ResolvedData) -> ResolvedData:
        """Choose what of the samples lies in some chunks, or shards, along the sample axis."""
        check_choice("of", self.of, BLOCK_KINDS)
        resolved.check_choice("blocks")
        planned = plan_blocks(resolved.fields, resolved.num_sample_columns, block=self.of, aligns=False)
        choice = resolved.choice.blocks(self.blocks, planned.rows, self.of, planned.edges)
        return replace(resolved, choice=choice)

    def check_may_grow(self) -> None:
        """Refuse every one."""
        _refuse_dealing("blocks")


def freeze_step(step: Any) -> Any:
    """Return a step in the one way in which an expression writes it."""
    parsed = GapStep.parse(step)
    return None if parsed is None else parsed.written


def _with_window(column: Column, offsets: Any, pad: Any) -> Column:
    """Return a column with the rows at some offsets, padded; a static array has those of its stack."""
    alone = column.field.has_one_row or column.field.is_of_segments
    window = None if alone else parse_window(column.items.name, offsets)
    return replace(column, window=window and replace(window, pad=parse_pad(column.items.name, pad)))


@dataclass(frozen=True)
class WindowCall(MethodCall):
    """`.window(offsets, segment_ends=..., rows=..., pad=..., mask=..., gaps=..., step=..., stride=...)`.

    `found` are the gaps, if they were found before.
    """

    function = ".window"

    offsets: Any = argument(metadata=frozen_by(freeze_offsets))
    segment_ends: Any = argument(default=None, metadata=frozen_by(freeze_rows))
    rows: Any = argument(default=None, metadata=frozen_by(freeze_rows))
    pad: Any = None
    mask: bool = argument(default=False, metadata=frozen_by(bool))
    gaps: GapMode = "drop"
    step: Any = argument(default=None, metadata=frozen_by(freeze_step))
    stride: Any = 1
    found: Gaps | None = argument(
        kw_only=True, default=None, repr=False, compare=False, metadata=frozen_by(applied_only)
    )

    def apply(self, resolved: ResolvedData) -> ResolvedData:
        """Make each sample the rows at some offsets from its own."""
        check_int("stride", self.stride, 1)
        resolved.check_choice("window")
        if resolved.packed is not None:
            raise ConfigError("window() follows pack_sequences(), which makes samples of several rows already")
        if resolved.choice.windowed:
            raise ConfigError("window() was called before: name the offsets of all arrays in one call")
        items, pad = resolved.items, self.pad
        check_not_named(self.offsets, resolved.columns)
        offsets = by_field("offsets", with_length_as_rows(self.offsets), items, of_rows=True)
        pads = by_field("pad", pad, items, of_rows=True)
        if self.mask and all(one is None for one in pads):
            raise ConfigError("mask = True marks rows that are padded: give pad, too")
        if not isinstance(pad, Mapping):  # for all windows, on both sides
            pads = [pad] * len(items)
        columns = list(map(_with_window, resolved.columns, offsets, pads))
        windows = [one.window for one in columns]
        if all(window is None for window in windows):
            raise ConfigError(
                f"offsets = {self.offsets!r}, must be an integer, a sequence of integers, or a mapping of names to "
                "these"
            )
        if lead_of(windows) is not None and "lead" in resolved.taken_names():
            raise ConfigError(
                "a batch has the drawn distance as 'lead', and the samples already have an array of this name"
            )
        choice, chosen = resolved.choice.window(
            windows,
            segment_ends=self.segment_ends,
            rows=self.rows,
            gaps=self._gap_rule(resolved, windows),
            stride=int(self.stride),
        )
        arguments = (self.segment_ends, self.rows, pad, self.mask, self.gaps, self.step, self.stride)
        origin = resolved.origin
        if self.segment_ends is not None:
            stores = None if origin.stores is None else origin.stores.first
            origin = replace(origin, segments=Segments.of(np.asarray(self.segment_ends), stores))
        made = replace(
            resolved,
            columns=tuple(replace(one, window=with_borders(one.window, chosen.borders)) for one in columns),
            origin=origin,
            masks=bool(self.mask),
            windowing=Windowing(resolved.choice, arguments, chosen.gaps),
        )
        if resolved.origin.drops_gaps:
            return replace(made, choice=choice.without_gaps(made.fields))
        check_gaps_can_be_nan(made.fields)
        return replace(made, choice=choice)

    def _gap_rule(self, resolved: ResolvedData, windows: Sequence[Window | None]) -> GapRule | None:
        """Return the rule that finds gaps; None if windows may span them, or have one row. Reads the coordinate."""
        check_choice("gaps", self.gaps, GAP_MODES)
        step = GapStep.parse(self.step)
        if self.gaps == "ignore":
            if step is not None:
                raise ConfigError(f"step = {self.step!r} says which differences are gaps, and gaps = 'ignore'")
            return None
        if reach(windows) == (0, 0):
            return None
        if self.found is not None:
            return GapRule(self.gaps, step, (), self.found)
        required = self.gaps == "error" or step is not None
        known = resolved.origin.coordinates
        return GapRule(self.gaps, step, gap_coordinates(known, required=required))

    def check_may_grow(self) -> None:
        """Refuse segments."""
        if self.segment_ends is not None:
            raise ConfigError("segment_ends cannot be given after open(..., refresh='epoch'): the last one moves")


@dataclass(frozen=True)
class WithOffsetsCall(MethodCall):
    """`.with_offsets(offsets)`: the expression has the offsets in its last `.window(...)`."""

    function = ".with_offsets"

    offsets: Any = argument(metadata=frozen_by(freeze_offsets))

    def apply(self, resolved: ResolvedData) -> ResolvedData:
        """Make the windows anew, with other offsets and the other arguments of `window` as they were."""
        windowing = resolved.windowing
        if windowing is None:
            raise ConfigError(
                "offsets cannot be changed: the samples are no windows, or split() dealt them after window(); call "
                "Data.window() after split()"
            )
        columns = tuple(replace(one, window=None) for one in resolved.columns)
        before = replace(resolved, columns=columns, choice=windowing.choice, windowing=None)
        return WindowCall(self.offsets, *windowing.arguments, found=windowing.gaps).apply(before)

    def added_to(self, expression: Expression) -> Expression:
        """Return the expression with other offsets in its last `.window(...)`."""
        calls = list(expression.calls)
        last = max(number for number, call in enumerate(calls) if isinstance(call, WindowCall))
        calls[last] = replace(calls[last], offsets=self.frozen().offsets)  # type: ignore[call-arg]
        return Expression(expression.opened, tuple(calls))


def _freeze_isel(isel: Any) -> Any:
    indexers = parse_isel(isel, {})
    return freeze(dict(indexers)) if indexers else None


@dataclass(frozen=True)
class PatchCall(MethodCall):
    """`.patch(size, context=..., sampling=..., border=..., stride=..., pad=..., ..., flip=..., isel=...)`."""

    function = ".patch"

    size: Any
    context: Any = None
    sampling: str = "tiles"
    border: Any = "pad"
    stride: Any = None
    pad: Any = 0
    positions: Any = argument(
        default=None, metadata=frozen_by(lambda one: None if one is None else FrozenArray.of(one))
    )
    n: Any = None
    weights: Any = argument(default=None, metadata=frozen_by(frozen_weights))
    flip: Sequence[str | int] = argument(default=(), metadata=frozen_by(tuple))
    rotate: Sequence[str | int] = argument(default=(), metadata=frozen_by(tuple))
    isel: Any = argument(default=None, metadata=frozen_by(_freeze_isel))

    def apply(self, resolved: ResolvedData) -> ResolvedData:
        """Make samples boxes of the arrays."""
        request = PatchRequest.parse(**{one.name: getattr(self, one.name) for one in fields(self)})
        if resolved.patching is not None:
            raise ConfigError("patch() was called before: call it once, with the sizes of all dimensions")
        if resolved.stacks or resolved.blend is not None:
            raise ConfigError("patch: samples are stacked or mixed; call patch() before stack() and zarrfeed.mix()")
        if resolved.expected is not None:
            raise ConfigError(
                f"patch: samples are {resolved.expected.state}, which patches cannot be; patch(weights=) weights voxels"
            )
        if resolved.given is not None:
            raise ConfigError(f"patch: {IN_ORDER}, which patches cannot have; patch(positions=) lists patches")
        return resolved.cut(request)


def _freeze_gap(gap: Any) -> Any:
    """Return a gap in the one way in which an expression writes it."""
    return freeze_step(gap) if isinstance(gap, str | timedelta | np.timedelta64) else freeze(gap)


@dataclass(frozen=True)
class SplitCall(MethodCall):
    """`.split(parts, by=..., seed=..., gap=..., groups=..., stratify=..., folds=..., fold=...)[part]`."""

    function = ".split"

    parts: Any = argument(metadata=frozen_by(lambda parts: parts if parts is None else tuple(map(freeze, parts))))
    by: Any = argument(default=None, metadata=frozen_by(lambda by: None if by == "chunk" else by))
    seed: Any = 0
    gap: Any = argument(default=0, metadata=frozen_by(_freeze_gap))
    groups: Any = argument(default=None, metadata=frozen_by(freeze_coords))
    stratify: Any = argument(default=None, metadata=frozen_by(freeze_coords))
    folds: Any = None
    fold: Any = None
    part: int = argument(default=0, repr=False)

    def deal(self, resolved: ResolvedData) -> tuple[ResolvedData, ...]:
        """Return the samples of each part. Reads the columns of groups, of classes, and of times."""
        resolved.check_choice("split")
        rule = SplitRule(
            self.parts,
            by=self.by,
            seed=self.seed,
            gap=row_gap(resolved, self.gap),
            groups=sample_labels(resolved, "groups", self.groups),
            classes=sample_labels(resolved, "stratify", self.stratify),
            folds=self.folds,
            fold=self.fold,
        )
        field_set, _ = resolved.planned(block="shard" if rule.by == "shard" else None)
        kind: BlockKind | None = "shard" if rule.by == "shard" else resolved.choice.kind
        choices = resolved.choice.split(field_set, rule)
        return tuple(replace(resolved, choice=replace(choice, kind=kind), windowing=None) for choice in choices)

    def warning(self, dealt: Sequence[ResolvedData]) -> str:
        """Return the text of a warning about parts that are not as large as was asked for; "" if they are."""
        asked = self.parts if self.folds is None else (self.folds - 1, 1)
        units = "groups are dealt whole"
        if self.groups is None:
            units = f'{self.by or "chunk"}s are dealt whole; by="sample" or by="contiguous" deals samples'
        return far_from(asked, [one.choice.length for one in dealt], units)

    def apply(self, resolved: ResolvedData) -> ResolvedData:
        """Choose the samples of the part."""
        return self.deal(resolved)[self.part]

    def check_may_grow(self) -> None:
        """Refuse every one."""
        _refuse_dealing("split")

    def __str__(self) -> str:
        return f"{super().__str__()}[{self.part}]"
