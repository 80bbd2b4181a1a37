"""The record: one line for each configuration, in a text file that diffs well."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from recording.canonical import digest

TAKEN = "taken"
_MOST_CHARACTERS = 130


@dataclass(frozen=True)
class Entry:
    """The record of one configuration.

    Attributes
    ----------
    digests
        Aspect -> digest.
    refusals
        The errors as "where: class: text", shortened.
    saved
        A state as JSON, and the digest of what comes when it is loaded; None for most configurations.
    """

    digests: dict[str, str]
    refusals: tuple[str, ...] = ()
    saved: tuple[str, str] | None = None

    def differences(self, other: Entry) -> list[str]:
        """Return the aspects in which two entries differ."""
        found = [aspect for aspect, one in self.digests.items() if other.digests.get(aspect) != one]
        if self.saved is not None and (other.saved is None or other.saved[1] != self.saved[1]):
            found.append("saved")
        return found

    def changed_texts(self, other: Entry) -> Iterator[tuple[str, str]]:
        """List refusals of one class at one place whose texts differ, as (text, other text)."""
        for before, after in zip(self.refusals, other.refusals, strict=False):
            if before != after and before.split(": ")[:2] == after.split(": ")[:2]:
                yield before, after


@dataclass
class Record:
    """All that is recorded.

    Attributes
    ----------
    seed, count
        What the configurations were drawn from.
    entries
        By the numbers of configurations.
    refusals
        Call with wrong arguments -> of each class and text of its refusal, shortened, or "taken".
    """

    seed: int
    count: int
    entries: dict[int, Entry] = field(default_factory=dict)
    refusals: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def changed_refusals(self, outcomes: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, int, bool, str, str]]:
        """List what differs, as (call, number of the wrong value, whether the text alone does, before, now)."""
        for call in dict.fromkeys([*self.refusals, *outcomes]):
            pairs = zip_longest(self.refusals.get(call, ()), outcomes.get(call, ()), fillvalue="not tried")
            for number, (before, after) in enumerate(pairs):
                if before != after:
                    yield call, number, before.partition(": ")[0] == after.partition(": ")[0], before, after

    def write(self, path: Path) -> None:
        """Write the record as text."""
        texts: dict[str, int] = {}
        aspects = list(next(iter(self.entries.values())).digests) if self.entries else []
        lines = [f"seed {self.seed} count {self.count} aspects {' '.join(aspects)}"]
        for number, entry in sorted(self.entries.items()):
            lines.append(" ".join([str(number), *entry.digests.values()]))
            if entry.refusals:
                named = [str(texts.setdefault(text, len(texts))) for text in entry.refusals]
                lines.append(f" refused {' '.join(named)}")
            if entry.saved is not None:
                lines.append(f" saved {entry.saved[1]} {entry.saved[0]}")
        for call, outcomes in self.refusals.items():
            named = [str(texts.setdefault(outcome, len(texts))) for outcome in outcomes]
            lines.append(f"wrong {','.join(named)} {call}")
        lines += [f"text {number} {json.dumps(text, ensure_ascii=False)}" for text, number in texts.items()]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Record:
        """Read what `write` wrote."""
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
        first = lines[0].split()
        made = cls(int(first[1]), int(first[3]))
        texts: dict[str, str] = {}
        for line in lines:
            if line.startswith("text "):
                number, _, text = line.removeprefix("text ").partition(" ")
                texts[number] = json.loads(text)
        last = -1
        for line in lines[1:]:
            kind, _, rest = line.strip().partition(" ")
            if kind == "refused":
                one = made.entries[last]
                made.entries[last] = Entry(one.digests, tuple(texts[number] for number in rest.split()))
            elif kind == "saved":
                one, (shown, _, state) = made.entries[last], rest.partition(" ")
                made.entries[last] = Entry(one.digests, one.refusals, (state, shown))
            elif kind == "wrong":
                numbers, _, call = rest.partition(" ")
                made.refusals[call] = tuple(texts[number] for number in numbers.split(","))
            elif kind != "text":
                last = int(kind)
                made.entries[last] = Entry(dict(zip(first[5:], rest.split(), strict=True)))
        return made


def shortened(text: str) -> str:
    """Return a text as it is recorded: of a long one its beginning, with a digest of all."""
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 12]}... {digest(text)}"
