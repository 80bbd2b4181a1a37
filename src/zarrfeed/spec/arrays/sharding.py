"""Shards: stored objects that hold several read chunks (the codec `sharding_indexed` of Zarr v3)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from zarrfeed.base.native import core
from zarrfeed.base.units import parse_bytes

#: One entry of an index as stored and in memory; and what keeping an index costs beside its entries.
_ENTRY_BYTES = 16
_CHECKSUM_BYTES = 4
_OVERHEAD_BYTES = 512


@dataclass(frozen=True)
class ShardSpec:
    """The layout of the read chunks of an array in its shards.

    Attributes
    ----------
    chunks
        Inner chunks of a full shard along each axis.
    index_at_start
        True if the index stands in front of the inner chunks; else behind them.
    index_big_endian, index_has_crc32c
        The encoding of the index: its byte order, and whether a checksum follows it.
    """

    chunks: tuple[int, ...]
    index_at_start: bool
    index_big_endian: bool
    index_has_crc32c: bool

    @property
    def chunks_per_shard(self) -> int:
        """Inner chunks of a full shard."""
        return math.prod(self.chunks)

    @property
    def stored_index_bytes(self) -> int:
        """Size of an index as stored."""
        return self.chunks_per_shard * _ENTRY_BYTES + self.index_has_crc32c * _CHECKSUM_BYTES

    @property
    def cached_index_bytes(self) -> int:
        """Memory that a parsed index takes."""
        return self.chunks_per_shard * _ENTRY_BYTES + _OVERHEAD_BYTES

    def inner_chunk_name(self, position: int) -> str:
        """Return the index of an inner chunk in its shard, such as "3/0", from its position in C order."""
        indices: list[str] = []
        for along in reversed(self.chunks):
            position, index = divmod(position, along)
            indices.append(str(index))
        return "/".join(reversed(indices))

    def to_core(self, cache_bytes: int | None = None) -> core.ShardSpec:
        """Return the specification in the form that the engine takes, with memory for parsed indices."""
        return core.ShardSpec(
            chunks=self.chunks,
            index_at_start=self.index_at_start,
            index_big_endian=self.index_big_endian,
            index_has_crc32c=self.index_has_crc32c,
            cache_bytes=cache_bytes,
        )


@dataclass(frozen=True)
class Coalesce:
    """The rule by which inner chunks of a shard, or chunks of a file, share one request, in stores that Python reads.

    Attributes
    ----------
    gap
        Bytes between two of them that are read in vain rather than with a request of their own.
    limit
        Bytes of a request for several.
    """

    gap: int = 128 << 10
    limit: int = 8 << 20

    def engine_options(self) -> dict[str, int]:
        """Return the rule as options of an engine."""
        return {"coalesce_gap": self.gap, "coalesce_limit": self.limit}


DEFAULT_COALESCE = Coalesce()


@dataclass(frozen=True)
class Requests:
    """The rule by which inner chunks of a shard, or chunks of a file, share one request, in stores that are not local.

    Attributes
    ----------
    coalesce_gap
        Largest gap between two wanted chunks that are read together. Bytes, or text such as "128KiB".
    coalesce_limit
        Largest size of a request for several chunks; smaller where memory is short. Bytes, or text such as
        "8MiB".

    Examples
    --------
    >>> import zarrfeed
    >>> zarrfeed.Requests(coalesce_gap="1MiB").coalesce
    Coalesce(gap=1048576, limit=8388608)
    """

    coalesce_gap: int | str = DEFAULT_COALESCE.gap
    coalesce_limit: int | str = DEFAULT_COALESCE.limit

    def __post_init__(self) -> None:
        assert self.coalesce is not None

    @cached_property
    def coalesce(self) -> Coalesce:
        """The rule, in bytes."""
        return Coalesce(
            gap=parse_bytes(self.coalesce_gap, "coalesce_gap", least=0),
            limit=parse_bytes(self.coalesce_limit, "coalesce_limit", least=0),
        )


@dataclass(frozen=True)
class ShardReading:
    """The shards of one field, the memory for their indices (`cache_bytes`), and the rule for requests."""

    spec: ShardSpec
    cache_bytes: int = 1 << 20
    coalesce: Coalesce = DEFAULT_COALESCE


@dataclass(frozen=True)
class Piece:
    """One inner chunk that is wanted: bytes [begin, end) of its shard, for the request `request_id`."""

    begin: int
    end: int
    request_id: int
    position: int


def merge_pieces(pieces: Iterable[Piece], coalesce: Coalesce) -> list[list[Piece]]:
    """Divide pieces of one shard, which do not overlap, into those that are read together.

    Invariant: each piece is in exactly one group; in a group they ascend, neighbours are at most `gap` bytes apart, and
    a group of several spans at most `limit` bytes.
    """
    ordered = sorted(pieces, key=lambda p: (p.begin, p.end, p.position))
    ends = core.runs_together([(p.begin, p.end) for p in ordered], gap=coalesce.gap, limit=coalesce.limit)
    return [ordered[begin:end] for begin, end in pairwise([0, *ends])]
