"""Splits: the samples of a description dealt to parts, disjoint and together all of them but for what a gap takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, TypeAlias, get_args

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.validate import check_choice, check_int, check_list
from zarrfeed.plan.samples.left_out import LeftOut
from zarrfeed.plan.samples.part_rows import separate_parts
from zarrfeed.plan.samples.selection import Int64, Selection, selection_of
from zarrfeed.spec.field import FieldSet

_LONGEST_GAP = 2**40

#: How samples are dealt to parts; `Data.split` says what each means.
By: TypeAlias = Literal["chunk", "shard", "sample", "contiguous"]


def split_selection(
    fields: FieldSet,
    selection: Selection | None,
    parts: Sequence[float],
    *,
    by: By,
    seed: int,
    gap: int | None,
    left_out: tuple[LeftOut, ...] = (),
) -> list[Selection]:
    """Deal the selected samples of some fields to parts, as `Data.split` describes it.

    Parameters
    ----------
    fields
        Their blocks are what by="chunk" and by="shard" deal.
    selection
        The samples that are shared out; None: all.
    parts, by, seed, gap
        As of `Data.split`.
    left_out
        What was left out before the split.

    Raises
    ------
    ConfigError
        As `Data.split` does.
    """
    check_int("seed", seed, 0, 2**64 - 1)
    if gap is not None:
        check_int("gap", gap, 0, _LONGEST_GAP)
    check_choice("by", by, get_args(By))
    num_samples, block_rows = fields.num_samples, fields.block_rows
    lengths = _lengths(parts, num_samples if selection is None else selection.length)
    if by in ("chunk", "shard"):
        every_block = np.arange(-(-num_samples // block_rows))
        whole = selection or selection_of(
            range(num_samples), every_block, num_samples=num_samples, block_rows=block_rows
        )
        assert whole is not None
        selections = split_blocks(whole, lengths, seed)
    else:
        one_run = range(num_samples) if selection is None else selection.as_run()
        if by == "contiguous" and one_run is not None:
            dealt = [one_run[end - length : end] for length, end in zip(lengths, np.cumsum(lengths), strict=True)]
            selections = [Selection.of_range(part, block_rows, fields.edges) for part in dealt]
        else:
            samples = np.arange(num_samples) if selection is None else selection.listed()
            if by == "sample":
                samples = samples[_permutation(len(samples), seed)]
            listed = np.split(samples, np.cumsum(lengths)[:-1])
            selections = [Selection.of_samples(np.sort(part), block_rows, fields.edges) for part in listed]
    if gap is None:
        return [replace(selection, left_out=left_out) for selection in selections]
    return separate_parts(selections, fields, gap=int(gap), exactly=by == "sample", left_out=left_out)


def _lengths(parts: Sequence[float], total: int) -> list[int]:
    """Return the number of samples of every part."""
    parts = check_list("parts", parts, "numbers above 0")
    are_numbers = all(isinstance(part, int | float | np.number) for part in parts)
    numbers = [float(part) for part in parts] if are_numbers else []
    if not numbers or not all(0 < number < math.inf for number in numbers):
        raise ConfigError(f"parts = {parts}, must be numbers above 0")
    if abs(sum(numbers) - 1) < 1e-6 and max(numbers) <= 1:
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


def split_blocks(whole: Selection, lengths: Sequence[int], seed: int) -> list[Selection]:
    """Deal blocks in random order, and cut where the parts' lengths are nearest, but give each part a block.

    Raises
    ------
    ConfigError
        If there are fewer blocks than parts.
    """
    if len(lengths) > len(whole.blocks):
        raise ConfigError(
            f"{len(whole.blocks)} blocks of up to {whole.max_rows} samples cannot be split into {len(lengths)} parts: "
            'every part must have a block; by="sample" splits blocks'
        )
    drawn = _permutation(len(whole.blocks), seed)
    ends = np.cumsum(whole.rows[drawn])
    wanted = np.cumsum(lengths)[:-1]
    # the cut behind block i leaves ends[i] samples on its left
    after = np.clip(np.searchsorted(ends, wanted), 0, len(ends) - 1)
    before = np.maximum(after - 1, 0)
    cuts = np.where(wanted - ends[before] < ends[after] - wanted, before, after) + 1
    number = np.arange(len(cuts))
    cuts = np.maximum.accumulate(cuts - number) + number
    cuts = np.minimum(cuts, len(drawn) - len(cuts) + number)
    return [whole.at(np.sort(part)) for part in np.split(drawn, cuts)]


def _permutation(n: int, seed: int) -> Int64:
    """Return a random permutation, the same in all versions of numpy: its Philox stream is guaranteed."""
    order: Int64 = np.argsort(np.random.Philox(key=seed).random_raw(n), kind="stable")
    return order
