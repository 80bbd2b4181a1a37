"""Refuse an epoch that has no batch on any rank, so that a loop over nothing is not taken for training.

Only a whole epoch is refused. What is left of an epoch that was begun may be nothing, and a rank or a DataLoader worker
may have no batch where others have one.
"""

from __future__ import annotations

from dataclasses import replace

from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.shares.partition import Division
from zarrfeed.plan.shares.runs import RunDivision


def check_has_batches(division: Division | RunDivision, ranks: int) -> None:
    """Check that some rank has a batch in an epoch, which is divided in this way among `ranks` ranks that get samples.

    Raises
    ------
    ConfigError
        If no rank has a batch. The message says why, and what helps.
    """
    if division.batches(0) > 0:  # rank 0 of node 0 has most
        return
    length = division.length
    counts = f"{length} sample{'s' * (length != 1)} on {ranks} rank{'s' * (ranks != 1)}"
    share = replace(division, drop_last=False).samples(0)
    if share:
        raise ConfigError(
            f"batch_size = {division.batch_size}, drop_last = True: an epoch has no batch. Of {counts}, a rank has "
            f"{share}, which is less than a batch: give batch_size={share} or less, or drop_last=False"
        )
    if ranks == 1:
        raise ConfigError("an epoch has no batch: there is no sample to read")
    raise ConfigError(
        f"world_size = {ranks}: an epoch has no batch. With {counts}, no rank has one, since all ranks must have as "
        f"many: use at most {max(1, length)} rank{'s' * (length > 1)}, or even='repeat', or even='off', which leaves "
        "some ranks idle"
    )
