"""`FieldExplanation`: the storage and the reading of one field."""

from __future__ import annotations

from dataclasses import dataclass

from zarrfeed.base.page import Row
from zarrfeed.plan.blocks.slab_cost import CHEAP_DECODES
from zarrfeed.spec.arrays.array import ArraySpec

#: Chunks that are decoded more often than this are worth a remedy.
_AMPLIFIED = 1.1
#: Bytes of chunks that are not decoded are named from this share on.
_IN_PART = 0.02
#: Requester of a far store -> description of its requests.
_FAR = {
    "threads": "threads ask for chunks, more at once as long as that pays, and make late requests twice",
    "the event loop": "the event loop of zarr-python asks for chunks, more at once as long as that pays",
}


@dataclass(frozen=True)
class FieldExplanation:
    """One field of a dataset, and the cost of reading it.

    Attributes
    ----------
    name, source
        Names of the field, and of the array behind it.
    description
        Shape, dtype, chunks and codecs.
    native
        True if the engine decodes all codecs of the array.
    slow_codecs
        The codecs that the engine does not decode.
    chunks
        Read chunks of the whole array.
    details
        Further lines, such as the arrays of a sparse matrix, and the part of them that is in memory at once.
    item_type
        "str" or "bytes": batches have lists of text, or of bytes. "" for tensors.
    shards
        Number of shards that the read chunks lie in; 0 if each read chunk is an object of its own.
    chunk_reads
        Number of chunks that this consumer reads in one epoch, whole or as far as samples need them; of text and bytes,
        if all are cached. Where memory for chunks that several blocks need is short, the number assumes that memory is
        free as soon as the next group of blocks is begun.
    most_chunk_reads
        Upper bound of `chunk_reads`, however long threads hold that memory. None: `chunk_reads` is the bound, as memory
        is not short; or there is no bound, as for patches and text.
    decoded_with
        The field that draws from the same array, and whose figures count the chunks, which are decoded once for both;
        `chunks` and `chunk_reads` are 0 then. "" if the chunks are counted here.
    reads_by_array
        For a sparse matrix, the number of reads of each of its arrays; "" for one array.
    amplification
        Number of times that a chunk is decoded in an epoch, over all ranks: the `chunk_reads` of all ranks, each
        assumed to be as many as of this one, over the chunks that hold what they deliver. 1.0 means that each is
        decoded once. If the order has slabs of chunks, it is `decodes`. Elsewhere, a chunk of which some Blosc blocks
        are decoded counts like one that is decoded whole, since a store may have to fetch all of it.
    decodes
        The bytes that are decoded in an epoch, over all ranks, as a multiple of the bytes of the chunks that hold what
        they deliver: a forecast of `Stats.bytes_decoded`. Of chunks without codecs, rows count that are copied. None:
        it is not known, as for patches, text, and Blosc chunks in stores that Python reads.
    conversion
        The conversion of the items on the way into a batch; "" without one.
    images
        The form that encoded images are decoded to, and the decoder; "" if they are not decoded.
    spared
        True if the field is a coordinate, which a `dtype` or `normalize` for all arrays leaves as it is.
    requested_by
        The part that asks a far store for the chunks: "threads", or "the event loop" of zarr-python. "" if the store is
        near.
    stores
        The number of stores in which the array lies, in words; "" for a single one.
    joined
        For a join, the number of samples that have a row of the array; "" where each sample has the row with its index.
    stacked
        The channels that the field has in a tensor that it shares with other fields; "" if it has a tensor for itself.
    window
        The rows of the array that make a sample, if it is a window; "" if a sample is one row.
    choice
        The relation of the array's chunks to the blocks; "" if the array is in memory as it was passed.
    cast_advice
        The cast of the description that delivers another dtype, if torch hardly computes with this one; else "".
    reads_slabs
        True if slabs of chunks are decoded, each without the rest of its chunk.
    meaning
        The unit of its values, the labels of chosen items, and the names of codes; "" where the store does not say.
    chosen
        The items that `sel` or `isel` chose along other axes than that of samples; "" if samples have all.
    chunk_share
        The share of the chunks of the array that have a chosen item; other chunks are never read.
    byte_share
        The share of the bytes of the array that are chosen items.
    decoded_share
        The share of the bytes of the array that is decoded for the chosen items, where each chunk is decoded once: the
        blocks of a Blosc chunk that have some of them, and other chunks whole. None: it is not known, because the array
        is not local, or zarr-python decodes it.
    remedy
        The change by which chunks would be decoded faster, or less often; "" if none is needed.
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
    meaning: str = ""
    chosen: str = ""
    chunk_share: float = 1.0
    byte_share: float = 1.0
    decoded_share: float | None = 1.0
    decodes: float | None = None

    @property
    def repeats(self) -> float:
        """Number of times that a chunk is decoded in an epoch; in a far store, that it is fetched."""
        return self.amplification if self.decodes is None or self.requested_by else self.decodes

    @property
    def is_amplified(self) -> bool:
        """True if chunks are decoded so often that a remedy is worth it; slabs decode some Blosc blocks twice."""
        return self.repeats > (CHEAP_DECODES if self.reads_slabs else _AMPLIFIED)

    @property
    def _decodes_in_part(self) -> bool:
        """True if chunks are read more often than all of their bytes are decoded."""
        return self.decodes is not None and self.decodes < (1 - _IN_PART) * self.amplification

    @property
    def is_sparse(self) -> bool:
        """True if the field is a sparse matrix."""
        return bool(self.reads_by_array)

    @property
    def slow_because(self) -> str:
        """The reason why zarr-python decodes the chunks; "" if the engine decodes them."""
        codecs = ", ".join(self.slow_codecs)
        reasons = [f"lists of {self.item_type}"] if self.item_type else []
        reasons += [f"codec{'s' * (len(self.slow_codecs) > 1)} {codecs}"] if codecs else []
        return "; ".join(reasons)

    def rows(self, *, of_stores: bool = True) -> list[Row]:
        """Return the rows of a page; with `of_stores` also the stores that have the array, if they store it alike."""
        lines = [self.description, *self.details, *[self.meaning] * bool(self.meaning)]
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
            in_bytes = f", its bytes are decoded {self.decodes:.2f} times" if self._decodes_in_part else ""
            lines.append(
                f"{least}{self.chunk_reads} {reads} per epoch{by_array}{at_most}, {stored}: "
                f"amplification {self.amplification:.2f}{in_bytes}"
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
