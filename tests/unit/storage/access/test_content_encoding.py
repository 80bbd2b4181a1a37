"""Objects that have a Content-Encoding, decoded."""

from __future__ import annotations

import gzip
import zlib
from types import SimpleNamespace

import pytest

from zarrfeed.base.errors import DecodeError
from zarrfeed.storage.access.content_encoding import decoded, encoding_of


def zipped(content: bytes) -> bytes:
    """Return a member of gzip without the time: names of tests are the same in every process that collects them."""
    return gzip.compress(content, mtime=0)


@pytest.mark.parametrize(
    ("stored", "encodings"),
    [
        (b"content", ""),
        (zipped(b"content"), "gzip"),
        (zipped(b"con") + zipped(b"tent"), "gzip"),
        (zipped(b"content"), "x-gzip"),
        (zlib.compress(b"content"), "deflate"),
        (zipped(zlib.compress(b"content")), "deflate, gzip"),
    ],
)
def test_content_is_not_what_was_encoded(stored: bytes, encodings: str) -> None:
    assert decoded(stored, encodings) == b"content"


@pytest.mark.whole_product
@pytest.mark.parametrize("stored", [b"content", zipped(b"content")[:-4], zipped(b"content") + b"?"])
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_bytes_that_are_not_of_the_encoding_are_content(stored: bytes, encoding: str) -> None:
    with pytest.raises(DecodeError, match=f"Content-Encoding '{encoding}', and its bytes are not {encoding}"):
        decoded(stored, encoding)


def test_an_encoding_without_a_decoder_is_ignored() -> None:
    with pytest.raises(DecodeError, match="Content-Encoding 'br', supported: gzip, x-gzip, deflate"):
        decoded(b"content", "br")


@pytest.mark.parametrize(
    ("header", "encodings"),
    [(None, ""), ("", ""), ("identity", ""), ("GZip", "gzip"), ("deflate , gzip", "deflate, gzip")],
)
def test_a_header_names_other_encodings(header: str | None, encodings: str) -> None:
    attributes = {} if header is None else {"Content-Encoding": header}
    assert encoding_of(SimpleNamespace(attributes=attributes)) == encodings
