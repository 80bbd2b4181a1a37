"""The calls of the methods of a `Data`, as its expression has them: with arguments that compare, hash and print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from zarrfeed.metadata.array.conversion import parse_dtype
from zarrfeed.metadata.patches.patch_request import PatchRequest
from zarrfeed.spec.expression import (
    BlocksCall,
    CastCall,
    DecodeCall,
    DenseCall,
    Expression,
    NormalizeCall,
    PatchCall,
    SelectCall,
    SplitCall,
    StackCall,
    WindowCall,
)
from zarrfeed.spec.freeze import FrozenArray, freeze, freeze_offsets, freeze_pairs, freeze_rows


def select_call(samples: Any) -> SelectCall:
    """Return `.select(samples)`."""
    return SelectCall(freeze_rows(samples))


def blocks_call(blocks: Any, of: str) -> BlocksCall:
    """Return `.blocks(blocks, of=...)`."""
    return BlocksCall(FrozenArray.of(blocks), of)


def window_call(offsets: Any, segment_ends: Any, rows: Any, pad: Any, mask: bool) -> WindowCall:
    """Return `.window(offsets, segment_ends=..., rows=..., pad=..., mask=...)`."""
    ends = freeze_rows(segment_ends)
    return WindowCall(freeze_offsets(offsets), ends, freeze_rows(rows), freeze(pad), bool(mask))


def patch_call(
    request: PatchRequest,
    size: Any,
    context: Any,
    border: Any,
    stride: Any,
    pad: Any,
    positions: Any,
    weights: FrozenArray | None,
) -> PatchCall:
    """Return `.patch(size, context=..., sampling=..., ...)`, whose arguments were parsed to a request."""
    listed = None if positions is None else FrozenArray.of(positions)
    return PatchCall(
        freeze(size),
        freeze(context),
        request.sampling,
        freeze(border),
        freeze(stride),
        pad,
        listed,
        request.n,
        weights,
        request.flip,
        request.rotate,
        freeze(dict(request.isel)) if request.isel else None,
    )


def with_offsets(expression: Expression, offsets: Any) -> Expression:
    """Return the expression with other offsets in its last `.window(...)`."""
    made = list(expression.calls)
    last = max(number for number, call in enumerate(made) if isinstance(call, WindowCall))
    windowed = made[last]
    assert isinstance(windowed, WindowCall)
    made[last] = replace(windowed, offsets=freeze_offsets(offsets))
    return Expression(expression.opened, tuple(made))


def cast_call(dtype: Any) -> CastCall:
    """Return `.cast(dtype)`, with the names of dtypes."""
    if not isinstance(dtype, Mapping):
        return CastCall(freeze(parse_dtype("dtype", dtype)))
    return CastCall(freeze({key: None if one is None else parse_dtype("dtype", one) for key, one in dtype.items()}))


def normalize_call(mean_std: Any, axis: Any, stats: Any, sides: tuple[str, ...]) -> NormalizeCall:
    """Return `.normalize(mean_std, axis=..., stats=..., sides=...)`."""
    return NormalizeCall(freeze_pairs(mean_std), freeze(axis), None if stats is None else str(stats), sides)


def decode_call(what: str, field: Any, size: Any, mode: Any) -> DecodeCall:
    """Return `.decode(what, field=..., size=..., mode=...)`."""
    named = list(field) if isinstance(field, tuple) else field
    return DecodeCall(what, freeze(named), size and freeze(tuple(size)), mode)


def dense_call(field: Any) -> DenseCall:
    """Return `.dense(field=...)`."""
    return DenseCall(freeze(list(field) if isinstance(field, tuple) else field))


def stack_call(names: Sequence[str], name: str | None, spatial_axes: int | None) -> StackCall:
    """Return `.stack(names, name=..., spatial_axes=...)`."""
    return StackCall(freeze(list(names)), name, spatial_axes)


def split_calls(parts: Sequence[float], by: str, seed: Any, gap: Any) -> list[SplitCall]:
    """Return `.split(parts, by=..., seed=..., gap=...)[number]` for each part."""
    frozen = tuple(map(freeze, parts))
    return [SplitCall(frozen, by, freeze(seed), freeze(gap), number) for number in range(len(frozen))]
