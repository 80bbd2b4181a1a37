"""What a loader has to do to stored samples, where a layout asks for it: unpack integers, or normalise.

All numbers are chosen so that every way to calculate gives the same bits: steps and deviations are powers of two, and
float32 holds each result but the last, which is rounded once. A loader that is wrong is then caught, and none is
called wrong for another order of operations.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import zarrfeed
from benchmarks.data.layouts import Layout

#: CF attributes of packed samples: value = stored * scale_factor + add_offset.
PACKED = {"scale_factor": 0.0625, "add_offset": 280.0}

#: Normalised samples are (x - MEAN) / STD.
MEAN, STD = 280.0, 8.0


def convert(layout: Layout, samples: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """Return a batch of stored samples as the layout wants them, in torch, with as few passes as torch allows.

    With `out`, the result goes there, and `samples` may be overwritten. By one thread: those of torch wait by
    spinning, which takes the cores from threads that decode.
    """
    if layout.conversion is None:
        return samples
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        if layout.conversion == "unpack":
            return torch.mul(samples, PACKED["scale_factor"], out=out).add_(PACKED["add_offset"])
        scaled = torch.sub(samples, MEAN, out=None if out is None else samples).div_(STD)
        return scaled.to(torch.bfloat16) if out is None else out.copy_(scaled)
    finally:
        torch.set_num_threads(threads)


def converted_dtype(layout: Layout) -> torch.dtype | None:
    """Return the dtype that `convert` gives; None where it changes nothing."""
    return {None: None, "unpack": torch.float32, "normalize": torch.bfloat16}[layout.conversion]


def open_converted(layout: Layout, samples: Path, targets: Path | None) -> zarrfeed.Data:
    """Open what zarrfeed converts as the layout wants it; packed integers it knows by their attributes."""
    data = zarrfeed.open(samples, targets)
    return data.normalize((MEAN, STD)).cast("bfloat16") if layout.conversion == "normalize" else data


def expected(layout: Layout, samples: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return what `convert` must give, calculated in float64; bfloat16 as its bits (int16)."""
    if layout.conversion == "unpack":
        return (samples.astype(np.float64) * PACKED["scale_factor"] + PACKED["add_offset"]).astype(np.float32)
    if layout.conversion == "normalize":
        exact = torch.from_numpy((samples.astype(np.float64) - MEAN) / STD)
        return as_bits(exact.to(torch.bfloat16))
    return samples


def as_bits(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """Return a tensor as an array; bfloat16, which NumPy lacks, as int16."""
    bits: npt.NDArray[Any] = (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return bits
