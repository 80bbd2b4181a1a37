"""The page that `print(data)` shows: the calls that made a `Data`, its samples, and a row for each field."""

from __future__ import annotations

from collections.abc import Sequence

from zarrfeed.base.page import Row
from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.plan.samples.field_rows import describe_join
from zarrfeed.plan.samples.left_out import LeftOut
from zarrfeed.plan.samples.split_part import SplitPart
from zarrfeed.spec.description.expression import Expression
from zarrfeed.spec.fields.field import Field
from zarrfeed.spec.fields.static import StaticField


def data_rows(expression: Expression, resolved: ResolvedData) -> list[Row]:
    """Return the rows of the table that `str()` and notebooks show of a `Data`."""
    first, *others = expression.lines()
    choice = resolved.choice
    rows = [("expression", first), *(("", line) for line in others)]
    if resolved.patching is not None:
        rows.append(("samples", f"{resolved.patching}, about {resolved.length} an epoch"))
    else:
        rows += sample_rows(
            choice.length, choice.num_samples, (*choice.left_out, *([choice.dealt] if choice.dealt else []))
        )
    if resolved.expected is not None:
        rows.append(resolved.expected.row())
    if resolved.given is not None:
        rows.append(("order", f"given for {resolved.length} samples an epoch"))
    return rows + field_rows(resolved.fields, resolved.statics)


def sample_rows(length: int, num_samples: int, remarks: tuple[LeftOut | SplitPart, ...]) -> list[Row]:
    """Describe the number of samples, and why others were left out."""
    count = str(num_samples) if length == num_samples else f"{length} of {num_samples}"
    return [("samples", count), *(("", str(reason)) for reason in remarks)]


def field_rows(fields: tuple[Field, ...], statics: Sequence[StaticField] = ()) -> list[Row]:
    """Describe each field of a batch, and the place of its values; and the arrays that are the same for all samples."""
    rows: list[Row] = []
    for f in fields:
        rows.append((f.name, f"{f.described_dtype} of shape {f.shape}"))
        if f.stack is not None:
            rows.append(("", str(f.stack)))
        window = f.window
        if window is not None:
            rows.append(("", str(window)))
        if source := f.describe_source():
            rows.append(("", source))
        if joined := describe_join(f):
            rows.append(("", joined))
    return rows + [(one.name, str(one)) for one in statics]
