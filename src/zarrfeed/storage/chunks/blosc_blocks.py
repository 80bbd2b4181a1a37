"""The size of the Blosc blocks of an array, as the header of its first stored chunk has it.

The metadata says it only where a writer named it; else the compressor chose, by codec, level and size of an item. What
holds: one header is read, of a chunk that is stored. Other chunks may have blocks of another size: they are decoded
right all the same, and what is counted of them is off.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path

import numpy as np

from zarrfeed.base.errors import CorruptChunkError, StoreReadError
from zarrfeed.base.native import core
from zarrfeed.spec.arrays.layout import Layout
from zarrfeed.spec.arrays.sharding import ShardSpec
from zarrfeed.storage.chunks.chunk_reader import locate_chunk

#: Chunks that are looked for, in C order.
_MOST_CHUNKS = 64
#: Version, version of the compressor, flags, size of an item; decoded bytes, bytes of a block, stored bytes.
_HEADER = struct.Struct("<4B3I")


def stored_block_bytes(layout: Layout) -> int | None:
    """Return the decoded bytes of a Blosc block of a local array; None if none of its first 64 chunks is stored.

    Raises
    ------
    StoreReadError, CorruptChunkError
        If the header of the first stored chunk cannot be read, or is none.
    """
    for folder, key, position in islice(_first_chunks(layout), _MOST_CHUNKS):
        where = f"{layout.spec.name}: chunk {key}" + (f", inner chunk {position}" if position is not None else "")
        try:
            header = _header_of(folder / key, position, layout.spec.shard)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise StoreReadError(error.errno, f"{where}: {error.strerror}, at the header of Blosc") from error
        except CorruptChunkError as error:
            raise CorruptChunkError(f"{where}: {error}") from None
        if header is None:
            continue
        if len(header) < _HEADER.size:
            raise CorruptChunkError(f"{where}: {len(header)} bytes, must have the {_HEADER.size} of a Blosc header")
        decoded, block = (int(n) for n in _HEADER.unpack(header)[4:6])
        if not 0 < block <= decoded <= layout.spec.decoded_bytes:
            raise CorruptChunkError(
                f"{where}: its Blosc header declares {decoded} bytes in blocks of {block}, a chunk decodes to "
                f"{layout.spec.decoded_bytes} bytes"
            )
        return block
    return None


def _first_chunks(layout: Layout) -> Iterator[tuple[Path, str, int | None]]:
    """Yield the folder and the key of each read chunk in C order, and its place in a shard: of the first store."""
    spec = layout.spec
    root, rows = Path(spec.root), spec.num_samples
    if layout.parts is not None:
        root /= os.fsdecode(layout.parts.prefixes[0])
        rows = int(layout.parts.end[0] - layout.parts.begin[0])
    lengths = [rows if axis == spec.sample_axis else n for axis, n in enumerate(spec.shape)]
    axes = list(zip(lengths, spec.chunk_shape, strict=True))[: spec.num_key_axes]
    for index in product(*(range(-(-n // c)) for n, c in axes)):
        key, position = locate_chunk(spec, index)
        yield root, key, position


def _header_of(path: Path, position: int | None, shard: ShardSpec | None) -> bytes | None:
    """Return the first bytes of a chunk; None if its shard lacks it."""
    with path.open("rb") as file:
        if position is None or shard is None:
            return file.read(_HEADER.size)
        size = shard.stored_index_bytes
        end = file.seek(0, os.SEEK_END)
        file.seek(0 if shard.index_at_start else max(0, end - size))
        index = core.parse_shard_index(shard.to_core(), np.frombuffer(file.read(size), dtype=np.uint8))
        begin, length = (int(n) for n in index[position])
        if begin < 0:
            return None
        file.seek(begin)
        return file.read(min(length, _HEADER.size))
