"""The partial result of a run of `stats` that was interrupted, from which the next run goes on.

Invariants: the file is replaced as a whole or not at all. It counts for the same samples, arrays and axes alone.
Batches and ranges are cut at the same samples in each run, so that a run that goes on has the same result, bit by bit,
as one that was not interrupted.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from zarrfeed.base.atomic_file import write_whole
from zarrfeed.base.documents import parse_json
from zarrfeed.base.own_files import read_side_file
from zarrfeed.tools.stats.moments import Moments

_MARK = "zarrfeed stats, partial, 2"


class PartialFile:
    """The file of a partial result, beside the file that statistics are written to.

    Parameters
    ----------
    output
        The file that the statistics will be written to.
    fingerprint
        A digest of the samples, of the arrays and of the requested statistics: it tells this work from other work.
    """

    def __init__(self, output: Path, fingerprint: str) -> None:
        self.path = output.with_name(f"{output.name}.partial")
        self._fingerprint = fingerprint

    def load(self) -> tuple[int, list[Moments], list[Moments]] | None:
        """Return the number of measured samples, and the moments of whole ranges and of the unfinished range.

        Return None if there is no earlier run to continue.

        Raises
        ------
        ConfigError
            If the file is another user's.
        """
        try:
            stored = read_side_file(self.path)
        except OSError:
            return None
        try:
            with np.load(io.BytesIO(stored), allow_pickle=False) as content:
                header = parse_json(str(content["header"]))
                if header["what"] != _MARK or header["fingerprint"] != self._fingerprint:
                    return None
                count = int(header["fields"])
                moments = [
                    Moments(*(content[f"{field}/{number}"] for number in range(6))) for field in range(2 * count)
                ]
                return int(header["done"]), moments[:count], moments[count:]
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile):
            return None  # damaged, or none of ours: the work is done again

    def save(self, done: int, moments: Sequence[Moments], range_moments: Sequence[Moments]) -> None:
        """Write the moments of the first `done` samples: of whole ranges, and of the range that is not whole.

        Raises
        ------
        OSError
            If the file cannot be written; the previous file is still there.
        """
        header = {"what": _MARK, "fingerprint": self._fingerprint, "done": done, "fields": len(moments)}
        arrays = {
            f"{field}/{n}": array
            for field, of in enumerate([*moments, *range_moments])
            for n, array in enumerate(of.arrays())
        }
        content = io.BytesIO()
        np.savez(content, allow_pickle=False, header=np.array(json.dumps(header)), **arrays)
        write_whole(self.path, content.getbuffer())

    def remove(self) -> None:
        """Remove the file: the result is written."""
        self.path.unlink(missing_ok=True)
