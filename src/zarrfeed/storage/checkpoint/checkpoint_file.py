"""Checkpoints as binary files: `writer` and `reader`, for paths and for URLs of object stores."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from zarrfeed.base.units import parse_bytes
from zarrfeed.base.validate import check_choice, check_flags, check_int
from zarrfeed.spec.description.error_policy import DEFAULT_RETRIES, DEFAULT_TIMEOUT_S, Faults
from zarrfeed.storage.checkpoint.checkpoint_format import CHECKSUMS
from zarrfeed.storage.checkpoint.checkpoint_location import locate_checkpoint, open_stored
from zarrfeed.storage.checkpoint.checkpoint_reader import CheckpointReader
from zarrfeed.storage.checkpoint.checkpoint_sink import DEFAULT_CONCURRENCY, open_sink
from zarrfeed.storage.checkpoint.checkpoint_writer import CheckpointWriter

DEFAULT_BUDGET = "256MiB"
_MOST_CONCURRENCY = 256

ChecksumName: TypeAlias = Literal["crc32c", "sha256"]


def writer(
    where: str | os.PathLike[str],
    *,
    store: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    checksum: ChecksumName = "crc32c",
    memory_budget: int | str = DEFAULT_BUDGET,
    concurrency: int | None = None,
    retries: int = DEFAULT_RETRIES,
    timeout: float = DEFAULT_TIMEOUT_S,
) -> CheckpointWriter:
    """Open a checkpoint for writing, as a binary file that appears whole when its `with` block ends.

    If the block raises, or the process is killed, nothing appears, and an older checkpoint of that name stays as it
    was.

    Parameters
    ----------
    where
        A path, a file:// URL, or the URL of an object, such as "s3://bucket/run/step-100.pt"; with `store`, a key.
    store
        A store of obstore's that `where` is a key of, such as `obstore.store.S3Store("bucket")`.
    storage_options
        Credentials, region, endpoint and options of the client, as `zarrfeed.open` takes them.
    checksum
        The checksum of each 8 MiB, which reading verifies: "crc32c", or "sha256", which also detects tampering if the
        digest is kept elsewhere, and costs half a core for each GB/s.
    memory_budget
        Memory for parts that wait or are on their way, at least 16 MiB. Up to 256 MiB, parts of an upload have 8 or 16
        MiB, so that an object has 156 GiB at most; above that, parts grow with the budget.
    concurrency
        Number of parts that are uploaded at once. None: 16, where the budget has room.
    retries
        Number of retries of a request after a transient error.
    timeout
        Seconds that a request may take.

    Returns
    -------
    CheckpointWriter
        It has `write`, `flush`, `tell`, `close`, `abort`, and after `close` a `digest`.

    Raises
    ------
    ConfigError
        If an argument cannot be.
    StoreWriteError
        If the file cannot be made. Writing and closing raise it, too.

    Examples
    --------
    >>> import tempfile, torch
    >>> from zarrfeed import checkpoint
    >>> path = tempfile.mkdtemp() + "/step-100.pt"
    >>> with checkpoint.writer(path) as f:
    ...     torch.save({"step": 100}, f)
    >>> with checkpoint.reader(path) as f:
    ...     torch.load(f)
    {'step': 100}
    """
    policy, budget = _checked(memory_budget, concurrency, retries, timeout)
    check_choice("checksum", checksum, tuple(CHECKSUMS))
    location = locate_checkpoint(where, store, storage_options, policy, client_retries=policy.retries)
    return CheckpointWriter(open_sink(location, budget, concurrency), CHECKSUMS[checksum], location.name)


def reader(
    where: str | os.PathLike[str],
    *,
    store: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    allow_plain: bool = False,
    memory_budget: int | str = DEFAULT_BUDGET,
    concurrency: int | None = None,
    retries: int = DEFAULT_RETRIES,
    timeout: float = DEFAULT_TIMEOUT_S,
) -> CheckpointReader:
    """Open a checkpoint for reading, as a seekable binary file that checks all that it hands out.

    Parameters
    ----------
    where, store, storage_options
        Location of the checkpoint, as `writer` takes it. Objects at https:// can be read, too.
    allow_plain
        True: a file or object without checksums is read, unchecked, such as one that `torch.save` made by itself.
    memory_budget
        Memory for parts that are read ahead, at least 16 MiB.
    concurrency
        Number of parts of 8 MiB that are read at once. None: 16, where the budget has room.
    retries
        Number of retries of a part after a transient error.
    timeout
        Seconds that a part may take, retries included.

    Returns
    -------
    CheckpointReader
        An `io.BufferedIOBase` that has `size` and `digest`, too.

    Raises
    ------
    ConfigError
        If an argument cannot be.
    StoreReadError
        If there is no checkpoint, or the store does not answer. Reading raises it, too.
    CorruptCheckpointError
        If the checkpoint was damaged or has no checksums. Reading raises it, too.

    Examples
    --------
    >>> import tempfile
    >>> from zarrfeed import checkpoint
    >>> path = tempfile.mkdtemp() + "/notes"
    >>> with checkpoint.writer(path) as f:
    ...     f.write(b"0123456789")
    10
    >>> with checkpoint.reader(path) as f:
    ...     f.seek(4), f.read(3)
    (4, b'456')
    """
    policy, budget = _checked(memory_budget, concurrency, retries, timeout)
    check_flags(allow_plain=allow_plain)
    stored = open_stored(locate_checkpoint(where, store, storage_options, policy))
    try:
        return CheckpointReader(stored, budget, concurrency or DEFAULT_CONCURRENCY, allow_plain=allow_plain)
    except BaseException:
        stored.close()
        raise


def _checked(memory_budget: int | str, concurrency: int | None, retries: int, timeout: float) -> tuple[Faults, int]:
    if concurrency is not None:
        check_int("concurrency", concurrency, 1, _MOST_CONCURRENCY)
    return Faults(retries=retries, timeout=timeout), parse_bytes(memory_budget)
