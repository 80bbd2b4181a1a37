"""`StoreAdvice`: the cost of a store, and a layout that would be better, as a page and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zarrfeed.base.page import Page, Row
from zarrfeed.packing.targets.codec_trial import BUCKET_BYTES_PER_S, CodecRate
from zarrfeed.packing.targets.layout_choice import LayoutAdvice
from zarrfeed.tools.advise.store_cost import StoreCost

_HEAD = f"{'codec':<20}{'ratio':>7}{'write MB/s':>12}{'decode GB/s':>13}{'disk GB/s':>11}{'bucket GB/s':>13}"


@dataclass(frozen=True, repr=False)
class StoreAdvice(Page):
    """The findings of `zarrfeed info --advise`. `str()` is a page.

    Attributes
    ----------
    store
        Name of the store that was measured.
    batch_size, num_threads
        Samples of a batch, and decode threads, of the loader.
    now, better
        The cost of the layout that the store has, and of the one that is advised.
    first_bytes_per_s
        Delivered bytes a second of the first pass, as the page cache was found.
    layouts
        The advised layout of each array.
    left_out
        Array -> the reason why no codec was tried for it.
    predicted
        Delivered bytes a second of the advised layout: "page_cache", "disk" (None: its rate is not known), "bucket".
    disk_bytes_per_s
        Stored bytes a second of the disk; None: not known.
    source_bytes_per_s
        Stored bytes a second that the codec was chosen for; None: the page cache.
    tips
        Changes that help without another layout.
    assumed
        The figures that were measured and those that were assumed.
    is_local
        True if the store is local, so that its rate, and that of `better`, is one from the page cache.
    """

    store: str
    batch_size: int
    num_threads: int
    now: StoreCost
    first_bytes_per_s: float | None
    better: StoreCost
    layouts: tuple[LayoutAdvice, ...]
    left_out: Mapping[str, str]
    predicted: Mapping[str, float | None]
    disk_bytes_per_s: float | None
    source_bytes_per_s: float | None
    tips: tuple[str, ...]
    assumed: tuple[str, ...]
    is_local: bool = True

    @property
    def speedup(self) -> float | None:
        """The predicted rate over the rate of the store as it is; None where one of them is not known."""
        if not self.better.bytes_per_s or not self.now.bytes_per_s:
            return None
        return self.better.bytes_per_s / self.now.bytes_per_s

    def rows(self) -> list[Row]:
        """Return the rows of the table that `str()` and notebooks show."""
        threads = f"{self.num_threads} decode thread{'s' * (self.num_threads > 1)}"
        rows = [("store", f"{self.store}: shuffled, in batches of {self.batch_size}, {threads}")]
        first = "" if self.first_bytes_per_s is None else f", {self.first_bytes_per_s / 1e9:.2f} in the first pass"
        rows += self.now.rows("now", f"here{first}: a part of it, as it is stored")
        rows += [("change" if i == 0 else "", tip) for i, tip in enumerate(self.tips)]
        for one in self.layouts:
            shape = f"sample chunk {one.chunk_rows}, shard {one.shard_rows or 'none'}, codec {one.encoding}"
            rows += [(one.name, shape), *(("", reason) for reason in one.reasons)]
            if one.rates:
                rows += [("", line) for line in self._table(one)]
        rows += [(name, f"not tried: {why}") for name, why in self.left_out.items()]
        said = "predicted here from the page cache" if self.is_local else "predicted from a bucket of 1 GB/s"
        if self.speedup is not None:
            said += f", {self.speedup:.1f} times as fast as now" if self.speedup > 1 else ", no faster than now"
        rows += self.better.rows("better", said)
        rates = [
            f"{per_s / 1e9:.2f} GB/s from {name}"
            for name, key in (("the page cache", "page_cache"), ("the disk", "disk"), ("a bucket of 1 GB/s", "bucket"))
            if (per_s := self.predicted.get(key)) is not None
        ]
        rows.append(("predicted", ", ".join(rates)))
        rows.append(("pack", self.pack_command))
        return rows + [("notes" if i == 0 else "", line) for i, line in enumerate(self.assumed)]

    @property
    def pack_command(self) -> str:
        """The command that packs the store so."""
        largest = max(self.layouts, key=lambda one: one.sample_bytes)
        codecs = {str(one.encoding) for one in self.layouts}
        codec = codecs.pop() if len(codecs) == 1 else "auto"
        shard = largest.shard_rows * largest.sample_bytes
        shards = f" --shard {shard}" if shard else ""
        return f"zarrfeed pack {self.store} -o packed.zarr --sample-chunk {largest.chunk_rows}{shards} --codec {codec}"

    def to_dict(self) -> dict[str, Any]:
        """Return the advice as plain data, for JSON; docs/tasks/advise.md explains the keys."""
        return {
            "store": self.store,
            "batch_size": self.batch_size,
            "num_threads": self.num_threads,
            "now": self.now.to_dict() | {"first_pass_gb_per_s": _giga(self.first_bytes_per_s)},
            "tips": list(self.tips),
            "arrays": [self._array(one) for one in self.layouts],
            "not_tried": dict(self.left_out),
            "better": self.better.to_dict(),
            "speedup": self.speedup,
            "predicted_gb_per_s": {key: _giga(per_s) for key, per_s in self.predicted.items()},
            "disk_gb_per_s": _giga(self.disk_bytes_per_s),
            "chosen_for": "page cache"
            if self.source_bytes_per_s is None
            else f"{self.source_bytes_per_s / 1e9:g} GB/s of stored bytes",
            "pack": self.pack_command,
            "assumed": list(self.assumed),
        }

    def _array(self, one: LayoutAdvice) -> dict[str, Any]:
        return {
            "name": one.name,
            "sample_bytes": one.sample_bytes,
            "num_samples": one.num_samples,
            "chunk_rows": one.chunk_rows,
            "shard_rows": one.shard_rows,
            "codec": str(one.encoding),
            "reasons": list(one.reasons),
            "codecs": [self._rate(rate) for rate in one.rates],
        }

    def _rate(self, rate: CodecRate) -> dict[str, Any]:
        disk = self.disk_bytes_per_s
        return {
            "codec": str(rate.encoding),
            "ratio": rate.ratio,
            "write_mb_per_s": rate.write_bytes_per_s / 1e6,
            "decode_gb_per_s": rate.decode_bytes_per_s / 1e9,
            "page_cache_gb_per_s": rate.loader_bytes_per_s / 1e9,
            "disk_gb_per_s": None if disk is None else rate.training_bytes_per_s(disk) / 1e9,
            "bucket_gb_per_s": rate.training_bytes_per_s(BUCKET_BYTES_PER_S) / 1e9,
        }

    def _table(self, one: LayoutAdvice) -> list[str]:
        """Return the lines of the table of candidates; where the disk is not known, its column is of the page cache."""
        lines = [_HEAD if self.disk_bytes_per_s is not None else _HEAD.replace("disk GB/s", "cache GB/s")]
        for rate in one.rates:
            disk = rate.training_bytes_per_s(self.disk_bytes_per_s)
            lines.append(
                f"{rate.encoding!s:<20}{rate.ratio:>7.2f}{rate.write_bytes_per_s / 1e6:>12.0f}"
                f"{rate.decode_bytes_per_s / 1e9:>13.2f}{disk / 1e9:>11.2f}"
                f"{rate.training_bytes_per_s(BUCKET_BYTES_PER_S) / 1e9:>13.2f}" + "  <-" * (rate is one.chosen)
            )
        return lines


def _giga(per_s: float | None) -> float | None:
    return None if per_s is None else per_s / 1e9
