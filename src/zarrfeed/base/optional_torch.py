"""Questions about torch that modules which work without it have to ask.

Invariants: nothing here imports torch. A value can be a tensor, and a process can be a DataLoader worker or a rank of
torch.distributed, only where somebody has imported torch before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeGuard

#: Returns torch, or a module of torch, by its name, if this process has imported it; else None.
imported: Callable[[str], Any] = sys.modules.get


def is_tensor(value: object) -> TypeGuard[Any]:
    """Return whether a value is a tensor."""
    torch = imported("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_torch_dtype(value: object) -> bool:
    """Return whether a value is one of torch's dtypes."""
    torch = imported("torch")
    return torch is not None and isinstance(value, torch.dtype)
