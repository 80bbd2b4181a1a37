"""`MethodCall`: one call of a method of `Data`, which applies, prints, compares, hashes and pickles itself.

A new method takes two files: `Data` gets the method with its docstring, and `sample_calls.py` or `item_calls.py` gets a
class with its arguments and its `apply`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.spec.description.expression import Call, Expression
from zarrfeed.spec.description.freeze import freeze


def frozen_by(freezer: Callable[[Any], Any]) -> Mapping[str, Any]:
    """Return the metadata of an argument that `freezer` turns into a value for the expression, in place of `freeze`."""
    return {"freezer": freezer}


def applied_only(_: Any) -> None:
    """Freeze an argument that `apply` needs and the expression leaves out."""


@dataclass(frozen=True)
class MethodCall(Call):
    """A call of a method of `Data`, with its arguments as they were given.

    Invariant: `apply` takes the arguments as they were given, and can be repeated on each version of a store that
    grows. So it reads no store, but for the coordinate of samples that are complete, which stays as it is. An
    expression keeps `frozen()` alone, which has no arrays in it. Arguments are frozen after the first `apply`, which
    refuses what cannot work.
    """

    def apply(self, resolved: ResolvedData) -> ResolvedData:
        """Return the description after this call.

        Raises
        ------
        ConfigError, UnsupportedError
            If it cannot work.
        """
        raise NotImplementedError

    def check_may_grow(self) -> None:
        """Raise ConfigError if the call, repeated on a longer store, would not give the same samples, or more."""

    def frozen(self) -> Self:
        """Return the call for the expression: its arguments compare, hash, pickle and print."""
        made = {f.name: f.metadata.get("freezer", freeze)(getattr(self, f.name)) for f in dataclasses.fields(self)}
        return replace(self, **made)

    def added_to(self, expression: Expression) -> Expression:
        """Return the expression after this call."""
        return expression.then(self.frozen())
