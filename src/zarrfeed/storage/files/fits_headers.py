"""Headers of FITS files: the units of a file, with their keywords, and where their data lie."""

from __future__ import annotations

import errno
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from zarrfeed.base.errors import StoreReadError
from zarrfeed.storage.files.data_file import AnyFile

#: Headers and data have whole blocks; headers have cards.
_BLOCK_BYTES, _CARD_BYTES = 2880, 80
#: Blocks of a header, and axes, at most: more are taken for damage.
_MOST_BLOCKS, _MOST_AXES = 10_000, 999


@dataclass(frozen=True)
class FitsUnit:
    """A unit of a header and data (HDU).

    Attributes
    ----------
    number
        The place in the file; 0 is the primary unit.
    kind
        "IMAGE", also of the primary unit; "BINTABLE", "TABLE", or another XTENSION.
    cards
        Keywords and their values: the first of each keyword, without comments.
    begin
        The first byte of the data.
    sizes
        NAXIS1, NAXIS2, ...: the axis that varies fastest comes first.
    num_bytes
        The bytes of the array, without a heap behind it.
    """

    number: int
    kind: str
    cards: dict[str, Any]
    begin: int
    sizes: tuple[int, ...]
    num_bytes: int

    @property
    def item_bits(self) -> int:
        """The value of BITPIX."""
        return int(self.cards["BITPIX"])

    @property
    def name(self) -> str:
        """The name of the unit, as astropy has it."""
        return str(self.cards.get("EXTNAME", "" if self.number else "PRIMARY")).strip()

    @property
    def version(self) -> int:
        """The value of EXTVER, which tells units of one name apart."""
        found = self.cards.get("EXTVER", 1)
        return found if type(found) is int else 1

    def count_of(self, keyword: str) -> int:
        """Return a keyword's whole number, 0 if it has none."""
        found = self.cards.get(keyword, 0)
        return found if type(found) is int and 0 <= found <= _MOST_AXES else 0

    def axes_of(self, column: int, count: int) -> tuple[int, ...]:
        """Return the axes of the items of a column of a table, in C order: of TDIM, if it fits."""
        text = str(self.cards.get(f"TDIM{column}", "")).strip(" ()")
        sizes = text.split(",") if text else []
        if all(one.strip().isdecimal() for one in sizes) and sizes:
            axes = tuple(int(one) for one in reversed(sizes))
            if math.prod(axes) == count:
                return axes
        return () if count == 1 else (count,)


def read_units(file: AnyFile) -> list[FitsUnit]:
    """Read the headers of all units of a file.

    Raises
    ------
    StoreReadError
        If the file is damaged or incomplete.
    """
    with file.open() as stream:
        return list(_units(file, stream))


def _units(file: AnyFile, stream: IO[bytes]) -> Iterator[FitsUnit]:
    number, at = 0, 0
    while at < file.size:
        stream.seek(at)
        first = stream.read(_BLOCK_BYTES)
        if number and not first.startswith(b"XTENSION"):
            return  # records behind the last unit, which the standard allows
        cards, header_bytes = _header(file, stream, first)
        unit, used = _unit(file, number, cards, at + header_bytes)
        if used > file.size - unit.begin:
            has = max(0, file.size - unit.begin)
            raise _damaged(file, f"unit {number} is said to have {used} bytes of data, the file has {has}")
        yield unit
        number, at = number + 1, unit.begin + -(-used // _BLOCK_BYTES) * _BLOCK_BYTES


def _header(file: AnyFile, stream: IO[bytes], block: bytes) -> tuple[dict[str, Any], int]:
    """Return the cards of the header that begins with a block, and its bytes."""
    cards: dict[str, Any] = {}
    for number in range(1, _MOST_BLOCKS):
        if len(block) < _BLOCK_BYTES:
            break
        for at in range(0, _BLOCK_BYTES, _CARD_BYTES):
            card = block[at : at + _CARD_BYTES].decode("ascii", "replace")
            keyword = card[:8].rstrip()
            if keyword == "END":
                return cards, number * _BLOCK_BYTES
            if card[8:10] == "= ":
                cards.setdefault(keyword, _value(card[10:]))
        block = stream.read(_BLOCK_BYTES)
    raise _damaged(file, "a header has no END")


def _unit(file: AnyFile, number: int, cards: dict[str, Any], begin: int) -> tuple[FitsUnit, int]:
    """Return a unit, and the bytes of its data with a heap."""
    axes = cards.get("NAXIS")
    if type(axes) is not int or not 0 <= axes <= _MOST_AXES or type(cards.get("BITPIX")) is not int:
        raise _damaged(file, f"unit {number} has NAXIS = {axes}, BITPIX = {cards.get('BITPIX')}")
    sizes: tuple[Any, ...] = tuple(cards.get(f"NAXIS{axis}") for axis in range(1, axes + 1))
    heap, groups = cards.get("PCOUNT", 0), cards.get("GCOUNT", 1)
    if any(type(one) is not int or one < 0 for one in (*sizes, heap, groups)):
        raise _damaged(file, f"unit {number} has axes {sizes}, PCOUNT = {heap}, GCOUNT = {groups}")
    kind = str(cards.get("XTENSION", "IMAGE")).strip() if number else "IMAGE"
    is_grouped = number == 0 and cards.get("GROUPS") is True and sizes[:1] == (0,)
    items = math.prod(sizes[is_grouped:]) if axes else 0
    item_bytes = abs(cards["BITPIX"]) // 8
    unit = FitsUnit(number, kind, cards, begin, sizes, item_bytes * items)
    return unit, item_bytes * (groups * (heap + items) if axes else 0)


def _value(text: str) -> Any:
    """Return the value of a card: a text, a boolean, a number, or None if it has none.

    >>> [_value(one) for one in ("'it''s '  / name", "   T / yes", " 12", " 1.5D2 / mm", "  / none")]
    ["it's", True, 12, 150.0, None]
    """
    text = text.strip()
    if text.startswith("'"):
        parts = text[1:].replace("''", "\0").partition("'")
        return parts[0].replace("\0", "'").rstrip()
    text = text.partition("/")[0].strip()
    if text in ("T", "F"):
        return text == "T"
    for kind in (int, lambda one: float(one.upper().replace("D", "E"))):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


def _damaged(file: AnyFile, what: str) -> StoreReadError:
    return StoreReadError(errno.EINVAL, f"{file}: is no FITS file, or a damaged or incomplete one: {what}")
