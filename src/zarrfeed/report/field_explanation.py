"""`FieldExplanation`: how one field is stored and read."""

from __future__ import annotations

from dataclasses import dataclass

from zarrfeed.base.page import Row
from zarrfeed.spec.array import ArraySpec

#: Who asks a far store -> what happens there.
_FAR = {
    "threads": "threads ask for chunks, more at once as long as that pays, and make late requests twice",
    "the event loop": "the event loop of zarr-python asks for chunks, more at once as long as that pays",
}


@dataclass(frozen=True)
class FieldExplanation:
    """One field.

    Attributes
    ----------
    name, source
        Of the field, and of the array behind it.
    description
        Shape, dtype, chunks and codecs.
    native
        Whether all of its codecs are decoded by the engine.
    slow_codecs
        The codecs because of which they are not.
    chunks
        Read chunks of the whole array.
    details
        Further lines: of a sparse matrix, its arrays, and what of them is in memory at once.
    item_type
        "str" or "bytes": batches have lists of these. "" for tensors.
    shards
        The shards that these lie in; 0 if each is an object of its own.
    chunk_reads
        Chunks that are read and decoded in one epoch by this consumer; of text and bytes, if all are cached.
    reads_by_array
        Of a sparse matrix, how many of the reads are of which array; "" for one array.
    amplification
        How often a chunk is decoded in an epoch, over all ranks: `chunk_reads` of all ranks, each as many as of this
        one, over the chunks that hold what they deliver. 1.0 means that each is decoded once.
    conversion
        What becomes of the items on the way into a batch; "" if nothing does.
    images
        What encoded images become, and what decodes them; "" if they are not decoded.
    spared
        Whether a `dtype` or `normalize` for all arrays leaves it as it is, since it is a coordinate.
    requested_by
        Who asks a far store for the chunks: "threads", or "the event loop" of zarr-python. "" if the store is not far.
    stores
        In how many stores the array lies; "" for a single one.
    joined
        Of a join, how many samples have a row of the array; "" where each sample has the row with its index.
    stacked
        Which channels it has of a tensor that it shares with other fields; "" if it has one for itself.
    window
        Which rows of the array a sample consists of; "" for its own.
    choice
        What it has to do with the blocks; "" if it is in memory as it was passed.
    remedy
        What would let its chunks be decoded faster, or less often; "" if nothing needs to.
    """

    name: str
    source: str
    description: str
    native: bool
    chunks: int
    chunk_reads: int
    amplification: float
    conversion: str = ""
    window: str = ""
    choice: str = ""
    slow_codecs: tuple[str, ...] = ()
    shards: int = 0
    item_type: str = ""
    spared: bool = False
    requested_by: str = ""
    joined: str = ""
    stores: str = ""
    images: str = ""
    stacked: str = ""
    details: tuple[str, ...] = ()
    reads_by_array: str = ""
    remedy: str = ""

    @property
    def is_sparse(self) -> bool:
        """Whether it is a sparse matrix."""
        return bool(self.reads_by_array)

    @property
    def slow_because(self) -> str:
        """Why zarr-python decodes the chunks; "" if the engine does."""
        codecs = ", ".join(self.slow_codecs)
        reasons = [f"lists of {self.item_type}"] if self.item_type else []
        reasons += [f"codec{'s' * (len(self.slow_codecs) > 1)} {codecs}"] if codecs else []
        return "; ".join(reasons)

    def rows(self, *, of_stores: bool = True) -> list[Row]:
        """Return the rows of a page; `of_stores`: also in which stores the array lies, where these store it alike."""
        lines = [self.description, *self.details]
        lines += [
            f"{what}: {text}"
            for what, text in (("stacked", self.stacked), ("converted", self.conversion), ("decoded", self.images))
            if text
        ]
        if self.spared:
            lines.append("not converted: a coordinate, which cast and normalize convert where they name it")
        if self.stores and (of_stores or "ways" in self.stores):
            lines.append(self.stores)
        lines += [self.joined] * bool(self.joined)
        if self.window:
            lines.append(f"windows: {self.window}")
        if self.chunks:
            how = "native" if self.native else f"through zarr-python, slow ({self.slow_because})"
            stored = f"{self.chunks} chunks stored" + (f" in {self.shards} shards" if self.shards else "")
            least = "at least " * bool(self.item_type)
            by_array = f" ({self.reads_by_array})" * bool(self.reads_by_array)
            lines.append(f"{self.choice}; {how}")
            lines.append(
                f"{least}{self.chunk_reads} chunk reads per epoch{by_array}, {stored}: "
                f"amplification {self.amplification:.2f}"
            )
        lines += [self.remedy] * bool(self.remedy)
        if self.requested_by:
            lines.append(f"in a far store: {_FAR[self.requested_by]}")
        return [(self.name, self.source), *(("", line) for line in lines)]


def describe_codecs(spec: ArraySpec) -> str:
    """Return the codecs of an array in words."""
    return " + ".join(c.label for c in spec.codecs) or "uncompressed"
