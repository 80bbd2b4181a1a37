"""What becomes of chunks that cannot be read, decoded or found: the arguments of a dataset that say so."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from numbers import Real
from typing import Literal, TypeAlias, get_args

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.native import core
from zarrfeed.base.validate import check_choice, check_int

OnError: TypeAlias = Literal["raise", "skip"]
Missing: TypeAlias = Literal["fill", "raise"]

DEFAULT_MAX_ERRORS = 100
DEFAULT_RETRIES = 5
DEFAULT_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class FaultPolicy:
    """What to do where a chunk cannot be had.

    Attributes
    ----------
    on_error
        "raise", or "skip": other samples take the places of those in the chunk.
    max_errors
        Chunks that a pass may skip.
    missing
        "fill": a chunk that the store lacks is the fill value; "raise": it is an error.
    retries
        Further tries after an error that may pass.
    timeout
        Seconds that a read may take, all tries included.
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

    @property
    def skips(self) -> bool:
        """Whether chunks that cannot be had are skipped."""
        return self.on_error == "skip"

    def engine_options(
        self,
        *,
        batch_size: int,
        num_threads: int,
        num_fetch_threads: int,
        max_requests: int,
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
        )
