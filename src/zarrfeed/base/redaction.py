"""Keep secrets out of messages: one function takes them out of text, and all messages go through it.

Invariants: no message, cause, warning, log line, `repr` or `str` of ours has a user or a password of a URL, a
signature, a token, or a value of `storage_options` that may be a secret.

- `without_secrets` takes secrets out of text, by what they look like, and by what `remember` was told. The value of an
  option is a secret unless the option's name says that it is none.
- Each `ZarrfeedError` passes its message through `without_secrets`, and the exceptions that are being handled through
  `redact`: they become its causes, which a traceback prints.
- `public_name` takes users, passwords and queries out of URLs, and nothing else. It serves names, which are compared
  and stored: two folders keep two names, whatever they are called.
"""

from __future__ import annotations

import base64
import copyreg
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import FrameType
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from zarrfeed.base.documents import parse_json

_HIDDEN = "***"

#: Names whose values are secrets wherever they stand: in the query of a URL, in JSON, in a dump of a client.
_NAMES = (
    r"x-(?:amz|goog)-(?:signature|credential|security-token)|awsaccesskeyid|googleaccessid|sig|signature|"
    r"(?:[a-z0-9]+[_-])*(?:token|password|passwd|passphrase|secret|api[_-]?key)|(?:aws_)?(?:secret_?)?access_?key(?:_?id)?|"
    r"account_?key|sas_?key|secret_?key|(?:session|sas|auth|access|refresh)token|shared_?access_?(?:key|signature)|"
    r"private_?key(?:_?id)?|authorization|proxy-authorization|service_account_key|credential|pwd|jwt|delegation|"
    r"jsessionid"
)
#: The value ends with the quote that it began with, or else where a parameter of a query, a word or a tuple ends.
#: Behind a slash stands the name of a folder, such as token=3.
_PAIRS = re.compile(
    rf"""(?i)(?<![\w/-])(?P<name>['"]?(?:{_NAMES})['"]?\s*(?:[:=]\s*(?:b|Some\()?(?=["'])|=(?!=)))"""
    r"""(?P<value>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s&"'<>,;()\]}]+)"""
)
#: Text at the place of a secret that is none: no value, a number, a dtype, or a selection of samples. In the query of a
#: URL, after ? or &, all values are secrets.
_NO_SECRETS = re.compile(
    r"""['"]?(?:None|null|True|False|true|false|inf|nan|slice|-?\d{1,5}(?:\.\d{1,5})?(?:/.*)?|"""
    r"""[<>|=]?[a-zA-Z]\d{1,2}|(?:u?int|b?float|complex)\d{1,3}|bool|str|string|object|)['"]?"""
)
#: Headers of HTTP, as the dumps of some clients have them: without quotes, to the end of the line.
_HEADERS = re.compile(
    r"(?i)(?<![\w/-])((?:(?:proxy-)?authorization|(?:set-)?cookie|x-(?:[a-z]+-)*(?:token|key|signature))['\"]?:\s*['\"]?)"
    r"(?!\*\*\*)[^\s'\"][^\r\n'\"]*"
)
#: In the dump of a client that is written in Rust: parts of a URL.
_URL_PARTS = re.compile(r"""\b(username|password|query|fragment): (Some\()?("(?:[^"\\]|\\.)*")""")
#: In the query of a URL without a host.
_PARAMETERS = re.compile(r"(?i)([?&](?:key|code|auth|pass|user|credentials?)=)[^\s&\"'<>]+")
_SCHEMES = re.compile(r"(?i)\b(bearer\s+|sharedkey\s+\w+:|aws4-hmac-sha256\s+)[\w.~+/=:-]{6,}(?:,\s*\w+=[^\s,\"']+)*")
#: Elements of a server's answer that repeat the request's credentials.
_ELEMENTS = re.compile(
    r"<(AWSAccessKeyId|SignatureProvided|StringToSign(?:Bytes)?|CanonicalRequest(?:Bytes)?|AuthenticationErrorDetail)>"
    r"[^<]*<"
)
#: Keys of Amazon and tokens in JSON (JWT) look like nothing else.
_SHAPES = re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*")
#: The beginning of a URL; a path that was made of a URL has one slash. On GitHub, an organization and a repository
#: stand in the place of the user.
_BEGIN = (
    r"(?i)((?<![a-z])(?!github:)[a-z][a-z0-9+.-]*://|(?<![\w:/])//|(?<=file://)//|"
    r"(?<![a-z])(?:https?|s3a?|gs|gcs|az|adl|azure|ftp|hdfs|webhdfs):/(?!/))"
)
#: In the URL of a server: a user with a password, as in https://user:password@host. Of Azure, a container stands there.
_USER = re.compile(_BEGIN + r"(?<!abfs://)(?<!abfss://)(?<!wasb://)(?<!wasbs://)[^/\s\"'?#<>]*@")
#: The same with a password that should have been escaped; digits and a slash are the port of a host.
_RAW_PASSWORD = re.compile(_BEGIN + r"[^/\s\"'@:\[]*:(?!\d{0,5}(?:[/?#\s\"'),]|$))[^\s\"'<>]*@")
_QUERY = re.compile(r"(?i)((?<![a-z])https?:/[^\s\"'?<>()]*)\?[^\s\"'<>()]*")

#: Text without any of these has nothing to take out.
_HINT = re.compile(r"[=:<?&]|AKIA|ASIA|eyJ|(?i:bearer|sharedkey|aws4)")

#: Options, by the names that obstore and fsspec have without their prefixes, whose values are no secrets.
_HARMLESS = frozenset(
    (
        "anon", "region", "region_name", "default_region", "endpoint", "endpoint_url", "base_url", "bucket",
        "bucket_name", "container", "container_name", "account_name", "project", "virtual_hosted_style_request",
        "request_payer", "requester_pays", "metadata_endpoint", "msi_endpoint", "authority_host", "proxy_url",
        "proxy_excludes", "user_agent", "service_account_path", "application_credentials", "root_certificate",
        "proxy_ca_certificate", "web_identity_token_file", "container_authorization_token_file",
        "federated_token_file", "container_credentials_relative_uri", "role_arn", "role_session_name",
        "signature_version", "addressing_style", "protocol", "auto_mkdir", "default_cache_type",
        "remote_protocol", "target_protocol", "fo", "mode", "compression", "cache_type", "cache_storage", "encoding",
        "profile", "access", "consistency", "location", "default_location", "location_mode", "checksum",
        "checksum_algorithm", "conditional_put", "copy_if_not_exists", "content_type", "default_content_type", "accept",
        "acl", "serversideencryption", "server_side_encryption", "revision", "version", "api_version", "driver",
    )
)  # fmt: skip
#: Values of any other option that are no secrets: numbers with a unit, regions, and ways to find credentials.
_HARMLESS_VALUES = re.compile(
    r"\d+(?:\.\d+)?\s?[a-zA-Z]{1,7}|[a-z]{2}(?:-[a-z]{3,10}){1,2}-?\d{1,2}|google_default|anonymous|default"
)
_PREFIXES = re.compile(r"^(?:aws|azure_storage|azure|google)_")
#: Shorter values are words that are in any text. A test account's "test" is none that has to be kept.
_SHORTEST = 6
_MOST_VALUES = 4096
#: More of one kind are data, such as the chunks that a file system of references is made of.
_MOST_OPTIONS = 100

_values: dict[str, None] = {}
_any_value: re.Pattern[str] | None = None


def remember(options: Mapping[str, Any] | None) -> None:
    """Remember values of `storage_options` as secrets, in this process, unless their names say that they are none."""
    global _any_value
    found = {made: None for value in _secrets_in(options or {}) for made in _spellings(value)}
    if not found.keys() <= _values.keys():
        _values.update(found)
        for oldest in list(_values)[: max(0, len(_values) - _MOST_VALUES)]:
            del _values[oldest]
        longest_first = sorted(_values, key=len, reverse=True)
        _any_value = re.compile("|".join(map(re.escape, longest_first)))


def _secrets_in(options: Mapping[Any, Any]) -> Iterator[str]:
    if len(options) > _MOST_OPTIONS:
        return
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _secrets_in(value)
            continue
        for one in value[:_MOST_OPTIONS] if isinstance(value, list | tuple) else (value,):
            text = one.decode("utf-8", "replace") if isinstance(one, bytes) else one
            if not isinstance(text, str):
                continue  # a flag, a number, or a function
            if "://" in text:
                yield from _secrets_in_url(text)
            elif not _is_harmless(str(name), text):
                yield text
            if text.startswith("{"):  # the JSON of a service account
                with suppress(ValueError):
                    yield from _secrets_in(parse_json(text))


def _is_harmless(name: str, value: str) -> bool:
    name = _PREFIXES.sub("", name.lower().replace("-", "_"))
    return name in _HARMLESS or value.endswith(".json") or _HARMLESS_VALUES.fullmatch(value) is not None


def _secrets_in_url(url: str) -> Iterator[str]:
    with suppress(ValueError):
        parts = urlsplit(url)
        user, colon, password = parts.netloc.rpartition("@")[0].partition(":")
        yield password if colon else user
        yield base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode() if colon else ""
        yield from (pair.partition("=")[2] for pair in parts.query.split("&"))


def _spellings(value: str) -> Iterator[str]:
    """Yield a secret as messages may have it: its lines, its words, and with escapes."""
    for part in {value, *value.splitlines(), *value.split("\\n"), *value.split()}:
        for made in {part, quote(part), quote(part, safe=""), unquote(part), repr(part)[1:-1]}:
            if len(made) >= _SHORTEST and not made.isspace():
                yield made


def public_name(name: str) -> str:
    """Return a name without users, passwords and queries of URLs in it; the same name always gives the same."""
    if "//" not in name and ":/" not in name:
        return name
    if "@" in name:
        name = _USER.sub(r"\1", _RAW_PASSWORD.sub(r"\1", name))
    return _QUERY.sub(r"\1", name) if "?" in name else name


def without_secrets(text: str) -> str:
    """Return text without secrets: text that looks like one, and values that `remember` was told.

    >>> without_secrets("https://me:pass@host/x?sig=abc is gone; {'token': 'abc'}, AWSAccessKeyId=abc&x=1")
    "https://host/x is gone; {'token': '***'}, AWSAccessKeyId=***&x=1"
    """
    if _HINT.search(text):
        text = _without_pairs(public_name(text))
    return text if _any_value is None else _any_value.sub(_HIDDEN, text)


def _without_pairs(text: str) -> str:
    """Return text without the values of names that secrets have, and without other text that looks like a secret."""
    text = _URL_PARTS.sub(lambda found: f'{found[1]}: {found[2] or ""}"{_HIDDEN}"', text)
    text = _HEADERS.sub(rf"\1{_HIDDEN}", text)
    text = _PAIRS.sub(_without_value, text)
    text = _PARAMETERS.sub(rf"\1{_HIDDEN}", text)
    text = _SCHEMES.sub(rf"\1{_HIDDEN}", text)
    text = _ELEMENTS.sub(rf"<\1>{_HIDDEN}<", text)
    return _SHAPES.sub(_HIDDEN, text)


def _without_value(found: re.Match[str]) -> str:
    value = found["value"]
    is_in_query = found.string[: found.start()].endswith(("?", "&", "#", ";"))
    if not is_in_query and _NO_SECRETS.fullmatch(value):
        return found[0]
    mark = value[0] if value[0] in "\"'" else ""
    return f"{found['name']}{mark}{_HIDDEN}{mark}"


def redact(error: BaseException | None) -> None:
    """Take secrets out of an exception of anybody's, its causes and its notes, in place.

    Class, traceback, errno and everything but the secrets stay. An exception whose text is made of something else than
    its arguments and the text in its attributes gets a subclass of the same name, which redacts that text. An exception
    that a caller of ours is handling is the caller's own, and stays as it is.
    """
    left, seen = [error], set[int]()
    while left:
        one = left.pop()
        if one is None or id(one) in seen or _is_of_a_caller(one):
            continue
        seen.add(id(one))
        with suppress(Exception):  # exceptions are anybody's code; the error that is raised matters more
            _redact_one(one)
        left += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]


def _is_of_a_caller(error: BaseException) -> bool:
    """Return whether a function that is running, and none of ours, caught an exception."""
    if error.__traceback__ is None:
        return False
    caught_in = error.__traceback__.tb_frame
    if caught_in.f_globals.get("__name__", "").partition(".")[0] == "zarrfeed":
        return False
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 (documented)
    while frame is not None and frame is not caught_in:
        frame = frame.f_back
    return frame is not None


def _redact_one(error: BaseException) -> None:
    shown = f"{error}\n{error!r}\n{getattr(error, '__notes__', '')}"
    if without_secrets(shown) == shown:
        return
    error.args = tuple(map(_redacted, error.args))
    for name in ("strerror", "filename", "filename2", "msg"):  # of OSError, ImportError and others
        value = getattr(error, name, None)
        if isinstance(value, str):
            with suppress(AttributeError, TypeError):  # a property
                setattr(error, name, without_secrets(value))
    attributes = vars(error)
    attributes.update({name: _redacted(value) for name, value in attributes.items() if not name.startswith("__")})
    notes = getattr(error, "__notes__", None)
    if isinstance(notes, list):
        notes[:] = map(_redacted, notes)
    shown = f"{error}\n{error!r}"
    if without_secrets(shown) != shown:
        error.__class__ = _speaking_redacted(type(error))


def _redacted(value: Any) -> Any:
    if isinstance(value, str):
        return without_secrets(value)
    if type(value) in (tuple, list):
        return type(value)(map(_redacted, value))
    return {key: _redacted(one) for key, one in value.items()} if type(value) is dict else value


def _speaking_redacted(kind: type[BaseException]) -> type[BaseException]:
    """Return a subclass of an exception's class, of the same name, whose text has no secrets."""

    def reduce(self: BaseException) -> Any:
        made = kind.__reduce__(self)
        return (kind, *made[1:]) if isinstance(made, tuple) else made

    methods = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__str__": lambda self: without_secrets(kind.__str__(self)),
        "__repr__": lambda self: without_secrets(kind.__repr__(self)),
        "__reduce__": reduce,
    }
    made_by: Any = _OfSameName if type(kind) is type else type(kind)
    made: type[BaseException] = made_by(kind.__name__, (kind,), methods)
    return made


class _OfSameName(type):
    """The type of these subclasses: torch's workers send the class of an exception, which is pickled as its base."""


def _itself(kind: Any) -> Any:
    return kind


copyreg.pickle(_OfSameName, lambda made: (_itself, made.__bases__))
