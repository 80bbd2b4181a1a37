"""`PatchRequest`: what a user says of patches, checked as far as it does not depend on arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.validate import check_choice, check_int
from zarrfeed.metadata.patches.patch_levels import Context, parse_context
from zarrfeed.metadata.patches.patch_positions import checked_positions
from zarrfeed.metadata.patches.read_weights import ReadWeights
from zarrfeed.metadata.patches.selected_items import Indexers, parse_isel
from zarrfeed.metadata.patches.turned_patches import parse_turned
from zarrfeed.plan.patches.tiling import BORDERS, MOST_DIMENSIONS, Border
from zarrfeed.plan.samples.selection import Int64

#: The name of a dimension, or the number of an axis.
Dim: TypeAlias = str | int
#: The padding of voxels: a number, the nearest voxel inside, or voxels mirrored at the border.
PadVoxels: TypeAlias = float | str
#: The places of patches: on a grid, with a random phase in each epoch or without one; where the user lists them; or
#: drawn.
PatchSampling: TypeAlias = Literal["tiles", "grid", "positions", "random"]
_SAMPLINGS: tuple[PatchSampling, ...] = get_args(PatchSampling)


@dataclass(frozen=True)
class PatchRequest:
    """The user's arguments of `Data.patch`."""

    size: tuple[tuple[Dim, int], ...]
    sampling: PatchSampling = "tiles"
    border: Border | tuple[tuple[Dim, Border], ...] = "pad"
    stride: tuple[tuple[Dim, int], ...] | None = None
    pad: PadVoxels = 0
    positions: Int64 | None = field(default=None, compare=False)
    n: int | None = None
    weights: ReadWeights | None = field(default=None, compare=False)
    context: Context | None = None
    flip: tuple[Dim, ...] = ()
    rotate: tuple[Dim, ...] = ()
    isel: Indexers = ()

    @classmethod
    def parse(
        cls,
        size: Any,
        sampling: Any,
        border: Any,
        stride: Any,
        pad: Any,
        positions: Any = None,
        n: Any = None,
        weights: ReadWeights | None = None,
        context: Any = None,
        flip: Any = (),
        rotate: Any = (),
        isel: Any = None,
    ) -> PatchRequest:
        """Parse the arguments of `Data.patch`, as far as they do not depend on arrays."""
        named = _numbers("size", size)
        if len(named) >= MOST_DIMENSIONS + 1:
            raise ConfigError(f"size = {size!r}, must name at most {MOST_DIMENSIONS} dimensions")
        check_choice("sampling", sampling, _SAMPLINGS)
        if isinstance(border, Mapping):
            for one in border.values():
                check_choice("border", one, BORDERS)
            _check_named("border", border, named)
            border = tuple(border.items())
        else:
            check_choice("border", border, BORDERS)
        strides = None if stride is None else _numbers("stride", stride)
        if strides is not None:
            _check_named("stride", dict(strides), named)
            if sampling != "grid":
                raise ConfigError(f'stride = {stride!r}, must be None with sampling = "{sampling}": it is for a "grid"')
            for dim, one in strides:
                if one > dict(named)[dim]:
                    raise ConfigError(f"stride = {one} of {dim!r}, must be at most the size, {dict(named)[dim]}")
        if isinstance(pad, str) and pad not in ("nan", "edge", "reflect"):
            raise ConfigError(f"pad = {pad!r}, must be a number, 'nan', 'edge' or 'reflect'")
        if not isinstance(pad, str | int | float | np.number):
            raise ConfigError(f"pad = {pad!r}, must be a number, 'nan', 'edge' or 'reflect'")
        if (positions is None) != (sampling != "positions"):
            raise ConfigError(
                f'sampling = "{sampling}" with{"out" * (positions is None)} positions: sampling = "positions" needs '
                "them, and no other takes them"
            )
        listed = None if positions is None else checked_positions(positions)
        if (n is None) != (sampling != "random"):
            raise ConfigError(
                f'n = {n!r} with sampling = "{sampling}": sampling = "random" needs it, and no other takes it'
            )
        if weights is not None and sampling != "random":
            raise ConfigError(f'weights with sampling = "{sampling}": they are for sampling = "random"')
        if n is not None:
            check_int("n", n, 1, 2**31 - 1)
            n = int(n)
        padding = pad if isinstance(pad, str) else float(pad)
        flipped, rotated = parse_turned("flip", flip, dict(named)), parse_turned("rotate", rotate, dict(named))
        chosen = parse_isel(isel, dict(named))
        around = parse_context(context, dict(named))
        request = cls(
            named,
            sampling,
            border,
            strides,
            padding,
            listed,
            n,
            weights,
            around,
            flipped,
            rotated,
            chosen,
        )
        request._check_borders()
        return request

    def _check_borders(self) -> None:
        refused = {"positions": ("drop", "shift"), "random": ("shift",)}.get(self.sampling, ())
        for dim, _ in self.size:
            if self.border_of(dim) in refused:
                allowed = " or ".join(f'"{one}"' for one in BORDERS if one not in refused)
                raise ConfigError(
                    f'border = "{self.border_of(dim)}" of {dim!r}, must be {allowed} '
                    f'with sampling = "{self.sampling}": patches begin where they are listed, or drawn'
                )

    def border_of(self, dim: Dim) -> Border:
        """Return the rule for tiles that reach beyond a dimension."""
        return self.border if isinstance(self.border, str) else dict(self.border).get(dim, "pad")


def _numbers(name: str, value: Any) -> tuple[tuple[Dim, int], ...]:
    if not isinstance(value, Mapping) or not value:
        raise ConfigError(
            f"{name} = {value!r}, must be a mapping of dimensions, or axes, to voxels: {{'y': 64, 'x': 64}}"
        )
    for dim, one in value.items():
        if isinstance(dim, bool) or not isinstance(dim, str | int):
            raise ConfigError(f"{name} names {dim!r}, must name a dimension, or the number of an axis")
        check_int(f"{name} of {dim!r}", one, 1, 2**31)
    return tuple((dim, int(one)) for dim, one in value.items())


def _check_named(name: str, given: Mapping[Dim, Any], named: Sequence[tuple[Dim, int]]) -> None:
    for dim in given:
        if dim not in dict(named):
            raise ConfigError(
                f"{name} names {dim!r}, must name a dimension that size names: {[one for one, _ in named]}"
            )
