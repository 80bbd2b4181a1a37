"""Patches by another library, in a process of its own, for benchmarks/suites/patches.py.

python patches_probe.py tensorstore '{"path": "a.zarr", "starts": "starts.npy", "size": [64, 64, 64], "batch": 8, ...}'

Prints a JSON line with the checksum of each patch, and one with the seconds of each further pass over them.
"""

from __future__ import annotations

import json
import sys
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

#: Batches that are read ahead, and bytes of decoded chunks that are kept.
_AHEAD, _CACHE_BYTES = 8, 512 << 20


def tensorstore_batches(task: dict[str, Any]) -> Callable[[], Iterator[Any]]:
    """Return what makes the batches of a pass by tensorstore: padded boxes, several batches read ahead."""
    import numpy as np
    import tensorstore

    starts, size = np.load(task["starts"]), np.array(task["size"])

    def read(store: Any, some: Any) -> tuple[Any, list[Any]]:
        batch = np.zeros((len(some), *size), store.dtype.numpy_dtype)
        futures = []
        for patch, start in zip(batch, some, strict=True):
            low, high = np.maximum(start, 0), np.minimum(start + size, store.shape)
            target = patch[tuple(slice(a, b) for a, b in zip(low - start, high - start, strict=True))]
            box = store[tuple(slice(a, b) for a, b in zip(low.tolist(), high.tolist(), strict=True))]
            futures.append(tensorstore.array(target).write(box))
        return batch, futures

    def batches() -> Iterator[Any]:
        # A context of its own, so that no pass finds the chunks of the one before in the cache.
        store = tensorstore.open(
            {"driver": "zarr3", "kvstore": {"driver": "file", "path": task["path"]}},
            context=tensorstore.Context({"cache_pool": {"total_bytes_limit": _CACHE_BYTES}}),
            read=True,
        ).result()
        ahead: deque[tuple[Any, list[Any]]] = deque()
        for begin in range(0, len(starts), task["batch"]):
            ahead.append(read(store, starts[begin : begin + task["batch"]]))
            if len(ahead) > _AHEAD:
                yield _finish(ahead.popleft())
        while ahead:
            yield _finish(ahead.popleft())

    return batches


def _finish(reading: tuple[Any, list[Any]]) -> Any:
    batch, futures = reading
    for one in futures:
        one.result()
    return batch


SIDES: dict[str, Callable[[dict[str, Any]], Callable[[], Iterator[Any]]]] = {"tensorstore": tensorstore_batches}


def main(side: str, task: dict[str, Any]) -> None:
    """Deliver a pass to be checked, and some that are timed."""
    batches = SIDES[side](task)
    print(json.dumps({"sums": [zlib.crc32(patch.tobytes()) for batch in batches() for patch in batch]}), flush=True)
    for _ in range(task["passes"]):
        begin = time.perf_counter()
        patches = sum(len(batch) for batch in batches())
        print(json.dumps({"seconds": time.perf_counter() - begin, "patches": patches}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
