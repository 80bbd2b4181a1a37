"""Batches on an accelerator before the training step asks for them.

Names are imported when they are first used, which needs torch.
"""

from typing import TYPE_CHECKING

from zarrfeed.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from zarrfeed.torch.device.prefetch import DeviceLoader, prefetch

__all__ = ["DeviceLoader", "prefetch"]

if not TYPE_CHECKING:  # a type checker would take every misspelt name for one of these
    __getattr__, __dir__ = lazy_names(__name__, dict.fromkeys(__all__, "torch.device.prefetch"))
