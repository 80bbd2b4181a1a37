"""Secrets are taken out of text and of exceptions, and nothing else is."""

from __future__ import annotations

import errno
import pickle
import traceback
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import CHARACTERS
from zarrfeed import ConfigError, StoreReadError
from zarrfeed.base import redaction
from zarrfeed.base.errors import UnknownOptionError, printable
from zarrfeed.base.redaction import public_name, redact, remember, without_secrets

SECRET = "S3CRETofNobody"


@pytest.fixture(autouse=True)
def no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test begin, and end, with no remembered values."""
    monkeypatch.setattr(redaction, "_values", {})
    monkeypatch.setattr(redaction, "_any_value", None)


@pytest.mark.parametrize(
    "text",
    [
        "https://user:{}@host:8080/a", "s3://{}@bucket/a", "gs://key:{}@bucket", "hdfs://u:{}@h", "ftp://u:p{}%40@h/x",
        "abfs://container:{}@account/x", "https://user:{}/more@host/a", "https://user:{}?x#y@host/a",
        'HTTPStore("https://u:{}@h/x")', "http://u:{}@127.0.0.1:9/b/x.zarr/zarr.json in 3 ms",
        "https://host/x?sig={}", "https://host/x?sv=1&se=2&sig={}&sp=r", "see (https://host/x?{})",
        "/b/x?X-Amz-Signature={}&X-Amz-Date=1", "GET /x?key={} HTTP/1.1", "a?apikey={}", "&access_token={}",
        "x-amz-security-token={}", "X-Amz-Credential={}%2F2026", "X-Goog-Signature={}", "x-goog-credential={}",
        "AWSAccessKeyId={}&Signature={}&Expires=1", "password={}", "api_key={}", "api-key='{}'", "#access_token={}",
        "{{'key': 'x', 'secret': '{}'}}", '{{"token": "{}"}}', "{{'secret_access_key': b'{}'}}", "session_token='{}'",
        '{{"private_key": "-----BEGIN {}\\n-----"}}', 'secret_access_key: Some("{}")', "client_secret = '{}'",
        "AccountName=a;AccountKey={};EndpointSuffix=core", "SharedAccessSignature={}", "sas_token: '{}'",
        'Url {{ scheme: "http", username: "{}", password: Some("{}"), query: Some("{}") }}',
        "Authorization: Bearer {}", "authorization='{}'", "'Authorization': 'Basic {}'", "Bearer {}.x-y_z~==",
        "SharedKey account:{}=", "AWS4-HMAC-SHA256 Credential={}/x, SignedHeaders=a, Signature={}",
        "<AWSAccessKeyId>{}</AWSAccessKeyId>", "<StringToSign>AWS4\n{}\n</StringToSign>", "token={})", "[token={}]",
        "my_service_token={}", "aws_secret_access_key={}", "MINIO_PASSWORD={}",
        "https:/user:{}@host/a", "/data/s3:/{}@bucket/x: is missing", "zip::https:/u:{}@h/a.zip", "//u:{}@host/x",
        "file:////u:{}@host/x", "https:/host/x?{}", "Authorization: Basic {}==", "authorization: {}", "X-Api-Key: {}",
        "x-amz-security-token: {}", "Cookie: session={}; id=1", "'Set-Cookie': 'sid={}'", "secretKey={}",
        "'secretAccessKey': '{}'", "'sessionToken': '{}'", "'sasToken': '{}'", "hdfs://h/x?delegation={}",
        "http://h/x;jsessionid={}", "Credential={}/2026/us-east-1/s3/aws4_request", "?token=123{}", "pwd={}",
    ],
)  # fmt: skip
def test_what_looks_like_a_secret_is_taken_out(text: str) -> None:
    shown = without_secrets(text.format(*[SECRET] * text.count("{}")))
    assert SECRET not in shown
    assert without_secrets(shown) == shown


def test_the_rest_of_the_text_stays() -> None:
    assert without_secrets(f"s3://u:{SECRET}@b/x.zarr: answered 403") == "s3://b/x.zarr: answered 403"
    assert without_secrets(f"{{'key': 'a', 'token': '{SECRET}', 'n': 3}}") == "{'key': 'a', 'token': '***', 'n': 3}"
    assert without_secrets(f"/x?sv=1&sig={SECRET}&sp=r, twice") == "/x?sv=1&sig=***&sp=r, twice"
    keys = "AKIAIOSFODNN7EXAMPLE is no key, eyJhbGciOiJI.eyJzdWIiOiIx.abc no token"
    assert without_secrets(keys) == "*** is no key, *** no token"


@pytest.mark.parametrize(
    "text",
    [
        "batch_size = 0, must be at least 1", "keys[3] = 'a//b': a key must not be empty", "seed=3, key='x'",
        "s3://bucket/what?", "s3://b/a:b@c/d", "abfs://container@account/x", "file:///tmp/a?b@c=d", "http://host:80/x@y",
        "/data/token.zarr/token: has no axes (0-d)", "samples['token']: has dtype object", "signature = f(x), must be",
        "is http://host/x right? ask me@host", "http://[::1]:80/a:b@c", "memory://140523/x", "s3://b/ts=2020 00:00",
        "a password is needed: set AWS_SECRET_ACCESS_KEY", "storage_options has 'key' and another name of 'key'",
        "https://host:8443: me@home", "token == 3", "/d/token=3/sig=4: no", "the bearer of it", "did you mean 'token'?",
        "token=3/x.zarr: is missing", "isel(token=3)", "isel(token=slice(0, 10)) of x", "token=None", "secret=''",
        "{'token': 'int32', 'secret': '<f4'}", "sig=inf, at", 'where = "token=3"', "github://org:repo@sha/x.zarr",
        "file:/data/a@b", "/data/a:/b@c", "a//b@c", "cookie/x-key: 3",
    ],
)  # fmt: skip
def test_text_without_secrets_stays_as_it_is(text: str) -> None:
    assert without_secrets(text) == text


@given(st.text(CHARACTERS))
def test_any_text_is_redacted_once(text: str) -> None:
    assert without_secrets(without_secrets(text)) == without_secrets(text)


def test_a_long_text_takes_no_long() -> None:
    """No pattern takes more than linear time: an error may quote megabytes of anything."""
    for piece in (
        "a_",
        "token ",
        "://a:",
        "://u@",
        "?a=",
        "'token': ",
        'password: "\\\\',
        "x-amz-",
        "1",
        "<StringToSign>",
    ):
        without_secrets(piece * (200_000 // len(piece)))


def test_values_of_options_are_taken_out_unless_their_names_are_harmless() -> None:
    remember(
        {
            "key": "an-access-key", "secret": "a/secret+key=", "nonsense": f"{SECRET}-1", "anon": False, "timeout": 1e6,
            "region": "eu-central-1", "aws_endpoint_url": f"https://somebody:{SECRET}-2@minio.example:9000",
            "client_options": {"default_headers": {"X-Api": f"{SECRET}-3"}, "user_agent": "ours/1.0"},
            "token": b"bytes-of-a-token", "password": "short", "service_account": "/home/me/account.json",
            "service_account_key": '{"private_key": "-----BEGIN\\nMIIEvQIBADANBg\\n-----END", "client_email": "a@b"}',
        }
    )  # fmt: skip
    said = (
        f"an-access-key a/secret+key= a/secret%2Bkey%3D a%2Fsecret%2Bkey%3D {SECRET}-1 {SECRET}-2 {SECRET}-3 "
        "bytes-of-a-token MIIEvQIBADANBg"
    )
    assert without_secrets(said) == " ".join(["***"] * 9)
    harmless = "eu-central-1 minio.example:9000 ours/1.0 1000000.0 False short /home/me/account.json"
    assert without_secrets(harmless) == harmless
    assert public_name(said) == said  # names that are stored do not depend on what a process was told


def test_ordinary_values_of_options_stay_in_messages() -> None:
    options = {
        "profile": "research", "access": "read_only", "token": "google_default", "x_location": "us-gov-west-1",
        "client_options": {"timeout": "30 seconds", "default_content_type": "application/octet-stream"},
        "s3_additional_kwargs": {"ServerSideEncryption": "AES256", "ACL": "bucket-owner-full-control"},
        "headers": {"User-Agent": "mozilla/5.0", "Accept": "application/json"}, "checksum_algorithm": "SHA256",
        "conditional_put": "etag", "copy_if_not_exists": "multipart", "consistency": "md5sum", "n": "1",
    }  # fmt: skip
    remember(options)
    said = f"/data/research/x.zarr: {options}"
    assert without_secrets(said).replace("'token': '***'", "'token': 'google_default'") == said


def test_references_to_chunks_are_no_secrets() -> None:
    """A file system of fsspec that is made of them has all of them among its options."""
    references = {f"x/{number}": [f"s3://bucket/file-{number}", 0, 10] for number in range(50_000)}
    remember({"fo": references, "remote_protocol": "memory", "remote_options": {"secret": f"{SECRET}-4"}})
    remember({"fo": "references.parquet", "target_protocol": "https:"})
    assert without_secrets(f"memory file-3 references.parquet {SECRET}-4") == "memory file-3 references.parquet ***"
    assert len(redaction._values) < 10


def test_nothing_is_remembered_of_no_options() -> None:
    remember(None)
    remember({})
    assert without_secrets("None {}") == "None {}"


def test_an_error_of_ours_has_no_secrets_in_any_argument() -> None:
    error = StoreReadError(errno.EACCES, f"s3://u:{SECRET}@b/x: permission denied")
    assert (error.errno, error.strerror) == (errno.EACCES, "s3://b/x: permission denied")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.args) == (StoreReadError, error.args)
    assert str(UnknownOptionError(f"https://h/?sig={SECRET}")) == "https://h/"
    assert isinstance(error, OSError)


class _ServerError(Exception):
    """An error whose text is made of what an attribute holds, as that of aiohttp is."""

    def __init__(self, url: str, status: int) -> None:
        super().__init__((url,), status)
        self.request, self.status = SimpleNamespace(url=url), status

    def __str__(self) -> str:
        return f"{self.status}, url={self.request.url!r}"


class _NamedError(Exception):
    """An error whose text is made of an attribute."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url

    def __reduce__(self) -> Any:
        return type(self), (self.url,)

    def __str__(self) -> str:
        return f"no {self.url}"


_HANDLING = """
def raised(error):
    try:
        try:
            throw(error)
        except BaseException as cause:
            raise ConfigError("it failed") from cause
    except ConfigError as made:
        return made
"""


def raised(error: BaseException) -> ConfigError:
    """Return an error of ours that a module of ours raises while it handles another one."""

    def throw(error: BaseException) -> None:
        raise error

    module: dict[str, Any] = {"__name__": "zarrfeed.fake", "ConfigError": ConfigError, "throw": throw}
    exec(_HANDLING, module)
    made: ConfigError = module["raised"](error)
    return made


def foreign_errors() -> list[BaseException]:
    url = f"https://u:{SECRET}@h/x?sig={SECRET}"
    noted = ValueError("noted")
    noted.add_note(f"while {url} was read")
    within = RuntimeError("outer")
    within.__context__ = KeyError(url)
    within.__context__.__context__ = within  # chains of anybody's may be circles
    return [
        ValueError(url), KeyError(url), FileNotFoundError(url), OSError(errno.EIO, f"at {url}", url), ImportError(url),
        PermissionError(errno.EACCES, "no", f"/mnt/{url}", None, f"/mnt/2{url}"), _ServerError(url, 403), noted, within,
        ExceptionGroup("all", [ValueError(url), _ServerError(url, 500)]), Exception(3, (url,)),
    ]  # fmt: skip


@pytest.mark.parametrize("number", range(len(foreign_errors())))
def test_causes_are_shown_without_secrets_and_stay_what_they_are(number: int) -> None:
    error = foreign_errors()[number]
    kind, code = type(error), getattr(error, "errno", None)
    made = raised(error)
    shown = "".join(traceback.format_exception(made)) + repr(error) + repr(error.__context__)
    assert SECRET not in shown
    assert kind.__name__ in shown
    assert made.__cause__ is error
    assert isinstance(error, kind)
    assert type(error).__name__ == kind.__name__
    assert getattr(error, "errno", None) == code
    if not isinstance(error, ExceptionGroup | RuntimeError):
        assert "https://h/x" in shown or "noted" in shown


def test_a_cause_without_secrets_is_not_touched() -> None:
    error = ValueError("plain", 3, ["a list"])
    args = error.args
    assert raised(error).__cause__ is error
    assert error.args is args


def test_an_exception_that_the_caller_handles_is_the_callers_own() -> None:
    """A program that opens something else after an error may need what the error says."""
    own = KeyError(f"https://u:{SECRET}@h/x")
    try:
        raise own
    except KeyError:
        made = raised(ValueError(f"https://u:{SECRET}@h/x"))
    assert own.args == (f"https://u:{SECRET}@h/x",)
    assert SECRET not in repr(made.__cause__)


def test_a_redacted_error_can_be_sent_to_another_process() -> None:
    error = _ServerError(f"https://u:{SECRET}@h/x", 403)
    redact(error)
    found: Any = error.__reduce__()
    assert found[0] is _ServerError
    assert type(error) is not _ServerError
    assert pickle.loads(pickle.dumps(type(error))) is _ServerError  # as workers of torch send it


def test_attributes_of_an_error_are_redacted_so_that_its_copy_has_no_secret() -> None:
    error = _NamedError(f"https://u:{SECRET}@h/x")
    redact(error)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) is _NamedError
    assert str(again) == str(error) == "no https://h/x"


def test_a_client_that_cannot_be_redacted_hides_no_error() -> None:
    class OddError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("odd")

    assert isinstance(raised(OddError()).__cause__, OddError)


def test_other_names_stay_other_names() -> None:
    """A listing file, or a cache, of one folder would be taken for that of the other."""
    for name in ("/data/token=1", 'S3Store(bucket="b", prefix="token=1")', "s3://b/a?sig=1", "/d/a?key=1", "key: '1'"):
        assert public_name(name) == name
        assert public_name(name) != public_name(name.replace("1", "2"))


def test_names_that_are_stored_have_no_user_and_no_query() -> None:
    assert printable(f"https://u:{SECRET}@host/a?sig={SECRET}#b") == "https://host/a#b".removesuffix("#b")
