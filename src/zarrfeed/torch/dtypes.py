"""The dtypes of tensors as torch and DLPack name them. All else names them as NumPy does (`metadata/dtypes.py`)."""

from __future__ import annotations

import torch

from zarrfeed.metadata.dtypes import TENSOR_DTYPES

#: NumPy dtype name -> torch dtype, for every dtype that both have.
TORCH_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in TENSOR_DTYPES}


def dlpack_dtype(dtype: torch.dtype) -> tuple[int, int]:
    """Return what DLPack calls a dtype: the code of its kind, and the bits of a number.

    Codes: https://dmlc.github.io/dlpack/latest/c_api.html, DLDataTypeCode.
    """
    if dtype == torch.bool:
        code = 6
    elif dtype == torch.bfloat16:
        code = 4
    elif dtype.is_complex:
        code = 5
    elif dtype.is_floating_point:
        code = 2
    else:
        code = 0 if dtype.is_signed else 1
    return code, 8 * dtype.itemsize
