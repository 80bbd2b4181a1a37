"""Make the table of a dataset that a notebook shows; it costs no I/O and plans no epoch."""

from __future__ import annotations

from collections.abc import Sequence

from zarrfeed.base.page import Row, as_html
from zarrfeed.metadata.face.data_page import field_rows, sample_rows
from zarrfeed.plan.order.order import Order
from zarrfeed.plan.samples.selection import Selection
from zarrfeed.spec.fields.field import FieldSet
from zarrfeed.spec.fields.static import StaticField


def dataset_html(fields: FieldSet, order: Order, batch_size: int | None, statics: Sequence[StaticField] = ()) -> str:
    """Return the table of a `ZarrIterableDataset`."""
    batches = "single samples" if batch_size is None else f"of {batch_size} samples"
    shuffled = f"shuffled, seed {order.seed}" if order.shuffle else "in order"
    rows = [("batches", batches), ("order", f"{shuffled}, {order.lanes} lane{'s' * (order.lanes != 1)}")]
    return as_html("ZarrIterableDataset", [*_rows(fields, order.selection, statics), *rows])


def random_access_html(fields: FieldSet, selection: Selection | None, statics: Sequence[StaticField] = ()) -> str:
    """Return the table of a `ZarrDataset`."""
    return as_html("ZarrDataset", _rows(fields, selection, statics))


def _rows(fields: FieldSet, selection: Selection | None, statics: Sequence[StaticField]) -> list[Row]:
    length, left_out = (fields.num_samples, ()) if selection is None else (selection.length, selection.left_out)
    return sample_rows(length, fields.num_samples, left_out) + field_rows(fields.fields, statics)
