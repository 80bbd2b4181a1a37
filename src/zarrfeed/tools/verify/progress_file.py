"""The progress file of `verify`: the findings of an interrupted run, from which the next run goes on.

Invariants: a file is replaced as a whole or not at all, so that a readable file is left, whatever ends the process. Its
findings are those of checked chunks: the chunks [0, next) of each array. It counts for the same store and the same
metadata of the array alone. A file that is none of ours, of another store or another user's is never believed, and
never written to.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import zarr

from zarrfeed.base.atomic_file import write_whole
from zarrfeed.base.documents import parse_json
from zarrfeed.base.errors import ConfigError, ProgressFileError
from zarrfeed.base.own_files import followed, read_side_file
from zarrfeed.tools.verify.chunks import Int64, SliceResult
from zarrfeed.tools.verify.verify_report import MOST_LISTED, ArrayReport, Finding

_MARK = "zarrfeed verify, 1"


@dataclass
class Checked:
    """The findings about an array's chunks [0, next)."""

    fingerprint: str
    next: int = 0
    good: int = 0
    missing: int = 0
    bad: int = 0
    stored_bytes: int = 0
    decoded_bytes: int = 0
    findings: list[Finding] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._listed = Counter(f.cause for f in self.findings)

    @property
    def done(self) -> int:
        """Read chunks that were checked."""
        return self.good + self.missing + self.bad

    def add(self, end: int, result: SliceResult) -> None:
        """Count chunks [next, end) in."""
        self.next = end
        self.good += result.good
        self.stored_bytes += result.stored_bytes
        self.decoded_bytes += result.decoded_bytes
        for finding in result.findings:
            if finding.cause == "missing":
                self.missing += finding.chunks
            else:
                self.bad += finding.chunks
            self._list(finding)

    def extend(self, range_: Checked) -> None:
        """Count the chunks of a range in that begins where this one ends; as `add` of its slices, one by one."""
        self.next = range_.next
        for name in ("good", "missing", "bad", "stored_bytes", "decoded_bytes"):
            setattr(self, name, getattr(self, name) + getattr(range_, name))
        for finding in range_.findings:
            self._list(finding)

    def _list(self, finding: Finding) -> None:
        last = self.findings[-1] if self.findings else None
        if last is not None and replace(last, chunks=finding.chunks) == finding:  # of one shard, in two slices
            self.findings[-1] = replace(last, chunks=last.chunks + finding.chunks)
        elif self._listed[finding.cause] < MOST_LISTED:
            self._listed[finding.cause] += 1
            self.findings.append(finding)

    def report(self, path: str, chunks: int, problem: str) -> ArrayReport:
        """Return the counts."""
        return ArrayReport(
            path, chunks, self.good, self.missing, self.bad, self.stored_bytes, self.decoded_bytes, problem
        )


def fingerprint(array: zarr.Array[Any], selected: Int64 | None = None) -> str:
    """Return a digest of an array's metadata, without its attributes, and of the chunks that are selected."""
    described = {name: value for name, value in array.metadata.to_dict().items() if name != "attributes"}
    if selected is not None:
        described["selected"] = hashlib.sha256(selected.astype("<i8").tobytes()).hexdigest()
    return hashlib.sha256(json.dumps(described, sort_keys=True, default=str).encode()).hexdigest()


def default_path(store: str) -> Path:
    """Return the path of a store's progress file if the user names none: it lies with the user's other states."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    name = hashlib.sha256(store.encode(errors="surrogateescape")).hexdigest()[:16]
    return Path(state).expanduser() / "zarrfeed" / f"verify-{name}.json"


class ProgressFile:
    """The progress file of one run.

    Parameters
    ----------
    path
        Path of the file; its directory is made if it is not there.
    store
        Name of the store, the same in every run.
    """

    def __init__(self, path: Path, store: str) -> None:
        self.path = path
        self._store = store

    def load(self, *, restart: bool = False) -> dict[str, Checked]:
        """Return the findings of an earlier run, by path of the array; empty if there is no file, or with `restart`.

        Raises
        ------
        ConfigError
            If the file is no progress file, that of another store, or another user's.
        ProgressFileError
            If the file cannot be read.
        """
        try:
            text = read_side_file(followed(self.path))
            content = parse_json(text)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise self._failed("read", error) from error
        except ConfigError as error:
            raise ConfigError(f"progress file {error}") from error
        except ValueError:
            content = None
        if not isinstance(content, dict) or content.get("what") != _MARK:
            raise ConfigError(
                f"progress file {self.path}: is no progress file of this version; name another, or remove it"
            )
        if content.get("store") != self._store:
            raise ConfigError(
                f"progress file {self.path}: is of the store {content.get('store')}, not of {self._store}; "
                "name another, or remove it"
            )
        try:
            return {} if restart else {path: _parse(of) for path, of in content["arrays"].items()}
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"progress file {self.path}: is damaged ({error!r}); remove it") from error

    def save(self, arrays: Mapping[str, Checked]) -> None:
        """Write the findings.

        Raises
        ------
        ProgressFileError
            If the file cannot be written, as on a full disk; the previous file is still there.
        """
        content = {"what": _MARK, "store": self._store, "arrays": {path: asdict(of) for path, of in arrays.items()}}
        text = json.dumps(content)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.path, text.encode())
        except OSError as error:
            raise self._failed("written", error.__cause__ if isinstance(error.__cause__, OSError) else error) from error

    def remove(self) -> None:
        """Remove the file: everything was checked."""
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise self._failed("removed", error) from error

    def _failed(self, what: str, error: OSError) -> ProgressFileError:
        return ProgressFileError(
            error.errno or errno.EIO, f"progress file {self.path}: cannot be {what}: {error.strerror or repr(error)}"
        )


def _parse(of: dict[str, Any]) -> Checked:
    return Checked(**(of | {"findings": [Finding(**finding) for finding in of["findings"]]}))
