"""The facts of stores that a reader does not explain: units, chosen labels, names of codes, samples of each store."""

from __future__ import annotations

from dataclasses import replace

from zarrfeed.metadata.array.coordinate_values import listed_values
from zarrfeed.metadata.array.described import Described
from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.report.explain import Explanation
from zarrfeed.report.store_shares import StoreShares


def with_meanings(explanation: Explanation, resolved: ResolvedData) -> Explanation:
    """Return an explanation that says what the stores say of the samples.

    Raises
    ------
    StoreReadError, CorruptChunkError
        If the labels of chosen items were not read before, and cannot be read.
    """
    meanings = {one.name: _in_words(one.described) for one in resolved.items if one.described is not None}
    fields = tuple(replace(one, meaning=meanings.get(one.name, "")) for one in explanation.fields)
    table = resolved.origin.stores
    stores = None if table is None else StoreShares.of(table, resolved.choice)
    return replace(explanation, fields=fields, stores=stores)


def _in_words(described: Described) -> str:
    units = described.meaning.get("units")
    parts = [f"in {units}"] * bool(units)
    for dim in described.chosen:
        if dim in described.labels or dim in described.coordinates:
            labels = listed_values(described.values_along(dim).tolist(), str)
            parts.append(f"{dim} {labels} {described.unit_along(dim)}".rstrip())
    if described.names is not None:
        parts.append(f"names of codes: {listed_values(list(described.names.values()), str)}")
    return "; ".join(parts)
