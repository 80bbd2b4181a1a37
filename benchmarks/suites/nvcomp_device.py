"""The steps from stored chunks to scattered rows on a device, for `nvcomp.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.data.streams import Chunk, decode_on_host, unfiltered
from benchmarks.harness.nvcomp import Nvcomp
from benchmarks.suites.gpu_steps import Mark, marks_of

#: Behind a zlib header of 2 bytes and before a checksum of 4 lies what nvCOMP calls Deflate.
_ZLIB_HEAD, _ZLIB_TAIL = 2, 4
#: Chunks whose values are compared with the host's.
_COMPARED = 4


class OnDevice:
    """Chunks in memory of the host and of a device, and the steps from stored bytes to scattered rows.

    Stored chunks are copied as they are where nvCOMP takes streams at any offset; else each stream is put at an
    offset that it takes. Streams that are stored as they are are copied on the device to where they belong.
    """

    def __init__(self, chunks: Sequence[Chunk], row_bytes: int, library: Nvcomp, device: torch.device) -> None:
        self._chunks, self._library, self._device = chunks, library, device
        self.codec = chunks[0].codec
        sources, sizes, offsets = _offsets(chunks, library.alignment(self.codec))
        self._stored = _on_host(_staged(chunks, offsets, sizes, sources), device)
        self._copy = torch.empty_like(self._stored, device=device)
        raw = np.concatenate([chunk.is_raw for chunk in chunks])
        decoded = np.concatenate([chunk.decoded_sizes for chunk in chunks])
        targets = np.cumsum(decoded) - decoded
        self.decoded_bytes = int(decoded.sum())
        self.decompressed = torch.zeros(self.decoded_bytes, dtype=torch.uint8, device=device)
        self._raw = list(zip(offsets[raw].tolist(), targets[raw].tolist(), decoded[raw].tolist(), strict=True))
        skipped = _ZLIB_HEAD if self.codec == "zlib" else 0
        less = _ZLIB_HEAD + _ZLIB_TAIL if self.codec == "zlib" else 0
        self._tables = {
            "sources": self._table(offsets[~raw] + skipped + self._copy.data_ptr()),
            "source_sizes": self._table(sizes[~raw] - less),
            "targets": self._table(targets[~raw] + self.decompressed.data_ptr()),
            "target_sizes": self._table(decoded[~raw]),
        }
        count = len(self._tables["sources"])
        self._actual = torch.zeros(count, dtype=torch.int64, device=device)
        self._statuses = torch.full((count,), -1, dtype=torch.int32, device=device)
        most = int(decoded[~raw].max(initial=0))
        temp_bytes = library.temp_bytes(self.codec, count, most, int(decoded[~raw].sum())) if count else 0
        self._temp = torch.empty(max(1, temp_bytes), dtype=torch.uint8, device=device)
        self.temp_bytes = temp_bytes
        self.rows = torch.zeros(self.decoded_bytes // row_bytes, row_bytes, dtype=torch.uint8, device=device)
        self._alike = _alike(chunks)
        order = np.random.default_rng(0).permutation(len(self.rows))
        self.slots = torch.from_numpy(order).to(device)

    def _table(self, values: Any) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64)).to(self._device)

    def copy(self) -> None:
        """Begin to copy what is stored to the device."""
        self._copy.copy_(self._stored, non_blocking=True)

    def decompress(self) -> None:
        """Begin to decompress the streams, and to copy those that are stored as they are."""
        for offset, target, length in self._raw:
            self.decompressed[target : target + length].copy_(self._copy[offset : offset + length])
        if not len(self._statuses):
            return
        stream = torch.cuda.current_stream(self._device).cuda_stream if self._device.type == "cuda" else 0
        self._library.decompress(
            self.codec,
            **self._tables,
            actual_sizes=self._actual,
            statuses=self._statuses,
            temp=self._temp,
            stream=stream,
        )

    def scatter(self) -> None:
        """Begin to undo the byte shuffle and to copy rows to their slots.

        One kernel does that for all chunks, unless they differ: Blosc does not shuffle a chunk that it cannot make
        smaller, and the last block of a chunk may be shorter.
        """
        row_bytes = self.rows.shape[1]
        for begin, end, block_bytes, typesize in self._alike:
            slots = self.slots[begin // row_bytes : end // row_bytes]
            unshuffle_rows(self.decompressed[begin:end], block_bytes, typesize, slots, self.rows)

    @property
    def can_scatter(self) -> bool:
        """True if `scatter` undoes all filters: no kernel of torch puts the bits of bit shuffle in their places."""
        return all(chunk.filtering != "bitshuffle" for chunk in self._chunks)

    def check(self) -> None:
        """Compare the first chunks with the host's.

        Raises
        ------
        AssertionError
            If a stream failed or decoded to something else.
        """
        failed = self._statuses.nonzero().flatten().tolist()
        if failed:
            raise AssertionError(f"{len(failed)} of {len(self._statuses)} streams failed, the first is {failed[0]}")
        if not torch.equal(self._actual, self._tables["target_sizes"]):
            raise AssertionError("streams decoded to other lengths than the chunks say")
        begin = 0
        for chunk in self._chunks[:_COMPARED]:
            end = begin + chunk.decoded_bytes
            expected = decode_on_host(chunk)
            if unfiltered(chunk, self.decompressed[begin:end].cpu().numpy().tobytes()) != expected:
                raise AssertionError("a chunk decoded to other values than on the host")
            if self.can_scatter:
                slots = self.slots[begin // self.rows.shape[1] : end // self.rows.shape[1]]
                if self.rows[slots].cpu().numpy().tobytes() != expected:
                    raise AssertionError("rows of a chunk are not in their slots, or hold other values")
            begin = end


def _offsets(chunks: Sequence[Chunk], alignment: int) -> tuple[Any, Any, Any]:
    """Return where each stream lies in all chunks, how long it is, and where it is put before it is copied."""
    begins = np.cumsum([0, *(len(chunk.stored) for chunk in chunks[:-1])])
    sources = np.concatenate([chunk.offsets + begin for chunk, begin in zip(chunks, begins, strict=True)])
    sizes = np.concatenate([chunk.sizes for chunk in chunks])
    if alignment == 1:
        return sources, sizes, sources
    # a zlib stream is taken from behind its header on
    ahead = _ZLIB_HEAD if chunks[0].codec == "zlib" else 0
    rooms = -(-(sizes + alignment) // alignment) * alignment
    return sources, sizes, np.cumsum(rooms) - rooms + (alignment - ahead % alignment) % alignment


def _staged(chunks: Sequence[Chunk], offsets: Any, sizes: Any, sources: Any) -> Any:
    stored = np.frombuffer(b"".join(chunk.stored for chunk in chunks), np.uint8)
    if offsets is sources:
        return stored
    out = np.zeros(int(offsets[-1] + sizes[-1]), np.uint8)
    for source, size, offset in zip(sources.tolist(), sizes.tolist(), offsets.tolist(), strict=True):
        out[offset : offset + size] = stored[source : source + size]
    return out


def _on_host(values: Any, device: torch.device) -> torch.Tensor:
    tensor = torch.from_numpy(values.copy())
    return tensor.pin_memory() if device.type == "cuda" else tensor


def _alike(chunks: Sequence[Chunk]) -> list[tuple[int, int, int, int]]:
    """Return the decoded bytes [begin, end) of chunks in a row that are made of equal blocks.

    And the bytes of a block, and of the items that are shuffled in it.
    """
    found: list[tuple[int, int, int, int]] = []
    begin = 0
    for chunk in chunks:
        end = begin + chunk.decoded_bytes
        shuffled_by = (chunk.block_bytes, chunk.typesize if chunk.filtering == "shuffle" else 1)
        goes_on = found and found[-1][2:] == shuffled_by and (begin - found[-1][0]) % chunk.block_bytes == 0
        if goes_on:
            found[-1] = (found[-1][0], end, *shuffled_by)
        else:
            found.append((begin, end, *shuffled_by))
        begin = end
    return found


def unshuffle_rows(
    shuffled: torch.Tensor, block_bytes: int, typesize: int, slots: torch.Tensor, rows: torch.Tensor
) -> None:
    """Undo the byte shuffle of blocks, and copy each row to its slot: one kernel, where rows and blocks fit together.

    Parameters
    ----------
    shuffled
        Decompressed blocks, one behind the other; uint8.
    block_bytes, typesize
        Bytes of a block and of an item. With items of 1 byte, nothing is shuffled.
    slots
        For each row in the order of `shuffled`, its index in `rows`.
    rows
        Shape (rows, bytes); uint8.
    """
    row_bytes = rows.shape[1]
    piece = min(block_bytes, row_bytes)
    fits = max(block_bytes, row_bytes) % piece == 0 and len(shuffled) % block_bytes == 0 and piece % typesize == 0
    if not fits:  # two kernels: the blocks first, of which the last one may be shorter
        plain = torch.cat([_unshuffled(block, typesize) for block in torch.split(shuffled, block_bytes)])
        rows.index_copy_(0, slots, plain.view(len(slots), row_bytes))
        return
    pieces = row_bytes // piece
    # (blocks, typesize, pieces of a block, items of a piece) -> (blocks, pieces of a block, items, typesize)
    source = shuffled.view(-1, typesize, block_bytes // piece, piece // typesize).permute(0, 2, 3, 1)
    pieces_of_slots = slots[:, None] * pieces + torch.arange(pieces, device=slots.device)
    target = rows.view(len(rows) * pieces, piece // typesize, typesize)
    target.index_put_((pieces_of_slots.view(source.shape[:2]),), source)


def _unshuffled(block: torch.Tensor, typesize: int) -> torch.Tensor:
    whole = len(block) // typesize * typesize
    return torch.cat([block[:whole].view(typesize, -1).T.reshape(-1), block[whole:]])


def time_on_device(
    chunks: Sequence[Chunk], row_bytes: int, library: Nvcomp, device: torch.device, repeats: int
) -> dict[str, Any]:
    """Return the milliseconds of each step, and decoded GB/s of all and of copying decoded rows instead.

    Raises
    ------
    AssertionError
        If something else comes out than on the host.
    """
    on_device = OnDevice(chunks, row_bytes, library, device)
    decoded = _on_host(np.zeros(on_device.decoded_bytes, np.uint8), device)
    steps: dict[str, Callable[[], object]] = {"copy": on_device.copy, "decompress": on_device.decompress}
    if on_device.can_scatter:
        steps["scatter"] = on_device.scatter
    make_mark = marks_of(device)
    for step in steps.values():
        step()
    make_and_wait(make_mark)
    on_device.check()
    target = torch.empty_like(decoded, device=device)
    steps["copy decoded"] = lambda: target.copy_(decoded, non_blocking=True)
    found: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats):
        for name, step in steps.items():
            begin, end = make_mark(), make_mark()
            begin.record()
            step()
            end.record()
            end.synchronize()
            found[name].append(begin.elapsed_time(end))
    milliseconds = {name: median(values) for name, values in found.items()}
    alone = milliseconds["copy decoded"]
    together = sum(milliseconds.values()) - alone
    return {
        "chunks": len(chunks),
        "streams": sum(len(chunk.offsets) for chunk in chunks),
        "temp_bytes": on_device.temp_bytes,
        "ms": milliseconds,
        "gb_per_s": on_device.decoded_bytes / 1e6 / together,
        "copy_decoded_gb_per_s": on_device.decoded_bytes / 1e6 / alone,
    }


def make_and_wait(make_mark: Callable[[], Mark]) -> None:
    """Wait for all work that was given to the device."""
    mark = make_mark()
    mark.record()
    mark.synchronize()
