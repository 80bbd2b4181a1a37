"""Find out if this process has an accelerator, and if a fork has taken it away.

A process that was forked from one that had initialised CUDA cannot use CUDA: the driver answers every question with an
error. PyTorch raises that error from `torch.empty(pin_memory=True)`, from streams, and even from `tensor.is_pinned()`.
DataLoader workers are such processes in most training scripts. So nothing of ours asks the driver there, and whoever
asks for page-locked memory or for a device there is told how to start the process instead.

Nothing here imports torch: a command that needs none asks `has_accelerator`, too.
"""

from __future__ import annotations

from operator import call
from typing import TYPE_CHECKING, Any

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.optional_torch import imported

if TYPE_CHECKING:
    import torch


def has_accelerator() -> bool:
    """Return whether there is a device that page-locked memory serves, and that this process can use."""
    torch = imported("torch")
    if torch is None or is_lost_by_fork():
        return False
    accelerator = getattr(torch, "accelerator", None)
    return bool(accelerator.is_available() if accelerator is not None else torch.cuda.is_available())


def is_lost_by_fork(api: Any = None) -> bool:
    """Return whether this process was forked from one that had initialised the device, so that it cannot use it.

    Parameters
    ----------
    api
        A module of torch for a kind of device, such as `torch.cuda`. None: any kind.
    """
    torch = imported("torch")
    if torch is None:
        return False
    # torch documents no other way to ask, and asks like this itself.
    apis = (torch.cuda, getattr(torch, "xpu", None)) if api is None else (api,)
    return any(map(call, [getattr(one, "_is_in_bad_fork", bool) for one in apis]))


def check_not_lost_by_fork(what: str, api: Any = None) -> None:
    """Raise ConfigError if this process lost the device in a fork.

    Parameters
    ----------
    what
        The argument that needs the device, with its value.
    api
        The device interface of torch, as in `is_lost_by_fork`.
    """
    if is_lost_by_fork(api):
        raise ConfigError(
            f"{what}: this process was forked from one that had already used the device, and the driver does not serve "
            "such a process. Start the process with multiprocessing.get_context('spawn') or 'forkserver', or fork "
            "before the first use of the device (torch.cuda.is_available() and a pinned batch are such uses)"
        )


def is_pinned(tensor: torch.Tensor) -> bool:
    """Return whether a tensor lies in page-locked memory; False in a process that lost the device in a fork."""
    return not is_lost_by_fork() and tensor.is_pinned()
