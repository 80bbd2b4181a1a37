"""The plan of a request: some samples, in any order and as often as wanted, as one batch.

The distinct samples, ascending, are a selection whose epoch order is not shuffled. Every position of the request is
handed to the engine by itself. Invariant: the work for a plan grows with the request and not with the array.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.order import EpochPlan, Order
from zarrfeed.plan.selection import Int64, Selection


def positions_of(indices: npt.NDArray[Any], length: int) -> Int64:
    """Return the positions that indices name, each in [0, length).

    Raises
    ------
    ConfigError
        If they are no 1-d array of integers.
    IndexError
        If one is out of range; negative ones count from the end.
    """
    if indices.ndim != 1 or (indices.size and indices.dtype.kind not in "iu"):
        raise ConfigError(
            f"got indices of shape {indices.shape} and dtype {indices.dtype}, must be an int or a 1-d sequence of ints"
        )
    outside = np.flatnonzero((indices < -length) | (indices >= length))
    if len(outside):
        raise IndexError(f"index {indices[outside[0]]}, must be in [{-length}, {length - 1}]")
    return indices.astype(np.int64) % length


def plan_request(wanted: Int64, num_samples: int, block_rows: int) -> EpochPlan:
    """Return a plan whose batch has these samples, named by their index in the array, in this order.

    Its epoch order has each of them once, in order and block by block. Every block is a group, and every step of the
    batch is an extra position of that order.
    """
    by_position = np.argsort(wanted, kind="stable")
    in_order = wanted[by_position]
    is_new = _differ_from_last(in_order)
    samples = in_order[is_new]
    block = samples // block_rows
    first = np.flatnonzero(_differ_from_last(block))
    ends = np.append(first[1:], len(samples))
    rows = ends - first
    selection = Selection(block[first], rows, first, samples=samples)
    nothing, last_step = np.zeros_like(first), np.full_like(first, len(wanted) - 1)
    return EpochPlan(
        order=Order(num_samples, block_rows, shuffle=False, seed=0, lanes=1, selection=selection),
        epoch=0,
        first=0,
        stride=1,
        begin=0,
        count=0,
        steps=len(wanted),
        extra_position=np.cumsum(is_new) - 1,
        extra_step=by_position,
        group_begin=np.arange(len(first) + 1),
        group_lane=nothing,
        group_offset=first,
        group_number=nothing,
        group_turn=nothing,
        first_step=nothing,
        last_step=last_step,
        segment_place=np.arange(len(first)),
        segment_first=first,
        segment_rows=rows,
        segment_start=nothing,
        segment_length=rows,
    )


def _differ_from_last(ascending: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return which elements differ from the one before; the first does."""
    differ = np.ones(len(ascending), dtype=bool)
    np.not_equal(ascending[1:], ascending[:-1], out=differ[1:])
    return differ
