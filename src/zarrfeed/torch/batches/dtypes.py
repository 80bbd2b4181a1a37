"""torch's dtypes by their names: every other module names dtypes as NumPy does (`spec/dtypes.py`)."""

from __future__ import annotations

import torch

from zarrfeed.spec.dtypes import TENSOR_DTYPES

#: NumPy dtype name -> torch dtype, for every dtype that both have.
TORCH_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in TENSOR_DTYPES}


def torch_dtype(name: str) -> torch.dtype:
    """Return the dtype of torch that has a name; tensors in memory may have dtypes that NumPy lacks."""
    dtype: torch.dtype = TORCH_DTYPES.get(name) or getattr(torch, name)
    return dtype
