"""The memory that the plan of an epoch keeps, which counts against the budget.

What holds: plans whose samples and blocks follow rules keep nothing that grows with the samples. What is counted is
the rest: samples that are selected and follow no rule, borders of segments, rows of joins that follow no rule, groups
that are listed for windows, mixtures and patches, and orders that are listed whole.
"""

from __future__ import annotations

from zarrfeed.plan.mixture.mixed_order import MixedOrder
from zarrfeed.plan.order.carry import carries
from zarrfeed.plan.order.order import Order
from zarrfeed.plan.patches.swept_order import SweptOrder
from zarrfeed.plan.samples.field_rows import row_map_of
from zarrfeed.spec.field import FieldSet
from zarrfeed.spec.row_map import OneRow
from zarrfeed.spec.sparse import CsrField

#: A group of a plan and its segment, in Python and for the engine, and the chunks that it shares.
_BYTES_OF_GROUP = 460
#: A group of a mixture's plan, or of one of patches, in Python and for the engine.
_BYTES_OF_VISIT = 230
#: A sample of an order that is listed.
_BYTES_OF_SAMPLE = 8


def plan_bytes(order: Order, fields: FieldSet) -> int:
    """Return what the plan of an epoch of an order keeps in each process that reads it."""
    total = 0 if order.selection is None else order.selection.nbytes
    borders = {id(w.pad.borders): w.pad.borders.first.nbytes for w in fields.windows if w and w.pad and w.pad.borders}
    total += 2 * sum(borders.values())  # here, and in the engine
    if type(order) is Order and any(map(carries, fields.fields)):
        total += _BYTES_OF_GROUP * order.num_blocks
    elif isinstance(order, MixedOrder):  # sources are read as often as the weights say
        total += _BYTES_OF_VISIT * order.num_blocks * order.length // max(1, sum(order.lengths))
    elif isinstance(order, SweptOrder):
        total += _BYTES_OF_VISIT * order.num_blocks
    maps = [rows.rows for rows in map(row_map_of, fields.fields) if rows is not None and not isinstance(rows, OneRow)]
    total += sum({id(rows): rows.nbytes for rows in maps if not isinstance(rows, range)}.values())
    listed = fields.are_objects + sum(isinstance(f, CsrField) for f in fields.fields)
    return total + listed * _BYTES_OF_SAMPLE * order.length
