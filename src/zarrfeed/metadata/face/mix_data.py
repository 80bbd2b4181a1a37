"""`zarrfeed.mix`: several descriptions as sources of one stream, taken by weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.suggestions import checks_option_names
from zarrfeed.base.validate import check_choice, check_int
from zarrfeed.metadata.array.conversion import TorchDtypeLike
from zarrfeed.metadata.face.concat_data import as_one
from zarrfeed.metadata.face.data import Data
from zarrfeed.plan.choice.crop_starts import CropStarts
from zarrfeed.plan.mixture.blend import BATCHINGS, Batching, Blend
from zarrfeed.plan.mixture.mixture import END, parse_weights
from zarrfeed.plan.mixture.mixture_stop import Stop, check_stop
from zarrfeed.plan.samples.expected_counts import ExpectedCounts
from zarrfeed.spec.description.expression import Expression, MixCall
from zarrfeed.spec.description.freeze import FrozenMapping


@checks_option_names
def mix(
    data: Iterable[Data | Any],
    weights: Sequence[float] | Mapping[int, Sequence[float]] | None = None,
    *,
    stop: Stop = "first",
    batching: Batching = "per_sample",
    dtype: TorchDtypeLike | None = None,
) -> Data:
    """Describe a mixture: samples of several sources, in shares that you choose.

    A mixture is one endless sequence of samples. Which source step k takes follows from the weights, the seed and k
    alone, so it is the same for any number of ranks, DataLoader workers and threads; and so is which of its samples.
    Each source is read pass after pass, and goes on in the next epoch where it stopped. A pass has each sample once, in
    the order of the source, or shuffled anew. Passes overlap at their ends: see Notes. `ZarrIterableDataset` reads a
    mixture; `ZarrDataset`, which has no order, does not.

    Parameters
    ----------
    data
        The sources: a `Data` each, or whatever `zarrfeed.open` takes as `samples`, such as a list of stores. As of
        `zarrfeed.concat`, which numbers samples alike; `Data.source_of` tells the source of a sample's index.
        A source may be weighted (`Data.weight`, `Data.balance`), or random crops of recordings (`Data.random_crop`): a
        pass over it is an epoch of its weights, or of its crops, drawn anew.
        All may be patches of one size, of `sampling` "random", "grid" or "positions": a pass is an epoch of these.
    weights
        The shares of the sources: [7, 2, 1]. None: the numbers of samples. Or a schedule of the steps from which
        weights hold, such as {0: [7, 2, 1], 1_000_000: [1, 1, 1]}. Steps count samples of all ranks, from the beginning
        of training; the weight of a source may be 0 for a time.
    stop
        The end of an epoch, as the first epoch has it. "first": before a source would repeat a sample. "all": when
        every sample of every source was read. "longest": when every sample of the source with most samples was. Or a
        number of samples. All epochs have the same length.
    batching
        "per_sample": the samples of a batch are of all sources. "per_batch": a batch is of one source, on all ranks the
        same, and a number as `stop` is rounded up to whole batches of all ranks. Keep `batch_size` times ranks as it is
        when you resume, or divide it.
    dtype
        The dtype of `Data.cast`, for each source: makes dtypes that differ the same.

    Raises
    ------
    ConfigError
        If weights, `stop` or `batching` cannot be, or the arrays do not fit together; the message names the store.

    Notes
    -----
    Of a run of samples, a source has its share to within 8 samples, and to within 2 in each of 24 interleaved columns.
    So an epoch ends a few samples before, or after, what `stop` says. As columns are not in step, samples of a source
    come up to 44 positions early or late: when a sample comes again, up to 44 others of its source have not come as
    often. This was measured for up to 20 sources; the bound is 92 as long as weights do not change. Batches of one
    source have one column, and their samples come in order.

    Examples
    --------
    >>> import numpy as np, zarrfeed
    >>> data = zarrfeed.mix([np.zeros(7000), np.ones(2000), np.full(1000, 2.0)], weights=[7, 2, 1])
    >>> dataset = zarrfeed.ZarrIterableDataset(data, batch_size=1000, shuffle=True)
    >>> first = next(iter(dataset))
    >>> [int((first == source).sum()) for source in range(3)]
    [700, 201, 99]
    """
    joined = as_one("mix", data, dtype=dtype, contiguous=False)
    num_sources = len(joined.given)
    check_choice("batching", batching, BATCHINGS)
    check_stop(stop)
    stages = _stages(weights, [len(one) for one in joined.given])
    for step, shares in stages:
        if len(shares) != num_sources:
            from_step = f" from step {step} on" * (step > 0)
            raise ConfigError(
                f"weights = {list(shares)}{from_step}, must be {num_sources} numbers, one for each source"
            )
    first = np.cumsum([0, *(one.resolved.choice.num_samples for one in joined.given)])
    parsed = [(step, parse_weights(shares)) for step, shares in stages]
    drawn = [one.resolved.expected for one in joined.given]
    expected = tuple(one if isinstance(one, ExpectedCounts | CropStarts) else None for one in drawn)
    drawn_sources = expected if any(one is not None for one in expected) else ()
    blend = Blend(tuple(first.tolist()), parsed[0][1], tuple(parsed[1:]), stop, batching, drawn_sources)
    blend.mixture(0, 1)  # refuses what cannot be mixed
    frozen = FrozenMapping(tuple(parsed)) if len(parsed) > 1 else parsed[0][1]
    call = MixCall(tuple(one.expression for one in joined.given), frozen, stop, batching)
    patching = joined.resolved.patching
    if patching is not None:
        cut = (one.resolved.patching for one in joined.given)
        patching = replace(patching, sources=tuple(one for one in cut if one is not None))
    return Data(Expression(call), replace(joined.resolved, blend=blend, patching=patching))


def _stages(weights: Any, lengths: list[int]) -> list[tuple[int, Sequence[float]]]:
    """Return the step from which weights hold, and these, by ascending steps."""
    if weights is None:
        return [(0, lengths)]
    if not isinstance(weights, Mapping):
        return [(0, _as_list(weights))]
    for step in weights:
        check_int("step of weights", step, 0, END - 1)
    if 0 not in weights:
        raise ConfigError(f"weights = {dict(weights)}, must have weights for step 0, at which training begins")
    return [(int(step), _as_list(weights[step])) for step in sorted(weights)]


def _as_list(weights: Any) -> list[float]:
    if isinstance(weights, str | bytes) or not isinstance(weights, Iterable):
        raise ConfigError(
            f"weights = {weights!r}, must be a number for each source, or a mapping of steps to such numbers"
        )
    listed = list(weights)
    for one in listed:
        if isinstance(one, bool) or not isinstance(one, int | float | np.integer | np.floating):
            raise ConfigError(f"weights = {listed!r}, must be numbers")
    return listed
