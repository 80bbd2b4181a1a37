"""Batches on an accelerator before the training step asks for them.

Names are imported when they are first used, which needs torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zarrfeed.torch.device.prefetch import DeviceLoader, prefetch

__all__ = ["DeviceLoader", "prefetch"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module("zarrfeed.torch.device.prefetch"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """List public names, imported or not."""
        return sorted({*globals(), *__all__})
