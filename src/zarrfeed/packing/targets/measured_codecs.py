"""The codecs that train fastest with the samples of a source: measured on some of them, as `info --advise` does."""

from __future__ import annotations

import numpy as np

from zarrfeed.packing.sources.source import Source
from zarrfeed.packing.targets.layout_choice import SampledArray, choose_layouts
from zarrfeed.packing.targets.pack_layout import RequestedLayout, plan_layout, requested_codec
from zarrfeed.packing.targets.packed_values import as_packed

#: Decoded bytes of the source that are read for the measurement, and the number of runs that they are read in.
_SAMPLED_BYTES, _RUNS = 64 << 20, 4


def measure_codecs(source: Source, requested: RequestedLayout) -> dict[str, str]:
    """Return the codecs of the arrays for which the user wants the best one, by their names.

    Reads up to 64 MiB of the source, and takes about half a minute for each of the largest arrays. Bytes, text and
    records keep the usual codecs.

    Raises
    ------
    ImportError
        If torch, which the measured loader needs, is not installed.
    """
    usual = plan_layout(
        source.fields,
        source.num_samples,
        RequestedLayout(requested.chunk_rows, requested.shard_bytes, None, requested.dtypes),
        {},
    )
    wanted = [
        n
        for n, f in enumerate(source.fields)
        if f.kind == "number" and f.dtype.kind in "biuf" and requested_codec(f, requested.codecs or {}) == "auto"
    ]
    if not wanted:
        return {}
    size = sum(f.mean_bytes for f in source.fields)
    length = max(1, min(_SAMPLED_BYTES // _RUNS // max(1, size), source.num_samples // _RUNS))
    begins = np.unique(np.linspace(0, source.num_samples - length, _RUNS).astype(np.int64))
    pieces = [source.read(begin, begin + length) for begin in begins.tolist()]
    arrays = [
        SampledArray(
            source.fields[n].name,
            as_packed(np.concatenate([rows[n] for rows in pieces]), usual[n]),
            source.num_samples,
            source.fields[n].attributes,
            source.fields[n].fill_value,
        )
        for n in wanted
    ]
    advices = choose_layouts(
        arrays,
        chunk_rows=max(layout.chunk_rows for layout in usual if not layout.is_gathered),
        shard_bytes=requested.shard_bytes or None,
    )
    return {advice.name: str(advice.encoding) for advice in advices}
