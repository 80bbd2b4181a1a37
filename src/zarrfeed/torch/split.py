"""`split`: datasets over parts of a dataset's samples, disjoint and together all of them but for what a gap takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.suggestions import checks_option_names
from zarrfeed.base.validate import check_choice, check_int
from zarrfeed.plan.selection import Int64, Selection, selection_of
from zarrfeed.plan.window_rows import separate_parts
from zarrfeed.torch.iterable_dataset import ZarrIterableDataset

_LONGEST_GAP = 2**40

By = Literal["chunk", "sample", "contiguous"]


@checks_option_names
def split(
    dataset: ZarrIterableDataset, parts: Sequence[float], *, by: By = "chunk", seed: int = 0, gap: int | None = 0
) -> tuple[ZarrIterableDataset, ...]:
    """Split a dataset into several, as `torch.utils.data.random_split` does.

    Parameters
    ----------
    dataset
        Its samples are shared out: those that it selects. It stays as it is.
    parts
        Fractions whose sum is 1, or numbers of samples whose sum is that of the dataset; none is 0. What fractions
        leave over goes to the first parts, one sample each.
    by
        "chunk": whole blocks, drawn at random, so that no chunk is read for two parts (of windows, few are); a part has
        as many samples as blocks allow. "sample": samples drawn at random; most chunks are then read for every part.
        "contiguous": runs of samples in the order of the array.
    seed
        Of what is drawn, in [0, 2**64): the same parts come out of the same seed, in every process.
    gap
        How many rows, at least, no part reads between the rows of one part and those of the next in the array. Windows
        (`offsets=`) stay inside their own part, therefore: after the parts are dealt, a sample is left out if its
        window has a row of another part. `explain()` and the repr of a part say how many samples that were. None:
        nothing is left out, and windows may read rows of other parts.

    Returns
    -------
    One dataset a part: configured as `dataset` is, but for `lanes` and memory where these are derived from the number
    of samples; each begins with epoch 0 and counts its own epochs.

    Raises
    ------
    ConfigError
        If the parts do not make up the dataset, one would have no sample, or one loses more than half of its samples to
        the gap; with by="sample" if one loses any, since neighbours are dealt to different parts.
    """
    check_int("seed", seed, 0, 2**64 - 1)
    if gap is not None:
        check_int("gap", gap, 0, _LONGEST_GAP)
    check_choice("by", by, get_args(By))
    order = dataset.session.schedule.order
    lengths = _lengths(parts, order.length)
    if by == "chunk":
        whole = order.selection or selection_of(
            range(order.num_samples),
            np.arange(order.num_blocks),
            num_samples=order.num_samples,
            block_rows=order.block_rows,
        )
        assert whole is not None
        selections = split_blocks(whole, lengths, seed)
    else:
        samples = np.arange(order.num_samples) if order.selection is None else order.selection.listed()
        if by == "sample":
            samples = samples[_permutation(len(samples), seed)]
        selections = [
            Selection.of_samples(np.sort(part), order.block_rows) for part in np.split(samples, np.cumsum(lengths)[:-1])
        ]
    left_out = () if order.selection is None else order.selection.left_out
    if gap is None:
        selections = [replace(selection, left_out=left_out) for selection in selections]
    else:
        fields = dataset.session.schedule.fields
        selections = separate_parts(selections, fields, gap=int(gap), exactly=by == "sample", left_out=left_out)
    return tuple(dataset.with_selection(selection) for selection in selections)


def _lengths(parts: Sequence[float], total: int) -> list[int]:
    """Return the number of samples of every part."""
    numbers = [float(part) for part in parts]
    if not numbers or not all(0 < number < math.inf for number in numbers):
        raise ConfigError(f"parts = {list(parts)}, must be numbers above 0")
    if abs(sum(numbers) - 1) < 1e-6 and max(numbers) <= 1:
        lengths = [math.floor(total * number) for number in numbers]
        for i in range(total - sum(lengths)):
            lengths[i % len(lengths)] += 1
    elif sum(numbers) == total and all(number.is_integer() for number in numbers):
        lengths = [int(number) for number in numbers]
    else:
        raise ConfigError(
            f"parts = {list(parts)}, must be fractions with the sum 1, or numbers of samples with the sum {total}"
        )
    if 0 in lengths:
        raise ConfigError(f"parts = {list(parts)}, of {total} samples gives {lengths}: every part must have one")
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
    line = np.cumsum(whole.rows[drawn])
    wanted = np.cumsum(lengths)[:-1]
    # the cut behind block i leaves line[i] samples on its left
    after = np.clip(np.searchsorted(line, wanted), 0, len(line) - 1)
    before = np.maximum(after - 1, 0)
    cuts = np.where(wanted - line[before] < line[after] - wanted, before, after) + 1
    number = np.arange(len(cuts))
    cuts = np.maximum.accumulate(cuts - number) + number
    cuts = np.minimum(cuts, len(drawn) - len(cuts) + number)
    return [whole.at(np.sort(part)) for part in np.split(drawn, cuts)]


def _permutation(n: int, seed: int) -> Int64:
    """Return a random permutation, the same in all versions of numpy: its Philox stream is guaranteed."""
    order: Int64 = np.argsort(np.random.Philox(key=seed).random_raw(n), kind="stable")
    return order
