"""Changes of JSON documents and of bytes, as a careless writer or a bad disk makes them, chosen by a seed."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

#: Values that take the place of any other one.
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 3, 2**31, 2**63, 2**64, 10**400, 1.5, -0.5),
    *("", "x", "0", "NaN", "float32", "a/b", "../x", "\x00", "é", "days since 2000-01-01"),
    *([], [1], [None], ["x"], [[]], {}, {"a": 1}, {"name": "x"}),
    {"name": "bytes", "configuration": {"endian": "little"}},
)
_KEYS = ("", "x", "name", "attributes", "shape")
Spot = tuple[Any, ...]


def changed_json(document: Any, rng: random.Random) -> Any:
    """Return a document with one to three changes."""
    made = copy.deepcopy(document)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        spots = [spot for spot in _spots(made) if spot]
        if not spots or rng.random() < 0.02:
            return copy.deepcopy(rng.choice(_VALUES))
        *way, last = rng.choice(spots)
        _change(_at(made, tuple(way)), last, made, spots, rng)
    return made


def changed_bytes(content: bytes, rng: random.Random) -> bytes:
    """Return bytes with some of them changed, left out, put in, or cut off."""
    made = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4))):
        if not made:
            break
        offset, what = rng.randrange(len(made)), rng.random()
        if what < 0.5:
            made[offset] = rng.randrange(256)
        elif what < 0.7:
            del made[offset : offset + rng.randrange(1, 9)]
        elif what < 0.85:
            made[offset:offset] = rng.randbytes(rng.randrange(1, 5))
        elif what < 0.9:
            del made[offset:]
        else:
            made[offset] ^= 1 << rng.randrange(8)
    return bytes(made)


def _change(inside: Any, key: Any, document: Any, spots: list[Spot], rng: random.Random) -> None:
    """Change one member of an object or a list of a document."""
    value, what = inside[key], rng.random()
    if what < 0.2:
        del inside[key]
    elif what < 0.3:
        inside[key] = copy.deepcopy(_at(document, rng.choice(spots)))
    elif what < 0.4 and isinstance(inside, dict):
        inside[rng.choice(_KEYS)] = inside.pop(key)
    elif what < 0.5 and isinstance(value, list):
        value.append(copy.deepcopy(rng.choice(value or [1])))
    elif what < 0.6 and type(value) in (int, float) and abs(value) < 2**62:
        inside[key] = value * rng.choice((-1, 2, 0.5)) + rng.choice((-1, 0, 1))
    elif what < 0.65 and isinstance(value, str) and value:
        offset = rng.randrange(len(value))
        inside[key] = value[:offset] + rng.choice(("", "x", "/", "0")) + value[offset + 1 :]
    else:
        inside[key] = copy.deepcopy(rng.choice(_VALUES))


def _spots(value: Any, way: Spot = ()) -> Iterator[Spot]:
    yield way
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from _spots(value[key], (*way, key))


def _at(document: Any, way: Spot) -> Any:
    for key in way:
        document = document[key]
    return document
