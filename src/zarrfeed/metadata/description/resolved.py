"""The content of a `Data`: opened arrays, the conversions of their items, and the chosen samples.

Invariant: all metadata were read by `open_fields`; nothing here reads a store. Each method returns another description
or refuses what cannot work, so that a dataset has nothing left to refuse but what concerns feeding.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.validate import check_choice
from zarrfeed.metadata.array.conversion import Items
from zarrfeed.metadata.description.batch_sides import field_infos, keys_of_sides, window_fields
from zarrfeed.metadata.group.batch_columns import Array, Column, Opened, Origin
from zarrfeed.metadata.group.coordinates import GIVE_COORDS
from zarrfeed.metadata.group.segment_columns import read_any_column
from zarrfeed.metadata.group.stacking import Stacked, typed_masks, with_stack_slices
from zarrfeed.metadata.group.static_channels import channel_like, templates_of
from zarrfeed.metadata.patches.patch_request import PatchRequest
from zarrfeed.metadata.patches.patching import Patching
from zarrfeed.plan.blocks.blocks import plan_blocks
from zarrfeed.plan.choice.buckets import Buckets
from zarrfeed.plan.choice.counts_of_sources import CountsOfSources
from zarrfeed.plan.choice.crop_starts import CropStarts
from zarrfeed.plan.choice.packed_sequences import PackedSequences
from zarrfeed.plan.choice.sample_choice import SampleChoice
from zarrfeed.plan.mixture.blend import Blend
from zarrfeed.plan.samples.expected_counts import ExpectedCounts
from zarrfeed.plan.samples.given_samples import GivenSamples
from zarrfeed.plan.samples.selection import Select, Selection, select_samples
from zarrfeed.plan.windows.gaps import Gaps
from zarrfeed.spec.description.expression import COORDS, FieldInfo
from zarrfeed.spec.fields.field import (
    BLOCK_KINDS,
    BlockKind,
    Field,
    FieldSet,
    IndexField,
    check_pad,
)
from zarrfeed.spec.fields.static import StaticField
from zarrfeed.spec.samples.coordinate import Coordinate

#: Bytes for fields that are kept in memory, where no dataset says how much memory it has: that of the usual budget.
_USUAL_ROOM = 64 << 20
#: Words of messages about samples with an order of their own.
IN_ORDER = "samples have the order of select(keep_order=True)"


@dataclass(frozen=True, eq=False)
class Windowing:
    """The arguments of `window`: the choice of samples before it, the arguments beside the offsets, and the gaps found.

    No gaps: none were looked for.
    """

    choice: SampleChoice
    arguments: tuple[Any, ...]
    gaps: Gaps | None = None


@dataclass(frozen=True, eq=False)
class ResolvedData:
    """The samples of a `Data`, in index space.

    Attributes
    ----------
    columns
        The parts of a batch, in its order: those of the samples, then those of the targets.
    origin
        The facts about the samples that are not in their arrays.
    choice
        The chosen samples, of all that the arrays have.
    masks
        True if a batch says, for each column whose windows are padded, which rows are padded.
    has_lengths
        True if samples are whole sequences: a batch has their lengths, and no rows beyond the longest one.
    packed
        The sequences that packed samples have. None: samples are not packed.
    next_targets
        True if a batch has the rows behind those of the samples as targets, as views of the same tensors.
    windowing
        The arguments of `window`. None: there are no windows, or samples were dealt since then.
    statics
        Arrays that are the same for all samples.
    stacks
        The columns that share a tensor.
    blend
        The sources of a mixture, and how they are mixed. None: no mixture.
    patching
        The cut of samples that are patches. None: samples are no patches.
    expected
        The expected count of each chosen sample; the recordings that they are starts of crops of; or the buckets that
        they come in. None: each chosen sample comes once, in any order.
    given
        The chosen samples in the order that the user gives. None: in that of the array, or shuffled.
    """

    columns: tuple[Column, ...]
    origin: Origin
    choice: SampleChoice
    masks: bool = False
    has_lengths: bool = False
    packed: PackedSequences | None = None
    next_targets: bool = False
    windowing: Windowing | None = None
    statics: tuple[StaticField, ...] = ()
    stacks: tuple[Stacked, ...] = ()
    blend: Blend | None = None
    patching: Patching | None = None
    expected: ExpectedCounts | CropStarts | Buckets | None = None
    given: GivenSamples | None = None

    @classmethod
    def of(cls, opened: Opened) -> Self:
        """Return all samples of what was opened, as they are stored or decoded."""
        choice = SampleChoice.all_of(opened.arrays[0].field.num_samples)
        if opened.origin.segments is not None:
            choice = choice.with_segments(np.concatenate(([0], opened.origin.segments.ends)))
        return cls(tuple(map(Column, opened.arrays)), opened.origin, choice)

    def __post_init__(self) -> None:
        assert self.fields  # a conversion or a window that cannot be is refused here

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """The arrays with their conversions and windows."""
        made = [self._delivered(one) for one in self.columns]
        for number, template in templates_of(self.columns, self.stacks).items():
            made[number] = channel_like(self.columns[number], made[template])
        for number, mask in typed_masks(self.columns, made, self.stacks).items():
            made[number] = self._delivered(mask)
        return with_stack_slices(made, self.columns, self.stacks)

    def _delivered(self, column: Column) -> Field:
        if self.patching is None or column.patch_axes is None:
            return column.delivered()
        return self.patching.cut(column.delivered(), column.patch_axes)

    @property
    def items(self) -> list[Items]:
        """The description of the items of each column."""
        return [one.items for one in self.columns]

    @property
    def num_sample_columns(self) -> int:
        """The number of columns, at the beginning, that are of the samples."""
        return [one.items.side for one in self.columns].count("samples")

    @property
    def length(self) -> int:
        """Number of chosen samples; of patches, that of a typical epoch; of weighted samples, that of any epoch."""
        if self.expected is not None:
            return self.expected.total
        if self.given is not None:
            return len(self.given)
        return self.choice.length if self.patching is None else self.patching.typical_length

    def mapped(self, change: Callable[..., Column], *said: Iterable[Any]) -> Self:
        """Return the description with `change` of each column; `said` has its further arguments, for each column."""
        return replace(self, columns=tuple(map(change, self.columns, *said)))

    def changed(self, chosen: Container[Column], change: Callable[[Column], Column]) -> Self:
        """Return the description with `change` of the chosen columns."""
        return self.mapped(lambda one: change(one) if one in chosen else one)

    def cut(self, request: PatchRequest) -> Self:
        """Return patches of the samples, which are rows or windows; or other patches, if they are patches."""
        if self.next_targets:
            raise ConfigError(
                "patch() follows next_targets(), which patches have none of: open the array as targets, too"
            )
        stores = self.origin.stores
        ends = np.zeros(0, dtype=np.int64) if stores is None else stores.first
        patching, axes = Patching.of(request, self.columns, self.choice.listed(), ends)
        columns = tuple(map(Column.with_patch_axes, self.columns, axes))
        return replace(self, columns=columns, patching=patching, windowing=None)

    def without_patches(self) -> Self:
        """Return the whole samples that patches are cut out of."""
        return replace(self, columns=tuple(one.with_patch_axes(None) for one in self.columns), patching=None)

    def infos(self) -> tuple[FieldInfo, ...]:
        """Describe each tensor of a batch: that of an array, or of several that are stacked."""
        return field_infos(self)

    def taken_names(self) -> list[str]:
        """Return the names that arrays of the samples have, in a batch or before they are stacked."""
        named = [one.key or one.side for one in self.items if one.side == "samples"]
        stacks = [one.tensor_name for one in self.stacks if one.side == "samples"]
        return [*named, *stacks, *(one.name for one in self.statics)]

    @property
    def called_last(self) -> str:
        """The call whose effect would be lost in samples that are joined with others; "" if there is none."""
        called = {
            "next_targets()": self.next_targets,
            "pad_sequences()": self.has_lengths,
            "window(mask=True)": self.masks,
        }
        return next((method for method, is_called in called.items() if is_called), "")

    def select(self, samples: Select, *, keep_order: bool = False) -> Self:
        """Choose samples by their positions among those that are chosen; `keep_order`: in the order of these."""
        if not keep_order and self.given is None:
            self.check_choice("select")
            return replace(self, choice=self.choice.select(samples))
        replace(self, given=None).check_choice("select(keep_order=True)" if keep_order else "select")
        if not keep_order:  # of a list that has an order, some samples, in that order
            assert self.given is not None
            samples = np.asarray(select_samples(samples, len(self.given)))
        choice, given = self.choice.in_order(samples, self.given)
        return replace(self, choice=choice, given=given)

    def coordinate(self, name: str | None = None, given: Any = None, *, remedy: str = GIVE_COORDS) -> Coordinate:
        """Return a coordinate of all samples of the arrays, chosen or not; it is read when it is first asked for.

        Parameters
        ----------
        name
            The name, such as "time", or as `read_column` takes it. None: the coordinate of the sample dimension, which
            has the dimension's name.
        given
            Its values, of all samples of the arrays, or an array that has them. None: they are stored.
        remedy
            Advice for a name that is not stored, as in `Coordinates.read`.

        Raises
        ------
        ConfigError, UnsupportedError, StoreReadError, CorruptChunkError
            As in `Coordinates.read`.
        """
        known = self.origin.coordinates
        if name is not None and given is None:
            found = read_any_column(self.origin, name, remedy=remedy, borders=self.choice.borders)
        elif known is None:
            raise ConfigError(f"coordinate {name!r}: these samples have no coordinates")
        else:
            found = known.read() if given is None else known.given(name or "samples", given)
        if len(found.values) < self.choice.num_samples:
            raise ConfigError(
                f"{found.where}: had {len(found.values)} values when it was opened, there are "
                f"{self.choice.num_samples} samples by now"
            )
        return replace(found, values=found.values[: self.choice.num_samples])

    @property
    def counts(self) -> ExpectedCounts | CountsOfSources | None:
        """The weights of samples, or of those of the sources of a mixture; None if there are none."""
        if self.blend is not None:
            counts = CountsOfSources(self.blend.expected)
            return counts if counts.weighted else None
        return self.expected if isinstance(self.expected, ExpectedCounts) else None

    def with_counts(self, counts: ExpectedCounts | CountsOfSources) -> Self:
        """Return the same samples with other weights."""
        if isinstance(counts, ExpectedCounts):
            return replace(self, expected=counts)
        assert self.blend is not None
        return replace(self, blend=replace(self.blend, expected=counts.sources))

    def check_rows(self, method: str) -> None:
        """Raise ConfigError for a method that chooses samples, or rows of them, if samples are patches."""
        if self.patching is not None:
            raise ConfigError(f"{method}: samples are patches; call patch() last of what chooses samples")

    def check_choice(self, method: str) -> None:
        """Raise ConfigError for a method that chooses samples, if they are patches, or are weighted already."""
        self.check_rows(method)
        if self.expected is not None:
            raise ConfigError(f"{method}: samples are {self.expected.state}; {self.expected.advice}")
        if self.blend is not None and self.blend.expected:
            drawn = next(one for one in self.blend.expected if one is not None)
            raise ConfigError(f"{method}: sources of the mixture are {drawn.state}; {drawn.advice}")
        if self.given is not None:
            raise ConfigError(f"{method}: {IN_ORDER}; call select(keep_order=True) last of what chooses samples")

    def planned(
        self,
        *,
        block: BlockKind | None = None,
        room: int = _USUAL_ROOM,
        aligns: bool = True,
        return_index: bool = False,
    ) -> tuple[FieldSet, Selection | None]:
        """Choose blocks for a reader: return the fields, and the chosen samples block by block.

        Parameters
        ----------
        block
            The stored objects that make the blocks. None: those by which the samples were chosen, else chunks.
        room, aligns
            The arguments of `plan_blocks`.
        return_index
            If True, the sample's index is the last field.

        Returns
        -------
        The fields, and the samples that are chosen; None for all.

        Raises
        ------
        ConfigError
            If shards are to make the blocks, and there are none.
        """
        if self.patching is not None:
            return self._planned_patches(return_index=return_index), None
        kind = block or self.choice.kind or "chunk"
        check_choice("block", kind, BLOCK_KINDS)
        aligns = aligns and self.choice.aligned
        names = [one.items.side for one in self.columns]
        ends = {"samples": names.count("samples"), "targets": len(names) - names.count(COORDS)}
        first = self.fields[: ends["targets"]]  # coordinates that are returned decide on no block
        blocks = plan_blocks(first, ends["samples"], block=kind, room=room, aligns=aligns)
        fields, sides, primary = [*blocks.fields, *self.fields[len(first) :]], keys_of_sides(self), blocks.primary
        for f in fields:
            check_pad(f)
        for side, masks in reversed(window_fields(self).items()):
            number, end = int(side == "targets"), ends[side]
            fields[end:end] = masks
            if primary is not None and primary >= end:
                primary += len(masks)
            keys = sides[number] or (side,)  # a single array becomes an entry of a dict, beside its mask
            sides[number] = (*keys, *(mask.name for mask in masks))
        if return_index:
            fields.append(IndexField(self.choice.num_samples))
            sides.append(None)
        edges = blocks.edges if self.blend is None else self.blend.edges(blocks.edges, blocks.rows)
        field_set = FieldSet(tuple(fields), tuple(sides), primary, blocks.rows, kind, edges, self.next_targets)
        return field_set, self.choice.selection(blocks.rows, edges)

    def _planned_patches(self, *, return_index: bool) -> FieldSet:
        """Return the fields of patches, whose blocks an order of each epoch has."""
        fields, sides = list(self.fields), keys_of_sides(self)
        for f in fields:
            check_pad(f)
        if return_index:
            fields.append(IndexField(self.choice.num_samples))
            sides.append(None)
        return FieldSet(tuple(fields), tuple(sides), None, 1)

    def plain(self, numbers: Sequence[int]) -> Self:
        """Return the chosen samples of some columns, each its own row, as their values are before `normalize`.

        A batch has each under its number.
        """
        choice, columns = self.choice.without_windows(), []
        if self.packed is not None:
            rows = self.packed.filled(np.asarray(self.choice.listed()))
            choice = replace(SampleChoice.all_of(choice.num_samples), samples=rows, bounds=None)
        for n in numbers:
            array, before = self.columns[n].array, self.columns[n].before
            named = [replace(one, side="samples", key=str(n)) for one in array.all_items]
            # stores whose dtypes differ have been converted to one before they were joined
            casts = tuple(replace(request.before_normalize(), dtype=request.dtype) for request in before)
            renamed = replace(array, items=named[0], other_items=tuple(named[1:]))
            columns.append(Column(renamed, self.columns[n].requested.before_normalize(), casts))
        return replace(
            self,
            columns=tuple(columns),
            choice=choice,
            masks=False,
            has_lengths=False,
            packed=None,
            next_targets=False,
            statics=(),
            stacks=(),
            blend=None,
            patching=None,
            expected=None,
            given=None,
        )

    def holds_same(self, other: ResolvedData) -> bool:
        """Return whether both stand for the same arrays: equal metadata, and in memory equal values."""
        ours, theirs = self._all_fields(), other._all_fields()
        return len(ours) == len(theirs) and all(our.holds_same(their) for our, their in zip(ours, theirs, strict=True))

    def with_array(self, array: Array) -> Self:
        """Add one more array in memory to the samples."""
        self.check_rows("other arrays in memory")
        at = self.num_sample_columns
        return replace(self, columns=(*self.columns[:at], Column(array), *self.columns[at:]))

    def _all_fields(self) -> list[Field]:
        return [*self.fields, *(one.source for one in self.statics)]
