"""The page of `python -m benchmarks.nvcomp`, from its results."""

from __future__ import annotations

from typing import Any

from benchmarks.data.streams import Streams
from benchmarks.harness.nvcomp import ALGORITHMS
from benchmarks.report.tables import markdown_rows, number

_COLUMNS = (
    *("array", "codec", "filter", "chunks", "streams a chunk", "bytes a stream", "stored as they are"),
    *("copied / decoded", "CPU s/GB, decoding", "CPU s/GB, reading", "nvCOMP"),
)
_GPU_COLUMNS = (
    *("array", "chunks", "streams", "copy, ms", "decompress, ms", "scatter, ms", "GB/s", "copying decoded, GB/s"),
    "besides, MiB",
)


def page(document: Any) -> str:
    """Return the page in Markdown."""
    rows = [_row(found) for found in document["arrays"]]
    lines = ["# Decoding on the GPU: a study", "", document["machine_line"] + ".", ""]
    lines += [markdown_rows(_COLUMNS, rows), *_LEGEND, "", "## On the GPU", ""]
    if document["why_not"]:
        lines += [f"Nothing was measured: {document['why_not']}."]
    else:
        on_gpu = [_gpu_row(found) for found in document["arrays"] if found["gpu"] is not None]
        lines += [f"{document['device']}, nvCOMP {document['nvcomp']}.", "", markdown_rows(_GPU_COLUMNS, on_gpu)]
        lines += _GPU_LEGEND
    for title, key in (("Failed", "failed"), ("Left out", "left_out")):
        if document[key]:
            lines += ["", f"## {title}", "", *(f"- {one}" for one in document[key])]
    return "\n".join(lines).rstrip() + "\n"


_LEGEND = (
    "- Bytes a stream: decoded ones, smallest, middle and largest. Stored as they are: the share of decoded bytes whose"
    " streams are raw.",
    "- Copied / decoded: stored bytes and a table of pointers and sizes, over the bytes that are copied today.",
    "- CPU s/GB, for each decoded GB on one thread: the bare loop that reads, decodes and scatters; and opening and "
    "reading the files alone.",
)
_GPU_LEGEND = (
    "- GB/s: decoded bytes over the three steps, one behind the other; beside them, copying decoded rows from pinned "
    "memory, without the decoding that comes before it on the host.",
    "- Besides: memory of the device that nvCOMP asks for.",
    "- Scatter: the byte shuffle is undone where rows are copied to their slots. Bit shuffle is not undone here.",
)


def _row(found: Any) -> list[str]:
    streams = Streams(**found["streams"])
    sizes = (streams.smallest, streams.middle, streams.largest)
    return [
        streams.name,
        streams.codec,
        streams.filtering,
        str(streams.chunks),
        number(streams.streams / streams.chunks),
        ", ".join(str(size) for size in dict.fromkeys(sizes)),
        f"{100 * streams.raw_bytes / streams.decoded_bytes:.0f} %",
        f"{streams.copied_share:.3f}",
        number(found.get("decode_cpu_s_per_gb")),
        number(found.get("read_cpu_s_per_gb")),
        f"nvcompBatched{ALGORITHMS[streams.codec]}" if streams.codec in ALGORITHMS else f"has no {streams.codec}",
    ]


def _gpu_row(found: Any) -> list[str]:
    gpu = found["gpu"]
    steps = ("copy", "decompress", "scatter")
    return [
        found["streams"]["name"],
        str(gpu["chunks"]),
        str(gpu["streams"]),
        *(number(gpu["ms"].get(step)) for step in steps),
        number(gpu["gb_per_s"]),
        number(gpu["copy_decoded_gb_per_s"]),
        number(gpu["temp_bytes"] / 2**20),
    ]
