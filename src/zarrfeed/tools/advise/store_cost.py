"""Compute the cost of reading a store in its layout, from the `explain()` of a dataset."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from zarrfeed.base.page import Row
from zarrfeed.base.units import format_bytes
from zarrfeed.report.explain import Explanation
from zarrfeed.spec.fields.field import Field


@dataclass(frozen=True)
class StoreCost:
    """The cost of an epoch, and of a batch.

    Attributes
    ----------
    amplification
        Decoded bytes per delivered byte, both as items are stored.
    stored_per_delivered
        Stored bytes that are read per delivered byte; None where it was not measured.
    requests
        Reads an epoch: of chunks and of shard indices. A read is a request, if the store is not local.
    request_bytes
        Stored bytes of a read, on average; None where it was not measured.
    memory_bytes
        The loader's memory, at most.
    chunks_per_batch, ideal_chunks_per_batch
        Blocks that a batch draws from, and that a batch of a perfect shuffle would draw from.
    bytes_per_s
        Delivered bytes a second on this machine; None where it was not measured.
    """

    amplification: float
    stored_per_delivered: float | None
    requests: int
    request_bytes: float | None
    memory_bytes: int
    chunks_per_batch: float
    ideal_chunks_per_batch: float
    bytes_per_s: float | None

    @classmethod
    def of(
        cls, whole: Explanation, fields: Sequence[Field], ratio: float | None, bytes_per_s: float | None
    ) -> StoreCost:
        """Return the cost of an explained epoch; `ratio` is that of decoded to stored bytes."""
        decoded, delivered, requests = 0, 0, 0
        for explained, f in zip(whole.fields, fields, strict=True):
            requests += explained.chunk_reads + explained.shards
            if f.is_streamed:
                spec = f.layouts[0].spec
                decoded += explained.chunk_reads * spec.decoded_bytes
                delivered += whole.steps * spec.sample_bytes
        amplification = decoded / delivered if delivered else 1.0
        stored = None if not ratio else amplification / ratio
        return cls(
            amplification=amplification,
            stored_per_delivered=stored,
            requests=requests,
            request_bytes=None if stored is None or not requests else stored * delivered / requests,
            memory_bytes=whole.memory_bytes,
            chunks_per_batch=whole.chunks_per_batch,
            ideal_chunks_per_batch=whole.ideal_chunks_per_batch,
            bytes_per_s=bytes_per_s,
        )

    def rows(self, name: str, rate: str) -> list[Row]:
        """Return the rows of a page; `rate` says where the rate is from."""
        stored = "" if self.stored_per_delivered is None else f", {self.stored_per_delivered:.2f} stored bytes are read"
        each = "" if self.request_bytes is None else f" of {format_bytes(self.request_bytes)}"
        rows = [
            (name, f"decodes {self.amplification:.2f} bytes per delivered byte{stored}"),
            ("", f"{self.requests} reads an epoch{each} on average" if each else f"{self.requests} reads an epoch"),
            ("", f"at most {format_bytes(self.memory_bytes)} of memory"),
            (
                "",
                f"a batch draws from {self.chunks_per_batch:.1f} blocks, "
                f"a batch of a perfect shuffle from {self.ideal_chunks_per_batch:.1f}",
            ),
        ]
        if self.bytes_per_s is not None:
            rows.append(("", f"{self.bytes_per_s / 1e9:.2f} GB/s {rate}"))
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain data, for JSON."""
        return {
            "amplification": self.amplification,
            "stored_bytes_per_delivered_byte": self.stored_per_delivered,
            "requests_per_epoch": self.requests,
            "request_bytes": self.request_bytes,
            "memory_bytes": self.memory_bytes,
            "blocks_per_batch": self.chunks_per_batch,
            "blocks_per_batch_of_a_perfect_shuffle": self.ideal_chunks_per_batch,
            "gb_per_s": None if self.bytes_per_s is None else self.bytes_per_s / 1e9,
        }


def short_name(field: str) -> str:
    """Return the name of the array of a field: "t2m" of "samples['t2m']".

    Examples
    --------
    >>> short_name("samples['t2m']"), short_name("targets")
    ('t2m', 'targets')
    """
    found = re.fullmatch(r"(?:samples|targets)\[(['\"])(.+)\1\]", field)
    return found[2] if found else field


def not_tried(fields: Sequence[Field]) -> dict[str, str]:
    """Map each field for which no codec is tried to the reason."""
    found = {}
    for f in fields:
        if f.item_type:
            found[short_name(f.name)] = "items of any length: store numbers or encoded images in chunks of about 1 MiB"
        elif not f.layouts:
            found[short_name(f.name)] = "a sparse matrix, or not stored: its chunks stay as they are"
        elif f.record is not None:
            found[short_name(f.name)] = "records: an array for each member decodes faster, as members can be shuffled"
        elif f.patch is not None:
            found[short_name(f.name)] = "samples are patches, which chunks on all axes serve"
    return found
