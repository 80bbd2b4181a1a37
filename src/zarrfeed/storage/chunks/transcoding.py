"""Chunks of slow codecs that the node cache keeps as Blosc chunks with LZ4: which arrays have such, and their name.

Invariant: the form of an array names everything that the bytes of a transcoded chunk depend on beside the stored bytes:
the codecs, the dtype and the shape of a chunk. It is a part of the name of an entry in the cache, so that an array that
is read in another way never meets the entry.
"""

from __future__ import annotations

from zarrfeed.spec.arrays.array import ArraySpec
from zarrfeed.storage.access.cache_options import CacheOptions
from zarrfeed.storage.chunks.zarr_decoder import ChunkDecoder

#: Codecs that cost several times the CPU of lz4 -> the share of their CPU time that lz4 with shuffle takes, measured on
#: smooth float32 values (benchmarks/transcode.py). What zarr-python decodes costs more still.
SLOW_CODECS = {
    "gzip": "an eighth",
    "zlib": "an eighth",
    "zstd": "a quarter",
    **dict.fromkeys(("zarrfeed.lzw", "zarrfeed.bitshuffle_zstd"), "a fraction"),  # not measured
}
#: A Blosc chunk has less than 2**31 bytes.
_MOST_BYTES = (1 << 31) - (1 << 20)


def form_of(spec: ArraySpec, options: CacheOptions, decoder: ChunkDecoder | None) -> str:
    """Return the form in which the cache keeps the chunks of an array; empty: the bytes as they are stored."""
    is_slow = decoder is not None or any(codec.name in SLOW_CODECS for codec in spec.codecs)
    if options.transcode is None or spec.item_type or not is_slow or not 0 < spec.decoded_bytes < _MOST_BYTES:
        return ""
    if decoder is not None:
        chain = decoder.signature
    else:
        chain = " ".join(
            f"{codec.name}{codec.checksum_at_start:d}({codec.element_bytes}{codec.options})" for codec in spec.codecs
        )
    chunk = f"{spec.dtype.str} {spec.swap_bytes} {'x'.join(map(str, spec.chunk_shape))} {spec.storage_order}"
    return f"{options.transcode} of {chain} {chunk}"


def share_of_cpu(spec: ArraySpec) -> str:
    """Return the CPU time that a transcoded chunk of an array takes, as text: a share of what the stored one takes."""
    slow = next((codec.name for codec in spec.codecs if codec.name in SLOW_CODECS), None)
    return (
        "a fraction of the CPU time of zarr-python"
        if slow is None
        else f"{SLOW_CODECS[slow]} of the CPU time of {slow}"
    )
