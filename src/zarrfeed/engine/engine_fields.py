"""Fields in the form that the engine takes: outputs, the sources that they draw from, and the tensors of a batch."""

from __future__ import annotations

from collections.abc import Sequence

from zarrfeed.base.native import core
from zarrfeed.engine.batch_arrays import BatchArrays
from zarrfeed.engine.cache_stats import CacheStats
from zarrfeed.engine.stats import Stats
from zarrfeed.engine.store_bridge import StoreBridge
from zarrfeed.spec.arrays.layout import Layout
from zarrfeed.spec.fields.array_sources import array_sources
from zarrfeed.spec.fields.batch_tensors import tensors_of
from zarrfeed.spec.fields.field import Field, ResidentField
from zarrfeed.storage.chunks.location import StoreSource


class EngineFields:
    """The fields of one engine.

    Parameters
    ----------
    fields
        The fields, in their order.

    Attributes
    ----------
    sources
        The stored arrays that they draw from, each once.
    tensors
        The tensors of a batch.
    outputs
        The outputs of the engine, in the order of their numbers, one for each layout of a field: the number of the
        field, and the layout; None for a field that is not read block by block.
    source_numbers
        The number of the source of each output; fields in memory share one if they share their rows.
    """

    def __init__(self, fields: Sequence[Field]) -> None:
        self.fields = fields
        self.sources = array_sources(fields)
        self.tensors = tensors_of(fields)
        self.outputs: list[tuple[int, Layout | None]] = []
        self._first: list[int] = []  # output of each field, and the number of all outputs
        for number, field in enumerate(fields):
            self._first.append(len(self.outputs))
            self.outputs += [(number, layout) for layout in (field.layouts if field.is_streamed else (None,))]
        self._first.append(len(self.outputs))
        self.source_numbers = self._find_source_numbers()

    def _find_source_numbers(self) -> list[int]:
        numbers = list(range(len(self.outputs)))
        for source in self.sources:
            for number, layout in source.draws:
                numbers[self._first[number] + layout] = source.number
        of_rows: dict[int, int] = {}
        for first, field in zip(self._first, self.fields, strict=False):
            if isinstance(field, ResidentField):
                numbers[first] = of_rows.setdefault(id(field.rows), first)
        return numbers

    def python_sources(self) -> dict[int, StoreSource]:
        """Return the stores of the arrays that Python reads; keys are the engine's numbers of their sources."""
        stores = ((source.number, source.spec.source) for source in self.sources if source.spec.in_python)
        return {number: store for number, store in stores if isinstance(store, StoreSource)}

    def cached_sources(self) -> dict[int, core.CachedArray]:
        """Return the names in the node cache of what the engine decodes; keys are its numbers of the sources."""
        named = {}
        for source in self.sources:
            spec = source.spec
            if spec.staged is not None:
                named[source.number] = spec.staged.to_core()
            elif isinstance(spec.source, StoreSource):
                named[source.number] = spec.source.engine_cache()
        return {number: array for number, array in named.items() if array is not None}

    def cache_troubles(self) -> list[str]:
        """Return, for each local array, why the node cache does not do all that it could; "" if it does."""
        return [source.spec.staged.trouble() for source in self.sources if source.spec.staged is not None]

    def to_cores(self, arrays: BatchArrays | None = None, index_sizes: Sequence[int] = ()) -> list[core.FieldSpec]:
        """Return the outputs in the form that the engine takes, in the order of their numbers.

        `index_sizes` has the memory of each field for indices of shards. Those of one array are put together.
        """
        described = {}  # by source number
        cached = self.cached_sources()
        for source in self.sources:
            sizes = [index_sizes[n] // (self._first[n + 1] - self._first[n]) for n in source.fields if index_sizes]
            named = cached.get(source.number)
            described[source.number] = source.spec.to_core(
                sum(sizes) or None, source.layout.parts, is_transcoded=named is not None and bool(named.form)
            )
        made: list[core.FieldSpec] = []
        for tensor_number, tensor in enumerate(self.tensors):
            spec = None if arrays is None else arrays.tensor_spec(tensor.field)
            for number in tensor.members:
                outputs = range(self._first[number], self._first[number + 1])
                drawn = [(output, self.source_numbers[output]) for output in outputs]
                draws = [(described.get(source), None if source == output else source) for output, source in drawn]
                made += self.fields[number].to_cores(spec, tensor_number, draws)
        return made


def stats_of(engine: core.Engine, bridge: StoreBridge) -> Stats:
    """Return the counters of an engine and of its store bridge."""
    counts = bridge.counts
    in_python = Stats(
        requests=counts.requests,
        retries=counts.retries,
        hedges=counts.hedges,
        hedges_won=counts.hedges_won,
        concurrency=bridge.concurrency,
        python_decode_s=counts.decode_s,
        cache=CacheStats.of_python(counts.cache),
    )
    return Stats.from_core(engine.stats()) + in_python
