"""The handling of chunks that cannot be read, decoded or found: the argument `faults` of a dataset."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from numbers import Real
from typing import Literal, TypeAlias, get_args

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.native import core
from zarrfeed.base.validate import check_choice, check_int
from zarrfeed.spec.arrays.sharding import DEFAULT_COALESCE, Coalesce

OnError: TypeAlias = Literal["raise", "skip"]
Missing: TypeAlias = Literal["fill", "raise"]

DEFAULT_MAX_ERRORS = 100
DEFAULT_RETRIES = 5
DEFAULT_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Faults:
    """The handling of chunks that cannot be read, decoded or found.

    Attributes
    ----------
    on_error
        "raise", or "skip": each sample of the chunk is replaced by the same row of the next good block of the epoch,
        the same on every rank. There is a `ChunkSkippedWarning` for each chunk, and `skipped_chunks()` lists them.
    max_errors
        Number of chunks that a pass may skip on a rank (in a DataLoader worker: in this worker) before it raises.
    missing
        Handling of a chunk that the store lacks: "fill" gives the fill value, as the specification says; "raise" is an
        error.
    retries
        Number of retries of a read after a transient error, with pauses that grow from 0.1 to 10 s.
    timeout
        Seconds that a read may take, retries included. A read that takes longer is an error, also with "skip". For
        reads that wait behind others of the same array, the time counts from the last answer.

    Examples
    --------
    >>> import zarrfeed
    >>> zarrfeed.Faults(on_error="skip", timeout=60)
    Faults(on_error='skip', max_errors=100, missing='fill', retries=5, timeout=60)
    """

    on_error: OnError = "raise"
    max_errors: int = DEFAULT_MAX_ERRORS
    missing: Missing = "fill"
    retries: int = DEFAULT_RETRIES
    timeout: float = DEFAULT_TIMEOUT_S

    def __post_init__(self) -> None:
        check_choice("on_error", self.on_error, get_args(OnError))
        check_choice("missing", self.missing, get_args(Missing))
        check_int("max_errors", self.max_errors, 1)
        check_int("retries", self.retries, 0, 1000)
        if isinstance(self.timeout, bool) or not isinstance(self.timeout, Real):
            raise ConfigError(f"timeout = {self.timeout!r}, must be a number of seconds")
        if not 0.01 <= self.timeout <= 1e6 or math.isnan(self.timeout):
            raise ConfigError(f"timeout = {self.timeout!r}, must be in [0.01, 1e6] seconds")

    def without_skipping(self) -> Faults:
        """Return the policy for data that nothing can replace: an error in them is raised."""
        return replace(self, on_error="raise") if self.skips else self

    @property
    def skips(self) -> bool:
        """True if chunks that cannot be read, decoded or found are skipped."""
        return self.on_error == "skip"

    def engine_options(
        self,
        *,
        batch_size: int,
        num_threads: int,
        num_fetch_threads: int,
        max_requests: int,
        coalesce: Coalesce = DEFAULT_COALESCE,
        provides_memory: bool = False,
        cache_bytes: int = 0,
        carry_bytes: int = 0,
        caller_runs: bool = False,
        max_block_bytes: int | None = None,
    ) -> core.EngineOptions:
        """Return the options of an engine that keeps to this policy."""
        return core.EngineOptions(
            batch_size=batch_size,
            num_threads=num_threads,
            num_fetch_threads=num_fetch_threads,
            max_requests=max_requests,
            provides_memory=provides_memory,
            cache_bytes=cache_bytes,
            carry_bytes=carry_bytes,
            caller_runs=caller_runs,
            max_block_bytes=sys.maxsize if max_block_bytes is None else max_block_bytes,
            max_retries=self.retries,
            timeout_s=float(self.timeout),
            missing_is_error=self.missing == "raise",
            skip_bad=self.skips,
            **coalesce.engine_options(),
        )
