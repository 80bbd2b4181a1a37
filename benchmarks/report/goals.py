"""What we want to reach on each layout, and how far a run came: the table of docs/performance.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.loaders import LIBRARY_CEILING, LOADERS, OURS, OURS_IN_WORKERS, PLAIN_ZARR, WITHOUT_CODEC
from benchmarks.report.results import Summary
from benchmarks.report.tables import markdown_rows

#: Of the ceiling with scatter; where samples are converted, of the rate of layout A.
CEILING_GOALS = {
    "A": 0.90,
    "B-blosc": 0.95,
    "B-zstd": 0.95,
    "B-gzip": 0.95,
    "C": 0.90,
    "D": 0.80,
    "D-1024": 0.80,
    "E": 0.90,
    "F": 0.85,
    "G": 0.75,
    "H": 0.80,
    "I-int16": 0.85,
    "I-bfloat16": 0.85,
}
#: Of the best loader over zarr-python alone.
PLAIN_GOALS = {
    "A": 12.0,
    "B-blosc": 4.0,
    "B-zstd": 4.0,
    "B-gzip": 4.0,
    "C": 8.0,
    "D": 6.0,
    "D-1024": 6.0,
    "E": 10.0,
    "F": 6.0,
    "G": 60.0,
    "H": 6.0,
    "I-int16": 10.0,
    "I-bfloat16": 10.0,
}
#: Of every other loader of Zarr, on layout A and elsewhere.
PEER_GOALS = {name: 2.5 if name == "A" else 1.0 for name in CEILING_GOALS}

_CONVERTED = ("I-int16", "I-bfloat16")
_OTHER_PEERS = tuple(name for name in LOADERS if name not in (OURS, OURS_IN_WORKERS, *PLAIN_ZARR, *WITHOUT_CODEC))


@dataclass(frozen=True)
class Verdict:
    """How we did on a layout. A rate is None, and a name "", where that was not measured.

    Attributes
    ----------
    ours
        Decoded GB/s.
    of_ceiling
        Our rate over the ceiling's; where samples are converted, over our own rate on layout A.
    of_library
        Our rate over that of the codec library's own call and `memcpy`.
    plain, over_plain
        The best loader over zarr-python alone, and our rate over its.
    peer, over_peer
        The same for all other loaders of Zarr.
    over_memmap, over_memory
        Our rate over that of an uncompressed file, and of data in memory.
    """

    layout: str
    ours: float
    of_ceiling: float | None
    of_library: float | None
    plain: str
    over_plain: float | None
    peer: str
    over_peer: float | None
    over_memmap: float | None
    over_memory: float | None


def verdicts(summaries: Sequence[Summary]) -> list[Verdict]:
    """Return one for each layout on which zarrfeed was timed."""
    by_name = {(s.layout, s.loader): s for s in summaries}
    on_a = by_name.get(("A", OURS))

    def closest(layout: str, names: Sequence[str]) -> tuple[str, float | None]:
        ratios = [(s.ours_over_it, s.loader) for name in names if (s := by_name.get((layout, name))) is not None]
        known = [(ratio, name) for ratio, name in ratios if ratio is not None]
        ratio, name = min(known, default=(None, ""))
        return name, ratio

    out = []
    for (layout, loader), ours in by_name.items():
        if loader != OURS:
            continue
        of_ceiling = ours.it_over_ceiling
        if layout in _CONVERTED:
            of_ceiling = ours.gb_per_s / on_a.gb_per_s if on_a is not None else None
        plain, over_plain = closest(layout, PLAIN_ZARR)
        peer, over_peer = closest(layout, _OTHER_PEERS)
        of_library = closest(layout, [LIBRARY_CEILING])[1]
        over_memmap, over_memory = (closest(layout, [name])[1] for name in WITHOUT_CODEC)
        out.append(
            Verdict(
                layout,
                ours.gb_per_s,
                of_ceiling,
                of_library,
                plain,
                over_plain,
                peer,
                over_peer,
                over_memmap,
                over_memory,
            )
        )
    return out


def to_markdown(rows: Sequence[Verdict]) -> str:
    """Return a table with the goals beside the numbers; what misses its goal is in bold."""
    against = (
        "/ ceiling",
        "goal",
        "/ codec's library",
        "/ best plain zarr loader",
        "goal",
        "/ best other Zarr loader",
        "goal",
    )
    table = []
    for v in rows:
        cells = [
            v.layout,
            f"{v.ours:.2f}",
            *_against(v.of_ceiling, CEILING_GOALS.get(v.layout), 2),
            _ratio(v.of_library, 2) or "n/a",
            *_against(v.over_plain, PLAIN_GOALS.get(v.layout), 1, v.plain),
            *_against(v.over_peer, PEER_GOALS.get(v.layout), 1, v.peer),
            _ratio(v.over_memmap, 2),
            _ratio(v.over_memory, 2),
        ]
        table.append(cells)
    return markdown_rows(("layout", "GB/s", *against, "/ memmap", "/ memory"), table)


def _against(value: float | None, goal: float | None, digits: int, name: str = "") -> tuple[str, str]:
    text = _ratio(value, digits)
    if value is not None and goal is not None and round(value, digits) < goal:
        text = f"**{text}**"
    return f"{text} {name}".strip(), "" if goal is None else f"{goal:g}"


def _ratio(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
