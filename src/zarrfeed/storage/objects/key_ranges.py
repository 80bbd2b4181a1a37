"""The division of the keys of a bucket among workers that list them: ranges of keys, of which idle workers steal.

Invariants: at any time the ranges, `(after, until]` each, are disjoint and cover all keys. A steal cuts one range into
two neighbours at a key that its worker has not come to; a page counts for the keys of its range alone. So each key is
listed exactly once, whatever is stolen at whatever time, and the ranges in the order of their bounds hold the keys in
order.

Keys are compared by code points, which is the order of their UTF-8 bytes, which is the order of S3 and Google. Nothing
here asks a server.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from itertools import islice, takewhile, zip_longest

#: Number of characters of a key that count.
_LONGEST = 256
_DIGITS = set("0123456789")
#: A position where keys have so many characters shows a set of them that other positions may have, too.
_RICH = 8
#: Every so-many-th key of a page is searched for the characters that keys have.
_EVERY = 8
#: Empty ranges that are stolen before there is a page to show for them, per worker.
_FREE_STEALS = 4
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
#: A range is not cut if its worker will probably be done with fewer pages.
_LEAST_PAGES = 2.0
#: Number of pages in a row after which a range is cut in any case.
_MISJUDGED = 4
#: Behind the ASCII characters that keys have, and behind all others.
_LAST_ASCII, _LAST = "~", "\U0010fffd"


@dataclass(eq=False, slots=True)
class KeyRange:
    """The keys above `after`, up to and with `until`.

    Attributes
    ----------
    after
        The range begins behind this key; "" is before all keys.
    until
        The last key that may be in the range; None: there is no end.
    seen
        The last key that was listed; `after` before the first one.
    first
        The first key of the last page.
    pages
        Number of pages that were listed since the range was cut last.
    is_done
        True if all keys were listed.
    families
        Beginnings of keys of the last range, long ones first. Each is a place to cut it, behind the keys that begin so.
    """

    after: str = ""
    until: str | None = None
    seen: str = ""
    first: str = ""
    pages: int = 0
    is_done: bool = False
    families: list[str] = field(default_factory=list)


def keys_that_begin(beginning: str) -> KeyRange:
    """Return a range with all keys that begin so, and few others."""
    if not beginning:
        return KeyRange()
    last = ord(beginning[-1])
    before = beginning[:-1] + chr(max(0, last - 1)) + _LAST
    after = before if _is_path(before) and not _is_surrogate(before[-2]) else beginning[:-1].rstrip("/")
    following = chr(last + 1) if last < sys.maxunicode else None
    while following is not None and _is_surrogate(following):
        following = chr(ord(following) + 1)
    return KeyRange(after, None if following is None else beginning[:-1] + following, seen=after)


@dataclass(eq=False)
class KeyRanges:
    """The ranges of one listing. Not safe for threads.

    Parameters
    ----------
    workers
        Number of workers that list at once.
    ranges
        The ranges. At the beginning there is one, of all keys that are wanted.
    """

    workers: int
    ranges: list[KeyRange] = field(default_factory=lambda: [KeyRange()])
    steals: int = 0
    _listed: int = 0
    _page_size: int = 1
    _characters: list[set[str]] = field(default_factory=list)
    _heeds_offsets: bool = True

    def __post_init__(self) -> None:
        self._end = self.ranges[-1].until

    @property
    def is_done(self) -> bool:
        """True if all keys were listed."""
        return all(one.is_done for one in self.ranges)

    def take_page(self, one: KeyRange, keys: list[str], *, is_last: bool) -> slice:
        """Take note of a page, and return which of its keys belong to the range and are new.

        Parameters
        ----------
        one
            The range whose worker asked for the page.
        keys
            Keys of the page, strictly ascending.
        is_last
            True if the server has no further keys.
        """
        begin = bisect_right(keys, one.seen)
        end = len(keys) if one.until is None else bisect_right(keys, one.until)
        if keys and keys[-1] <= one.after:
            self._heeds_offsets = False  # every worker would list from the beginning on
        one.pages += 1
        one.is_done = one.is_done or is_last or end < len(keys) or one.seen == one.until
        if begin < end:
            one.seen = keys[end - 1]
            one.is_done = one.is_done or one.seen == one.until
            one.first = keys[begin]
            same = takewhile(lambda pair: pair[0] == pair[1], zip(one.first, one.seen, strict=False))
            shared = sum(1 for _ in same) if one.until == self._end else -1
            one.families = [one.seen[:length] for length in range(shared, -1, -1)]
        self._listed += max(0, end - begin)
        self._page_size = max(self._page_size, len(keys))
        self._note(keys[::_EVERY])
        return slice(begin, max(begin, end))

    def steal(self) -> KeyRange | None:
        """Return a new range: the second half of the longest range's rest; None: there is nothing to steal."""
        if not self._heeds_offsets or self.steals >= self._listed // self._page_size + _FREE_STEALS * self.workers:
            return None
        return self._steal_end() or self._steal_half()

    def _steal_end(self) -> KeyRange | None:
        """Cut the last range behind the keys that begin as those of its last page.

        Keys that begin alike have a middle that is far above all of them. Such cuts tell in one round of requests how
        many characters all keys share.
        """
        last = self.ranges[-1]
        while last.families and not last.is_done:
            middle = last.families.pop(0) + (_LAST_ASCII if last.seen.isascii() else _LAST)
            if middle > last.seen and (self._end is None or middle < self._end) and _is_path(middle):
                return self._cut(last, middle)
        return None

    def _steal_half(self) -> KeyRange | None:
        victims = [one for one in self.ranges if one.first and not one.is_done]
        if not victims:
            return None
        scale = _Scale(self._characters)
        left = {one: scale.pages_left(one) for one in victims}
        for victim in sorted(victims, key=left.__getitem__, reverse=True):
            middle = scale.between(victim.seen, victim.until) if left[victim] > _LEAST_PAGES else None
            if middle is None and victim.pages >= _MISJUDGED:
                middle = _between(victim.seen, victim.until)
            if middle is not None:
                return self._cut(victim, middle)
        return None

    def _note(self, keys: list[str]) -> None:
        """Take note of the characters that keys have at each position."""
        for position, characters in enumerate(islice(zip_longest(*keys), _LONGEST)):
            if position == len(self._characters):
                self._characters.append(set())
            self._characters[position].update(characters)
            self._characters[position].discard(None)

    def _cut(self, victim: KeyRange, middle: str) -> KeyRange:
        stolen = KeyRange(middle, victim.until, seen=middle, families=victim.families)
        victim.until, victim.families, victim.pages = middle, [], 0
        self.ranges.insert(bisect_left(self.ranges, middle, key=lambda one: one.after), stolen)
        self.steals += 1
        return stolen


class _Scale:
    """Keys as numbers, each position in the base of the characters that keys have there: so there is a middle of two.

    At a position where all keys have the same character, nothing can be cut, and empty ranges would be stolen. Where
    they have several digits, they may have all.
    """

    def __init__(self, seen: list[set[str]]) -> None:
        rich = sorted((one for one in seen if len(one) >= _RICH), key=len)
        rich.append(_DIGITS)
        self._characters = [sorted(next((many for many in rich if len(one) > 1 and one <= many), one)) for one in seen]

    def number(self, key: str | None) -> int:
        """Return the number of a key, at least that of each key before it; for None, the highest number."""
        value, fill = 0, -1 if key is None else None
        for position, characters in enumerate(self._characters):
            base = len(characters)
            digit = 0
            if fill is None and key is not None and position < len(key):
                digit = bisect_right(characters, key[position]) - 1
                if digit < 0 or characters[digit] != key[position]:  # no key goes on like this one
                    fill, digit = (0, 0) if digit < 0 else (-1, digit)
            elif fill == -1:
                digit = base - 1
            value = value * base + digit
        return value

    def pages_left(self, one: KeyRange) -> float:
        """Return the number of pages that are left of a range if its keys are as dense as those of its last page."""
        seen = self.number(one.seen)
        return (self.number(one.until) - seen) / max(1, seen - self.number(one.first))

    def between(self, low: str, high: str | None) -> str | None:
        """Return a short key near the middle of two, above `low` and below `high`; None if there is none to be had."""
        middle = (self.number(low) + self.number(high)) // 2
        reversed_key = []
        for characters in reversed(self._characters):
            middle, digit = divmod(middle, len(characters))
            reversed_key.append(characters[digit])
        key = ""
        for character in reversed(reversed_key):
            key += character
            if key > low and _is_path(key):
                return key if high is None or key < high else None
        return None


def _between(low: str, high: str | None) -> str | None:
    """Return a short key between two, in the middle of all characters that there are; None if there is none."""
    for position, character in enumerate(low):
        top = ord(high[position]) if high is not None and position < len(high) else ord(_LAST)
        middle = chr((ord(character) + top) // 2)
        key = low[:position] + middle
        if middle > character and not middle.isspace() and not _is_surrogate(middle) and _is_path(key):
            return key if high is None or key < high else None
        if top != ord(character):
            high = None
    return None


def _is_surrogate(character: str) -> bool:
    return "\ud800" <= character <= "\udfff"


def _is_path(key: str) -> bool:
    """Return whether obstore takes the key as it is: it strips slashes, and refuses parts and characters of no use."""
    return all(part not in ("", ".", "..") for part in key.split("/")) and _CONTROL.search(key) is None
