"""Images of a field of bytes, as the samples of a batch: bytes are looked up, and decoded in threads, batches ahead.

Batches are asked for before they are wanted (`engine/ahead.py`): their bytes are looked up by `engine/vlen.py`, one
batch at a time, and their images are decoded side by side in threads of their own.

Invariants: each image is written by one thread, to memory of its own. Images of no one size count as what the largest
batch so far took.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ClosedError, CorruptChunkError
from zarrfeed.base.native import core
from zarrfeed.engine.ahead import AheadReader
from zarrfeed.engine.batch_arrays import Array, BatchArrays
from zarrfeed.engine.image_decoder import pixels_of
from zarrfeed.engine.sample_lookup import skipped_alone, skipped_part
from zarrfeed.engine.stats import Stats
from zarrfeed.engine.substitution import Skipped, SkippedField
from zarrfeed.engine.vlen import ChunkError, Int64, Objects, VlenReader
from zarrfeed.engine.vlen_parts import PartedVlenReader
from zarrfeed.plan.order.unfolding import ReadPlan
from zarrfeed.spec.field import VlenField
from zarrfeed.storage.access.zarr_internals import event_loop, sync
from zarrfeed.storage.chunks.location import StoreSource
from zarrfeed.storage.chunks.parted_source import PartedSource

#: The images of a batch are dealt to the threads in so many pieces each, so that no thread waits long for another.
_PIECES_PER_THREAD = 4


@dataclass(frozen=True)
class BadImage:
    """An image that cannot be decoded: its sample, its name in messages, and the reason."""

    sample: int
    key: str
    error: CorruptChunkError


#: Why a batch lacks a sample.
ImageError: TypeAlias = "ChunkError | BadImage"


@dataclass
class _Decoding:
    """The images of one batch while they are decoded.

    Attributes
    ----------
    index
        The indices of the samples.
    items
        Encoded images, of all samples one after the other; None for an image whose chunk could not be read.
    array, memory
        The destination of images of one shape: an array of the array library, and its memory as an array of shape
        (items, channels, height, width).
    values
        The decoded images, one an item, where images have different shapes.
    errors
        The errors of the images that could not be decoded or read.
    """

    index: Int64
    items: Objects
    errors: list[ImageError]
    array: Array = None
    memory: npt.NDArray[np.uint8] | None = None
    values: Objects | None = None
    bad: list[tuple[int, Exception]] = field(default_factory=list)


class ImageReader(AheadReader[_Decoding, ImageError]):
    """Reads the images of one field.

    Parameters
    ----------
    field
        The field, whose samples are encoded images.
    encoded
        Looks up the encoded bytes of samples.
    batch_size
        Samples of a batch.
    num_threads
        Number of threads that decode.
    arrays
        The array library that batches are made with.
    """

    def __init__(
        self,
        field: VlenField,
        encoded: VlenReader | PartedVlenReader,
        *,
        batch_size: int,
        num_threads: int,
        arrays: BatchArrays,
    ) -> None:
        assert field.images is not None
        super().__init__(
            batch_size=batch_size,
            num_threads=num_threads,
            threads_name="zarrfeed-images",
            planned_bytes=batch_size * field.sample_bytes,
        )
        self._images = field.images
        self._sample_shape = field.spec.sample_shape
        self._encoded = encoded
        self._arrays = arrays
        self._one_at_a_time = asyncio.Lock()
        self._lock = threading.Lock()
        self._stats = Stats()

    @property
    def source(self) -> StoreSource | PartedSource:
        """The source of the encoded chunks."""
        return self._encoded.source

    def _begin(self, plan: ReadPlan, max_open_batches: int) -> Iterator[Int64]:
        self._encoded.open(plan, max_open_batches)
        self._start_threads()
        return _batches_of(plan, self._batch_size)

    def _hand_out(self, made: _Decoding) -> tuple[Any, list[ImageError]]:
        """Return the images of samples, and why some lack.

        Images of one size are an array of uint8 of shape (samples, *axes of a sample, channels, height, width). Others
        are lists, nested as deep as the array has axes, of arrays of shape (channels, height, width).
        """
        with self._lock:
            self._stats += Stats(images_decoded=int(np.count_nonzero(made.items != None)) - len(made.bad))  # noqa: E711 (item by item)
        if made.values is None:
            values = made.array
        else:
            values = made.values.reshape(len(made.index), *self._sample_shape).tolist()
            self._batch_bytes = max(self._batch_bytes, sum(one.nbytes for one in made.values if one is not None))
        return values, made.errors + self._errors_of(made)

    def _error_of(self, bad: ImageError) -> BaseException:
        return bad.error if isinstance(bad, BadImage) else bad[1]

    def skippable(self, number: int, name: str) -> dict[int, SkippedField]:
        """Map the skip ids of array `number` to its chunks; `~number` is the id of single samples."""
        return {**self._encoded.skippable(number, name), ~number: skipped_alone(name)}

    def skipped(self, number: int, index: Int64, errors: list[ImageError]) -> Skipped:
        """Return the slots of a batch that lack their sample, because a chunk or an image of field `number` is bad.

        Raises
        ------
        BaseException
            Any of the errors that says nothing of a chunk.
        """
        slots, _, chunks = self._encoded.skipped(
            number, index, [one for one in errors if not isinstance(one, BadImage)]
        )
        bad = {one.sample: one for one in reversed(errors) if isinstance(one, BadImage)}  # of a sample the first
        chunks += [skipped_part(~number, sample, one.key, one.error) for sample, one in bad.items()]
        every = np.union1d(slots, np.flatnonzero(np.isin(index, list(bad)))).astype(np.int64)
        return every.tolist(), index[every].tolist(), chunks

    def stats(self) -> Stats:
        """Return the counters since this reader was made."""
        with self._lock:
            return self._stats + self._encoded.stats()

    def _make_ahead(self, index: Int64, number: int, epoch: int) -> Future[_Decoding]:  # noqa: ARG002 - of other kinds
        return asyncio.run_coroutine_threadsafe(self._decoded_ahead(index, epoch), event_loop())

    async def _decoded_ahead(self, index: Int64, epoch: int) -> _Decoding:
        """Look up and decode a batch; on zarr-python's loop."""
        async with self._one_at_a_time:
            items, errors = await self._encoded.look_up(index)
        loop, threads = asyncio.get_running_loop(), self._threads
        if threads is None:
            raise asyncio.CancelledError
        decoding = await loop.run_in_executor(threads, self._begun, index, items, errors)
        pieces = self._pieces(decoding)
        await asyncio.gather(*(loop.run_in_executor(threads, self._decode, decoding, piece, epoch) for piece in pieces))
        return decoding

    def _make_now(self, index: Int64) -> _Decoding:
        """Look up and decode a batch while the caller waits."""
        if self._threads is None:
            raise ClosedError("this dataset was closed")
        items, errors = sync(self._encoded.look_up(index))
        decoding = self._begun(index, items, errors)
        pieces = self._pieces(decoding)
        if len(pieces) == 1 or self._threads is None:
            for piece in pieces:
                self._decode(decoding, piece, self._epoch)
        else:
            work: Callable[[Sequence[int]], None] = lambda piece: self._decode(decoding, piece, epoch)  # noqa: E731
            epoch = self._epoch
            list(self._threads.map(work, pieces))
        return decoding

    def _begun(self, index: Int64, items: Objects, errors: list[ChunkError]) -> _Decoding:
        """Return a batch with memory for its images."""
        flat = items.reshape(-1)
        if not self._images.shape:
            return _Decoding(index, flat, [*errors], values=np.empty(len(flat), object))
        array, memory = self._arrays.empty((len(index), *self._sample_shape, *self._images.shape))
        return _Decoding(index, flat, [*errors], array, memory.reshape(len(flat), *self._images.shape))

    def _pieces(self, decoding: _Decoding) -> list[range]:
        """Return the numbers of the items that are decoded together."""
        count = len(decoding.items)
        pieces = min(count, _PIECES_PER_THREAD * self._num_threads)
        return [range(first, count, pieces) for first in range(pieces)]

    def _decode(self, decoding: _Decoding, piece: Sequence[int], epoch: int) -> None:
        """Decode some images of a batch, on any thread."""
        begin = time.perf_counter()
        for number in piece:
            data = decoding.items[number]
            if epoch != self._epoch:
                return
            if data is None:
                continue
            try:
                pixels = pixels_of(data, self._images)
                if decoding.memory is not None:
                    decoding.memory[number] = pixels
                else:
                    assert decoding.values is not None
                    # not memory that processes share: each image would take a descriptor
                    decoding.values[number] = self._arrays.of_numpy(pixels.copy("C"))
            except Exception as error:  # noqa: BLE001 (of any class: formats are many)
                decoding.bad.append((number, error))
        with self._lock:
            self._stats += Stats(image_s=time.perf_counter() - begin)

    def _errors_of(self, decoding: _Decoding) -> list[BadImage]:
        """Return the errors of images, in the order of the batch."""
        per_sample = max(1, len(decoding.items) // max(1, len(decoding.index)))
        made = []
        for number, error in sorted(decoding.bad, key=lambda one: one[0]):
            slot, item = divmod(number, per_sample)
            sample = int(decoding.index[slot])
            item_index = tuple(map(int, np.unravel_index(item, self._sample_shape))) if self._sample_shape else ()
            at = self._encoded.chunk_index_of(sample, item_index)
            chunk = self._encoded.label(at)
            name = f"sample {sample}" + f" {list(item_index)}" * bool(item_index)
            why = f"is no image that can be decoded: {_reason(error)}"
            failed = CorruptChunkError(f"{self._encoded.array_of(at)} chunk {chunk}: {name} {why}")
            failed.__cause__ = error
            made.append(BadImage(sample, f"{chunk} {name}", failed))
        return made


def _batches_of(plan: ReadPlan, batch_size: int) -> Iterator[Int64]:
    """Yield the samples of the batches of an epoch, without listing its order."""
    order = core.SampleStream(plan.to_core())
    while order.left:
        yield order.next(batch_size)


def _reason(error: Exception) -> str:
    """Return the reason why an image cannot be decoded, the same for the same bytes."""
    if type(error).__name__ == "UnidentifiedImageError":  # its message has the address of a file object
        return "no format that Pillow knows"
    return str(error) or repr(error)
