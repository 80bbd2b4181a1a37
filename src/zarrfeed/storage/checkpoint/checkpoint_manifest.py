"""The manifest of a distributed checkpoint: its objects, with their lengths and digests.

A distributed checkpoint is a folder. Each rank writes its shards to an object of its own, whose name no other save
uses. The object `.metadata` is written last, and it alone makes the checkpoint visible. It holds torch's pickled
metadata, then the manifest as JSON, then the length of that JSON and a magic number. Torch's own readers stop after the
pickle.

Invariants:

- `.metadata` is written by `zarrfeed.checkpoint.writer`: it appears whole or not at all, and its bytes are verified.
- An object that a manifest names is never written again, since names are never used twice. So a manifest that can be
  read names the objects of its own save, or objects that somebody removed; never those of another save.
"""

from __future__ import annotations

import json
import re
import secrets
import struct
from dataclasses import asdict, dataclass
from typing import Any

from zarrfeed.base.documents import parse_json
from zarrfeed.base.errors import ConfigError

#: The name that torch's readers look for, too.
METADATA_NAME = ".metadata"

_MAGIC = b"ZFSHARDS"
_TAIL = struct.Struct("<Q8s")
_FORMAT = 1
_OBJECT_NAME = re.compile(r"__(\d+)_([0-9a-f]{16})\.distcp")


@dataclass(frozen=True)
class ShardObject:
    """One object of a distributed checkpoint.

    Attributes
    ----------
    name
        Name of the object in the folder of the checkpoint.
    length
        Bytes of its content.
    digest
        Digest of its content, as hexadecimal digits.
    """

    name: str
    length: int
    digest: str


@dataclass(frozen=True)
class Manifest:
    """The objects of a distributed checkpoint, and the save that made them.

    Attributes
    ----------
    save_id
        Id of the save that made it; no two saves share one.
    objects
        All objects but `.metadata` itself.
    step
        The age of the checkpoint among others: `step_of` the folder's name when it was saved.
    """

    save_id: str
    objects: tuple[ShardObject, ...]
    step: tuple[int, ...] = ()


def new_save_id() -> str:
    """Return a name for a save that no other save has."""
    return secrets.token_hex(16)


def new_object_name(rank: int) -> str:
    """Return a name for the object of a rank that no other object has."""
    return f"__{rank}_{secrets.token_hex(8)}.distcp"


def is_object_name(name: str) -> bool:
    """Return whether `new_object_name` makes such names."""
    return _OBJECT_NAME.fullmatch(name) is not None


def step_of(name: str) -> tuple[int, ...]:
    """Return the numbers in the name of a checkpoint, which are larger in a newer one; an ending does not count.

    >>> step_of("step-300"), step_of("epoch=3-step=1200.ckpt"), step_of("last.pt")
    ((300,), (3, 1200), ())
    """
    return tuple(int(digits) for digits in re.findall(r"[0-9]+", re.sub(r"\.[A-Za-z]\w*$", "", name)))


def encode(pickled: bytes, manifest: Manifest) -> bytes:
    """Return the content of `.metadata`: torch's pickled metadata, and the manifest."""
    text = json.dumps({"format": _FORMAT, **asdict(manifest)}, separators=(",", ":")).encode()
    return b"".join((pickled, text, _TAIL.pack(len(text), _MAGIC)))


def decode(content: bytes, name: str) -> tuple[memoryview, Manifest]:
    """Split the content of `.metadata` into torch's pickled metadata and the manifest.

    Parameters
    ----------
    content
        Content of `.metadata`.
    name
        Name of the object in messages.

    Raises
    ------
    ConfigError
        If `encode` did not make it, or a newer version did.
    """
    view = memoryview(content)
    if len(view) < _TAIL.size:
        raise _not_ours(name)
    length, magic = _TAIL.unpack(view[-_TAIL.size :])
    begin = len(view) - _TAIL.size - length
    if magic != _MAGIC or begin < 0:
        raise _not_ours(name)
    try:
        described = parse_json(bytes(view[begin : -_TAIL.size]))
        if described["format"] != _FORMAT:
            raise ConfigError(f"{name}: has manifest format {described['format']}, this version reads {_FORMAT}")
        return view[:begin], Manifest(
            _text(described["save_id"]), tuple(map(_object, described["objects"])), _step(described.get("step", []))
        )
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise _not_ours(name) from error


def _object(described: dict[str, Any]) -> ShardObject:
    one = ShardObject(**described)
    if not is_object_name(_text(one.name)) or not isinstance(one.length, int) or one.length < 0:
        raise ValueError(one)
    _text(one.digest)
    return one


def _step(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or any(type(number) is not int for number in value):
        raise TypeError(value)
    return tuple(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _not_ours(name: str) -> ConfigError:
    return ConfigError(f"{name}: is not the manifest of a checkpoint that zarrfeed wrote")
