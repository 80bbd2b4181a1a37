"""The sides of benchmarks/suites/weights.py by annbatch, in a process of its own; needs nothing of this repository.

python weights_probe.py /tmp/x.zarr 64 1 2500

Draws classes alike by annbatch's `WeightedClassSampler`, which takes runs of `chunk` rows of one class: 1 for rows in
any order; more for rows that were sorted by class, as its documentation asks for. Prints a JSON line: samples, seconds,
CPU seconds, and how many samples of each class came.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from typing import Any


def main(path: str, batch_size: int, chunk: int, samples: int) -> None:
    """Deliver batches, after some that are not timed; a sample begins with its number."""
    import numpy as np
    import pandas as pd
    import zarr
    from annbatch import Loader
    from annbatch.samplers import WeightedClassSampler

    warnings.simplefilter("ignore")
    zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
    group: Any = zarr.open_group(path, mode="r")
    label = group["label"][:]

    def loader(count: int) -> Any:
        sampler = WeightedClassSampler(
            chunk_size=chunk,
            preload_nchunks=32 * batch_size // chunk,
            batch_size=batch_size,
            classes=pd.Categorical(label),
            num_samples=count,
        )
        made = Loader(batch_sampler=sampler, preload_to_gpu=False)
        made.add_dataset(group["rows"])
        return made

    for _ in loader(32 * batch_size):
        pass
    begin, cpu = time.perf_counter(), time.process_time()
    firsts = [np.ascontiguousarray(batch["X"][:, :4]).view("<u4")[:, 0] for batch in loader(samples)]
    found = {"seconds": time.perf_counter() - begin, "cpu_s": time.process_time() - cpu}
    numbers = np.concatenate(firsts)
    classes = np.bincount(label[numbers], minlength=label.max() + 1).tolist()
    print(json.dumps({"samples": len(numbers), **found, "classes": classes}))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]))
