"""The manifest of a distributed checkpoint: what was encoded comes back, anything else is refused."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from zarrfeed.base.errors import ConfigError
from zarrfeed.storage.checkpoint.checkpoint_manifest import (
    Manifest,
    ShardObject,
    decode,
    encode,
    is_object_name,
    new_object_name,
    new_save_id,
)


def manifest(*objects: ShardObject) -> Manifest:
    return Manifest(new_save_id(), objects)


@examples(100)
@given(st.binary(max_size=200), st.lists(st.integers(0, 1 << 62), max_size=5))
def test_what_was_encoded_comes_back(pickled: bytes, lengths: list[int]) -> None:
    saved = manifest(*(ShardObject(new_object_name(rank), length, "0f") for rank, length in enumerate(lengths)))
    found, decoded = decode(encode(pickled, saved), "x")
    assert bytes(found) == pickled
    assert decoded == saved


def test_what_reads_a_pickle_reads_the_metadata() -> None:
    """The readers of torch call pickle.load, which stops at the end of the pickle."""
    assert pickle.loads(encode(pickle.dumps([1, 2]), manifest())) == [1, 2]


@examples(200)
@given(st.data())
def test_what_is_not_a_whole_manifest_is_refused(data: st.DataObject) -> None:
    content = encode(b"pickle", manifest(ShardObject(new_object_name(0), 5, "0f")))
    cut = data.draw(st.integers(0, len(content) - 1))
    with pytest.raises(ConfigError, match="is not the manifest of a checkpoint"):
        decode(content[:cut], "x")


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        (b'"format":1', b'"format":2', "has manifest format 2, this version reads 1"),
        (b'"length":5', b'"length":-5', "is not the manifest"),
        (b'"length":5', b'"length":"', "is not the manifest"),
        (b'"__0_', b'"../_', "is not the manifest"),
        (b'"digest":"0f"', b'"digest":[1]', "is not the manifest"),
        (b'"save_id"', b'"save_it"', "is not the manifest"),
        (b'"objects":[{', b'"objects":{"a":{', "is not the manifest"),
    ],
)
def test_numbers_and_names_that_cannot_be_are_refused(old: bytes, new: bytes, match: str) -> None:
    content = encode(b"", manifest(ShardObject(new_object_name(0), 5, "0f")))
    text = content[:-16].replace(old, new)
    assert text != content[:-16]
    with pytest.raises(ConfigError, match=match):
        decode(text + len(text).to_bytes(8, "little") + content[-8:], "x")


def test_no_two_objects_have_one_name() -> None:
    names = {new_object_name(3) for _ in range(1000)}
    assert len(names) == 1000
    assert all(is_object_name(name) for name in names)
    assert not any(map(is_object_name, ("__0_0.distcp", "step-100", ".metadata", f"x{names.pop()}")))
