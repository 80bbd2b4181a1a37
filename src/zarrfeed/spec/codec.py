"""One codec of an array, as the engine takes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from zarrfeed.base.native import core

#: Codecs that the engine decodes, by their names in v2 and v3 metadata without "numcodecs.": each is a "compressor",
#: a "filter", whose output has as many bytes as its input, or a "checksum", which leaves the bytes as they are.
NATIVE_CODECS: Final = core.codec_kinds()


@dataclass(frozen=True)
class CodecSpec:
    """One codec, in the order of decoding; those of bytes alone where all are native.

    `block_bytes` are those of a block of Blosc, where the metadata has them; 0: the compressor chose. `element_bytes`
    are those of an element of a filter; 0: the codec is no filter.
    """

    name: str
    label: str
    checksum_at_start: bool = False
    native: bool = True
    block_bytes: int = 0
    element_bytes: int = 0

    @property
    def is_checksum(self) -> bool:
        """True if the engine only looks at the bytes."""
        return NATIVE_CODECS.get(self.name) == "checksum"

    def to_core(self) -> core.CodecSpec:
        """Return the codec in the form that the engine takes."""
        if self.element_bytes:
            return core.CodecSpec(self.name, element_bytes=self.element_bytes)
        return core.CodecSpec(self.name, checksum_at_start=self.checksum_at_start)
