"""Documents in JSON: whatever is wrong with one is a ValueError."""

from __future__ import annotations

import json

import pytest

from zarrfeed.base.documents import parse_json


@pytest.mark.parametrize("text", [b"\xff", "", "{", '{"a": 1', "[" * 100_000 + "]" * 100_000, '{"a":' * 100_000])
def test_a_document_that_cannot_be_parsed_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_json(text)


@pytest.mark.parametrize("text", ['{"a": [1, null, 2.5]}', b'"\xc3\xa9"', "NaN", " 3 "])
def test_others_are_parsed_as_by_json(text: str | bytes) -> None:
    assert repr(parse_json(text)) == repr(json.loads(text))
