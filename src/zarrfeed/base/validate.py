"""Checks of arguments: what, got, allowed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.suggestions import did_you_mean

#: More than any machine has cores; fewer than any refuses to start.
_MAX_THREADS = 1024


def check_int(name: str, value: object, low: int, high: int | None = None) -> None:
    """Raise ConfigError unless `value` is an integer (no bool) in [low, high]; no `high`: without end."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ConfigError(f"{name} = {value!r}, must be an integer")
    if value < low:
        raise ConfigError(f"{name} = {value}, must be at least {low}")
    if high is not None and value > high:
        raise ConfigError(f"{name} = {value}, must be at most {high}")


def check_number(name: str, value: object, low: float) -> None:
    """Raise ConfigError unless `value` is a finite number (no bool) of at least `low`."""
    is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not is_number or not low <= value < float("inf"):  # type: ignore[operator]
        raise ConfigError(f"{name} = {value!r}, must be a finite number of at least {low}")


def check_counts(**values: object) -> None:
    """Raise ConfigError unless each value is None or an integer from 1."""
    for name, value in values.items():
        if value is not None:
            check_int(name, value, 1)


def check_num_threads(value: object) -> None:
    """Raise ConfigError unless it is None or a number of threads that a machine might have."""
    if value is not None:
        check_int("num_threads", value, 1, _MAX_THREADS)


def check_flags(**values: object) -> None:
    """Raise ConfigError unless each value is True or False."""
    for name, value in values.items():
        if not isinstance(value, bool | np.bool_):
            raise ConfigError(f"{name} = {value!r}, must be True or False")


def check_list(name: str, value: object, holds: str) -> list[Any]:
    """Return the items of `value`; raise ConfigError if it is a text, a mapping, or not iterable.

    >>> check_list("keys", ("a", "b"), "keys")
    ['a', 'b']
    """
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise ConfigError(f"{name} = {value!r}, must be a list of {holds}")
    return list(value)


def check_choice(name: str, value: object, allowed: Sequence[str]) -> None:
    """Raise ConfigError unless `value` is one of the allowed words; names the one that is similar."""
    if not isinstance(value, str) or value not in allowed:
        words = ", ".join(map(repr, allowed))
        raise ConfigError(f"{name} = {value!r}, must be one of {words}{did_you_mean(value, allowed)}")
