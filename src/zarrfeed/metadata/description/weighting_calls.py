"""The calls of methods of `Data` that say how often each sample comes in an epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from dataclasses import field as argument
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError
from zarrfeed.metadata.description.method_call import MethodCall, frozen_by
from zarrfeed.metadata.description.resolved import IN_ORDER, ResolvedData
from zarrfeed.metadata.description.sample_calls import freeze_conditions, freeze_coords
from zarrfeed.metadata.description.split_columns import sample_weights
from zarrfeed.plan.choice.buckets import Buckets
from zarrfeed.plan.choice.counts_of_sources import CountsOfSources
from zarrfeed.plan.choice.crop_starts import CropStarts
from zarrfeed.plan.samples.expected_counts import ExpectedCounts
from zarrfeed.plan.samples.sample_set import rank_of
from zarrfeed.spec.description.expression import Expression
from zarrfeed.spec.description.freeze import FrozenMapping, Named


@dataclass(frozen=True)
class _WeightingCall(MethodCall):
    """A call that says how often each sample comes in an epoch.

    Attributes
    ----------
    expected
        The expected counts, as they were found from the other arguments. Their digest takes part in comparisons.
    """

    expected: Any = argument(
        kw_only=True,
        default=None,
        repr=False,
        metadata=frozen_by(lambda one: None if one is None else one.digest),
    )

    def check(self, resolved: ResolvedData) -> None:
        """Raise ConfigError if samples cannot be weighted, before a column is read."""
        method = self.function[1:]
        if resolved.patching is not None:
            argument = "balance" if method == "balance" else "weights"
            raise ConfigError(f"{method}: samples are patches, whose voxels have weights: patch({argument}=)")
        if resolved.blend is not None:
            raise ConfigError(f"{method}: samples are a mixture, whose sources have weights: zarrfeed.mix(weights=)")
        crops = resolved.expected if isinstance(resolved.expected, CropStarts) else None
        if isinstance(resolved.expected, Buckets):
            raise ConfigError(f"{method}: samples are {resolved.expected.state}, which cannot be weighted")
        if resolved.expected is not None and (crops is None or crops.expected is not None):
            raise ConfigError(
                f"{method}: samples are weighted already; give the product of both weights to one weight()"
            )
        if resolved.given is not None:
            raise ConfigError(f"{method}: {IN_ORDER}, which says how often each comes")

    def apply(self, resolved: ResolvedData) -> ResolvedData:
        """Let samples, or crops of recordings, come as often as was found."""
        self.check(resolved)
        crops = resolved.expected
        expected = replace(crops, expected=self.expected) if isinstance(crops, CropStarts) else self.expected
        return replace(resolved, expected=expected)

    def check_may_grow(self) -> None:
        """Refuse every one."""
        raise ConfigError(
            f"{self.function[1:]}() cannot follow open(..., refresh='epoch'): samples that come later have no weights"
        )


def other_counts(resolved: ResolvedData, weights: Any) -> ExpectedCounts | CountsOfSources:
    """Return the expected counts that other weights give to samples that have some.

    Raises
    ------
    ConfigError
        If the samples have none, or weights are wrong.
    """
    WithWeightsCall(weights).check(resolved)
    counts = resolved.counts
    if isinstance(counts, ExpectedCounts):
        return ExpectedCounts.of(sample_weights(resolved, weights), counts.total)
    assert counts is not None
    if not isinstance(weights, Mapping) or not all(isinstance(one, int) for one in weights):
        raise ConfigError(
            "samples are a mixture, whose sources have weights of their own: give a mapping of the numbers of sources "
            "to weights, such as {0: losses}"
        )
    for source, of_source in weights.items():
        counts = counts.changed(source, _weights_of_source(resolved, source, of_source))
    return counts


def _weights_of_source(resolved: ResolvedData, source: int, weights: Any) -> npt.NDArray[Any]:
    """Return a weight for each chosen sample of a mixture's source: those that are given, or found by columns."""
    assert resolved.blend is not None
    by_columns = isinstance(weights, str | Mapping) or (callable(weights) and not hasattr(weights, "__array__"))
    if not by_columns or not 0 <= source < resolved.blend.num_sources:
        return np.asarray(weights)
    begin, end = rank_of(resolved.choice.ascending(), np.array(resolved.blend.first[source : source + 2])).tolist()
    return sample_weights(resolved, weights)[begin:end]


def _freeze_weights(weights: Any) -> Any:
    """Return the form of weights in an expression: a column, an array, or functions by their names."""
    if isinstance(weights, Mapping):
        if all(isinstance(one, int) for one in weights):
            return FrozenMapping(tuple((source, _freeze_weights(one)) for source, one in weights.items()))
        return freeze_conditions(weights) if all(map(callable, weights.values())) else freeze_coords(weights)
    if callable(weights) and not hasattr(weights, "__array__"):
        return Named(getattr(weights, "__name__", type(weights).__name__))
    return freeze_coords(weights)


@dataclass(frozen=True)
class WeightCall(_WeightingCall):
    """`.weight(weights, n=...)`."""

    function = ".weight"

    weights: Any = argument(metadata=frozen_by(_freeze_weights))
    n: Any = None


@dataclass(frozen=True)
class BalanceCall(_WeightingCall):
    """`.balance(column, power=..., n=...)`."""

    function = ".balance"

    column: Any = argument(metadata=frozen_by(freeze_coords))
    power: Any = 1.0
    n: Any = None


@dataclass(frozen=True)
class WithWeightsCall(_WeightingCall):
    """`.with_weights(weights)`: the expression has the weights in its last `.weight(...)` or `.balance(...)`."""

    function = ".with_weights"

    weights: Any = argument(metadata=frozen_by(_freeze_weights))

    def check(self, resolved: ResolvedData) -> None:
        """Raise ConfigError unless samples are weighted."""
        if resolved.counts is None:
            raise ConfigError("with_weights: the samples have no weights yet; call weight() or balance()")

    def apply(self, resolved: ResolvedData) -> ResolvedData:
        """Let samples come as often as was found."""
        self.check(resolved)
        return resolved.with_counts(self.expected)

    def added_to(self, expression: Expression) -> Expression:
        """Return the expression with these weights in its last `.weight(...)` or `.balance(...)`.

        The sources of a mixture have those calls in expressions of their own, so there this call comes last.
        """
        calls = list(expression.calls)
        if isinstance(self.expected, CountsOfSources):
            kept = (one for one in calls if not isinstance(one, WithWeightsCall))
            return Expression(expression.opened, (*kept, self.frozen()))
        last = max(number for number, call in enumerate(calls) if isinstance(call, WeightCall | BalanceCall))
        calls[last] = WeightCall(self.weights, calls[last].n, expected=self.expected).frozen()  # type: ignore[attr-defined]
        return Expression(expression.opened, tuple(calls))
