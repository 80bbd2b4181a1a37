"""Splits: the samples of a description dealt to parts, disjoint and together all of them but for what a gap takes.

Invariants:

- Units are dealt: blocks, all samples of a group, single samples or runs of these. Every unit comes to one part, and
  every part has a unit.
- With groups or strata, units with most of a class come first, each to the part for which the sum of
  (share of a class)^2 / (fraction of the part) grows least. Single samples of strata are dealt in turn, class by class,
  which is exact to two samples.
- By hash, the part of a group is a function of its label, the seed and the fractions alone.
- Fold k of n is part k of n parts of one size, with all others as training.
- A gap leaves out samples right before another part. A gap in time is, for each row, the rows before it that are less
  than the time away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeAlias, get_args

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.validate import check_choice, check_int, check_list
from zarrfeed.plan.choice.part_rows import RowGap, separate_parts
from zarrfeed.plan.samples.deal_units import (
    SampleLabels,
    cut_nearest,
    deal_by_hash,
    deal_evenly,
    deal_in_turn,
    permutation,
)
from zarrfeed.plan.samples.left_out import LeftOut
from zarrfeed.plan.samples.sample_set import runs_of
from zarrfeed.plan.samples.selection import Int64, Selection, selection_of
from zarrfeed.plan.samples.split_part import SplitPart
from zarrfeed.spec.fields.field import FieldSet

#: The rule by which samples are dealt to parts; `Data.split` explains each.
By: TypeAlias = Literal["chunk", "shard", "sample", "contiguous", "hash"]
#: Names that users give to "contiguous".
_ALONG_THE_SAMPLES = ("time", "date", "order")

#: Groups are dealt whole, by one of these.
_OF_GROUPS = (None, "contiguous", "hash")


@dataclass(frozen=True, eq=False)
class SplitRule:
    """The arguments of `Data.split`, which says what each means; labels were read, and a gap in time has its rows."""

    parts: Sequence[float] | None
    by: By | None = None
    seed: int = 0
    gap: RowGap | None = None
    groups: SampleLabels | None = None
    classes: SampleLabels | None = None
    folds: int | None = None
    fold: int | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError if arguments are wrong, or do not go together."""
        check_int("seed", self.seed, 0, 2**64 - 1)
        if self.by is not None:
            if str(self.by) in _ALONG_THE_SAMPLES:
                raise ConfigError(
                    f'by = {self.by!r}, must be "contiguous", which cuts along the samples, and takes a gap in time'
                )
            check_choice("by", self.by, get_args(By))
        if (self.parts is None) == (self.folds is None):
            raise ConfigError(
                f"parts = {self.parts!r} and folds = {self.folds!r}: exactly one must be given, such as (0.8, 0.2) or "
                "folds=5"
            )
        if self.folds is not None:
            check_int("folds", self.folds, 2, 2**20)
            check_int("fold", self.fold, 0, self.folds - 1)
        elif self.fold is not None:
            raise ConfigError(f"fold = {self.fold!r} names one of several folds: give folds, too, such as folds=5")
        if self.groups is not None and self.by not in _OF_GROUPS:
            raise ConfigError(f'by = {self.by!r}: groups are dealt whole; leave by out, or give "contiguous" or "hash"')
        if self.by == "hash" and self.groups is None:
            raise ConfigError('by = "hash" deals groups by a hash of their labels: give groups, too')
        if self.classes is not None and self.by in ("contiguous", "hash"):
            raise ConfigError(f"by = {self.by!r} deals samples whatever their classes are: leave by or stratify out")

    @property
    def dealt_parts(self) -> Sequence[float] | None:
        """The shares that are dealt: the folds, which have one size, or the parts as they were given."""
        return self.parts if self.folds is None else [1 / self.folds] * self.folds

    @property
    def fractions(self) -> list[float]:
        """The fraction of each part that is dealt."""
        numbers = _numbers(self.dealt_parts)
        if not _are_fractions(numbers):
            raise ConfigError(f"parts = {self.parts}, with groups or strata must be fractions with the sum 1")
        return numbers

    def lengths(self, total: int) -> list[int]:
        """Return the number of samples of every part that is dealt."""
        return _lengths(self.dealt_parts, total)


@dataclass(frozen=True)
class _Dealt:
    """The units of each part, and the function that makes a selection of units."""

    parts: Sequence[Int64]
    selection: Callable[[Sequence[Int64]], Selection]


def split_selection(
    fields: FieldSet, selection: Selection | None, rule: SplitRule, *, left_out: tuple[LeftOut, ...] = ()
) -> list[Selection]:
    """Deal the selected samples of some fields to parts, as `Data.split` describes it.

    Parameters
    ----------
    fields
        Their blocks are what by="chunk" and by="shard" deal.
    selection
        The samples that are shared out; None: all.
    rule
        The rule of the split.
    left_out
        Samples that were left out before the split.

    Raises
    ------
    ConfigError
        As `Data.split` does.
    """
    if rule.groups is not None:
        dealt = _deal_groups(fields, selection, rule)
    elif rule.by in (None, "chunk", "shard"):
        dealt = _deal_blocks(fields, selection, rule)
    else:
        dealt = _deal_samples(fields, selection, rule)
    if rule.folds is None:
        selections = [dealt.selection([units]) for units in dealt.parts]
    else:
        others = [units for number, units in enumerate(dealt.parts) if number != rule.fold]
        selections = [dealt.selection(others), dealt.selection([dealt.parts[rule.fold or 0]])]
    if rule.gap is None:
        separated = [replace(one, left_out=left_out) for one in selections]
    else:
        separated = separate_parts(selections, fields, gap=rule.gap, exactly=rule.by == "sample", left_out=left_out)
    if rule.groups is None and rule.classes is None:
        return separated
    every = _listed(fields, selection)
    return [
        replace(one, dealt=SplitPart.counted(part, len(separated), one.listed(), every, rule.groups, rule.classes))
        for part, one in enumerate(separated)
    ]


def _deal_blocks(fields: FieldSet, selection: Selection | None, rule: SplitRule) -> _Dealt:
    """Deal whole blocks: cut from blocks in random order where lengths are nearest, or evenly in classes."""
    num_samples, block_rows = fields.num_samples, fields.block_rows
    every_block = np.arange(-(-num_samples // block_rows))
    whole = selection or selection_of(range(num_samples), every_block, num_samples=num_samples, block_rows=block_rows)
    assert whole is not None
    if rule.classes is None:
        parts = block_parts(whole, rule.lengths(whole.length), rule.seed)
    else:
        _check_suffice(len(whole.blocks), len(rule.fractions), whole)
        unit = np.repeat(np.arange(len(whole.blocks)), whole.rows)
        parts = _deal_classes(unit, len(whole.blocks), rule.classes.codes[whole.listed()], rule)
    return _Dealt(parts, lambda units: whole.at(np.sort(np.concatenate(units))))


def _deal_samples(fields: FieldSet, selection: Selection | None, rule: SplitRule) -> _Dealt:
    """Deal single samples, or runs of them in the order of the array."""
    num_samples = fields.num_samples
    one_run = range(num_samples) if selection is None else selection.as_run()
    total = num_samples if selection is None else selection.length
    lengths = rule.lengths(total)
    if rule.by == "contiguous" and one_run is not None:
        ends = np.cumsum(lengths)
        runs = [np.array([one_run[end - n], one_run[end - 1] + 1]) for n, end in zip(lengths, ends, strict=True)]
        return _Dealt(runs, partial(_of_runs, fields))
    samples = _listed(fields, selection)
    if rule.classes is not None:
        parts = [samples[part] for part in deal_in_turn(rule.classes.codes[samples], lengths, rule.seed)]
    else:
        if rule.by == "sample":
            samples = samples[permutation(len(samples), rule.seed)]
        parts = np.split(samples, np.cumsum(lengths)[:-1])
    return _Dealt(parts, partial(_of_samples, fields))


def _deal_groups(fields: FieldSet, selection: Selection | None, rule: SplitRule) -> _Dealt:
    """Deal all samples of a group to one part."""
    groups = rule.groups
    assert groups is not None
    fractions = np.array(rule.fractions)
    samples = _listed(fields, selection)
    code, there = groups.codes[samples], groups.of(samples)
    if rule.by == "hash":
        # of all labels, chosen or not: the part of a group depends on its label alone
        parts = [part[np.isin(part, there)] for part in deal_by_hash(groups, fractions, rule.seed)]
        if not all(map(len, parts)):
            raise ConfigError(
                f"split by the hash of {groups.name}: its {len(there)} groups give {list(map(len, parts))} to parts: "
                "every part must have one; give another seed, or larger fractions to the small parts"
            )
    elif len(there) < len(fractions):
        raise ConfigError(
            f"{groups.name}: {len(there)} groups cannot be split into {len(fractions)} parts: every part must have one"
        )
    elif rule.by == "contiguous":
        parts = _runs_of_groups(code, groups, rule)
    else:
        unit = np.searchsorted(there, code)
        classes = np.zeros(len(code), dtype=np.int64) if rule.classes is None else rule.classes.codes[samples]
        parts = [there[units] for units in _deal_classes(unit, len(there), classes, rule)]
    return _Dealt(parts, lambda units: _of_samples(fields, [samples[np.isin(code, np.concatenate(units))]]))


def _runs_of_groups(code: Int64, groups: SampleLabels, rule: SplitRule) -> list[Int64]:
    """Return the groups of each part, cut from the groups as they follow each other in the array."""
    starts = np.flatnonzero(np.append(True, np.diff(code) != 0))
    in_order = code[starts]
    seen, counts = np.unique(in_order, return_counts=True)
    if (counts > 1).any():
        label = groups.text(int(seen[counts.argmax()]))
        raise ConfigError(
            f'by = "contiguous": {groups.name} {label!r} has samples in {int(counts.max())} places of the array, must '
            "have one run; leave by out to deal groups at random"
        )
    rows = np.diff(np.append(starts, len(code)))
    wanted = np.diff(np.round(np.cumsum([0.0, *rule.fractions]) * len(code))).astype(np.int64)
    return [in_order[units] for units in cut_nearest(rows, wanted.tolist())]


def _deal_classes(unit: Int64, num_units: int, classes: Int64, rule: SplitRule) -> list[Int64]:
    """Deal units evenly in classes, given the unit and the class of each sample."""
    there, code = np.unique(classes, return_inverse=True)
    counts = np.bincount(unit * len(there) + code.reshape(-1), minlength=num_units * len(there))
    return deal_evenly(counts.reshape(num_units, len(there)), np.array(rule.fractions), rule.seed)


def _listed(fields: FieldSet, selection: Selection | None) -> Int64:
    """Return all samples, ascending."""
    if selection is None or selection.are_boxes:
        return np.asarray(range(fields.num_samples) if selection is None else selection.in_order(fields.num_samples))
    return selection.listed()


def _of_samples(fields: FieldSet, listed: Sequence[Int64]) -> Selection:
    return Selection.of_samples(np.sort(np.concatenate(listed)), fields.block_rows, fields.edges)


def _of_runs(fields: FieldSet, runs: Sequence[Int64]) -> Selection:
    """Select samples of runs, each given by its first and the one behind it, ascending."""
    begin, end = np.stack(runs, axis=1)
    return Selection.of_runs(runs_of(begin, end - begin, 1), fields.block_rows, fields.edges)


def _numbers(parts: Sequence[float] | None) -> list[float]:
    named = parts.values() if isinstance(parts, Mapping) else parts if isinstance(parts, list | tuple) else ()
    if any(isinstance(part, slice) for part in named):
        raise ConfigError(
            f"parts = {parts!r}, must be numbers above 0, such as (0.8, 0.2); a part by its labels or rows is a call "
            "of its own: data.sel(time=slice('1990', '2015')), data[:800]"
        )
    parts = check_list("parts", parts, "numbers above 0, such as (0.8, 0.2); folds=5 makes five parts alike")
    are_numbers = all(isinstance(part, int | float | np.number) for part in parts)
    numbers = [float(part) for part in parts] if are_numbers else []
    if not numbers or not all(0 < number < math.inf for number in numbers):
        raise ConfigError(f"parts = {parts}, must be numbers above 0")
    return numbers


def _are_fractions(numbers: Sequence[float]) -> bool:
    return abs(sum(numbers) - 1) < 1e-6 and max(numbers) <= 1


def _lengths(parts: Sequence[float] | None, total: int) -> list[int]:
    """Return the number of samples of every part."""
    numbers = _numbers(parts)
    if _are_fractions(numbers):
        lengths = [math.floor(total * number) for number in numbers]
        for i in range(total - sum(lengths)):
            lengths[i % len(lengths)] += 1
    elif sum(numbers) == total and all(number.is_integer() for number in numbers):
        lengths = [int(number) for number in numbers]
    else:
        raise ConfigError(
            f"parts = {parts}, must be fractions with the sum 1, or numbers of samples with the sum {total}"
        )
    if 0 in lengths:
        raise ConfigError(f"parts = {parts}, of {total} samples gives {lengths}: every part must have one")
    return lengths


def _check_suffice(num_blocks: int, num_parts: int, whole: Selection) -> None:
    if num_parts > num_blocks:
        raise ConfigError(
            f"{num_blocks} blocks of up to {whole.max_rows} samples cannot be split into {num_parts} parts: "
            'every part must have a block; by="sample" splits blocks'
        )


def block_parts(whole: Selection, lengths: Sequence[int], seed: int) -> list[Int64]:
    """Return the held indices of each part: blocks in random order, cut where the parts' lengths are nearest.

    Raises
    ------
    ConfigError
        If there are fewer blocks than parts.
    """
    _check_suffice(len(whole.blocks), len(lengths), whole)
    drawn = permutation(len(whole.blocks), seed)
    return [drawn[units] for units in cut_nearest(whole.rows[drawn], lengths)]
