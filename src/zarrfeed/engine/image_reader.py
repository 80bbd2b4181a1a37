"""Images of a field of bytes, as the samples of a batch: bytes are looked up, and decoded in threads, batches ahead.

Batches are asked for before they are wanted (`engine/ahead.py`): their bytes are looked up by `engine/vlen.py`, one
batch at a time, and their images are decoded side by side in threads of their own.

Invariants: each image is written by one thread, to memory of its own. Images of no one size count as what the largest
batch so far took. Crops are drawn by (seed, epoch, sample), so they depend on no thread, rank or worker.
"""

from __future__ import annotations

import asyncio
import math
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
from zarrfeed.engine.sample_lookup import skipped_part
from zarrfeed.engine.stats import Stats
from zarrfeed.engine.substitution import Skipped, SkippedField
from zarrfeed.engine.vlen import ChunkError, Int64, Objects, VlenReader
from zarrfeed.engine.vlen_parts import PartedVlenReader
from zarrfeed.plan.order.image_crops import ImageDraw
from zarrfeed.plan.order.unfolding import ReadPlan
from zarrfeed.spec.fields.field import VlenField
from zarrfeed.spec.values.dtypes import encode_item
from zarrfeed.storage.access.zarr_internals import event_loop, sync
from zarrfeed.storage.chunks.location import StoreSource
from zarrfeed.storage.chunks.parted_source import PartedSource

#: The images of a batch are dealt to the threads in so many pieces each, so that no thread waits long for another.
_PIECES_PER_THREAD = 4


@dataclass(frozen=True)
class BadImage:
    """An image that cannot be decoded: the row of its array, its name in messages, and the reason."""

    row: int
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
        Encoded images, of all samples one after the other; None for an image whose chunk could not be read, or that is
        padded.
    array, memory
        The destination of images of one shape: an array of the array library, and its memory as an array of shape
        (items, channels, height, width).
    copies
        Number of an item -> number of an earlier one that becomes the same pixels.
    values
        The decoded images, one an item, where images have different shapes.
    errors
        The errors of the images that could not be decoded or read.
    """

    index: Int64
    items: Objects
    errors: list[ImageError]
    array: Array = None
    memory: npt.NDArray[Any] | None = None
    copies: dict[int, int] = field(default_factory=dict)
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
        self._field = field
        conversion = field.conversion
        self._converter = None if conversion is None else core.Converter(conversion.to_core())
        self._per_row = math.prod(field.spec.sample_shape)
        self._seed = 0
        self._epoch_of_draws = 0
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
        self._seed, self._epoch_of_draws = plan.order.seed, plan.epoch
        self._start_threads()
        return _batches_of(plan, self._batch_size)

    def _hand_out(self, made: _Decoding) -> tuple[Any, list[ImageError]]:
        """Return the images of samples, and why some lack.

        Images of one size are an array of uint8 of shape (samples, *axes of a sample, channels, height, width). Others
        are lists, nested as deep as the array has axes, of arrays of shape (channels, height, width).
        """
        with self._lock:
            decoded = int(np.count_nonzero(made.items != None)) - len(made.copies) - len(made.bad)  # noqa: E711 (item by item)
            self._stats += Stats(images_decoded=decoded)
        if made.values is None:
            values = made.array
        else:
            values = made.values.reshape(len(made.index), *self._field.sample_shape).tolist()
            self._batch_bytes = max(self._batch_bytes, sum(one.nbytes for one in made.values if one is not None))
        return values, made.errors + self._errors_of(made)

    def _error_of(self, bad: ImageError) -> BaseException:
        return bad.error if isinstance(bad, BadImage) else bad[1]

    def skippable(self, number: int, name: str) -> dict[int, SkippedField]:
        """Map the skip ids of array `number` to its chunks; `~number` is the id of single samples."""
        alone = SkippedField(name, self._encoded.find_rows, self._encoded.offsets)
        return {**self._encoded.skippable(number, name), ~number: alone}

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
        bad = {one.row: one for one in reversed(errors) if isinstance(one, BadImage)}  # of a row the first
        chunks += [skipped_part(~number, row, one.key, one.error) for row, one in bad.items()]
        has_bad = np.isin(self._encoded.rows_of(index), list(bad)).any(axis=1)
        every = np.union1d(slots, np.flatnonzero(has_bad)).astype(np.int64)
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
            items, errors = await self._encoded.look_up_samples(index)
        loop, threads = asyncio.get_running_loop(), self._threads
        if threads is None:
            raise asyncio.CancelledError
        decoding = await loop.run_in_executor(threads, self._begun, index, items, errors)
        pieces = self._pieces(decoding)
        await asyncio.gather(*(loop.run_in_executor(threads, self._decode, decoding, piece, epoch) for piece in pieces))
        await loop.run_in_executor(threads, _copy, decoding)
        return decoding

    def _make_now(self, index: Int64) -> _Decoding:
        """Look up and decode a batch while the caller waits."""
        if self._threads is None:
            raise ClosedError("this dataset was closed")
        items, errors = sync(self._encoded.look_up_samples(index))
        decoding = self._begun(index, items, errors)
        pieces = self._pieces(decoding)
        if len(pieces) == 1 or self._threads is None:
            for piece in pieces:
                self._decode(decoding, piece, self._epoch)
        else:
            work: Callable[[Sequence[int]], None] = lambda piece: self._decode(decoding, piece, epoch)  # noqa: E731
            epoch = self._epoch
            list(self._threads.map(work, pieces))
        _copy(decoding)
        return decoding

    def _begun(self, index: Int64, items: Objects, errors: list[ChunkError]) -> _Decoding:
        """Return a batch with memory for its images."""
        flat = items.reshape(-1)
        if not self._images.shape:
            return _Decoding(index, flat, [*errors], values=np.empty(len(flat), object))
        field, shape = self._field, (len(index), *self._field.sample_shape)
        array, memory = self._arrays.empty_items(shape, field.dtype_name)
        memory = memory.reshape(len(flat), *self._images.shape)
        decoding = _Decoding(index, flat, [*errors], array, memory)
        if field.fill_value is not None:
            memory[flat == None] = np.frombuffer(encode_item(field.dtype_name, field.fill_value), memory.dtype)[0]  # noqa: E711 (item by item)
        if not self._images.draws:
            first: dict[int, int] = {}
            for number, item in enumerate(flat):
                if (same := first.setdefault(id(item), number)) != number and item is not None:
                    decoding.copies[number] = same
        return decoding

    def _pieces(self, decoding: _Decoding) -> list[list[int]]:
        """Return the numbers of the items that are decoded together."""
        numbers = [number for number in range(len(decoding.items)) if number not in decoding.copies]
        pieces = min(len(numbers), _PIECES_PER_THREAD * self._num_threads)
        return [numbers[first::pieces] for first in range(pieces)]

    def _decode(self, decoding: _Decoding, piece: Sequence[int], epoch: int) -> None:
        """Decode some images of a batch, on any thread."""
        begin = time.perf_counter()
        per_sample = max(1, len(decoding.items) // max(1, len(decoding.index)))
        for number in piece:
            data = decoding.items[number]
            if epoch != self._epoch:
                return
            if data is None:
                continue
            try:
                draw = self._draw_of(int(decoding.index[number // per_sample]))
                if decoding.memory is None:
                    assert decoding.values is not None
                    # not memory that processes share: each image would take a descriptor
                    decoding.values[number] = self._arrays.of_numpy(pixels_of(data, self._images, draw).copy("C"))
                elif self._converter is None:
                    pixels_of(data, self._images, draw, decoding.memory[number])
                else:
                    pixels = np.ascontiguousarray(pixels_of(data, self._images, draw))
                    first = number % self._per_row * pixels.size
                    self._converter.convert(decoding.memory[number], pixels, first)
            except Exception as error:  # noqa: BLE001 (of any class: formats are many)
                decoding.bad.append((number, error))
        with self._lock:
            self._stats += Stats(image_s=time.perf_counter() - begin)

    def _draw_of(self, sample: int) -> ImageDraw | None:
        """Return the numbers that a sample draws; None if its images are neither cropped nor mirrored."""
        if self._images.crop is None and not self._images.draws:
            return None
        return ImageDraw(self._images, seed=self._seed, epoch=self._epoch_of_draws, sample=sample)

    def _errors_of(self, decoding: _Decoding) -> list[BadImage]:
        """Return the errors of images, in the order of the batch."""
        row_shape, made = self._field.spec.sample_shape, []
        rows = self._encoded.rows_of(decoding.index).reshape(-1) if decoding.bad else decoding.index
        for number, error in sorted(decoding.bad, key=lambda one: one[0]):
            row = int(rows[number // self._per_row])
            item_index = tuple(map(int, np.unravel_index(number % self._per_row, row_shape))) if row_shape else ()
            at = self._encoded.chunk_index_of(row, item_index)
            chunk = self._encoded.label(at)
            name = f"sample {row}" + f" {list(item_index)}" * bool(item_index)
            why = f"is no image that can be decoded: {_reason(error)}"
            failed = CorruptChunkError(f"{self._encoded.array_of(at)} chunk {chunk}: {name} {why}")
            failed.__cause__ = error
            made.append(BadImage(row, f"{chunk} {name}", failed))
        return made


def _copy(decoding: _Decoding) -> None:
    """Copy the images that a batch has several times, such as those of windows that overlap."""
    for number, same in decoding.copies.items():
        assert decoding.memory is not None
        decoding.memory[number] = decoding.memory[same]


def _batches_of(plan: ReadPlan, batch_size: int) -> Iterator[Int64]:
    """Yield the indices of the samples of each batch of an epoch, without listing the whole order."""
    order = core.SampleStream(plan.to_core())
    while order.left:
        yield order.next(batch_size)


def _reason(error: Exception) -> str:
    """Return the reason why an image cannot be decoded, the same for the same bytes."""
    if type(error).__name__ == "UnidentifiedImageError":  # its message has the address of a file object
        return "no format that Pillow knows"
    return str(error) or repr(error)
