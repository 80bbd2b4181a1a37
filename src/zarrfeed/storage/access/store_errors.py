"""The meaning of errors of stores: whether a retry may succeed, the errno that stands for them, and a sentence.

Clients of object stores report errors in their own classes and texts. obstore's texts end in a dump of Rust structures
over dozens of lines; that dump is read here and never shown. Nothing here imports such a client.
"""

from __future__ import annotations

import errno
import re

from zarrfeed.base.errors import ZarrfeedError, one_line
from zarrfeed.base.native import core
from zarrfeed.base.redaction import redact, without_secrets

#: Names of the errors of object stores' clients that no retry mends: none of the clients is a dependency.
_LASTING = frozenset(
    {
        "NotFoundError",
        "InvalidPathError",
        "NotSupportedError",
        "PermissionDeniedError",
        "UnauthenticatedError",
        "UnknownConfigurationKeyError",
        "BadZipFile",
    }
)

#: Text that obstore puts before its dump.
_DUMP = "\n\nDebug source:"
_STATUS = re.compile(r"status code: (\d{3}) ([A-Za-z' -]*)")
#: In the body of an answer: XML of S3, Google and Azure.
_SERVER_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
#: Requests by which machines in a cloud ask for the credentials of their role.
_METADATA_SERVICE = re.compile(
    r"/latest/api/token|/latest/meta-data/|computeMetadata|/metadata/identity/|performing token request.*api-version="
)
#: Servers answer so when the bucket does not exist.
_NO_BUCKET = re.compile(r"NoSuchBucket|specified bucket does not exist|ContainerNotFound|container does not exist")

#: obstore ends a listing at a key that it cannot name: one with an empty name, `..` or a control character.
_NO_NAME = "object with invalid path: "
#: Answers that lack what obstore needs, or are none to what was asked: the server will answer the same next time.
_NO_ANSWERS: tuple[tuple[str, str], ...] = (
    (
        "Content-Length Header missing",
        "the server sends no Content-Length, which obstore needs; open it with zarr-python over fsspec and pass the "
        'zarr.Array: zarr.open("https://...")',
    ),
    (
        "non-partial response when range requested",
        "the server answers requests for a part of an object with all of it; shards need a server that knows Range",
    ),
    ("Range request not supported", "the server does not know Range requests, which shards need"),
    ("Content-Range header not present", "the server answers with a part of an object, and does not say which"),
    ("parse value for CONTENT_RANGE", "the server answers with a part of an object, and does not say which"),
    ("nvalid content length", "the server sends a Content-Length that is no number"),
    ("nvalid last modified", "the server sends a Last-Modified that is no date"),
    ("header containing non-ASCII data", "the server sends a header that is no text"),
)
_TIMEOUTS = ("TimedOut", "kind: Timeout")

#: Text that an obstore error contains -> its meaning, the more telling one first.
_MEANINGS: tuple[tuple[str, str], ...] = (
    (
        "BadScheme",
        'plain http:// is not allowed; storage_options={"allow_http": True} or AWS_ALLOW_HTTP=true allows it',
    ),
    ("ConnectionRefused", "connection refused"),
    ("ConnectionReset", "the server reset the connection"),
    ("BrokenPipe", "the server closed the connection"),
    ("IncompleteBody", "the server closed the connection before its answer was complete"),
    ("IncompleteMessage", "the server closed the connection before its answer was complete"),
    ("dns error", "the host name cannot be resolved"),
    ("InvalidCertificate", "the server's certificate is not trusted"),
    ("NetworkUnreachable", "the network cannot be reached"),
    ("HostUnreachable", "the host cannot be reached"),
    *((sign, "the server did not answer in time") for sign in _TIMEOUTS),
    *_NO_ANSWERS,
    ("BareRedirect", "the server sends requests elsewhere: the bucket is in another region; set `region`"),
)
#: A sentence has at most so many characters of what a client says by itself.
_LONGEST_TEXT = 200


def reason_of(error: BaseException) -> str:
    """Describe an error in one line without a dump; errors that are not obstore's are shown as Python shows them.

    Secrets are taken out of the error itself, too, since it becomes the cause of another one.
    """
    redact(error)
    text = str(error)
    if _DUMP not in text:
        return without_secrets(repr(error))
    if asks_for_credentials(error):
        return (
            "no credentials are configured, and this machine has no metadata service that gives some; set them in "
            'storage_options or in the environment, or read without any: storage_options={"anon": True}'
        )
    shown = text.partition(_DUMP)[0]
    status = _STATUS.search(shown)
    if status is not None:
        code = _SERVER_CODE.search(shown)
        return f"the server answered {status[1]} {status[2].strip()}" + (f", {code[1]}" if code is not None else "")
    if _NO_NAME in shown:
        key = without_secrets(one_line(shown.partition(_NO_NAME)[2].strip())[:_LONGEST_TEXT])
        return f"obstore does not list folders with such a key, rename it: {key}"
    for sign, meaning in _MEANINGS:
        if sign in text:
            return meaning
    return without_secrets(" ".join(shown.rpartition(" - ")[2].split())[:_LONGEST_TEXT])


def says_no_bucket(error: BaseException) -> bool:
    """Return whether a server said that the bucket or container does not exist."""
    return _NO_BUCKET.search(str(error).partition(_DUMP)[0]) is not None


def says_no_permission(error: BaseException) -> bool:
    """Return whether a server refused the credentials, or the lack of any."""
    if type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError") or isinstance(error, PermissionError):
        return True
    text = str(error)
    status = _STATUS.search(text.partition(_DUMP)[0]) if _DUMP in text else None  # as obstore says it of a listing
    return status is not None and status[1] in ("401", "403")


def says_out_of_range(error: BaseException) -> bool:
    """Return whether a server said that an object ends before the part that it was asked for."""
    text = str(error)
    status = _STATUS.search(text.partition(_DUMP)[0]) if _DUMP in text else None
    return status is not None and status[1] == "416"


def asks_for_credentials(error: BaseException) -> bool:
    """Return whether an error is of the metadata service of a cloud, and not of the store."""
    return _DUMP in str(error) and _METADATA_SERVICE.search(str(error)) is not None


def errno_of(error: BaseException) -> int:
    """Return the error number of an exception; if it has none that of its class, or EIO."""
    redact(error)
    code = getattr(error, "errno", None)
    if isinstance(code, int) and code:
        return code
    if says_no_permission(error):
        return errno.EACCES
    if isinstance(error, MemoryError):
        return errno.ENOMEM
    text = str(error)
    timed_out = isinstance(error, TimeoutError) or (_DUMP in text and any(sign in text for sign in _TIMEOUTS))
    return errno.ETIMEDOUT if timed_out else errno.EIO


def array_is_gone(metadata_path: str) -> FileNotFoundError:
    """Return the error of chunks of an array whose metadata are no longer there.

    Without it, every chunk of a store that was deleted would be a missing one, hence fill values.
    """
    text = f"{metadata_path} is gone: the array was deleted or moved after it was opened"
    return FileNotFoundError(errno.ENOENT, text)


def is_transient(error: Exception) -> bool:
    """Return whether a retry may succeed: after an error of a network, a device or a busy machine.

    Errors that only the store's client knows are lasting if their name or text says so.
    """
    if isinstance(error, OSError):
        if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError | NotADirectoryError):
            return False
        if isinstance(error, TimeoutError | ConnectionError) or not isinstance(error.errno, int):
            return True
        return core.is_transient(error.errno)
    if isinstance(error, ZarrfeedError) or type(error).__module__ == "builtins":
        return False
    if isinstance(error, ValueError | TypeError | LookupError | NotImplementedError | MemoryError):
        return False
    return type(error).__name__ not in _LASTING and not _is_lasting_text(error)


def _is_lasting_text(error: Exception) -> bool:
    """Return whether obstore's text says that the server, or its address, will be no better next time."""
    text = str(error)
    if _DUMP not in text:
        return False
    status = _STATUS.search(text)
    if status is not None and status[1] not in ("408", "425", "429"):
        return status[1] < "500" or status[1] in ("501", "505")  # methods and versions that the server does not know
    lasting = ("BadScheme", "BareRedirect", "InvalidCert", _NO_NAME, *(sign for sign, _ in _NO_ANSWERS))
    return asks_for_credentials(error) or any(sign in text for sign in lasting)
