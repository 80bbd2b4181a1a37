"""`FieldExplanation`: how one field is stored and read."""

from __future__ import annotations

from dataclasses import dataclass

from zarrfeed.base.page import Row
from zarrfeed.plan.samples.slab_cost import CHEAP_DECODES
from zarrfeed.spec.array import ArraySpec

#: Chunks that are decoded more often than this are worth a remedy.
_AMPLIFIED = 1.1
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
        Chunks that this consumer reads in one epoch, all of a chunk or as far as samples need it; of text and bytes,
        if all are cached. Where memory for chunks that several blocks need is short, it counts memory as free as soon
        as the next group of blocks is begun.
    most_chunk_reads
        The same at most, however long threads hold that memory. None: it is not short, so that `chunk_reads` is the
        most; or there is no such bound, as of patches and text.
    decoded_with
        The field that draws from the same array, and whose figures count the chunks, which are decoded once for both;
        `chunks` and `chunk_reads` are 0 then. "" if the chunks are counted here.
    reads_by_array
        Of a sparse matrix, how many of the reads are of which array; "" for one array.
    amplification
        How often a chunk is decoded in an epoch, over all ranks: `chunk_reads` of all ranks, each as many as of this
        one, over the chunks that hold what they deliver. 1.0 means that each is decoded once. Where the order has slabs
        of chunks, it is the bytes that these decode, over the bytes of the chunks. Elsewhere, a chunk of which some
        Blosc blocks are decoded counts like one that is decoded whole: `Stats.bytes_decoded` counts bytes.
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
    cast_advice
        Of a dtype that torch hardly computes with: the cast of the description that delivers another one; else "".
    reads_slabs
        Whether slabs of chunks are decoded, each without the rest of its chunk.
    chosen
        The items that `sel` or `isel` chose along other axes than that of samples; "" if samples have all.
    chunk_share
        The share of the chunks of the array that have a chosen item; others are never read.
    byte_share
        The share of the bytes of the array that are chosen items.
    decoded_share
        The share of the bytes of the array that is decoded for these, where each chunk is decoded once: of a Blosc
        chunk the blocks that have some of them, of others all of the chunk. None: it is not known, because the array
        is not local, or zarr-python decodes it.
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
    decoded_with: str = ""
    cast_advice: str = ""
    remedy: str = ""
    most_chunk_reads: int | None = None
    reads_slabs: bool = False
    chosen: str = ""
    chunk_share: float = 1.0
    byte_share: float = 1.0
    decoded_share: float | None = 1.0

    @property
    def is_amplified(self) -> bool:
        """Whether chunks are decoded so often that it is worth a remedy; slabs decode some Blosc blocks twice."""
        return self.amplification > (CHEAP_DECODES if self.reads_slabs else _AMPLIFIED)

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
        lines += [self.cast_advice] * bool(self.cast_advice)
        if self.window:
            lines.append(f"windows: {self.window}")
        if self.chosen:
            lines.append(
                f"chosen: {self.chosen}: {self.chunk_share:.1%} of its chunks are read, {self.byte_share:.1%} of its "
                "bytes are chosen items"
                + ("" if self.decoded_share is None else f", {self.decoded_share:.1%} are decoded")
            )
        if self.chunks:
            how = "native" if self.native else f"through zarr-python, slow ({self.slow_because})"
            stored = f"{self.chunks} chunks stored" + (f" in {self.shards} shards" if self.shards else "")
            least = "at least " * bool(self.item_type)
            by_array = f" ({self.reads_by_array})" * bool(self.reads_by_array)
            lines.append(f"{self.choice}; {how}")
            at_most = "" if self.most_chunk_reads is None else f", at most {self.most_chunk_reads} if threads are late"
            reads = "reads of some rows of a chunk" if self.reads_slabs else "chunk reads"
            lines.append(
                f"{least}{self.chunk_reads} {reads} per epoch{by_array}{at_most}, {stored}: "
                f"amplification {self.amplification:.2f}"
            )
        elif self.decoded_with:
            lines.append(f"its chunks are those of {self.decoded_with}, and are decoded once for both")
        lines += [self.remedy] * bool(self.remedy)
        if self.requested_by:
            lines.append(f"in a far store: {_FAR[self.requested_by]}")
        return [(self.name, self.source), *(("", line) for line in lines)]


def describe_codecs(spec: ArraySpec) -> str:
    """Return the codecs of an array in words."""
    return " + ".join(c.label for c in spec.codecs) or "uncompressed"
