"""The epoch order of a mixture: steps of `Mixture`, each filled from the endless sequence of its source.

Invariants, which tests check:

- **One sequence.** The samples of a training run are the steps k = 0, 1, 2, ... of a `Mixture`. Epoch e of a dataset is
  the steps [e N, (e + 1) N). A source goes on in the next epoch where it stopped in the one before.
- **Sources.** The blocks of a source follow each other among the blocks of all, so a source has an `Order` of its own:
  the same blocks, with a key, lanes and a `mix` of its own. Pass j over the source is epoch j of that order. Position p
  of the source's endless sequence is position p mod n of pass p div n.
- **Ranks.** Nothing here knows of ranks. The columns of `Mixture` see to it that a rank reads a regular stride of each
  pass, as in an order alone.
- **One order for a pass.** A pass spans epochs, so what its order depends on must not change between them. Without
  shuffling, a source has one lane, or those that the user named, whoever reads it: position p of a pass is its p-th
  sample. A state names the lanes and the mix of each source, and all epochs after it keep them (`SourceLanes`).
- **Visits.** A group of a source that is rarely taken serves steps far apart. It is then visited several times,
  each time for some of its steps, so that few batches are open; its chunks are decoded for each visit. Visits change
  what is read, and never the order.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.mixture.blend import Blend
from zarrfeed.plan.mixture.mixture import Mixture
from zarrfeed.plan.mixture.mixture_stop import SourceEnd, epoch_steps, source_ends
from zarrfeed.plan.mixture.source_lanes import SourceLanes
from zarrfeed.plan.order.groups import Groups, SourceGroups, visits_of
from zarrfeed.plan.order.keyed_random import key_of
from zarrfeed.plan.order.order import EpochPlan, Order
from zarrfeed.plan.order.portion import WHOLE, Portion, Strides
from zarrfeed.plan.samples.joined_ranges import joined_ranges
from zarrfeed.plan.samples.selection import Int64, Selection

#: Purpose of the keys of sources.
_SOURCE = 0x736F75726365


@dataclass(frozen=True, kw_only=True)
class MixedSequence(Order):
    """The sample that each step of a mixture takes; `selection` has the blocks of the sources one after another.

    `lanes` is the sum over all sources; `mix` and `strip` are 1, and each source has its own.

    Attributes
    ----------
    blend
        The sources, their weights and the rules of the mixture.
    sources
        Lanes, mix and strip of each source.
    unit
        Steps in a row that are of one source: the samples of a batch of all ranks, or 1.
    """

    blend: Blend
    sources: tuple[SourceLanes, ...] = ()
    unit: int = 1

    @property
    def is_per_batch(self) -> bool:
        """True if the samples of a batch of all ranks are of one source."""
        return self.blend.batching == "per_batch"

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """The samples of a pass over each source."""
        return tuple(int(rows.sum()) for rows in np.split(self._chosen.rows, self.source_begin[1:-1]))

    @cached_property
    def mixture(self) -> Mixture:
        """The source of each step, or of each run of `unit` steps."""
        return self.blend.mixture(self.seed, self.unit)

    @cached_property
    def length(self) -> int:
        """N, the steps of an epoch: whole units, so that the next epoch begins with one.

        Raises
        ------
        ConfigError
            If a source is shorter than a batch of all ranks that has one source, and must not repeat a sample.
        """
        stop, unit = self.blend.stop, self.unit
        if not isinstance(stop, str):
            return -(-int(stop) // unit) * unit
        lengths = [length // unit if stop == "first" else -(-length // unit) for length in self.lengths]
        if 0 in lengths:
            short = lengths.index(0)
            raise ConfigError(
                f"source {short} of the mixture has {self.lengths[short]} samples, fewer than the {unit} of a batch of "
                'all ranks, and stop = "first" repeats none; must have at least as many, or give another stop'
            )
        return epoch_steps(self.mixture, lengths, stop) * unit

    @cached_property
    def orders(self) -> tuple[Order, ...]:
        """The order of each source."""
        made = []
        for source, (begin, end, one) in enumerate(
            zip(self.source_begin, self.source_begin[1:], self.sources, strict=False)
        ):
            plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(Order)}
            seed = self.source_seed(source)
            selection = self._chosen.at(np.arange(begin, end))
            made.append(Order(**{**plain, **one._asdict(), "selection": selection, "seed": seed, "row_seed": None}))
        return tuple(made)

    def source_seed(self, source: int) -> int:
        """Return the key of the order of a source."""
        return key_of(_SOURCE, self.seed, source)

    def pass_order(self, source: int, number: int) -> tuple[Order, int]:
        """Return the order of a pass over a source, and the held index of its first block."""
        del number
        return self.orders[source], int(self.source_begin[source])

    def held_indices(self, epoch: int) -> Int64:
        """Return the held indices of blocks in the orders of sources, one source after another."""
        return np.concatenate(
            [b + one.held_indices(epoch) for b, one in zip(self.source_begin, self.orders, strict=False)]
        )

    def next_held_indices(self, epoch: int) -> Int64:
        """Return, for each held index, that of the next block of the same source; the first follows the last."""
        following = (one.next_held_indices(epoch) for one in self.orders)
        return np.concatenate([begin + one for begin, one in zip(self.source_begin, following, strict=False)])

    def begin_of(self, epoch: int) -> int:
        """Return the step of the mixture with which an epoch begins."""
        return epoch * self.length

    def source_ends(self, step: int) -> list[SourceEnd]:
        """Return the progress of each source after the first `step` steps of the mixture."""
        lengths = [-(-length // self.unit) for length in self.lengths]
        return source_ends(self.mixture, lengths, step // self.unit)

    def least_share(self, source: int) -> float:
        """Return the smallest share of a source, but for times in which it has none."""
        return self.mixture.least_share(source)

    def open_steps(self, stride: int = 1) -> int:
        """Return an upper bound of the steps between the first and the last row of a group, of any source."""
        return max(self.open_steps_of(source, stride) for source in range(self.blend.num_sources))

    def open_steps_of(self, source: int, stride: int = 1) -> int:
        """Return the number of steps that the groups of one source are spread over."""
        positions = min(self.open_positions(source), self.lengths[source])
        dealt = self.mixture.columns * self.unit
        steps = self.mixture.most_rows(source, -(-positions // dealt) + 1) * dealt
        return min(-(-steps // stride), -(-self.length // stride))

    def open_positions(self, source: int) -> int:
        """Return the most positions that the groups of all lanes of a source have at once."""
        order = self.orders[source]
        return order.mix * order.max_rows * order.lanes

    def plan(self, epoch: int, portion: Portion = WHOLE) -> EpochPlan:
        """Return the pieces of blocks that a consumer needs in an epoch, in the order in which it needs them."""
        strides, extra, extra_step = portion.settled(self.length)
        found = self._groups(epoch, strides, extra)
        groups, first_step, last_step = found.groups, found.first_step, found.last_step
        turn = np.zeros(len(groups), dtype=np.int64)
        chosen = np.flatnonzero(first_step <= last_step)
        visits = [(chosen, turn[chosen], first_step[chosen], last_step[chosen])]
        if portion.most_steps is not None:
            visits = [_in_visits(*visits[0], portion.most_steps)]
        # Extra positions are visited by themselves, those before the regular steps, and those of each turn behind them.
        extra_turn = extra // self.length
        kind = np.where(extra_step < strides.begin, -1, extra_turn)
        for one in np.unique(kind):
            of_kind = kind == one
            group, earliest, latest = visits_of(found.holding[of_kind], extra_step[of_kind])
            visits.append((group, np.full(len(group), max(0, int(one))), earliest, latest))
        group, turn, first_step, last_step = (np.concatenate(column) for column in zip(*visits, strict=True))
        by_step = np.argsort(first_step, kind="stable")
        group = group[by_step]
        return EpochPlan(
            self,
            epoch,
            strides,
            extra,
            extra_step,
            groups.take(group),
            turn[by_step],
            first_step[by_step],
            last_step[by_step],
            sources=found.sources.take(group),
        )

    def _groups(self, epoch: int, strides: Strides, extra: Int64) -> _Found:
        """Return the groups that may have positions of a consumer, and which of its steps they serve."""
        begin, unit, lengths = self.begin_of(epoch), self.unit, np.array(self.lengths)
        low, high = self._position_range(begin, strides)
        source, in_pass = self.taken_at(begin + extra % self.length)
        which_pass, in_pass = np.divmod(in_pass, lengths[source])
        parts, of_part, holding = [], [], np.zeros(len(extra), dtype=np.int64)
        count = 0
        for number, (n, lanes) in enumerate((one.length, one.lanes) for one in self.orders):
            passes = set(range(low[number] // n, -(-high[number] // n))) | set(which_pass[source == number].tolist())
            # lanes have positions of one residue, modulo what divides both the lanes and how steps are dealt
            common = math.gcd(strides.stride, self.mixture.columns * unit, lanes)
            for one in sorted(passes):
                order, first_held = self.pass_order(number, one)
                residue = (begin + strides.first - one * n) % common
                lane = np.arange(residue, lanes, common)
                here = (source == number) & (which_pass == one)
                lane = np.union1d(lane, in_pass[here] % lanes)
                groups = order.groups(one, lane)
                wanted = groups.lane + lanes * (groups.offset + groups.rows - 1) >= low[number] - one * n
                wanted &= groups.lane + lanes * groups.offset < high[number] - one * n
                held = groups.holding(order.in_sequence(in_pass[here]))
                wanted[held] = True
                chosen = np.flatnonzero(wanted)
                holding[here] = count + np.searchsorted(chosen, held)
                parts.append(replace(groups.take(chosen), held_index=groups.take(chosen).held_index + first_held))
                of_part.append((number, one, len(chosen)))
                count += len(chosen)
        sizes = [size for _, _, size in of_part]
        sources = SourceGroups(
            mixture=self.mixture.to_core(unit),
            begin=begin,
            source=np.repeat([number for number, _, _ in of_part], sizes).astype(np.int64),
            which_pass=np.repeat([one for _, one, _ in of_part], sizes).astype(np.int64),
            seed=np.array([order.seed for order in self.orders], dtype=np.uint64),
            lanes=np.array([order.lanes for order in self.orders], dtype=np.int64),
            length=lengths,
        )
        groups = Groups.concat(parts)
        first_step, last_step = sources.to_core().group_steps(
            **dataclasses.asdict(strides),
            length=self.length,
            lane=groups.lane,
            offset=groups.offset,
            rows=groups.rows,
        )
        return _Found(groups, first_step, last_step, sources, holding)

    def _position_range(self, begin: int, strides: Strides) -> tuple[list[int], list[int]]:
        """Return the first position of each source's sequence that regular steps may take, and the end."""
        if strides.count == 0:
            nothing = [0] * self.blend.num_sources
            return nothing, nothing
        last = strides.count - 1
        if strides.run:
            turns, last = divmod(last, strides.run)
            last = turns * strides.period + last * strides.stride
        else:
            last *= strides.stride
        low, high = begin + strides.first, begin + strides.first + last + 1
        columns = self.mixture.columns
        ahead = self.mixture.front(-(-high // self.unit)).max(axis=1) - columns + 1
        return (
            (self.mixture.front(low // self.unit).min(axis=1) * self.unit).tolist(),
            (ahead * self.unit).tolist(),
        )

    def taken_at(self, steps: Int64) -> tuple[Int64, Int64]:
        """Return the source of each step of the mixture, and the position in the source's sequence."""
        in_unit, within = np.divmod(steps, self.unit)
        source, position = self.mixture.at(in_unit)
        return source, position * self.unit + within

    @property
    def _chosen(self) -> Selection:
        return self.listed_reads

    @cached_property
    def source_begin(self) -> Int64:
        """For each source, the index of its first block among the held ones; at the end, the number of blocks."""
        chosen = self._chosen
        first = chosen.first if chosen.samples is None else chosen.samples.at(chosen.first)
        source = np.searchsorted(np.array(self.blend.first), first, side="right") - 1
        return np.searchsorted(source, np.arange(self.blend.num_sources + 1))


@dataclass(frozen=True)
class _Found:
    """Groups that a consumer may need.

    Attributes
    ----------
    groups, sources
        The groups, and what their orders depend on.
    first_step, last_step
        The first and the last of the consumer's regular steps that each group serves; first > last for none.
    holding
        The group that has each extra position.
    """

    groups: Groups
    first_step: Int64
    last_step: Int64
    sources: SourceGroups
    holding: Int64


def _in_visits(
    group: Int64, turn: Int64, first_step: Int64, last_step: Int64, most_steps: int
) -> tuple[Int64, Int64, Int64, Int64]:
    """Cut the steps of groups into visits of at most `most_steps` steps."""
    counts = -(-(last_step - first_step + 1) // most_steps)
    number = joined_ranges(0, counts)
    begin = np.repeat(first_step, counts) + number * most_steps
    end = np.minimum(begin + most_steps - 1, np.repeat(last_step, counts))
    return np.repeat(group, counts), np.repeat(turn, counts), begin, end
