"""A covering of products: of a test with several lists of values, the cases in which each pair of values comes.

A test with two or more `parametrize` marks has a case for each combination of their values, which is seldom the
promise. The usual run keeps a subset, the same in each process:

- of two axes, each value of each, spread evenly over the values of the other one;
- of three and more, each pair of values of two axes.

A test whose promise is the pair itself, such as dtype and byte order, has the mark `whole_product` and keeps all its
cases; so does each test with --large, and a case that the command line names.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, TypeGuard

import pytest

#: Marks of cases that all stay: those whose promise is the product, and those that may not run, and so stand for none.
_WHOLE = {"whole_product", "skip", "skipif", "slow", "xfail"}


def cover(cases: Sequence[tuple[Hashable, ...]]) -> list[int]:
    """Return the indices of cases that cover all of them, in their order.

    Parameters
    ----------
    cases
        One value an axis each, for example ``[("f4", True), ("f4", False), ("f8", True), ("f8", False)]``. They need
        not be a whole product.
    """
    axes = range(len(cases[0]))
    varying = [axis for axis in axes if len({case[axis] for case in cases}) > 1]
    wanted = [set(itertools.combinations([(axis, case[axis]) for axis in varying], 2)) for case in cases]
    singles: list[set[Any]] = [{(axis, case[axis]) for axis in varying} for case in cases]
    if len(varying) < 2:
        return list(range(len(cases)))
    if len(varying) == 2:
        wanted = singles
    missing = set().union(*wanted)
    used: Counter[Any] = Counter()
    kept: list[int] = []
    while missing:
        best = max(
            range(len(cases)),
            key=lambda index: (len(wanted[index] & missing), -sum(used[value] for value in singles[index]), -index),
        )
        missing -= wanted[best]
        used.update(singles[best])
        kept.append(best)
    return sorted(kept)


def _axes(item: pytest.Function) -> tuple[tuple[int, ...], ...]:
    """Return the value of each axis of a case: the objects of one `parametrize` mark, or of one fixture, by identity.

    All cases of a test have the same objects.
    """
    parameters = item.callspec.params
    marks = [mark.args[0] if mark.args else mark.kwargs["argnames"] for mark in item.iter_markers("parametrize")]
    names = [tuple(mark.replace(",", " ").split()) if isinstance(mark, str) else tuple(mark) for mark in marks]
    together = {name for group in names for name in group}
    groups = [*names, *((name,) for name in parameters if name not in together)]
    return tuple(tuple(id(parameters[name]) for name in group) for group in groups)


def covering(items: Iterable[pytest.Item], named: Iterable[str]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the cases that the usual run keeps, in their order, and the others.

    Parameters
    ----------
    items
        All that were collected.
    named
        Arguments of the command line; a case among them stays.
    """
    of_test: dict[str, list[pytest.Function]] = {}
    for item in items:
        if _is_of_product(item) and not any(mark.name in _WHOLE for mark in item.iter_markers()):
            of_test.setdefault(item.nodeid.partition("[")[0], []).append(item)
    names = {argument.partition("::")[2] for argument in named if argument.endswith("]")}
    left_out: set[pytest.Item] = set()
    for cases in of_test.values():
        kept = set(cover([_axes(case) for case in cases]))
        left_out.update(
            case
            for index, case in enumerate(cases)
            if index not in kept and case.nodeid.partition("::")[2] not in names
        )
    return [item for item in items if item not in left_out], [item for item in items if item in left_out]


def _is_of_product(item: pytest.Item) -> TypeGuard[pytest.Function]:
    """Return whether a case has several parameters: the marks of all others need not be looked at."""
    return isinstance(item, pytest.Function) and hasattr(item, "callspec") and len(item.callspec.params) > 1
