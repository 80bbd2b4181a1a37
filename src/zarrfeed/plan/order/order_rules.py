"""The answers of an epoch order to the code that plans, saves and explains it; nobody asks an order for its class.

These are the answers of the plain kind, whose blocks are permuted one by one, or in strips. Other kinds override what
is different: mixtures (`plan/mixture/mixed_order.py`) and patches (`plan/patches/swept_order.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from zarrfeed.plan.blocks.slabs import Slabs
from zarrfeed.plan.order.block_order import MOST_BLOCKS, strata_for
from zarrfeed.plan.order.order_state import OrderState, OwnState, Readers, S
from zarrfeed.plan.order.rank_lanes import FEW_RANKS, lanes_for_ranks
from zarrfeed.plan.order.read_blocks import ReadBlocks
from zarrfeed.plan.samples.selection import Selection
from zarrfeed.spec.fields.field import Field
from zarrfeed.spec.samples.block_edges import Edges

#: Batches that must be open at once where each group is a single sample.
BATCHES_OF_ROW = 2
#: Samples that are open for decode threads where each group is a single one, and as many again.
_SAMPLES_AHEAD = 32
#: A group of a plan and its segment, in Python and for the engine, and the chunks that it shares.
_BYTES_OF_GROUP = 460
#: A group of a mixture's plan, or of one of patches, in Python and for the engine.
_BYTES_OF_VISIT = 230


@dataclass(frozen=True)
class OrderRules(ReadBlocks):
    """The rules of an epoch order: its arguments, except for the number of the epoch, and what follows from them alone.

    Attributes
    ----------
    num_samples, block_rows, selection, edges, slabs
        The attributes of `ReadBlocks`.
    shuffle
        True if blocks are permuted; False: they keep their order.
    seed
        Key of the permutation of blocks, and of rows unless `row_seed` is given, in [0, 2**64).
    lanes
        L, at most `length`.
    mix
        Consecutive blocks of a lane whose rows are permuted together.
    shuffle_rows, row_seed
        Like `shuffle` and `seed`, for the rows inside of blocks. None: as `shuffle` and `seed` say.
    first_block
        Without shuffling: the block at which the epoch order begins; the blocks before it come last.
    short_last
        True if the last block of the array, which may be shorter, comes last in the epoch order in any case.
    strip
        Consecutive blocks of the array that stay together, in order, when blocks are permuted.
    combs
        Strata of the rotated combs in which blocks are permuted. 0: they are permuted by sorted keys.
    """

    num_samples: int
    block_rows: int
    shuffle: bool
    seed: int
    lanes: int
    mix: int = 1
    shuffle_rows: bool | None = None
    row_seed: int | None = None
    selection: Selection | None = field(default=None, compare=False)
    first_block: int = 0
    short_last: bool = False
    strip: int = 1
    edges: Edges | None = field(default=None, compare=False)
    combs: int = 0
    slabs: Slabs | None = None

    def __post_init__(self) -> None:
        assert self.edges is None or self.selection is not None
        self.check_blocks(listed=not self.unfolds)

    @property
    def permutes_rows(self) -> bool:
        """True if rows are permuted inside of blocks, or of groups of them."""
        return self.shuffle if self.shuffle_rows is None else self.shuffle_rows

    @property
    def shuffles(self) -> bool:
        """True if samples come in another order in each epoch."""
        return self.shuffle

    # Epochs

    @property
    def shortest(self) -> int:
        """Samples of the shortest epoch."""
        return self.length

    def epoch_length(self, state: OrderState, batch: int) -> int:
        """Return the number of positions of the order of a state's epoch, if a batch of all ranks has `batch` samples.

        Raises
        ------
        ConfigError
            If no epoch can be made of such batches.
        """
        del state, batch
        return self.length

    def typical_epoch(self, upcoming: int) -> int:
        """Return the epoch that stands for all of them, before an epoch is read."""
        del upcoming
        return 0

    def settle(self, state: S, readers: Readers) -> S:
        """Return a state in which nothing is left to be decided: what of the epoch order depends on who reads it.

        If rows keep their order, each consumer has a lane. If they are permuted, more ranks than lanes get a lane each,
        and many ranks divide the lanes unless the user named these. Where blocks keep their order and a tail is
        dropped, the epoch order begins at another block in each epoch, so that it is not always the same tail. An epoch
        order for runs of whole blocks has one lane, and ends with a short block.

        Raises
        ------
        ConfigError
            If the epoch was begun with batches, and these readers have others that do not go on with it.
        """
        if state.lanes is not None:
            return state
        if readers.read_runs:
            return replace(state, lanes=1, short_last=readers.stride > 1 and self.length % self.block_rows != 0)
        turns = readers.drop_some and not self.shuffle
        return replace(
            state,
            lanes=min(readers.shortest, self.lanes_for(readers)),
            mix=self.mix,
            strip=self.strip,
            first_block=state.epoch % readers.fewest_blocks if turns else 0,
            combs=0 if readers.are_objects else self.new_combs(readers.fewest_blocks),
        )

    def lanes_for(self, readers: Readers) -> int:
        """Return the lanes of an epoch that begins, for those who read it: the same on all nodes."""
        if not self.permutes_rows:
            return readers.stride
        if readers.are_objects:
            return self.lanes
        if readers.name_lanes:
            return readers.ranks if readers.ranks > max(self.lanes, FEW_RANKS) else self.lanes
        return lanes_for_ranks(self.lanes, readers.ranks, readers.suits)

    def new_combs(self, num_blocks: int) -> int:
        """Return `combs` of an epoch of so many blocks that is begun."""
        return strata_for(num_blocks) if self.unfolds and self.shuffle and self.strip == 1 else 0

    def deals_batches(self, num_workers: int, state: OrderState) -> bool:
        """Return True if the workers of a rank take whole batches in turn, and not strides, in the epoch of a state."""
        del num_workers, state
        return False

    def check_dealt(self) -> None:
        """Raise ConfigError if the samples cannot be dealt to nodes that have an epoch order each."""

    # Memory

    def fit_batch(self, batch_size: int) -> int:
        """Return the samples of the engine's batches, which have no more than an epoch."""
        return min(self.length, batch_size)

    def open_steps(self, stride: int = 1) -> int:
        """Return an upper bound of the steps between the first and the last row of a group, both included.

        This is what has to be in memory at once: a group's rows are spread over that many consecutive samples.
        """
        return min(-(-self.mix * self.max_rows * self.lanes // stride), -(-self.length // stride))

    def open_batches(self, batch_size: int, stride: int = 1) -> int:
        """Return an upper bound of the batches that `open_steps` steps can touch."""
        return (self.open_steps(stride) - 1) // batch_size + 2

    def required_batches(self, batch_size: int, stride: int) -> int:
        """Return the number of batches that must be open at once."""
        return BATCHES_OF_ROW if self._has_single_samples else self.open_batches(batch_size, stride)

    def wanted_batches(self, batch_size: int, stride: int) -> int:
        """Return the number of batches that a round of lanes serves, so that each chunk is decoded once.

        Groups of single samples need none of a round; so many are open that threads have enough to decode.
        """
        of_round = self.open_batches(batch_size, stride)
        if not self._has_single_samples:
            return of_round
        return min(of_round, max(BATCHES_OF_ROW, -(-_SAMPLES_AHEAD // batch_size)))

    @property
    def _has_single_samples(self) -> bool:
        """True if each group is a single sample, which serves one step; of orders whose lanes hand rows on alone."""
        return self.slabs is not None and self.slabs.carries_rows and self.mix * self.max_rows == 1

    @property
    def wanted_open(self) -> int:
        """Blocks that are to be open at once, where memory has room for them, beside those that a good mix needs."""
        return 0

    def most_steps(self, open_batches: int, batch_size: int) -> int | None:
        """Return the most steps that a group may serve at a time, with so many open batches. None: all of its steps."""
        del open_batches, batch_size
        return None

    def chunks_of_block(self, fields: Sequence[Field]) -> int:
        """Return the number of chunks of each field that a block is the first to need, on average and at least 1."""
        del fields
        return 1

    def carried_bytes(self, fields: Sequence[Field], lanes: int, num_threads: int) -> int | None:
        """Return the memory that some lanes want for decoded chunks that their blocks share.

        None: it follows from the windows of the fields (`Overlap`).
        """
        del fields, lanes, num_threads
        return None

    @property
    def carries_chunks(self) -> bool:
        """True if lanes may hand chunks from group to group, or runs of their rows, where blocks are slabs."""
        return self.shuffle and (self.slabs is None or self.slabs.carries_rows)

    @property
    def caches_chunks(self) -> bool:
        """True if memory that is left caches decoded chunks that several strips of blocks, or lanes, need.

        Where blocks are slabs, runs of rows are cached.
        """
        return True

    def groups_bytes(self, *, are_shared: bool) -> int:
        """Return the bytes of the groups of an epoch's plan; `are_shared` says whether blocks share chunks."""
        if not self.unfolds:
            return _BYTES_OF_VISIT * self.num_blocks
        return _BYTES_OF_GROUP * self.num_blocks if are_shared else 0

    # States

    def describe(self) -> dict[str, Any]:
        """Describe all that the epoch order depends on, except for epoch and lanes, as JSON."""
        selection = self.selection
        digest, whole = (None, False) if selection is None else (selection.digest, selection.whole_blocks)
        return {
            "num_samples": self.num_samples,
            "block_rows": self.block_rows,
            "blocks": digest if whole else None,
            "select": None if whole else digest,
            "shuffle": self.shuffle,
            "seed": self.seed,
            "mix": self.mix,
            "shuffle_rows": self.shuffle_rows,
            "row_seed": self.row_seed,
        }

    def describe_as(self, theirs: object) -> dict[str, Any]:
        """Return the description in the form of the release that made another one, which may be an earlier release."""
        described, selection = self.describe(), self.selection
        digest = theirs.get("select") if isinstance(theirs, Mapping) else None
        is_read = described.get("select") in (None, digest)
        if is_read or digest is None or selection is None or len(selection.held) > MOST_BLOCKS:
            return described
        return {**described, "select": selection.listed_digest}

    def describe_state(self, state: OrderState) -> dict[str, Any]:
        """Describe a state for people, beside its own entries; nothing reads the description."""
        del state
        return {}

    def own_in(self, json: Mapping[str, Any]) -> OwnState | None:
        """Parse the entries of a state's JSON form that this kind of order alone has.

        Raises
        ------
        ValueError, KeyError, TypeError
            If it cannot be one.
        """
        del json
        return None

    def check_state(self, state: OrderState, *, shortest: int, fewest_blocks: int) -> None:
        """Raise ValueError unless a state is such as this order can have, with so many samples and blocks at least."""
        if state.lanes is not None and not 1 <= state.lanes <= shortest:
            raise ValueError(f"lanes = {state.lanes}, must be in [1, {shortest}]")
        if state.combs and (not self.unfolds or state.strip != 1 or not self.shuffle):
            raise ValueError(f"combs = {state.combs} of blocks that are not permuted one by one")
        if not 1 <= state.strip <= fewest_blocks:
            raise ValueError(f"strip = {state.strip}, must be in [1, {fewest_blocks}]")
        self.check_own(state)
        if state.first_block >= fewest_blocks:
            raise ValueError(f"first_block = {state.first_block}, must be below {fewest_blocks}")

    def check_own(self, state: OrderState) -> None:
        """Raise ValueError unless a state holds for this kind of order what it needs."""

    def check_release(self, state: OrderState, theirs: object) -> None:
        """Raise ConfigError if a state, saved with the description `theirs`, is of a release with another order."""

    # Reports

    def unmixed(self) -> Self:
        """Return the order whose lanes and mix are chosen anew."""
        return replace(self, lanes=1, mix=1, strip=1)

    def wider_lanes(self, counts: Iterable[int]) -> list[int]:
        """Return those `counts` that, as numbers of lanes, would mix more blocks than this order's lanes."""
        return [lanes for lanes in counts if self.lanes < lanes <= self.num_blocks]

    def columns_for(self, ranks: int) -> int:
        """Return the columns that positions are dealt in, if ranks have no regular strides of each source; else 0."""
        del ranks
        return 0

    @property
    def why_one_lane(self) -> str:
        """Why it has one lane, whoever reads it; "" if lanes follow from the layout and the readers."""
        return ""

    @property
    def has_ordered_sources(self) -> bool:
        """True if the order mixes sources that are read in their own order."""
        return False
