"""`transform=`: call a user's function with a batch, or with its parts.

Invariants: whether a tuple is passed whole or unpacked is settled when the dataset is made, from the function's
signature alone, and is the same for every batch, in every process.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from zarrfeed.base.errors import ConfigError
from zarrfeed.torch.batches.batch import Batch

Transform: TypeAlias = Callable[..., Any]


@dataclass(frozen=True)
class _Unpacking:
    """Calls a function with the parts of a batch, as `for samples, targets in dataset` has them."""

    function: Transform

    def __call__(self, batch: tuple[Any, ...]) -> Any:
        return self.function(*batch)


def prepare_transform(transform: Transform | None, num_parts: int) -> Callable[[Batch], Any] | None:
    """Return a function of one batch (or sample) that calls the user's.

    A function with one required positional parameter, or none, gets the batch as it would be yielded. One with as many
    required positional parameters as a batch has parts, two or more, gets the parts: `def transform(samples, targets)`.
    Parameters with defaults do not count. A callable without a signature, such as some builtins, gets the batch.

    Parameters
    ----------
    transform
        The function that the user passed; None: no function.
    num_parts
        Number of parts of a batch: samples, targets, index.

    Raises
    ------
    ConfigError
        If `transform` cannot be called, or needs another number of arguments.
    """
    if transform is None:
        return None
    if not callable(transform):
        raise ConfigError(f"transform = {transform!r}, must be callable")
    try:
        parameters = inspect.signature(transform).parameters.values()
    except (TypeError, ValueError):
        return transform
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p.name for p in positional if p.default is p.empty]
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if len(required) == 1 or (not required and (positional or variadic)):
        return transform
    if len(required) == num_parts:
        return _Unpacking(transform)
    whole = "the batch" if num_parts == 1 else f"the batch, or the {num_parts} parts of it"
    named = f" ({', '.join(required)})" if required else ""
    raise ConfigError(f"transform requires {len(required)} arguments{named}, must take {whole}")
