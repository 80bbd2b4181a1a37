"""An example, run with a log of its samples and brakes: `python logged_example.py SCRIPT ARGUMENTS...`.

The example itself is not changed. It calls `zarrfeed.audit` with the indices of each step; here that function also
writes them down, a line a step, to a file of this process in $SAMPLE_LOG. A rank of W ranks does not go beyond the
number of steps in $SAMPLE_LOG/limit-W, so that a test can end ranks in the middle of an epoch without relying on time.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import torch

import zarrfeed

#: Seconds that a rank waits at its limit before it gives up.
LIMIT_S = 600


def log_samples(folder: Path) -> None:
    """Let `zarrfeed.audit` write down what it is given, as soon as the limit allows."""
    audit = zarrfeed.audit
    began = time.time_ns()
    steps = 0

    def logged(index: Any) -> zarrfeed.Digest:
        nonlocal steps
        rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        deadline = time.monotonic() + LIMIT_S
        while steps >= int((folder / f"limit-{world_size}").read_text()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"rank {rank} of {world_size} may not go beyond step {steps}")
            time.sleep(0.02)
        steps += 1
        with (folder / f"{began}-{rank}-{world_size}.jsonl").open("a") as log:
            log.write(json.dumps(index.tolist()) + "\n")
        return audit(index)

    zarrfeed.audit = logged  # type: ignore[assignment]


if __name__ == "__main__":
    torch.set_num_threads(1)
    log_samples(Path(os.environ["SAMPLE_LOG"]))
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
