"""Bytes that an epoch decodes, against what `explain` says of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from zarrfeed import ZarrIterableDataset


def check_decodes(
    dataset: ZarrIterableDataset,
    read: Callable[[ZarrIterableDataset], object],
    said: float,
    most: float | None,
    within: float,
) -> None:
    """Check that `read`, which reads epoch 0, decodes about as many bytes as are said, and never more than at most.

    If `most` is None, no thread changes the number, and one epoch decides. Otherwise memory is short, and threads of a
    busy machine hold it for long, so that more is decoded: one of eight epochs must come as near as `within` says.
    """
    for _ in range(1 if most is None else 8):
        before = dataset.stats().bytes_decoded
        dataset.set_epoch(0)
        read(dataset)
        decoded = dataset.stats().bytes_decoded - before
        assert most is None or decoded <= most
        if decoded == pytest.approx(said, rel=within):
            return
    assert decoded == pytest.approx(said, rel=within)
