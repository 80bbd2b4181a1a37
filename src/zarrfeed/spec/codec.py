"""One codec of an array, as the engine takes it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CodecSpec:
    """One codec, in the order of decoding; those of bytes alone where all are native.

    `block_bytes` are those of a block of Blosc, where the metadata has them; 0: the compressor chose.
    """

    name: str
    label: str
    checksum_at_start: bool = False
    native: bool = True
    block_bytes: int = 0
