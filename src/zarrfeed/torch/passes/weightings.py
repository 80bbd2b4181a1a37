"""`Weightings`: the weights of samples that the epochs of one dataset have, in the training process and its workers.

Invariants: a state names weights by the digest of the expected counts that they give, so a process that reads an epoch
has exactly those weights, or raises. The training process writes them to a file in memory that its workers share, the
persistent ones too, before it names an epoch that has them.
"""

from __future__ import annotations

from multiprocessing import context
from typing import Any, TypeAlias

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.choice.counts_of_sources import CountsOfSources
from zarrfeed.plan.samples.expected_counts import ExpectedCounts
from zarrfeed.torch.passes.shared_file import SharedFile

#: The weights of one epoch: of its samples, or of those of each source of a mixture.
Counts: TypeAlias = ExpectedCounts | CountsOfSources
#: Weights that the file keeps: of passes that workers may still begin to read, the next one among them.
_SHARED = 3
#: Weights that a process remembers: of the pass under way, of a state that is loaded, of the next pass, of one before.
_REMEMBERED = 4
#: Bytes of the number of weights that were written, at the begin of the file.
_HEADER = 8


class Weightings:
    """The weights that epochs of one dataset may have.

    Parameters
    ----------
    own
        The expected counts that the dataset was made with.
    """

    def __init__(self, own: Counts) -> None:
        self._own = own
        self._known: dict[str, Counts] = {}
        self._file = SharedFile()

    def named(self, counts: Counts) -> str | None:
        """Return the name of expected counts in an edition, by which this process and its workers find them.

        None: they are those that the dataset was made with.
        """
        name = self.canonical(counts.digest)
        if name is not None and name not in self._known:
            self._remember(counts)
            self._write(counts)
        return name

    def canonical(self, name: str | None) -> str | None:
        """Return the name of expected counts in an edition; None for those that the dataset was made with."""
        return None if name == self._own.digest else name

    def find(self, name: str | None) -> Counts:
        """Return the expected counts of a name.

        Raises
        ------
        ConfigError
            If they are not known here.
        """
        if self.canonical(name) is None:
            return self._own
        assert name is not None
        found = self._known.get(name) or self._read(name)
        if found is None:
            raise ConfigError(
                f"sample weights {name}, which set_sample_weights() named, are not known: a state has their digest "
                "alone; call set_sample_weights() with the same weights, then load the state"
            )
        return found

    def _remember(self, counts: Counts) -> None:
        while len(self._known) >= _REMEMBERED:
            del self._known[next(iter(self._known))]
        self._known[counts.digest] = counts

    def _write(self, counts: Counts) -> None:
        """Write expected counts over the oldest ones in the file."""
        with self._file.locked() as descriptor, open(descriptor, "r+b", closefd=False) as file:
            file.seek(0)
            written = int.from_bytes(file.read(_HEADER), "little")
            file.seek(_HEADER + written % _SHARED * counts.shares.nbytes)
            counts.shares.tofile(file)
            file.seek(0)
            file.write((written + 1).to_bytes(_HEADER, "little"))

    def _read(self, name: str) -> Counts | None:
        """Return expected counts of a name from the file; None: they are not there."""
        with self._file.locked() as descriptor, open(descriptor, "rb", closefd=False) as file:
            file.seek(0)
            written = int.from_bytes(file.read(_HEADER), "little")
            for _ in range(min(written, _SHARED)):
                shares = np.fromfile(file, np.int64, len(self._own.shares))
                counts = self._own.with_shares(shares)
                if counts.digest == name:
                    self._remember(counts)
                    return counts
        return None

    def __getstate__(self) -> dict[str, Any]:
        if context.get_spawning_popen() is not None:
            return {**self.__dict__, "_known": {}}
        return {**self.__dict__, "_file": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._file is None:  # another process, which is no worker of the one that made it
            self._file = SharedFile()
            for counts in list(self._known.values())[-_SHARED:]:
                self._write(counts)
