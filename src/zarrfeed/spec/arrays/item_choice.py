"""`ItemChoice`: the items of an array that samples have along its other axes, as `Data.sel` chooses them.

Invariant: a choice counts along the axes of the stored array, whatever was chosen before, so one choice says all of
several calls. Chunks without a chosen item belong to no sample; `cpp/spec/array_spec.h` says what the engine makes of a
choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

#: Positions along an axis, in the order in which samples have the items; evenly spaced ones are a range.
Positions: TypeAlias = "range | tuple[int, ...]"


def positions_of(listed: npt.ArrayLike) -> Positions:
    """Return positions as a range if they are evenly spaced, else as a tuple, so that equal ones compare equal.

    >>> positions_of([4, 2, 0]), positions_of([0, 0]), positions_of([5])
    (range(4, -2, -2), (0, 0), range(5, 6))
    """
    array = np.asarray(listed, dtype=np.int64)
    steps = np.diff(array)
    step = int(steps[0]) if len(steps) else 1
    if len(array) and step and (steps == step).all():
        return range(int(array[0]), int(array[-1]) + (1 if step > 0 else -1) * abs(step), step)
    return tuple(array.tolist())


@dataclass(frozen=True)
class AxisChoice:
    """The chosen items of one axis.

    Attributes
    ----------
    positions
        The items, in the order of samples; an item may come several times.
    dropped
        True if samples lack the axis, since a single item was named by an integer or a label.
    """

    positions: Positions
    dropped: bool = False

    def then(self, positions: Positions, *, dropped: bool) -> AxisChoice:
        """Return the choice of the items at `positions` among the chosen ones."""
        return AxisChoice(compose(self.positions, positions), dropped)


def compose(chosen: Positions, positions: Positions) -> Positions:
    """Return the items that positions among the chosen ones name.

    >>> compose(range(10, 20, 2), (3, 0)), compose((7, 1, 4), range(1, 3))
    (range(16, 4, -6), range(1, 7, 3))
    """
    return positions_of(np.asarray(chosen, dtype=np.int64)[np.asarray(positions, dtype=np.int64)])


@dataclass(frozen=True)
class ItemChoice:
    """The chosen items of an array.

    Attributes
    ----------
    axes
        One entry for each axis of the stored array; None: samples have all items of the axis. The sample axis has None.
    """

    axes: tuple[AxisChoice | None, ...]

    @classmethod
    def of_all(cls, num_axes: int) -> ItemChoice:
        """Return the choice of all items."""
        return cls((None,) * num_axes)

    def then(self, axis: int, positions: Positions, *, dropped: bool, length: int) -> ItemChoice | None:
        """Return the choice after one more call; None if it has all items.

        Parameters
        ----------
        axis
            Number of the axis in the stored array.
        positions
            Positions among the items that were chosen before.
        dropped
            True if samples lose the axis.
        length
            Items of the stored axis.
        """
        before = self.axes[axis]
        chosen = AxisChoice(positions, dropped) if before is None else before.then(positions, dropped=dropped)
        is_all = chosen.positions == range(length) and not chosen.dropped
        axes = list(self.axes)
        axes[axis] = None if is_all else chosen
        return None if all(one is None for one in axes) else ItemChoice(tuple(axes))

    def axis_of(self, visible: int) -> int:
        """Return the axis of the stored array that samples have as an axis, counted among those that they have."""
        kept = [axis for axis, one in enumerate(self.axes) if one is None or not one.dropped]
        return kept[visible]

    def shape(self, stored: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the array with the chosen items alone, without dropped axes."""
        return tuple(
            n if one is None else len(one.positions)
            for n, one in zip(stored, self.axes, strict=True)
            if one is None or not one.dropped
        )

    def positions(self, axis: int, length: int) -> Positions:
        """Return the items of a stored axis that samples have; all `length` of them without a choice."""
        one = self.axes[axis]
        return range(length) if one is None else one.positions

    def num_chunks(self, axis: int, length: int, chunk: int) -> int:
        """Return the number of chunks along a stored axis that have a chosen item."""
        one = self.axes[axis]
        return -(-length // chunk) if one is None else len(self.chunks(axis, length, chunk))

    def chunks(self, axis: int, length: int, chunk: int) -> npt.NDArray[np.int64]:
        """Return the indices of the chunks along a stored axis that have a chosen item, ascending."""
        one = self.axes[axis]
        if one is None:
            return np.arange(-(-length // chunk))
        return np.unique(np.asarray(one.positions, dtype=np.int64) // chunk)

    def to_core(self) -> list[Sequence[int]]:
        """Convert to the form that the engine takes."""
        return [() if one is None else one.positions for one in self.axes]

    def to_json(self) -> list[Any]:
        """Return the choice as JSON."""
        return [None if one is None else [list(one.positions), one.dropped] for one in self.axes]

    def describe(self, stored: Sequence[int]) -> str:
        """Describe the number of chosen items along each axis, for people.

        >>> ItemChoice((None, AxisChoice(range(3, 16)), AxisChoice((4,), True))).describe((9, 37, 8))
        '13 of 37 items of axis 1, item 4 of axis 2'
        """
        return ", ".join(
            f"item {one.positions[0]} of axis {axis}"
            if one.dropped
            else f"{len(one.positions)} of {n} items of axis {axis}"
            for axis, (n, one) in enumerate(zip(stored, self.axes, strict=True))
            if one is not None
        )


def take_items(
    rows: npt.NDArray[np.uint8], shape: Sequence[int], item_bytes: int, choice: ItemChoice
) -> npt.NDArray[np.uint8]:
    """Return the chosen items of an array in memory, as bytes of shape (first axis, bytes of the others).

    Parameters
    ----------
    rows
        All bytes of the array, contiguous.
    shape
        Shape of the array.
    item_bytes
        Bytes of an item.
    choice
        The items.
    """
    taken = rows.reshape(-1).view(np.dtype((np.void, item_bytes))).reshape(shape)
    for axis in reversed(range(len(shape))):
        one = choice.axes[axis]
        if one is not None:
            taken = np.take(taken, one.positions[0] if one.dropped else np.asarray(one.positions), axis)
    taken = np.ascontiguousarray(taken)
    return taken.reshape(-1).view(np.uint8).reshape(taken.shape[0] if taken.ndim else 1, -1)
