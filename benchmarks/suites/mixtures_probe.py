"""A mixture by another library, in a process of its own, for benchmarks/suites/mixtures.py; needs zarr and the library.

python mixtures_probe.py grain '{"paths": ["a.zarr", "b.zarr"], "weights": [7, 2], "batch_size": 64, "steps": 900, ...}'

Converts the samples to the library's format, unless that was done before. Prints a JSON line with the number of each
sample of an epoch, and one with the seconds of each further epoch.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any


def samples_of(path: str) -> Iterator[Any]:
    """Yield the samples of a store."""
    import zarr

    array: Any = zarr.open_array(path, mode="r")
    for begin in range(0, array.shape[0], 1024):
        yield from array[begin : begin + 1024]


def streaming_batches(task: dict[str, Any]) -> Iterable[Any]:
    """Return the batches of an epoch by MosaicML streaming, in two DataLoader workers."""
    from streaming import MDSWriter, Stream, StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    folders = [str(Path(task["folder"]) / str(number)) for number in range(len(task["paths"]))]
    for folder, path in zip(folders, task["paths"], strict=True):
        if not Path(folder).exists():
            with MDSWriter(out=folder, columns={"x": "ndarray:uint8"}, compression="zstd:3") as writer:
                for sample in samples_of(path):
                    writer.write({"x": sample})
    streams = [Stream(local=folder, proportion=weight) for folder, weight in zip(folders, task["weights"], strict=True)]
    dataset = StreamingDataset(
        streams=streams,
        shuffle=True,
        batch_size=task["batch_size"],
        epoch_size=task["steps"],
        num_canonical_nodes=1,
        keep_zip=True,
    )
    loader = StreamingDataLoader(dataset, batch_size=task["batch_size"], num_workers=2, persistent_workers=True)

    class Batches:
        def __iter__(self) -> Iterator[Any]:
            return (batch["x"] for batch in loader)

    return Batches()


def grain_batches(task: dict[str, Any]) -> Iterable[Any]:
    """Return the batches of an epoch by Grain, in its threads."""
    import grain
    import numpy as np
    import torch
    from array_record.python import array_record_data_source, array_record_module

    shape = next(samples_of(task["paths"][0])).shape
    sources = []
    for number, path in enumerate(task["paths"]):
        file = Path(task["folder"]) / f"{number}.array_record"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            writer = array_record_module.ArrayRecordWriter(str(file), "group_size:1,zstd:3")
            for sample in samples_of(path):
                writer.write(sample.tobytes())
            writer.close()
        source = array_record_data_source.ArrayRecordDataSource([str(file)])
        sources.append(grain.MapDataset.source(source).seed(number).shuffle().repeat())
    mixed = grain.MapDataset.mix(sources, weights=task["weights"])
    decoded = mixed.map(lambda record: np.frombuffer(record, np.uint8).reshape(shape))
    batches = decoded.to_iter_dataset(grain.ReadOptions(num_threads=16, prefetch_buffer_size=512))
    endless = iter(batches.batch(task["batch_size"]))

    class Batches:
        def __iter__(self) -> Iterator[Any]:
            for _ in range(task["steps"] // task["batch_size"]):
                yield torch.from_numpy(next(endless))

    return Batches()


SIDES: dict[str, Callable[[dict[str, Any]], Iterable[Any]]] = {"streaming": streaming_batches, "grain": grain_batches}


def main(side: str, task: dict[str, Any]) -> None:
    """Deliver an epoch to be checked, and some that are timed."""
    warnings.simplefilter("ignore")
    batches = SIDES[side](task)
    numbers: list[int] = []
    for batch in batches:
        heads = batch.numpy().reshape(len(batch), -1)[:, :4].copy()
        numbers += heads.view("<u4").reshape(-1).tolist()
    print(json.dumps({"numbers": numbers}), flush=True)
    for _ in range(task["epochs"]):
        begin = time.perf_counter()
        samples = sum(len(batch) for batch in batches)
        print(json.dumps({"seconds": time.perf_counter() - begin, "samples": samples}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
