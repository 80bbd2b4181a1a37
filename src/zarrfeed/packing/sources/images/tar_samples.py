"""`TarSamples`: the files of tar archives that are samples, as WebDataset writes them.

Files that are next to each other with the same key are a sample. The key is the path up to the first dot of the name;
what follows the dot, in lower case, is the name of the field.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from zarrfeed.base.errors import ConfigError, printable
from zarrfeed.packing.sources.files import check_field_name, check_text
from zarrfeed.packing.sources.images.tar_index import Member, members_of

#: Names of members that WebDataset writes about the archive itself.
_META = re.compile(r"__[^/]*__($|/)")


@dataclass
class FileRanges:
    """Files of one field: the sample of each file, its offset in the archive, and its bytes."""

    samples: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)


@dataclass
class TarSamples:
    """The samples in the archives; `archives` has the archive of each sample."""

    keys: list[str] = field(default_factory=list)
    archives: list[int] = field(default_factory=list)
    ranges: dict[str, FileRanges] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def add_archive(self, path: str, number: int) -> None:
        """Add the samples of an archive."""
        before: str | None = None
        names: set[str] = set()
        for member in members_of(path):
            base = member.name.rpartition("/")[2]
            stem, dot, extension = base.partition(".")
            if _META.match(member.name) or not stem or not dot:
                self.left_out.append(member.name)
                continue
            key = member.name[: len(member.name) - len(base) + len(stem)]
            if key != before:
                check_text(key, f"{printable(path)}: the key")
                self.keys.append(key)
                self.archives.append(number)
                before, names = key, set()
            self._add(member, extension.lower(), names, path)

    def _add(self, member: Member, name: str, names: set[str], path: str) -> None:
        if name in names:
            raise ConfigError(f"{printable(path)}: {printable(member.name)}: the sample has two files .{name}")
        names.add(name)
        if name not in self.ranges:
            check_field_name(name, f"{printable(path)}: {printable(member.name)}")
        ranges = self.ranges.setdefault(name, FileRanges())
        ranges.samples.append(len(self.keys) - 1)
        ranges.offsets.append(member.offset)
        ranges.sizes.append(member.size)
