"""`PackReport` and `PackProgress`: the result of a pack, and its progress."""

from __future__ import annotations

from dataclasses import dataclass

from zarrfeed.base.page import Page, Row
from zarrfeed.packing.verify_pack import Proof


@dataclass(frozen=True)
class PackProgress:
    """Progress of `pack`.

    Attributes
    ----------
    stage
        "deal", "write", "gather" or "verify".
    done, total
        Units of work; of "verify", samples of both sides.

    Examples
    --------
    >>> import numpy as np, tempfile, zarrfeed
    >>> folder, seen = tempfile.mkdtemp(), []
    >>> np.save(f"{folder}/x.npy", np.arange(10))
    >>> report = zarrfeed.pack(f"{folder}/x.npy", f"{folder}/x.zarr", on_progress=seen.append)
    >>> seen[1]
    PackProgress(stage='write', done=1, total=1)
    """

    stage: str
    done: int
    total: int


@dataclass(frozen=True)
class PackReport(Page):
    """Result of a pack. `str()` is a page.

    Attributes
    ----------
    out
        Path of the store.
    num_samples
        Number of samples of the source.
    units, done
        Units of work, and how many of them are done, by this run or others.
    complete
        True if the store is at its path. False: other shares of the work (`--part`) are not done yet.
    layout
        A line for each array.
    proof
        The findings of `verify`. None: it was not asked for, or the store is not complete.
    notes
        The parts of the source that were left out, such as files that are no images.

    Examples
    --------
    >>> import numpy as np, tempfile, zarrfeed
    >>> folder = tempfile.mkdtemp()
    >>> np.save(f"{folder}/x.npy", np.zeros((1000, 4), "f4"))
    >>> zarrfeed.pack(f"{folder}/x.npy", f"{folder}/x.zarr", sample_chunk=16).layout
    ('data: float32, chunks of 16 samples, shards of 1008, lz4-5-shuffle',)
    """

    out: str
    num_samples: int
    units: int
    done: int
    complete: bool
    layout: tuple[str, ...] = ()
    proof: Proof | None = None
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True if nothing is wrong: a store that is not complete yet is not wrong."""
        return self.proof is None or self.proof.ok

    def rows(self) -> list[Row]:
        """Return the rows of the table that `str()` and notebooks show."""
        rows: list[Row] = [("store", self.out), ("samples", f"{self.num_samples}")]
        rows += [("arrays" if not number else "", line) for number, line in enumerate(self.layout)]
        rows += [("note", note) for note in self.notes]
        if not self.complete:
            rows.append(
                ("result", f"{self.done} of {self.units} units are done; the last part to end finishes the store")
            )
            return rows
        if self.proof is None:
            rows.append(("result", "complete; --verify proves that it has each sample of the source"))
        elif self.proof.ok:
            rows.append(
                ("result", f"complete, and proved: {self.proof.samples} samples, the digests of both sides agree")
            )
        else:
            for what, differing in (("the digests of ", self.proof.by_digest), ("", self.proof.by_meaning)):
                names = ", ".join(name or "the array" for name in differing)
                rows += [("result", f"WRONG: {what}source and store differ in {names}")] * bool(names)
        for line in () if self.proof is None else self.proof.not_compared:
            rows.append(("not proved", line))
        return rows
