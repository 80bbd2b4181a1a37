"""The arguments of a dataset that say what its samples are -> a `Data`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from zarrfeed.base.errors import ConfigError
from zarrfeed.metadata.conversion import Normalization, TorchDtypeLike
from zarrfeed.metadata.data import Data, open
from zarrfeed.metadata.fields import Source, Variables
from zarrfeed.plan.selection import Select
from zarrfeed.plan.window_rows import WindowRows
from zarrfeed.plan.windows import Offsets
from zarrfeed.spec.error_policy import FaultPolicy
from zarrfeed.spec.field import BlockUnit


@dataclass(frozen=True, kw_only=True, eq=False)
class DataOptions:
    """What samples are, as arguments: each has the meaning, and the default, of the dataset's argument."""

    sample_axis: int = 0
    sample_dim: str | None = None
    variables: Variables | None = None
    decode_cf: bool = True
    dtype: TorchDtypeLike | Mapping[str, TorchDtypeLike] | None = None
    normalize: Normalization | Mapping[str, Normalization] | None = None
    normalize_axis: int | str | None = None
    select: Select | None = None
    blocks: npt.ArrayLike | None = None
    block: BlockUnit = "chunk"
    offsets: Offsets | Mapping[str, Offsets] | None = None
    segment_ends: npt.ArrayLike | None = None
    window_rows: WindowRows | None = None
    storage_options: Mapping[str, Any] | None = None


def as_data(samples: Source | Data, targets: Source | None, options: DataOptions, policy: FaultPolicy) -> Data:
    """Return the samples that a dataset was given, as a `Data` or by its other arguments.

    Raises
    ------
    ConfigError
        If there is a `Data`, and other arguments that say what samples are; or for what cannot work.
    """
    if isinstance(samples, Data):
        named = [
            field.name
            for field in dataclasses.fields(options)
            if field.name != "block" and getattr(options, field.name) is not field.default
        ]
        named += [] if targets is None else ["targets"]
        if named:
            raise ConfigError(f"{', '.join(named)} beside a Data, which says what samples are: use its methods")
        return samples
    data = open(
        samples,
        targets,
        sample_axis=options.sample_axis,
        sample_dim=options.sample_dim,
        variables=options.variables,
        decode_cf=options.decode_cf,
        storage_options=options.storage_options,
        retries=policy.retries,
        timeout=policy.timeout,
    )
    if options.dtype is not None:
        data = data.cast(options.dtype)
    if options.normalize is not None:
        data = data.normalize(options.normalize, axis=options.normalize_axis)
    elif options.normalize_axis is not None:
        raise ConfigError("normalize_axis is given without normalize=(mean, std)")
    if options.select is not None:
        data = data.select(options.select)
    if options.blocks is not None:
        data = data.blocks(options.blocks, of=options.block)
    if options.offsets is not None:
        return data.window(options.offsets, segment_ends=options.segment_ends, rows=options.window_rows)
    if options.segment_ends is not None:
        raise ConfigError("segment_ends is given without offsets: single rows lie in one segment each")
    if options.window_rows is not None:
        raise ConfigError("window_rows is given without offsets: a sample reads its own row alone")
    return data
