"""A dask array that only selects -> the object that its chunks are cut from, and the selection; dask is not imported.

Selecting, cutting into other chunks and reordering along an axis are tasks that cut arrays or join them side by side.
We run the graph on boxes, which are the positions along each axis of the source, in place of values. Invariant: the
selection is returned only if every chunk of the result is the box that the positions along each axis say; any other
task, such as a sum, and a second source are refused. The time grows with the chunks, as that of making the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, product
from typing import Any

import numpy as np

from zarrfeed.spec.arrays.item_choice import Positions, positions_of


class Box(tuple["Positions | int", ...]):
    """Part of the source: the positions along each axis, or the single one of an axis that was dropped."""

    __slots__ = ()


class NotASelectionError(Exception):
    """The graph does something else than select; the text is the end of a sentence that begins with a variable."""


def selection_of(array: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the source of a dask array, and the key that selects the array from it, axis by axis.

    Parameters
    ----------
    array
        The dask array.

    Returns
    -------
    The object that dask cuts into chunks, and a key for its axes: integers and lists of positions. An axis of which all
    positions are selected has `slice(None)`.

    Raises
    ------
    NotASelectionError
        If dask calculates, joins several sources, or selects points.
    """
    graph = _Graph(dict(array.__dask_graph__()))
    chunks = [graph.value((array.name, *index)) for index in product(*map(range, array.numblocks))]
    box = _joined(_nested(chunks, array.numblocks))
    source = graph.source
    key = (
        one if isinstance(one, int) else slice(None) if one == range(length) else np.array(one, dtype=np.int64)
        for one, length in zip(box, source.shape, strict=True)
    )
    return source, tuple(key)


class _Graph:
    """Values of the tasks of a graph, where the source of the array is a box."""

    def __init__(self, tasks: Mapping[Any, Any]) -> None:
        self.source: Any = None
        self._tasks = tasks
        self._values: dict[Any, Any] = {}

    def value(self, key: Any) -> Any:
        """Return the value of a task by its key, each calculated once."""
        if key not in self._values:
            task = self._tasks[key]
            is_old = isinstance(task, tuple)  # dask wrote a tuple for an alias or a task before it had classes for them
            if is_old and not isinstance(task[0], str):
                raise _is_calculated(task[0])
            self._values[key] = self.value(task) if is_old else self._run(task)
        return self._values[key]

    def _run(self, node: Any) -> Any:
        """Return the value of a node of the graph, or of an argument of a task: of a type that dask names."""
        kind = type(node).__name__ if type(node).__module__.startswith("dask.") else ""
        if kind == "TaskRef":
            return self.value(node.key)
        if kind == "Alias":
            return self.value(node.target)
        if kind == "DataNode":
            return node.value
        if kind in ("List", "Tuple"):
            return [self._run(one) for one in node.args]
        if kind == "Task":
            return self._call(node.func, [self._run(one) for one in node.args])
        return node

    def _call(self, function: Any, arguments: list[Any]) -> Any:
        module = str(getattr(function, "__module__", ""))
        name = getattr(function, "__name__", "") if module in ("_operator", "operator") or "dask" in module else ""
        if name in _CUTS:
            return _CUTS[name](self._box(arguments[0]), arguments[1])
        if name in _JOINS:
            return _JOINS[name](*arguments)
        raise _is_calculated(function)

    def _box(self, value: Any) -> Box:
        """Return a box as it is, and of a source all of it."""
        if isinstance(value, Box):
            return value
        if isinstance(value, np.ndarray) or not hasattr(value, "shape"):
            raise NotASelectionError("is in memory or calculated by dask")
        if self.source is None:
            self.source = value
        if value is not self.source:
            raise NotASelectionError("comes from several stores, which zarrfeed.open takes as a list or a pattern")
        return Box(range(length) for length in value.shape)


def _cut(box: Box, key: Any) -> Box:
    """Return what a key of integers, slices, and one array or list at most selects of a box."""
    keys: Iterator[Any] = iter(key if isinstance(key, tuple) else (key,))
    cut: list[Positions | int] = []
    arrays = 0
    for one in box:
        by = slice(None) if isinstance(one, int) else next(keys, slice(None))
        if isinstance(one, int):
            cut.append(one)
        elif isinstance(by, slice | int | np.integer):
            cut.append(one[by])
        elif isinstance(by, np.ndarray | list) and np.ndim(by) == 1:
            cut.append(positions_of(np.array(one)[np.asarray(by)]))
            arrays += 1
        else:
            break
    if len(cut) < len(box) or arrays > 1 or next(keys, None) is not None:
        raise NotASelectionError("is selected point by point, or has new axes")
    return Box(cut)


def _cut_along_axis(box: Box, numbered: tuple[int, Any]) -> Box:
    return _cut(box, numbered[1])


def _joined_in_order(boxes: Sequence[Box], sorter: tuple[int, Any], axis: int) -> Box:
    """Return boxes side by side along an axis, sorted back as dask does after it read them in the order of chunks."""
    joined = _along(boxes, axis)
    key: list[Any] = [slice(None)] * sum(not isinstance(one, int) for one in joined)
    key[axis] = np.argsort(sorter[1])
    return _cut(joined, tuple(key))


def _joined(nested: Any, axis: int = 0) -> Box:
    """Return boxes that lie in lists of lists, one level for each axis, as one box."""
    if isinstance(nested, Box):
        return nested
    if not isinstance(nested, list):
        raise NotASelectionError("is in memory or calculated by dask")
    return _along([_joined(one, axis + 1) for one in nested], axis)


def _joined_flat(boxes: Sequence[Box], shape: Sequence[int]) -> Box:
    return _joined(_nested(boxes, shape))


def _nested(boxes: Sequence[Any], shape: Sequence[int]) -> Any:
    """Return boxes as lists of lists of this shape."""
    if not shape:
        return boxes[0]
    size = len(boxes) // shape[0]
    return [_nested(boxes[first : first + size], shape[1:]) for first in range(0, len(boxes), size)]


def _along(boxes: Sequence[Box], axis: int) -> Box:
    """Return boxes side by side along an axis, counted without dropped ones, if they are equal along all others."""
    first = boxes[0]
    if not all(isinstance(box, Box) for box in boxes):
        raise NotASelectionError("is in memory or calculated by dask")
    if len(boxes) == 1:
        return first
    stored = [number for number, one in enumerate(first) if not isinstance(one, int)][axis]
    for box in boxes:
        pairs = enumerate(zip(box, first, strict=True))
        if not all(number == stored or _same(one, two) for number, (one, two) in pairs):
            raise NotASelectionError("has pieces side by side that lie elsewhere in the store")
    parts = [one for one in (box[stored] for box in boxes) if not isinstance(one, int)]
    along = positions_of(list(chain.from_iterable(parts)))
    return Box((*first[:stored], along, *first[stored + 1 :]))


def _same(one: Positions | int, two: Positions | int) -> bool:
    if one is two or one == two:
        return True
    return not isinstance(one, int) and not isinstance(two, int) and tuple(one) == tuple(two)


def _is_calculated(function: Any) -> NotASelectionError:
    function = getattr(function, "func", function)  # of a partial one
    return NotASelectionError(f"is calculated by dask ({getattr(function, '__name__', type(function).__name__)})")


#: Functions of dask that move values and change none -> their equals for boxes: those that cut, and those that join.
_CUTS: dict[str, Callable[[Box, Any], Box]] = {
    "getter": _cut,
    "getter_nofancy": _cut,
    "getter_inline": _cut,
    "getitem": _cut,
    "_getitem": _cut_along_axis,
}
_JOINS: dict[str, Callable[..., Box]] = {
    "concatenate_arrays": _joined_in_order,
    "concatenate_shaped": _joined_flat,
    "concatenate3": _joined,
}
