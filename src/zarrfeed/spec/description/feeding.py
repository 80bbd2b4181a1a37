"""Options of a dataset that belong together, as frozen dataclasses; a mapping may stand for each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from zarrfeed.base.errors import ConfigError, UnknownOptionError
from zarrfeed.base.suggestions import did_you_mean
from zarrfeed.base.validate import check_choice, check_counts, check_int
from zarrfeed.spec.fields.field import BLOCK_KINDS, BlockKind

_INT64_MAX = 2**63 - 1

_Options = TypeVar("_Options")


@dataclass(frozen=True)
class Mixing:
    """The mixing of the samples of neighbouring blocks in a shuffled epoch.

    Attributes
    ----------
    lanes
        The interleave width: the number of blocks that are open side by side. Consecutive samples come from that many
        blocks, at most as many as there are samples. None: chosen from the layout and the memory budget. Without
        shuffling, lanes are for mixtures alone: each source is read in this many parts side by side, each in order;
        None: one.
    mix
        The shuffle window: the number of consecutive blocks of a lane that are permuted together. None: chosen if
        `lanes` is, else 1.
    block
        The blocks that are shuffled. "auto": chunks, or slabs of them where whole chunks are too large for the memory
        to mix them well. "slab": some rows of a chunk, which Blosc chunks and uncompressed ones decode without the
        others; the layout determines their number. A whole number: slabs of so many rows. "chunk": a chunk along the
        sample axis, which in a sharded array is an inner chunk. "shard": a whole shard, for stores where requests cost
        more than mixing: its inner chunks are read together. None: "auto", or "chunk" where `lanes` or `mix` is named;
        or shards, if `Data.blocks` or `Data.split` dealt these. Without shuffling, blocks are never slabs.

    Examples
    --------
    >>> import zarrfeed
    >>> zarrfeed.Mixing(lanes=16)
    Mixing(lanes=16, mix=None, block=None)
    """

    lanes: int | None = None
    mix: int | None = None
    block: BlockKind | Literal["auto", "slab"] | int | None = None

    def __post_init__(self) -> None:
        check_counts(lanes=self.lanes)
        if self.mix is not None:
            check_int("mix", self.mix, 1, _INT64_MAX)
        if isinstance(self.block, int):
            check_int("block", self.block, 1, _INT64_MAX)
        elif self.block is not None:
            check_choice("block", self.block, ("auto", "slab", *BLOCK_KINDS))


def as_options(kind: type[_Options], argument: str, value: _Options | Mapping[str, Any] | None) -> _Options:
    """Return options that a user gave as an object, as a mapping of their names, or not at all.

    >>> as_options(Mixing, "mixing", {"lanes": 8})
    Mixing(lanes=8, mix=None, block=None)

    Raises
    ------
    UnknownOptionError
        If the mapping has a name that is no option.
    ConfigError
        If it is anything else, or an option is wrong.
    """
    if isinstance(value, kind):
        return value
    if value is None:
        return kind()
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    if not isinstance(value, Mapping):
        raise ConfigError(f"{argument} = {value!r}, must be a {kind.__name__} or a mapping of {', '.join(names)}")
    for name in value:
        if name not in names:
            raise UnknownOptionError(
                f"{argument} has no option {name!r}, must be one of {', '.join(names)}{did_you_mean(name, names)}"
            )
    return kind(**value)
