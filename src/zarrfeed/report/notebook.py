"""What a notebook shows of a dataset: a table that costs no I/O and plans no epoch."""

from __future__ import annotations

from zarrfeed.base.page import Row, as_html
from zarrfeed.plan.order import Order
from zarrfeed.plan.selection import Selection
from zarrfeed.spec.field import FieldSet, ListField, ResidentField, StoredField, described_dtype, shape_of, window_of


def dataset_html(fields: FieldSet, order: Order, batch_size: int | None) -> str:
    """Return the table of a `ZarrIterableDataset`."""
    batches = "single samples" if batch_size is None else f"of {batch_size} samples"
    shuffled = f"shuffled, seed {order.seed}" if order.shuffle else "in order"
    rows = [("batches", batches), ("order", f"{shuffled}, {order.lanes} lane{'s' * (order.lanes != 1)}")]
    return as_html("ZarrIterableDataset", [*_field_rows(fields, order.selection), *rows])


def random_access_html(fields: FieldSet, selection: Selection | None) -> str:
    """Return the table of a `ZarrDataset`."""
    return as_html("ZarrDataset", _field_rows(fields, selection))


def _field_rows(fields: FieldSet, selection: Selection | None) -> list[Row]:
    rows = [("samples", str(fields.num_samples))]
    if selection is not None:
        rows = [("samples", f"{selection.length} of {fields.num_samples}")]
        rows += [("", str(reason)) for reason in selection.left_out]
    for f in fields.fields:
        rows.append((f.name, f"{described_dtype(f)} of shape {shape_of(f)}"))
        window = window_of(f)
        if window is not None:
            rows.append(("", str(window)))
        if isinstance(f, StoredField | ListField):
            rows.append(("", f"{f.spec.name}, {f.spec.shape} in read chunks of {f.spec.chunk_shape}"))
        elif isinstance(f, ResidentField):
            rows.append(("", "in memory"))
    return rows
