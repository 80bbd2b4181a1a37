"""The best that we could do with zarr-python: whole chunks in shuffled order, through a shuffle buffer of chunks.

The loader itself is `zarrfeed.tools.bench.plain`, which `zarrfeed bench` uses, too; here it gets the layouts of the
suite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import zarr

from benchmarks.data.conversion import convert, converted_dtype
from benchmarks.data.layouts import Layout
from benchmarks.data.stores import Store
from benchmarks.loaders.protocol import Batch
from zarrfeed.tools.bench.plain import PlainLoader
from zarrfeed.tools.bench.plain_fields import PlainField

#: zarr-python needs about a millisecond for a chunk, however small: of more chunks than these a random part is timed,
#: with buffers of a quarter of it.
_MAX_CHUNKS = 4096


class ZarrChunkwise:
    """`PlainLoader` over the chunks of a layout, in this process or in DataLoader workers.

    `codec_pipeline` is the class that decodes in zarr-python, None for its own. Where it has threads of its own, which
    no forked process has, workers are started from a server process. `open_arrays` opens what is read in place of the
    store's directory: the same arrays, in another `zarr.abc.store.Store`.
    """

    def __init__(
        self,
        store: Store,
        *,
        num_workers: int,
        num_threads: int,
        codec_pipeline: str | None = None,
        open_arrays: Callable[[], Sequence[zarr.Array[Any]]] | None = None,
    ) -> None:
        layout = store.layout
        n, rows = layout.num_samples, layout.rows_per_chunk
        num_chunks = min(layout.num_chunks, _MAX_CHUNKS)
        self._loader = PlainLoader(
            open_arrays or partial(_open_arrays, store.array_paths, codec_pipeline),
            _fields(store),
            [(first, min(first + rows, n)) for first in range(0, n, rows)],
            batch_size=layout.batch_size,
            shuffle=True,
            num_workers=num_workers,
            num_threads=num_threads,
            blocks_per_pass=num_chunks,
            context="forkserver" if num_workers and codec_pipeline else None,
        )
        self.samples_per_epoch = min(n, num_chunks * rows)
        self.settings: dict[str, object] = self._loader.settings | {"codec_pipeline": codec_pipeline}

    def epoch(self, epoch: int) -> Iterator[Batch]:
        for values in self._loader.epoch(epoch):
            yield [tensor for tensor in values if isinstance(tensor, torch.Tensor)]

    def close(self) -> None:
        self._loader.close()


def _open_arrays(paths: Sequence[Path], codec_pipeline: str | None) -> list[zarr.Array[Any]]:
    with zarr.config.set({"codec_pipeline.path": codec_pipeline} if codec_pipeline else {}):
        return [zarr.open_array(path, mode="r") for path in paths]


def _fields(store: Store) -> list[PlainField]:
    layout = store.layout
    fields = []
    for number, array in enumerate(_open_arrays(store.array_paths, None)):
        delivered = torch.from_numpy(np.empty(0, array.dtype)).dtype
        converted = converted_dtype(layout) if number == 0 else None
        conversion = None if converted is None else partial(_convert, layout)
        fields.append(PlainField(array.dtype, array.shape[1:], array.dtype, converted or delivered, 0, conversion))
    return fields


def _convert(layout: Layout, items: npt.NDArray[Any], out: torch.Tensor) -> None:
    convert(layout, torch.from_numpy(items), out=out)
