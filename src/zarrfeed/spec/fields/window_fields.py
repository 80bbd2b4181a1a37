"""Fields that describe windows of other fields: padded rows as a mask or a count, sequences, the drawn distance."""

from __future__ import annotations

from dataclasses import dataclass

from zarrfeed.base.native import core
from zarrfeed.spec.fields.field_kind import FieldKind
from zarrfeed.spec.fields.tensor_spec import TensorSpec
from zarrfeed.spec.samples.sample_runs import SampleRuns
from zarrfeed.spec.samples.window import Lead, Window


@dataclass(frozen=True)
class PadMaskField(FieldKind):
    """A mask of the padded rows in the windows of another field: bool, shape (rows of the window,)."""

    num_samples: int
    padded: Window
    name: str

    @property
    def window(self) -> Window:
        """The windows whose rows may be padded."""
        return self.padded

    @property
    def fill_value(self) -> None:
        """Always None: rows are padded in the other field, and the mask marks them."""
        return

    @property
    def dtype_name(self) -> str:
        """Name of the dtype in batches."""
        return "bool"

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
class LengthField(PadMaskField):
    """The rows of a window that are not padded, as a number: int64, shape ().

    The engine delivers the mask of the padded rows; `torch/batches/sequences.py` counts the others.
    """

    name: str = "length"

    @property
    def has_rows_axis(self) -> bool:
        """Always False: batches have one number for a sample."""
        return False

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample for people."""
        return ()

    @property
    def described_dtype(self) -> str:
        """The items of a batch in words."""
        return "int64"


@dataclass(frozen=True)
class PackedNumbersField(FieldKind):
    """A number for each row of packed samples: of its sequence, or its position there; int64, shape (rows,)."""

    num_samples: int
    name: str
    of_samples: Window
    rows: SampleRuns

    @property
    def window(self) -> Window:
        """The windows that packed samples are."""
        return self.of_samples

    @property
    def row_map(self) -> SampleRuns:
        """The number of each row."""
        return self.rows

    @property
    def dtype_name(self) -> str:
        """Name of the dtype in batches."""
        return "int64"

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.window.shape

    def to_core(self, tensor: TensorSpec | None = None) -> core.FieldSpec:
        """Return the field in the form that the engine takes; the row map must outlive the engine."""
        return core.FieldSpec.index(offsets=self.window.offsets, row_map=self.rows.to_core(), tensor=tensor)


@dataclass(frozen=True)
class LeadField(FieldKind):
    """The distance that each sample draws: int64, shape ()."""

    num_samples: int
    lead: Lead
    name: str = "lead"

    sample_shape: tuple[int, ...] = ()

    @property
    def dtype_name(self) -> str:
        """Name of the dtype in batches."""
        return "int64"

    def to_core(self, tensor: TensorSpec | None = None) -> core.FieldSpec:
        """Return the field in the form that the engine takes."""
        return core.FieldSpec.lead(low=self.lead.low, high=self.lead.high, tensor=tensor)


def lead_to_core(window: Window | None) -> tuple[int, int, tuple[int, ...]] | None:
    """Convert the drawn offsets of a window to the form that the engine takes; None if no offset is drawn."""
    return None if window is None or window.lead is None else (window.lead.low, window.lead.high, window.drawn)
