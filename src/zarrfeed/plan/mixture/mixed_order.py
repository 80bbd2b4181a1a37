"""The order of a mixture: lanes of each source, the memory that they need, and the state that is saved.

Invariants, beside those of the order itself in `mixed_sequence.py`:

- **One order for a pass.** A pass spans epochs, so what its order depends on must not change between them. Without
  shuffling, a source has one lane, or those that the user named, whoever reads it: position p of a pass is its p-th
  sample. A state names the lanes and the mix of each source, and all epochs after it keep them (`SourceState`).
- **Visits.** Visits change what is read, and never the order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.mixture.blend import Blend
from zarrfeed.plan.mixture.mixed_sequence import MixedSequence
from zarrfeed.plan.mixture.source_lanes import SourceLanes, SourceState
from zarrfeed.plan.order.order import Limits, Order, Room
from zarrfeed.plan.order.order_state import OrderState, OwnState, Readers, S
from zarrfeed.plan.order.rank_lanes import FEW_RANKS, LANE_COUNTS, LANES_OF_SMALL, lanes_for_ranks
from zarrfeed.plan.samples.selection import Selection

#: The version of the order of mixtures, which states name. Up to version 1, a source that was not shuffled had a lane
#: for each consumer, so passes that spanned epochs depended on ranks and workers, which states between epochs did not
#: name. Shuffled mixtures have the same order in both versions.
ORDER_VERSION = 2
#: Largest share that visiting groups several times may add to the decoding, where memory does not ask for more.
_MOST_VISITS = 0.02
#: Batches that are open at least where sources are mixed.
_FEWEST_BATCHES = 4


@dataclass(frozen=True, kw_only=True)
class MixedOrder(MixedSequence):
    """The epoch order of a mixture."""

    @classmethod
    def of(cls, order: Order, blend: Blend, *, lanes: int | None, mix: int | None) -> MixedOrder:
        """Return the order of a mixture of samples that an order has, with the lanes and the mix of each source.

        Raises
        ------
        ConfigError
            If a source has no sample.
        """
        selection = order.selection or Selection.of_range(range(order.num_samples), order.block_rows, order.edges)
        named = {field.name: getattr(order, field.name) for field in dataclasses.fields(order)}
        whole = cls(**{**named, "selection": selection, "lanes": 1, "mix": 1}, blend=blend)
        for source, length in enumerate(whole.lengths):
            if not length:
                raise ConfigError(f"source {source} of the mixture has no sample left; leave it out")
        wanted = [SourceLanes(lanes or 1, mix or 1, 1)] * blend.num_sources
        return whole.with_sources(wanted)

    def with_sources(self, wanted: Sequence[SourceLanes]) -> MixedOrder:
        """Return the same order with other lanes, no more of them than samples, and no larger mix than blocks."""
        blocks = np.diff(self.source_begin).tolist()
        fitting = tuple(
            SourceLanes(min(one.lanes, length), min(one.mix, num), min(one.strip, num))
            for one, length, num in zip(wanted, self.lengths, blocks, strict=True)
        )
        return replace(self, sources=fitting, lanes=sum(one.lanes for one in fitting))

    def with_unit(self, unit: int) -> MixedOrder:
        """Return the order for batches of all ranks with `unit` samples, where each batch has one source."""
        return self if self.blend.batching == "per_sample" else replace(self, unit=unit)

    # Epochs

    def epoch_length(self, state: OrderState, batch: int) -> int:
        """Return the number of positions in a state's epoch: whole batches, if each has one source."""
        return self.with_unit(batch if state.own is None else SourceState.of(state).unit).length

    def settle(self, state: S, readers: Readers) -> S:
        """Return a state with the lanes of each source, which all epochs after it keep."""
        own = state.own
        if own is None:
            sources = self.settled(readers.ranks, are_chosen=not readers.name_lanes)
            state = replace(state, own=self.new_own(sources, readers.batch if self.is_per_batch else 1))
        self.with_unit(SourceState.of(state).unit).check_batch(readers.batch, state.used)
        return replace(state, lanes=1, mix=1) if state.lanes is None else state

    def new_own(self, sources: tuple[SourceLanes, ...], unit: int) -> SourceState:
        """Return what the state of a run that begins keeps for all later epochs."""
        return SourceState(sources, unit)

    def settled(self, world_size: int, *, are_chosen: bool) -> tuple[SourceLanes, ...]:
        """Return the lanes of sources for a run that begins: as in an order alone, a lane for each of many ranks.

        If the lanes are chosen, and ranks have regular strides of each source, many ranks divide them. No lane is added
        for that, as sources with few lanes are visited less often. Without shuffling, nothing depends on the ranks.
        """
        if not self.permutes_rows:
            return self.sources
        made, regular = [], self.is_per_batch or self.mixture.columns % world_size == 0
        for one in self.sources:
            lanes = one.lanes
            if are_chosen and regular:
                lanes = lanes_for_ranks(lanes, world_size)
            elif world_size > max(lanes, FEW_RANKS):
                lanes = world_size
            made.append(one._replace(lanes=lanes))
        return self.with_sources(made).sources

    def at(self, state: OrderState) -> MixedOrder:
        """Return the order of a settled state's epoch."""
        own = SourceState.of(state)
        return self.with_sources(own.sources).with_unit(own.unit)

    def check_batch(self, batch: int, used: int) -> None:
        """Raise ConfigError unless a run goes on, after some positions of an epoch, with batches of `batch` samples."""
        if self.is_per_batch and (self.unit % batch or used % self.unit % batch):
            raise ConfigError(
                f"the run was begun with batches of {self.unit} samples of all ranks, each of one source; it cannot "
                f"be continued after {used} samples of an epoch with batches of {batch}: keep ranks x batch_size the "
                "same, or name the epoch with set_epoch() and load no state, which reads some samples again"
            )

    def is_in_order(self, sources: Sequence[SourceLanes] | None = None) -> bool:
        """Return True if each source is read in its own order, with the lanes of a state or of this order."""
        return not self.permutes_rows and all(one.lanes == 1 for one in sources or self.sources)

    @property
    def has_ordered_sources(self) -> bool:
        """True if it mixes sources that are read in their own order."""
        return self.is_in_order()

    def deals_batches(self, num_workers: int, state: OrderState) -> bool:
        """Return True if the workers of a rank take whole batches in turn, in the epoch of a state.

        They do if batches have one source. They do also if each source is read in order: if each of them took a stride,
        all of them would decode all chunks.
        """
        return self.is_per_batch or (
            num_workers > 1 and self.is_in_order(None if state.own is None else SourceState.of(state).sources)
        )

    def check_dealt(self) -> None:
        """Raise ConfigError: samples of a mixture are not dealt to nodes."""
        raise ConfigError("affinity = 'node' is not for mixtures: all nodes share one order of sources")

    # Memory

    def suit(self, room: Room, lanes: int | None, mix: int | None) -> MixedOrder:
        """Return the order with lanes, mix and strips of its sources."""
        if not self.permutes_rows:
            return self
        overlap = room.overlap(self) if self.carries_chunks else None
        if overlap is not None:
            chosen = self._with_chosen(room.limits(self, overlap), lanes, mix)
            strips = [overlap.strip(one) for one in chosen.orders]
            made = chosen.with_sources([one._replace(strip=n) for one, n in zip(chosen.sources, strips, strict=True)])
            if room.carries(made):
                return made
        return self._with_chosen(room.limits(self), lanes, mix)

    def _with_chosen(self, limits: Limits, lanes: int | None, mix: int | None) -> MixedOrder:
        """Choose lanes and mix of each source: what suits the source alone, in its share of the memory.

        Where these are fewer than a lane for each of 8 ranks, lanes are added, as long as a quarter of the memory has
        room for the batches that their groups serve, or visiting groups several times adds little to the decoding.
        """
        steps = max(1, limits.quarter_steps)
        wanted = list(self.sources)
        for source, alone in enumerate(self.orders):
            share = self.least_share(source)
            chosen = limits.of_share(share).choose(alone, lanes, mix)
            wanted[source] = wanted[source]._replace(lanes=chosen[0], mix=chosen[1])
            for more in LANE_COUNTS if lanes is None else ():
                wider = [*wanted[:source], wanted[source]._replace(lanes=more), *wanted[source + 1 :]]
                visits = -(-self.with_sources(wider).open_steps_of(source) // steps)
                if more > min(LANES_OF_SMALL, alone.num_blocks) or share * (visits - 1) > _MOST_VISITS:
                    break
                if more > wanted[source].lanes:
                    wanted = wider
        return self.with_sources(wanted)

    def fit_batch(self, batch_size: int) -> int:
        """Return the samples of the engine's batches: an epoch's length follows from them."""
        return batch_size

    @property
    def caches_chunks(self) -> bool:
        """Never: a pass over a source comes long after the one before, and would fill the memory with its chunks."""
        return False

    def required_batches(self, batch_size: int, stride: int) -> int:
        """Return the number of batches that must be open: groups with steps further apart are visited several times."""
        del batch_size, stride
        return _FEWEST_BATCHES

    def wanted_batches(self, batch_size: int, stride: int) -> int:
        """Return the number of batches to keep open, so that visits add little to the decoding."""
        return self.wanted_steps(stride, _MOST_VISITS) // batch_size + 2

    def wanted_steps(self, stride: int, most_visits: float) -> int:
        """Return the number of steps to keep open, so that visits add at most `most_visits` to the decoding."""
        spans = [self.open_steps_of(source, stride) for source in range(self.blend.num_sources)]
        steps = most = max(spans)

        def added(steps: int) -> float:
            return sum(self.least_share(s) * (-(-span // steps) - 1) for s, span in enumerate(spans))

        while steps > 1 and added(steps) <= most_visits:
            most, steps = steps, steps * 9 // 10
        return most

    def most_steps(self, open_batches: int, batch_size: int) -> int:
        """Return the most steps that a visit of a group may serve."""
        return (open_batches - 1) * batch_size

    def groups_bytes(self, *, are_shared: bool) -> int:
        """Return the bytes of the groups of a plan: sources are read as often as the weights say."""
        of_pass = super().groups_bytes(are_shared=are_shared)
        return of_pass * self.length // max(1, sum(self.lengths))

    # States

    def describe(self) -> dict[str, Any]:
        """Return the terms that the order of the epochs depends on, as JSON."""
        blend = self.blend
        mixture = {
            "first": list(blend.first),
            "weights": list(blend.weights),
            "changes": [[step, list(weights)] for step, weights in blend.changes],
            "stop": blend.stop,
            "batching": blend.batching,
            "version": ORDER_VERSION,
        }
        return {**super().describe(), "mixture": mixture}

    def describe_as(self, theirs: object) -> dict[str, Any]:
        """Return the description in the form of the release that made another one: the first ones named no version."""
        described = super().describe_as(theirs)
        if _names_no_version(theirs):
            described["mixture"] = {name: one for name, one in described["mixture"].items() if name != "version"}
        return described

    def describe_state(self, state: OrderState) -> dict[str, Any]:
        """Return for people the next step, and which pass over each source comes next.

        Where batches have one source, steps follow from the batches of all ranks, which are settled when a pass begins.
        """
        if self.is_per_batch and state.lanes is None:
            return {}
        order = self if state.own is None else self.with_unit(SourceState.of(state).unit)
        step = order.begin_of(state.epoch) + state.used
        return {"mixture": {"step": step, "epochs": [end.next_pass for end in order.source_ends(step)]}}

    def own_in(self, json: Mapping[str, Any]) -> OwnState | None:
        """Return the lanes of the sources that a state in its JSON form names."""
        return SourceState.from_json(json)

    def check_own(self, state: OrderState) -> None:
        """Raise ValueError unless a state names lanes for each source, such as this order can have."""
        if state.lanes is None and state.own is None:
            return
        sources = () if state.own is None else SourceState.of(state).sources
        if len(sources) != len(self.sources) or self.with_sources(sources).sources != sources:
            raise ValueError(f"sources = {[list(one) for one in sources]} of a mixture of {len(self.sources)}")

    def check_release(self, state: OrderState, theirs: object) -> None:
        """Raise ConfigError if a state of an earlier release names no lanes, and had those of its readers."""
        if _names_no_version(theirs) and not self.permutes_rows and state.epoch and state.own is None:
            raise ConfigError(
                f"the state is of the beginning of epoch {state.epoch} of a mixture without shuffling, and an earlier "
                "release saved it: the samples of an epoch depended on the number of ranks and workers then, and the "
                "state does not name that number. If it was one rank without workers, the order is the same now: call "
                f"set_epoch({state.epoch}), and do not load the state. Else load a state of the middle of an epoch, or "
                "begin anew"
            )

    # Reports

    def unmixed(self) -> MixedOrder:
        """Return the order whose lanes and mix are chosen anew: they are those of its sources."""
        return self

    def wider_lanes(self, counts: Iterable[int]) -> list[int]:
        """Return no number of lanes: each source has its own."""
        del counts
        return []

    def weighted_visits(self, source: int) -> tuple[float, float] | None:
        """Return for a weighted source how often a pass has its most frequent sample, and reads a block; else None."""
        del source
        return None

    def columns_for(self, ranks: int) -> int:
        """Return the columns of the mixture, if ranks have no regular strides of each source; else 0."""
        return 0 if self.is_per_batch or self.mixture.columns % ranks == 0 else self.mixture.columns


def _names_no_version(described: object) -> bool:
    """Return True if the description of a mixture's order is one of an earlier release."""
    mixture = described.get("mixture") if isinstance(described, Mapping) else None
    return isinstance(mixture, Mapping) and "version" not in mixture
