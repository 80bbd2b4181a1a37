"""Describe the samples of a dataset in one line."""

from __future__ import annotations

from collections.abc import Sequence

from zarrfeed.plan.samples.selection import Selection
from zarrfeed.spec.fields.batch_tensors import tensors_of
from zarrfeed.spec.fields.field import FieldSet
from zarrfeed.spec.fields.static import StaticField


def describe(fields: FieldSet, selection: Selection | None = None, statics: Sequence[StaticField] = ()) -> str:
    """Describe the samples in one line: their form, the number selected, and those left out."""
    names = fields.sides[0]
    first = fields.fields[0]
    where = ""
    if first.array_path and names is None:
        where = f"{first.array_path}: "
    shown = [tensor.field for tensor in tensors_of(fields.fields)]
    kinds = [f"{f.shape} {f.described_dtype}" for f in shown]
    if names is not None:
        entries = [f"{name!r}: {kind}" for name, kind in zip(names, kinds, strict=False)]
        entries += [f"{one.name!r}: {one.shape} {one.dtype}, static" for one in statics]
        kinds[0] = "{" + ", ".join(entries) + "}"
    selects = selection is not None and selection.length < fields.num_samples
    selected = f"{selection.length} of " if selection is not None and selects else ""
    left_out = "" if selection is None else "".join(f" ({reason})" for reason in selection.left_out)
    if any(f.patch is not None for f in fields.fields):
        return f"{where}patches of {kinds[0]}"
    return f"{where}{selected}{fields.num_samples} samples of {kinds[0]}{left_out}"
