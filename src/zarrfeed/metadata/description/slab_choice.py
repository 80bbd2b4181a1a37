"""What the blocks of an epoch order are: whole chunks, or slabs of them, chosen once for a run.

What holds: where whole chunks mix well in the memory for which orders are chosen, the order is that of whole chunks.
The choice depends on the layout, the options and the header of one stored chunk, and neither on the machine nor on
ranks. It is made in the training process alone: `Planning.slab_rows` travels with a pickled dataset, and with states.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from zarrfeed.base.errors import ConfigError
from zarrfeed.metadata.description.planning import Planning
from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.plan.budget.field_needs import goes_by_blocks
from zarrfeed.plan.samples.decoded_bytes import WHOLE_CHUNK, Grain
from zarrfeed.plan.samples.slab_cost import LEAST_BYTES, MOST_DECODES, SlabCost
from zarrfeed.plan.schedule.epoch_plan import Schedule
from zarrfeed.plan.schedule.shuffle_measure import GOOD_SHARE, ShuffleMeasure, measure_shuffle
from zarrfeed.spec.array_sources import ArraySource, array_sources
from zarrfeed.spec.field import Field, FieldSet, StoredField
from zarrfeed.storage.chunks.blosc_blocks import stored_block_bytes

#: Rows that are shorter in a batch are not looked up one by one where windows need many of them: their chunks are
#: decoded whole (cpp/engine/task_builder.h).
_SMALL_ROW = 4096
#: Slabs have to mix so much better than whole chunks, as a share of a perfect shuffle.
_LEAST_GAIN = 0.05
#: Slabs that decode again, and mix poorly all the same, have to mix so many times as well.
_GREAT_GAIN = 1.5


def choose_schedule(planning: Planning, resolved: ResolvedData) -> tuple[Planning, Schedule]:
    """Return a planning with the slabs that suit layout and memory, and the schedule of a description.

    Raises
    ------
    ConfigError
        If slabs are named, and the chunks of the array that makes the blocks cannot be cut.
    StoreReadError, CorruptChunkError
        If the header of a stored chunk cannot be read.
    """
    named = planning.mixing.block
    fields, order = planning.order(resolved)
    whole = Schedule.make(fields, order, planning.options)
    if not planning.shuffle or not planning.may_cut or (named in (None, "auto") and _has_small_blocks(fields)):
        return planning, whole
    reason = _why_whole(fields, resolved)
    if isinstance(named, int):
        if reason:
            raise ConfigError(f"mixing: block = {named}, but {reason}; must be 'chunk', or left out")
        is_cut = named < max(layout.spec.rows_per_chunk for layout in _primary(fields).layouts)
        return _cut(planning, resolved, find_grains(fields), named) if is_cut else (planning, whole)
    trials = _Trials(planning, resolved, whole)
    must_cut = named == "slab"
    if not must_cut and (reason or planning.takes_shards(resolved) or trials.is_good(0)):
        return planning, whole
    grains = () if reason else find_grains(fields)  # reads a chunk, which nobody does for an order that is good
    if not reason and all(one == WHOLE_CHUNK for one in _grains_of_primary(fields, grains)):
        reason = f"chunks of {_primary(fields).label} are decoded as a whole"
    if reason and must_cut:
        raise ConfigError(f"mixing: block = 'slab', but {reason}; must be 'chunk', or left out")
    return (planning, whole) if reason else _best(trials, grains, must_cut=must_cut)


def with_slab_rows(planning: Planning, resolved: ResolvedData, rows: int) -> Planning:
    """Return a planning with slabs of so many rows, those of a state; 0: of whole blocks.

    Raises
    ------
    ConfigError
        If these samples have no slabs.
    StoreReadError, CorruptChunkError
        As of `find_grains`.
    """
    if rows == planning.slab_rows:
        return planning
    whole = replace(planning, slab_rows=0, grains=())
    if not rows:
        return whole
    fields, _ = whole.order(resolved)
    reason = _why_whole(fields, resolved)
    if reason:
        raise ConfigError(f"the state is of an order of slabs of {rows} rows, but {reason}")
    return replace(planning, slab_rows=rows, grains=planning.grains or find_grains(fields))


def find_grains(fields: FieldSet) -> tuple[Grain, ...]:
    """Return what is decoded together, of each of the `array_sources`.

    Raises
    ------
    StoreReadError, CorruptChunkError
        If the header of a stored chunk cannot be read.
    """
    return tuple(_grain_of(source, fields) for source in array_sources(fields.fields))


def _grain_of(source: ArraySource, fields: FieldSet) -> Grain:
    spec = source.spec
    drawing = [fields.fields[number] for number in source.fields]
    plain = spec.source is None and not spec.slow_codecs and not spec.item_type
    looks_up = all(f.window is None or f.sample_bytes >= _SMALL_ROW * len(f.window.offsets) for f in drawing)
    if not plain or not looks_up or any(f.patch is not None for f in drawing):
        return WHOLE_CHUNK
    codecs = [codec.name for codec in spec.codecs]
    if not codecs:
        return Grain(spec.dtype.itemsize, is_fused=True)
    if codecs != ["blosc"]:  # a checksum, or another codec, is over the whole chunk
        return WHOLE_CHUNK
    layouts = (fields.fields[number].layouts[layout] for number, layout in source.draws)
    nbytes = stored_block_bytes(source.layout)
    return WHOLE_CHUNK if nbytes is None else Grain(nbytes, all(map(goes_by_blocks, layouts)))


def _has_small_blocks(fields: FieldSet) -> bool:
    """Return whether blocks are so small that none is cut."""
    return fields.block_rows * sum(f.sample_bytes for f in fields.fields) < 2 * LEAST_BYTES


def _why_whole(fields: FieldSet, resolved: ResolvedData) -> str:
    """Return why the chunks of a dataset are not cut, whatever they are; "" if they may be."""
    if resolved.patching is not None:
        return "samples are patches"
    primary = None if fields.primary is None else fields.fields[fields.primary]
    if not isinstance(primary, StoredField) or not primary.is_streamed:
        return "the blocks are no chunks of rows"
    if any(f.row_map is not None for f in fields.fields if f.is_streamed):
        return "samples of a join have other rows than those with their index"
    if not all(isinstance(f, StoredField) for f in fields.fields if f.is_stored):
        return "some arrays are no rows of numbers"
    return ""


def _best(trials: _Trials, grains: tuple[Grain, ...], *, must_cut: bool) -> tuple[Planning, Schedule]:
    """Return slabs that cost little, if they mix well; where whole chunks mix poorly, shorter ones that cost more."""
    fields = trials.whole.fields
    assert fields.primary is not None
    cost = SlabCost(fields.fields, fields.primary, grains)
    trials.grains = grains
    cheap = cost.cheap_rows()
    if (cheap is None or not trials.is_good(cheap)) and (must_cut or trials.whole_is_poor):
        lengths = cost.shorter_than(cheap or cost.chunk_rows)
        low, high = 0, len(lengths) - 1
        while low < high:  # shorter slabs mix better, in the same memory, and decode more
            middle = (low + high) // 2
            low, high = (low, middle) if trials.is_good(lengths[middle]) else (middle + 1, high)
        if lengths:
            trials.is_good(lengths[low])
    return trials.best(cheap, must_cut=must_cut)


class _Trials:
    """Schedules of slabs of several lengths, beside that of whole chunks, which have 0 rows here.

    Attributes
    ----------
    whole
        The schedule of whole chunks.
    grains
        What is decoded together of each array.
    """

    def __init__(self, planning: Planning, resolved: ResolvedData, whole: Schedule) -> None:
        self.whole, self.grains = whole, tuple[Grain, ...]()
        self._planning, self._resolved = planning, resolved
        self._room = _room(whole)
        self._tried = {0: (planning, whole)}
        self._measures = {0: _measure(whole, self._room)}

    @property
    def whole_is_poor(self) -> bool:
        """Whether whole chunks mix so badly that training would notice, or do not fit."""
        measure = self._measures[0]
        return measure is None or measure.is_poor

    def is_good(self, rows: int) -> bool:
        """Return whether slabs of so many rows mix well in the memory for which orders are chosen."""
        if rows not in self._measures:
            self._measures[rows] = None
            with contextlib.suppress(ConfigError):  # there are more blocks than a plan of windows may have
                self._tried[rows] = _cut(self._planning, self._resolved, self.grains, rows)
                self._measures[rows] = _measure(self._tried[rows][1], self._room)
        return _is_good(self._measures[rows])

    def best(self, cheap: int | None, *, must_cut: bool) -> tuple[Planning, Schedule]:
        """Return the longest slabs that mix well; else what mixes best.

        Unless chunks `must_cut`, they stay whole where slabs do not mix clearly better. Slabs that decode more than the
        `cheap` ones have to mix much better, or not poorly.

        Raises
        ------
        ConfigError
            If nothing can be cut, and must be.
        """
        measured = {rows: self._measures[rows] for rows in self._tried if rows}
        if must_cut and not measured:
            raise ConfigError(
                f"mixing: block = 'slab', but slabs of a chunk would decode more than {MOST_DECODES:.0f} times its "
                "bytes, or be shorter than 1 MiB; must be 'chunk', or left out"
            )
        good = [rows for rows, measure in measured.items() if _is_good(measure)]
        if good:
            measured = {max(good): measured[max(good)]}
        quality = {rows: 0.0 if measure is None else measure.of_perfect for rows, measure in measured.items()}
        if not must_cut:
            whole = self._measures[0]
            least = 0.0 if whole is None else whole.of_perfect
            for rows, measure in measured.items():
                is_mixed = measure is not None and not measure.is_poor
                if rows != cheap and not is_mixed and quality[rows] < _GREAT_GAIN * least:
                    del quality[rows]
            quality[0] = least + _LEAST_GAIN
        return self._tried[max(quality, key=quality.__getitem__)]


def _cut(planning: Planning, resolved: ResolvedData, grains: tuple[Grain, ...], rows: int) -> tuple[Planning, Schedule]:
    cut = replace(planning, slab_rows=rows, grains=grains)
    return cut, Schedule.make(*cut.order(resolved), cut.options)


def _room(whole: Schedule) -> int:
    """Return the memory for which orders are chosen: more than 1 GiB if none is named, and whole chunks need more."""
    options = whole.options
    return options.order_budget if options.budget is not None else max(options.order_budget, _needed(whole))


def _needed(schedule: Schedule) -> int:
    planner, order = schedule.planner, schedule.order
    return planner.reserving(order).order_memory(order).least_budget


def _measure(schedule: Schedule, room: int) -> ShuffleMeasure | None:
    """Return how well an order is shuffled; None: so much memory has no room for it."""
    return measure_shuffle(schedule.order) if _needed(schedule) <= room else None


def _is_good(measure: ShuffleMeasure | None) -> bool:
    return measure is not None and measure.share >= GOOD_SHARE and not measure.is_poor


def _primary(fields: FieldSet) -> Field:
    assert fields.primary is not None
    return fields.fields[fields.primary]


def _grains_of_primary(fields: FieldSet, grains: Sequence[Grain]) -> list[Grain]:
    """Return what is decoded together of the array that makes the blocks, of each of its layouts."""
    sources = array_sources(fields.fields)
    return [grain for source, grain in zip(sources, grains, strict=True) if fields.primary in source.fields]
