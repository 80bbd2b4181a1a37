"""`ProcessState`: the parts of a session that each process has for itself, and that a forked child makes anew."""

from __future__ import annotations

from dataclasses import dataclass, field

from zarrfeed.engine.reader_pool import ReaderPool
from zarrfeed.engine.stats import Stats
from zarrfeed.engine.substitution import SkippedChunk
from zarrfeed.metadata.stores.array_watch import ArrayWatch
from zarrfeed.plan.schedule.cursor import Cursor
from zarrfeed.plan.schedule.state import EpochState
from zarrfeed.torch.batches.pass_positions import Positions
from zarrfeed.torch.passes.pass_names import PassNames


@dataclass
class ProcessState:
    """The parts of a session that one process has alone.

    Attributes
    ----------
    readers
        The engines that passes which begin now get.
    past_readers, past_stats, past_skipped
        The readers of earlier editions, and the counters and skipped chunks of readers that are gone.
    resumed
        The state of a DataLoader worker that the next pass begins with.
    passes, names, watch
        The passes that were begun here, in the order of their begin; the namer of passes, in a DataLoader worker; and
        the memory of the metadata documents that earlier passes saw.
    """

    readers: ReaderPool
    watch: ArrayWatch
    passes: Positions[Cursor] = field(default_factory=Positions)
    names: PassNames = field(default_factory=PassNames)
    resumed: EpochState | None = None
    past_readers: list[ReaderPool] = field(default_factory=list)
    past_stats: Stats = field(default_factory=Stats)
    past_skipped: list[SkippedChunk] = field(default_factory=list)
