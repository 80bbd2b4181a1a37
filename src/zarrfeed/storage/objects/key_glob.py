"""Patterns of keys, with the meaning that they have for `pathlib.Path.glob`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from zarrfeed.base.errors import ConfigError

_MAGIC = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class KeyGlob:
    """A pattern.

    Attributes
    ----------
    pattern
        `*` and `?` stand for characters of one name, `[ab]` and `[!a-f]` for one of several characters, and `**` as a
        whole name for any number of folders.
    prefix
        The folders that all keys lie in which match, without a slash at the end; "" if there are none.
    matches
        Says of a key whether it matches.

    Examples
    --------
    >>> glob = KeyGlob.of("train/**/*.jp*g")
    >>> glob.prefix, glob.matches("train/cat/1.jpeg"), glob.matches("train/1.jpg"), glob.matches("test/1.jpg")
    ('train', True, True, False)
    """

    pattern: str
    prefix: str
    matches: Callable[[str], bool]

    @classmethod
    def of(cls, pattern: object) -> KeyGlob:
        """Parse a pattern.

        Raises
        ------
        ConfigError
            If it is no text, is empty, begins or ends with a slash, or has an empty name or `**` inside of a name.
        """
        if not isinstance(pattern, str):
            raise ConfigError(f'glob = {pattern!r}, must be text such as "**/*.jpg"')
        names = pattern.split("/")
        if "" in names:
            raise ConfigError(
                f"glob = {pattern!r}, must not be empty, or begin or end with a slash, or have two in a row"
            )
        if any("**" in name and name != "**" for name in names):
            raise ConfigError(f'glob = {pattern!r}: ** must be a whole name, as in "train/**/*.jpg"')
        literal = 0
        while literal < len(names) - 1 and not _MAGIC.search(names[literal]):
            literal += 1
        *folders, last = names
        parts = ["(?:[^/]+/)*" if name == "**" else f"{_of_name(name, pattern)}/" for name in folders]
        parts.append(".+" if last == "**" else _of_name(last, pattern))
        compiled = re.compile("".join(parts), re.DOTALL)
        return cls(pattern, "/".join(names[:literal]), lambda key: compiled.fullmatch(key) is not None)


def _of_name(name: str, pattern: str) -> str:
    """Return the regular expression of one name."""
    found, at = "", 0
    while at < len(name):
        character = name[at]
        end = name.find("]", at + 2 + (name[at + 1 : at + 2] == "!")) if character == "[" else -1
        if character == "*":
            found += "[^/]*"
        elif character == "?":
            found += "[^/]"
        elif character == "[" and end > 0:
            inside = name[at + 1 : end]
            negated, inside = inside.startswith("!"), inside.removeprefix("!")
            escaped = re.sub(r"([\\\[\]^&~|])", r"\\\1", inside)
            found += f"(?!/)[{'^' * negated}{escaped}]"
            at = end
        else:
            found += re.escape(character)
        at += 1
    try:
        re.compile(found)
    except re.error as error:
        raise ConfigError(f"glob = {pattern!r}: {error}") from error
    return found
