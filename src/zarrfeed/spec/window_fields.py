"""Fields that say something about the windows of others: which rows are padded, and which distance was drawn."""

from __future__ import annotations

from dataclasses import dataclass

from zarrfeed.base.native import core
from zarrfeed.spec.tensor_spec import TensorSpec
from zarrfeed.spec.window import Lead, Window


@dataclass(frozen=True)
class PadMaskField:
    """Which rows of the windows of another field are padded: bool, shape (rows of the window,)."""

    num_samples: int
    window: Window
    name: str

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.window.shape

    def to_core(self, tensor: TensorSpec | None = None) -> core.FieldSpec:
        """Return the field in the form that the engine takes."""
        assert self.window.pad is not None
        borders = self.window.pad.borders
        return core.FieldSpec.pad_mask(
            offsets=self.window.offsets,
            pad=("fill", b"", None if borders is None else borders.first),
            tensor=tensor,
            lead=lead_to_core(self.window),
        )


@dataclass(frozen=True)
class LeadField:
    """The distance that each sample draws: int64, shape ()."""

    num_samples: int
    lead: Lead
    name: str = "lead"

    sample_shape: tuple[int, ...] = ()

    def to_core(self, tensor: TensorSpec | None = None) -> core.FieldSpec:
        """Return the field in the form that the engine takes."""
        return core.FieldSpec.lead(low=self.lead.low, high=self.lead.high, tensor=tensor)


def lead_to_core(window: Window | None) -> tuple[int, int, tuple[int, ...]] | None:
    """Return which offsets of a window are drawn, in the form that the engine takes; None if none is."""
    return None if window is None or window.lead is None else (window.lead.low, window.lead.high, window.drawn)
