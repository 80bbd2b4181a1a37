"""The report of `verify`: counts of each array, and its bad and missing chunks. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from zarrfeed.base.errors import one_line
from zarrfeed.base.units import format_bytes

#: The fault of a chunk: it does not decode; it could not be read; the store lacks it; a link leads out of the store.
Cause: TypeAlias = Literal["corrupt", "unreadable", "missing", "link"]

#: So many findings of a cause are listed for an array; all are counted.
MOST_LISTED = 1000


@dataclass(frozen=True)
class Finding:
    """A chunk that is bad or missing, or a shard as a whole, or a link.

    Attributes
    ----------
    array
        Path of the array in the store; "" if the store is the array.
    key
        Key of the stored object, below the array; for a link, its path below the store.
    inner
        Index of an inner chunk in its shard, such as "3/0"; "" for the whole stored object.
    cause
        "corrupt", "unreadable", "missing" or "link".
    chunks
        Number of read chunks that the finding concerns.
    message
        The fault, in one line.
    """

    array: str
    key: str
    inner: str
    cause: Cause
    chunks: int
    message: str


@dataclass(frozen=True)
class ArrayReport:
    """The counts and the faults of one array.

    Attributes
    ----------
    path
        Path of the array in the store; "" if the store is the array.
    chunks
        Read chunks: inner chunks of shards, else chunks.
    good, missing, bad
        Number of chunks that decode, of chunks that are not in the store, and of other chunks.
    stored_bytes, decoded_bytes
        Stored and decoded bytes of the good chunks.
    problem
        The reason why the array was not checked; "" if it was.
    stale
        The difference between consolidated metadata and the array's own document; "" if there is none.
    misplaced
        The reason why nothing is stored: the keys by the metadata, and a file that is there in place of all chunks;
        else "".
    """

    path: str
    chunks: int
    good: int
    missing: int
    bad: int
    stored_bytes: int
    decoded_bytes: int
    problem: str = ""
    stale: str = ""
    misplaced: str = ""


@dataclass(frozen=True)
class VerifyReport:
    """The findings of `zarrfeed.verify`. `str()` of a report is a table.

    Attributes
    ----------
    store
        Path or URL.
    arrays
        One report for each array, sorted by path.
    findings
        Bad and missing chunks, and links: at most 1000 of each cause for an array.
    links
        Number of symbolic links that lead out of the store; 0 if `verify` did not look for links.
    ignored
        Names of members of groups that are neither an array nor a group.
    errors
        Causes that the caller declared to be errors: "missing", "link". Bad chunks are errors in any case.

    Examples
    --------
    >>> import numpy as np, zarr, zarrfeed
    >>> report = zarrfeed.verify(zarr.zeros((100,), chunks=(10,)), missing="error")
    >>> report.ok, report.problems, report.findings[0].key
    (False, ('10 chunks missing',), 'c/0')
    """

    store: str
    arrays: tuple[ArrayReport, ...]
    findings: tuple[Finding, ...]
    links: int
    ignored: tuple[str, ...]
    errors: tuple[Cause, ...]

    @property
    def ok(self) -> bool:
        """True if every array was checked and nothing is wrong with its chunks."""
        return not self.problems

    @property
    def problems(self) -> tuple[str, ...]:
        """The reasons why `ok` is False, one line each."""
        counts = {
            "could not be checked": ("array", sum(bool(a.problem) for a in self.arrays)),
            "with stale consolidated metadata": ("array", sum(bool(a.stale) for a in self.arrays)),
            "of which nothing is stored": ("array", sum(bool(a.misplaced) for a in self.arrays)),
            "bad": ("chunk", sum(a.bad for a in self.arrays)),
            "missing": ("chunk", sum(a.missing for a in self.arrays) if "missing" in self.errors else 0),
            "out of the store": ("link", self.links if "link" in self.errors else 0),
        }
        return tuple(f"{_count(n, noun)} {what}" for what, (noun, n) in counts.items() if n)

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain data, for JSON."""
        listed = [asdict(f) for f in self.findings]
        return {
            "store": self.store,
            "ok": self.ok,
            "problems": list(self.problems),
            "arrays": [asdict(a) for a in self.arrays],
            "findings": listed,
            "findings_left_out": self._left_out(),
            "links": self.links,
            "ignored": list(self.ignored),
        }

    def _left_out(self) -> int:
        """Return the chunks and links that are counted and not listed."""
        counted = sum(a.bad + a.missing for a in self.arrays) + self.links
        return counted - sum(f.chunks for f in self.findings)

    def __str__(self) -> str:
        head = ("array", "chunks", "good", "missing", "bad", "stored", "decoded")
        rows = [
            (
                a.path or ".",
                *(("not checked", "", "", "") if a.problem else (a.chunks, a.good, a.missing, a.bad)),
                format_bytes(a.stored_bytes),
                format_bytes(a.decoded_bytes),
            )
            for a in self.arrays
        ]
        lines = _table([head, *rows], left=1)
        lines += [f"not checked: {a.path or '.'}: {a.problem}" for a in self.arrays if a.problem]
        lines += [a.stale for a in self.arrays if a.stale]
        lines += [a.misplaced for a in self.arrays if a.misplaced]
        if self.findings:
            named = [_row(f) for f in self.findings]
            lines += ["", *_table([("finding", "object", "inner chunk", "what"), *named], left=4)]
        left_out = self._left_out()
        if left_out:
            lines.append(f"and {left_out} more that are counted and not listed")
        if self.ignored:
            lines.append(f"neither arrays nor groups, not looked at: {', '.join(self.ignored)}")
        lines.append(f"{'good' if self.ok else 'not good'}: {', '.join(self.problems) or self._summary()}")
        return "\n".join(one_line(line) for line in lines)

    def _summary(self) -> str:
        good, missing = sum(a.good for a in self.arrays), sum(a.missing for a in self.arrays)
        parts = [f"{_count(good, 'chunk')} of {_count(len(self.arrays), 'array')} decode"]
        parts += [f"{missing} missing, which read as the fill value"] if missing else []
        empty = sum(0 < a.chunks == a.missing for a in self.arrays)
        parts += [f"nothing is stored of {_count(empty, 'array')}"] if empty else []
        parts += [f"{_count(self.links, 'link')} out of the store"] if self.links else []
        return ", ".join(parts)


def _row(f: Finding) -> tuple[str, ...]:
    inner = f.inner or (f"{f.chunks} chunks" if f.chunks > 1 else "")
    return f.cause, "/".join(filter(None, (f.array, f.key))), inner, f.message


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'s' * (n != 1)}"


def _table(rows: Iterable[tuple[object, ...]], *, left: int) -> list[str]:
    """Return aligned lines; the first `left` columns stand at the left of theirs."""
    text = [[one_line(str(cell)) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*text, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in text
    ]
