"""Weights of voxels that are named by an array of the samples: its numbers, or shares of its labels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

from zarrfeed.base.errors import ConfigError
from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.metadata.group.batch_columns import Column
from zarrfeed.metadata.patches.read_weights import WeightsLike

#: The shares of patches by the label in their middle; "others" are all labels that are not named, each as one class.
Shares: TypeAlias = "Mapping[int | str, float]"
#: Type of `balance=` of `Data.patch`: an array of labels, or its name and the shares of its labels.
Balance: TypeAlias = "str | Mapping[str, Shares]"

#: Weights of one call of `Data.patch` have at most so many cells: 16 MiB.
_MOST_CELLS = 1 << 22
_EACH_LABEL: Shares = {"others": 1}


def named_weights(data: Any, weights: WeightsLike | None, balance: Balance | None) -> WeightsLike | None:
    """Return the weights that arguments of `Data.patch` name; measured, if an array of the samples is named.

    Raises
    ------
    ConfigError
        If both are given, or `balance` names no array.
    CorruptChunkError, StoreReadError
        For labels that cannot be read.
    """
    if balance is None:
        column = _column(data.resolved, weights) if isinstance(weights, str) else None
        return weights if column is None else _measured(data, column, None)
    if weights is not None:
        raise ConfigError("weights and balance are given, must be one of them: balance makes weights of labels")
    name, shares = _parse(balance)
    column = _column(data.resolved, name)
    if column is None:
        names = ", ".join(one.items.key for one in data.resolved.columns)
        if not Path(name).exists() and "://" not in name:
            raise ConfigError(f"balance = {name!r}, must be an array of the samples ({names}), or the path of one")
        return import_module("zarrfeed").patch_weights(name, shares)  # type: ignore[no-any-return]
    return _measured(data, column, shares)


def _parse(balance: Any) -> tuple[str, Shares]:
    """Return the name of the labels, and their shares."""
    if isinstance(balance, str | Path):
        return str(balance), _EACH_LABEL
    if isinstance(balance, Mapping) and len(balance) == 1:
        ((name, shares),) = balance.items()
        if isinstance(name, str | Path) and isinstance(shares, Mapping):
            return str(name), shares
    raise ConfigError(
        f"balance = {balance!r}, must be the name of an array of labels, or that and shares of its labels: "
        '{"label": {0: 1, "others": 3}}'
    )


def _column(resolved: ResolvedData, name: str) -> Column | None:
    """Return the column that a name stands for."""
    return next((one for one in resolved.columns if name in (one.items.key, one.items.name)), None)


def _measured(data: Any, column: Column, shares: Shares | None) -> WeightsLike:
    """Measure the weights of an array of the samples, as it is stored."""
    alone = replace(
        data.resolved,
        columns=(Column(column.array),),
        masks=False,
        windowing=None,
        statics=(),
        stacks=(),
    )
    side, shape = 1, column.items.shape
    while math.prod(-(-n // side) for n in shape) > _MOST_CELLS:
        side *= 2
    # The public name, as what reads arrays lies in a layer above this one.
    measured: WeightsLike = import_module("zarrfeed").patch_weights(
        replace(data, resolved=alone, growth=None), shares, cell=side
    )
    return measured
