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
    are those of an element of a filter; 0: the codec is no filter. The codecs of files have the others:
    cpp/spec/codec_spec.h says which bytes and elements they count.
    """

    name: str
    label: str
    checksum_at_start: bool = False
    native: bool = True
    block_bytes: int = 0
    element_bytes: int = 0
    run_bytes: int = 0
    stride: int = 1
    big_endian: bool = False

    @property
    def is_checksum(self) -> bool:
        """True if the engine only looks at the bytes."""
        return NATIVE_CODECS.get(self.name) == "checksum"

    @property
    def options(self) -> str:
        """The options that only codecs of files have, as text; "" where all are the defaults."""
        others = (self.run_bytes, self.stride, self.big_endian)
        return "" if others == (0, 1, False) else f" {self.run_bytes} {self.stride} {self.big_endian:d}"

    def to_core(self) -> core.CodecSpec:
        """Return the codec in the form that the engine takes."""
        return core.CodecSpec(
            self.name,
            checksum_at_start=self.checksum_at_start,
            element_bytes=self.element_bytes or 1,
            run_bytes=self.run_bytes,
            stride=self.stride,
            big_endian=self.big_endian,
        )
