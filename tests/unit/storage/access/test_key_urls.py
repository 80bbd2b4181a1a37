"""A key that becomes a URL is the same key when the URL is read, by us and by obstore."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

import zarrfeed
from zarrfeed import ConfigError, UnsupportedError
from zarrfeed.metadata.group.url_patterns import is_pattern
from zarrfeed.storage.access.key_urls import KeyUrl, as_glob, check_key, is_url, path_of, path_pattern_of, url_of

#: Text with many characters that URLs and patterns read as something else, and names that are no keys.
TEXT = st.text(
    st.sampled_from("%#?+& =[]*{}\\/.:@25FfüÜé\U0001f600\t\n\x7f'\"~;,|^`<>!$") | st.characters(), max_size=12
)
NAMES = st.sampled_from(
    ["%2F", "%25", "%", "..", ".", "", "a b", "%zz", "%FF", "x://y", " ", "?a=b", "@", "%2e%2e", "ü"]
)
KEYS = st.lists(TEXT | NAMES, min_size=1, max_size=3).map("/".join)


def is_key(key: str) -> bool:
    try:
        check_key("key", key)
    except ConfigError:
        return False
    return True


@given(KEYS)
def test_a_key_is_the_same_behind_its_url(key: str) -> None:
    """A key that is refused is refused as a URL, too."""
    if not is_key(key):
        if not key or key.endswith("/"):  # the URL of a folder
            return
        with pytest.raises(ConfigError):
            KeyUrl.of(url_of("s3://bucket", key))
        return
    url = url_of("s3://bucket/runs", key)
    assert KeyUrl.of(url).key == f"runs/{key}"
    assert KeyUrl.of(url + "/").key == f"runs/{key}"
    assert not is_pattern(url)
    quoted = KeyUrl.of(url).quoted
    assert quoted == f"s3://bucket/runs/{quote(key)}"
    assert KeyUrl.of(quoted).key == f"runs/{key}"


@given(KEYS)
def test_obstore_reads_the_same_key_of_a_url(key: str) -> None:
    store = pytest.importorskip("obstore.store")
    if not is_key(key):
        return
    made = store.from_url(KeyUrl.of(url_of("s3://bucket/runs", key)).quoted, config={"region": "x"})
    assert made.prefix == f"runs/{key}"


@given(st.binary(max_size=12).filter(lambda name: not {0} & set(name)))
def test_a_path_is_the_same_behind_its_file_url(name: bytes) -> None:
    """Python's own `Path.as_uri` is the oracle; names of files are bytes."""
    path = Path("/data") / os.fsdecode(name).lstrip("/")
    assert path_of(path.as_uri()) == path
    assert path_of(path.as_uri().replace("file://", "file:")) == path
    assert not is_url(path.as_uri())


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("file:///d/run%232", "/d/run#2"),
        ("file://localhost/d/100%/a+b c", "/d/100%/a+b c"),
        ("FILE:///d/a%20b", "/d/a b"),
        ("file:///d/%FF", "/d/\udcff"),
        ("/d/run#2?", None),
        ("file", None),
        ("file:", None),
        ("file:run", None),
        ("d/file:///x", None),
    ],
)
def test_only_file_urls_are_decoded(text: str, path: str | None) -> None:
    assert path_of(text) == (None if path is None else Path(path))


@pytest.mark.parametrize("text", ["file:///d/run#2", "file:///d/run?2", "file://host/d", "file:///d%00", "file:/d#"])
def test_file_urls_that_name_no_single_path_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        path_of(text)


@pytest.mark.parametrize(
    ("url", "quoted"),
    [
        ("https://host/a b/c%20d", "https://host/a%20b/c%20d"),
        ("https://host/group%2Fproject/x%2520", "https://host/group%2Fproject/x%2520"),
        ("https://host/100%/ü//x\\y", "https://host/100%25/%C3%BC//x%5Cy"),
        ("https://host/%FF/", "https://host/%FF"),
        ("HTTP://[::1]:80", "http://[::1]:80"),
        ("abfs://container@account/x#".rstrip("#"), "abfs://container@account/x"),
    ],
)
def test_escapes_of_a_web_server_stay_as_they_are(url: str, quoted: str) -> None:
    assert KeyUrl.of(url).quoted == quoted


@pytest.mark.parametrize(
    "url",
    [
        "s3://b/x#1", "s3://b/x?1", "s3://b/x?", "s3://u@b/x", "s3://b/a//b", "s3://b//a", "s3://b/a//", "s3://b//",
        "s3://b/../a", "s3://b/a/%2E%2e", "s3://b/./a", "s3://b/a\tb", "s3://b/a%0Ab", "s3://b/%FF", "s3://b/\udcff",
        "https://h/../a", "https://h/%2e/a", "https://h/a\nb", "https://h\\@evil/a", "s3:/b", "b/x",
    ],
)  # fmt: skip
def test_urls_that_name_no_single_key_are_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        KeyUrl.of(url)


def test_a_path_with_a_scheme_inside_is_no_url() -> None:
    assert [is_url(one) for one in ("s3://b/x", "/d/s3://b/x", "s3:x", "a b://x", Path("/s3://b"), 3)] == [
        True, *[False] * 5,
    ]  # fmt: skip


def test_escapes_of_a_pattern_are_no_wildcards() -> None:
    assert as_glob("%2A%5B[%20a]*%3f%C3%BC") == "[*][[][ a]*[?]ü"
    assert path_pattern_of("file:///d/%5B1%5D/*") == "/d/[[]1]/*"
    assert path_pattern_of("/d/%5B1%5D/*") is None
    with pytest.raises(ConfigError):
        as_glob("%FF*")


@pytest.mark.parametrize(
    "url", ["://x", "zip::https://h/a.zip", "simplecache::s3://b/x", "zip::file:///a.zip", "a::b::c://"]
)
def test_what_begins_as_a_url_is_no_path(url: str) -> None:
    assert is_url(url)
    with pytest.raises(UnsupportedError, match=re.escape(f"{url}: ") + ".*:// is not supported, only local paths"):
        zarrfeed.open(url)


@pytest.mark.parametrize(
    "path", ["/data/s3://b/x", "./zip::https://h", "a b::c://", "::", "C:", "a:/b", "file:///a", "FILE://a"]
)
def test_paths_and_file_urls_are_no_urls_of_stores(path: str) -> None:
    assert not is_url(path)
