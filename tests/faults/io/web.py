"""Rows of web servers that refuse, reset, cut, lie about lengths, and die; as plain HTTP and as S3, with credentials.

Each try has a server of its own (`tests/support/fault_server.py`) in front of the stores of `common.py`. Every error is
searched for the credentials, together with its causes and their traceback.
"""

from __future__ import annotations

import contextlib
import errno
import random
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.faults.harness.row import Row, Try, UnspecifiedError
from tests.faults.io.common import (
    LAYOUTS,
    TIMEOUT_S,
    Epoch,
    Stopwatch,
    check_errno,
    check_injected,
    check_right,
    chunk_files,
    opened,
    read_epoch,
    stored,
)
from tests.support.fault_server import (
    Act,
    Exchange,
    Fault,
    FaultServer,
    Reply,
    cuts,
    cuts_object,
    declares,
    drops,
    out_of_range,
    refuses,
    sends,
    stalls,
)
from zarrfeed import CorruptChunkError, StoreReadError, ZarrIterableDataset

KEY, SECRET = "AKIDOFNOBODY", "hush-hush-nobody-may-read-this"
_BEARER = f"Bearer {SECRET}"
#: Nothing of the machine: neither a proxy, nor a profile, nor a metadata service.
ENVIRONMENT = {
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    "AWS_CONFIG_FILE": "/dev/null",
    "NO_PROXY": "127.0.0.1",
    "no_proxy": "127.0.0.1",
}


@dataclass(frozen=True)
class Far:
    """An array on a server, with one object that will be answered in a wrong way.

    Attributes
    ----------
    server
        Serves the stores of this process.
    url
        Of the array.
    options
        `storage_options` that it is opened with.
    layout
        Of `LAYOUTS`.
    path
        The array's directory.
    file
        The file of the object.
    target
        The path of the object in requests.
    """

    server: FaultServer
    url: str
    options: dict[str, Any]
    layout: str
    path: Path
    file: Path
    target: str

    def fault(self, act: Act, chooser: random.Random, times: int = -1, *, anywhere: bool = True) -> Fault:
        """Let answers of the object be wrong; of a shard those of its index, or only those behind it."""
        is_later = anywhere and "shards" in LAYOUTS[self.layout] and chooser.random() < 0.5
        self.server.fault = Fault(act, {self.target}, times, skip=int(is_later))
        return self.server.fault

    def check_names(self, error: BaseException) -> None:
        """Raise UnspecifiedError unless the error names array and object."""
        key = self.file.relative_to(self.path).as_posix()
        names = [f"{self.url} {what} {key}{end}" for what in ("chunk", "shard") for end in (":", " ")]
        if not any(name in str(error) for name in names):
            raise UnspecifiedError(f"the error names not {self.url} and {key}: {error!r}")

    def open(self, chooser: random.Random, **options: Any) -> ZarrIterableDataset:
        """Return a dataset of the array in some configuration."""
        return opened(self.url, chooser, storage_options=self.options, **options)


def _is_any(_: str) -> bool:
    return True


def _is_sharded(layout: str) -> bool:
    return "shards" in LAYOUTS[layout]


@contextlib.contextmanager
def far(attempt: Try, layouts: Callable[[str], bool] = _is_any) -> Iterator[Far]:
    """Serve an array as plain HTTP or as S3, and search every error that leaves the block for credentials."""
    layout = attempt.random.choice([name for name in sorted(LAYOUTS) if layouts(name)])
    path = stored(attempt.shared, layout)
    file = attempt.random.choice(chunk_files(path))
    is_s3 = attempt.random.random() < 0.5
    root = attempt.shared.resolve()
    with FaultServer(root.parent, f"AWS4-HMAC-SHA256 Credential={KEY}/" if is_s3 else _BEARER) as server:
        target = f"/{file.relative_to(root.parent).as_posix()}"
        if is_s3:
            url = f"s3://{root.name}/{path.name}"
            options: dict[str, Any] = {"key": KEY, "secret": SECRET, "endpoint_url": server.url, "allow_http": True}
            options["region"] = "us-east-1"
        else:
            url, options = f"{server.url}/{root.name}/{path.name}", {"headers": {"Authorization": _BEARER}}
        yield Far(server, url, options, layout, path, file, target)


def check_silent(error: BaseException) -> None:
    """Raise UnspecifiedError if credentials are in an error, or in what Python prints of it and of its causes."""
    printed = "".join(traceback.format_exception(error))
    if SECRET in printed or SECRET in repr(error):
        raise UnspecifiedError(f"credentials are in {type(error).__name__}: {printed.replace(SECRET, '(the secret)')}")
    if "\n" in str(error):
        raise UnspecifiedError(f"the error has several lines: {error}")


def _error_of(far: Far, dataset: ZarrIterableDataset, *expected: type[Exception]) -> Exception:
    """Return the error of an epoch; UnspecifiedError if it is right, of another class, or names another object."""
    try:
        read_epoch(dataset)
    except expected as error:
        check_silent(error)
        far.check_names(error)
        return error
    raise UnspecifiedError("an epoch came of answers that were wrong for ever")


def _passes_or_not(attempt: Try, act: Act, *, errnos: tuple[int, ...], sign: str = "") -> str:
    """Let an object be answered in a way that may pass: once, twice or for ever, with none to two retries."""
    retries, times = attempt.random.randint(0, 2), attempt.random.choice((1, 1, 2, -1))
    if (retries, times) == (1, 2):  # an epoch may ask for an object twice, and each request could be wrong once
        times = 1
    with far(attempt) as far_store, far_store.open(attempt.random, retries=retries) as dataset:
        fault = far_store.fault(act, attempt.random, times)
        passes = 0 < times <= retries
        if passes:
            check_right(dataset)
            if dataset.stats().retries != times:
                raise UnspecifiedError(f"{times} times, {dataset.stats().retries} retries counted")
        else:
            error = _error_of(far_store, dataset, StoreReadError)
            assert isinstance(error, StoreReadError)
            check_errno(error, *errnos)
            if sign not in str(error) or (retries > 0 and f"after {retries} retr" not in str(error)):
                raise UnspecifiedError(f"retries = {retries}, the error has not {sign!r} or their number: {error}")
        check_injected(fault.acted)
        if times == -1 and fault.acted <= retries:
            raise UnspecifiedError(f"asked {fault.acted} times, retries = {retries}")
        far_store.server.fault = None
        check_right(dataset)
    return "right" if passes else "error, then right"


def _lasts(attempt: Try, act: Act, error_class: type[Exception], signs: tuple[str, ...], *codes: int) -> str:
    """Let an object be answered for ever in a way that does not pass: no retry."""
    with far(attempt) as far_store, far_store.open(attempt.random, retries=2) as dataset:
        fault = far_store.fault(act, attempt.random)
        error = _error_of(far_store, dataset, error_class)
        if isinstance(error, StoreReadError):
            check_errno(error, *codes)
        if not any(sign in str(error) for sign in signs):
            raise UnspecifiedError(f"the error has none of {signs}: {error}")
        check_injected(fault.acted)
        if dataset.stats().retries:
            raise UnspecifiedError(f"{dataset.stats().retries} retries: it does not pass")
        far_store.server.fault = None
        check_right(dataset)
    return "error, then right"


# --- answers with an error --------------------------------------------------------------------------------------


def forbidden(attempt: Try) -> str:
    """Answer 403, or 401."""
    status, code = attempt.random.choice(((403, "AccessDenied"), (403, "InvalidAccessKeyId"), (401, "Unauthorized")))
    return _lasts(attempt, refuses(status, code), StoreReadError, (f"{status} ",), errno.EACCES)


def missing(attempt: Try) -> str:
    """Answer 404: to one object, with and without `missing="raise"`, or to all of the array."""
    kind = attempt.random.choice(("fill", "raise", "array"))
    options = {"missing": "raise"} if kind == "raise" else {}
    with far(attempt) as far_store, far_store.open(attempt.random, retries=2, **options) as dataset:
        if kind == "array":
            return _array_goes(far_store, dataset)
        fault = far_store.fault(refuses(404, "NoSuchKey"), attempt.random, anywhere=False)
        if kind == "raise":
            error = _error_of(far_store, dataset, StoreReadError)
            assert isinstance(error, StoreReadError)
            check_errno(error, errno.ENOENT)
        else:
            epoch = read_epoch(dataset)
            gone = epoch.lies_in(far_store.file, far_store.layout)
            Epoch(epoch.index[gone], epoch.rows[gone]).must(epoch.is_fill()[gone], "fill values")
            Epoch(epoch.index[~gone], epoch.rows[~gone]).must(epoch.is_of(0)[~gone], "right")
            if not dataset.stats().chunks_missing:
                raise UnspecifiedError("no missing chunk was counted")
        check_injected(fault.acted)
        far_store.server.fault = None
        check_right(dataset)
    return "fill values, then right" if kind == "fill" else 'error of missing="raise", then right'


def _array_goes(far_store: Far, dataset: ZarrIterableDataset) -> str:
    """Remove the array: its directory is moved away."""
    hidden = far_store.path.with_name(far_store.path.name + "-hidden")
    far_store.path.rename(hidden)
    try:
        read_epoch(dataset)
    except StoreReadError as error:
        check_silent(error)
        check_errno(error, errno.ENOENT)
        if far_store.url not in str(error) or "zarr.json is gone" not in str(error):
            raise UnspecifiedError(f"the error says not that the array is gone: {error}") from error
    else:
        raise UnspecifiedError("an array that is gone gave an epoch")
    finally:
        hidden.rename(far_store.path)
    check_right(dataset)
    return "error of the array, then right"


def unsatisfiable(attempt: Try) -> str:
    """Answer 416 to ranges of a shard."""
    with far(attempt, _is_sharded) as far_store, far_store.open(attempt.random, retries=2) as dataset:

        def act(exchange: Exchange, _: Reply) -> None:
            exchange.send(out_of_range(far_store.file.stat().st_size))

        fault = far_store.fault(act, attempt.random)
        error = _error_of(far_store, dataset, StoreReadError, CorruptChunkError)
        if "416" not in str(error):
            raise UnspecifiedError(f"the error has not the status: {error}")
        check_injected(fault.acted)
        if dataset.stats().retries:
            raise UnspecifiedError(f"{dataset.stats().retries} retries: it does not pass")
        far_store.server.fault = None
        check_right(dataset)
    return "error, then right"


def busy(attempt: Try) -> str:
    """Answer 429, mostly with Retry-After."""
    headers = attempt.random.choice(({"Retry-After": "1"}, {"Retry-After": "0"}, {}))
    return _passes_or_not(attempt, refuses(429, "TooManyRequests", headers), errnos=(errno.EIO,), sign="429")


def unavailable(attempt: Try) -> str:
    """Answer 500, 502, 503 or 504."""
    status, code = attempt.random.choice(
        ((503, "SlowDown"), (503, "ServiceUnavailable"), (500, "InternalError"), (502, "BadGateway"), (504, "Timeout"))
    )
    return _passes_or_not(attempt, refuses(status, code), errnos=(errno.EIO,), sign=str(status))


# --- connections that break -------------------------------------------------------------------------------------


def resets(attempt: Try) -> str:
    """End the connection before the answer, or reset it in the middle of the body."""
    kind = attempt.random.choice(("before", "before", "middle", "middle", "middle"))
    reset = kind == "middle" or attempt.random.random() < 0.5
    act = drops(reset=reset) if kind == "before" else cuts(attempt.random.random(), reset=True)
    return _passes_or_not(attempt, act, errnos=(errno.EIO, errno.ECONNRESET), sign="the server ")


def truncates(attempt: Try) -> str:
    """Promise a body, send a part of it, and end the connection as if that were all."""
    act = cuts(attempt.random.choice((0.0, attempt.random.random(), 1.0)), reset=False)
    return _passes_or_not(attempt, act, errnos=(errno.EIO,), sign="before its answer was complete")


def stalls_then(attempt: Try) -> str:
    """Send nothing, or the headers alone, for longer than the timeout."""
    release = threading.Event()
    with far(attempt) as far_store, far_store.open(attempt.random, timeout=TIMEOUT_S) as dataset:
        fault = far_store.fault(stalls(release, after_headers=attempt.random.random() < 0.5), attempt.random, 1)
        watch = Stopwatch()
        try:
            try:
                epoch = read_epoch(dataset)
            except StoreReadError as raised:
                error = raised
            else:
                epoch.must(epoch.is_of(0), "right")
                if dataset.stats().hedges_won != 1:
                    raise UnspecifiedError("an epoch came without the answer, and without that to a second request")
                return "right"
            check_silent(error)
            far_store.check_names(error)
            watch.check(TIMEOUT_S + 2)
            check_errno(error, errno.ETIMEDOUT)
            check_injected(fault.acted)
            check_right(dataset)
        finally:
            release.set()
    return "error, then right"


def dies(attempt: Try) -> str:
    """Let the server die in the middle of an epoch, and come back while there are retries, or not."""
    comes_back = attempt.random.random() < 0.7
    with far(attempt) as far_store, far_store.open(attempt.random, retries=6 if comes_back else 1) as dataset:
        timers: list[threading.Timer] = []

        def act(exchange: Exchange, _: Reply) -> None:
            exchange.leave(reset=True)
            far_store.server.die()
            if comes_back:
                timers.append(threading.Timer(attempt.random.uniform(0.0, 0.4), far_store.server.start))
                timers[0].start()

        far_store.server.fault = fault = Fault(act, {far_store.target}, 1)
        try:
            if comes_back:
                check_right(dataset)
                if not dataset.stats().retries:
                    raise UnspecifiedError("no retry was counted")
            else:
                try:
                    read_epoch(dataset)
                except StoreReadError as error:  # of any chunk: all requests fail
                    check_silent(error)
                    if far_store.url not in str(error) or "after 1 retry" not in str(error):
                        raise UnspecifiedError(f"the error names not {far_store.url} and 1 retry: {error}") from error
                else:
                    raise UnspecifiedError("a server that died gave an epoch")
            check_injected(fault.acted)
        finally:
            for timer in timers:
                timer.join()
        if not comes_back:
            far_store.server.start()
        check_right(dataset)
    return "right" if comes_back else "error, then right"


# --- bodies that are not the object -----------------------------------------------------------------------------


def lengths(attempt: Try) -> str:
    """Declare another Content-Length than the body has; or cut or pad the body, with a Content-Length that fits."""
    share = attempt.random.random()
    more = attempt.random.randint(1, 5000)
    kind = attempt.random.choice(("declares less", "declares more", "is shorter", "is longer"))
    less: Callable[[int], int] = lambda n: min(n - 1, int(share * n))  # noqa: E731 (one of two, by name)
    act = {
        "declares less": declares(less, stays=attempt.random.random() < 0.5),
        "declares more": declares(lambda n: n + more),
        "is shorter": cuts_object(less),
        "is longer": cuts_object(lambda n: n + more),
    }[kind]
    with far(attempt) as far_store, far_store.open(attempt.random, retries=0) as dataset:
        fault = far_store.fault(act, attempt.random)
        outcome = "error"
        try:
            epoch = read_epoch(dataset)
        except (CorruptChunkError, StoreReadError) as error:
            check_silent(error)
            far_store.check_names(error)
        else:
            epoch.must(epoch.is_of(0), "right")  # a codec may find all that it needs in what came
            if kind != "is longer":
                raise UnspecifiedError("a part of an object gave an epoch")
            outcome = "right"
        check_injected(fault.acted)
        far_store.server.fault = None
        check_right(dataset)
    return f"{outcome}, then right" if outcome == "error" else outcome


def others(attempt: Try) -> str:
    """Answer 200 with a page that says that something is wrong, or with the whole object in place of a range."""
    page = b"<html><body>Please log in</body></html>" * attempt.random.randint(0, 5)
    whole = attempt.random.random() < 0.5
    layouts = _is_sharded if whole else _is_any
    with far(attempt, layouts) as far_store, far_store.open(attempt.random, retries=0) as dataset:

        def send_whole(exchange: Exchange, _: Reply) -> None:
            exchange.send(Reply(200, far_store.file.read_bytes(), {"Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}))

        fault = far_store.fault(send_whole if whole else sends(page), attempt.random)
        _error_of(far_store, dataset, CorruptChunkError, StoreReadError)
        check_injected(fault.acted)
        far_store.server.fault = None
        check_right(dataset)
    return "error, then right"


def skipped(attempt: Try) -> str:
    """Skip a chunk or shard that cannot be read, whatever is wrong with its answers."""
    act = attempt.random.choice((refuses(403, "AccessDenied"), refuses(503, "SlowDown"), cuts(0.5, reset=False)))
    with far(attempt) as far_store, far_store.open(attempt.random, retries=0, on_error="skip") as dataset:
        fault = far_store.fault(act, attempt.random, anywhere=False)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            batches = [(rows.numpy().copy(), index.numpy().copy()) for rows, index in dataset]
        index = np.concatenate([index for _, index in batches])
        epoch = Epoch(index, np.concatenate([rows for rows, _ in batches]))
        epoch.must(epoch.is_of(0), "right")
        epoch.must(~epoch.lies_in(far_store.file, far_store.layout), "of good chunks")
        bad = list(dataset.skipped_chunks())
        if not bad or len(said) < len(bad):
            raise UnspecifiedError(f"{bad} are listed, {len(said)} warnings came")
        texts = [str(one.message) for one in said] + [repr(chunk) for chunk in bad]
        if any(SECRET in text for text in texts):
            raise UnspecifiedError(f"credentials are in {[text.replace(SECRET, '(the secret)') for text in texts]}")
        check_injected(fault.acted)
        far_store.server.fault = None
        check_right(dataset)
    return "right, all others in their places"


_VARIABLES = dict(ENVIRONMENT)


def _row(name: str, fault: str, expected: str, attempt: Callable[[Try], str], runs: int = 100, short: int = 2) -> Row:
    return Row(name, fault, expected, attempt, runs, short, variables=lambda: _VARIABLES)


_PASSING = (
    "right where it passes and there are `retries`, which are counted; else StoreReadError that names array and chunk"
)

ROWS = (
    _row(
        "http-403",
        "a server (plain HTTP with a token, or S3 with keys) answers 401 or 403 to one object",
        "StoreReadError with EACCES that names array and chunk, without a retry; then right",
        forbidden,
    ),
    _row(
        "http-404",
        "a server answers 404 to one object, or to all of an array",
        'fill values for it alone, or StoreReadError with ENOENT for `missing="raise"`; of the array always an error; '
        "then right",
        missing,
        short=3,
    ),
    _row(
        "http-416",
        "a server answers 416 to a range of a shard",
        "an error that names array and shard, without a retry; then right",
        unsatisfiable,
    ),
    _row("http-429", "a server answers 429, with and without Retry-After, once, twice or for ever", _PASSING, busy),
    _row("http-503", "a server answers 500, 502, 503 or 504, once, twice or for ever", _PASSING, unavailable),
    _row(
        "http-resets",
        "a server ends connections without an answer, or resets them in the middle of a body, once, twice or for ever",
        _PASSING,
        resets,
        short=3,
    ),
    _row(
        "http-cuts", "a server ends connections before a body is complete, once, twice or for ever", _PASSING, truncates
    ),
    _row(
        "http-lengths",
        "a Content-Length is smaller or larger than the body, on a connection that ends or not; or it fits a body that "
        "is shorter or longer than the object",
        "CorruptChunkError or StoreReadError that names array and chunk, never other values; then right",
        lengths,
        300,
        4,
    ),
    _row(
        "http-others",
        "a server answers 200 with a page of HTML, or with the whole object in place of a range",
        "CorruptChunkError or StoreReadError that names array and chunk; then right",
        others,
    ),
    _row(
        "http-stalls",
        "a server sends nothing, or the headers alone, for longer than the timeout",
        "StoreReadError with ETIMEDOUT that names array and chunk, within `timeout` (1 s) + 2 s, or right if a second "
        "request is answered; then right",
        stalls_then,
        60,
    ),
    _row(
        "http-dies",
        "a server dies in the middle of an epoch, with all connections, and comes back after up to 0.4 s or not",
        "right where it comes back, else StoreReadError; then right once it is back",
        dies,
        short=3,
    ),
    _row(
        "http-skip",
        'one object is refused, or its body cut, with `on_error="skip"`',
        "every batch full, of right rows of good chunks; listed and warned of, without the credentials",
        skipped,
    ),
)
