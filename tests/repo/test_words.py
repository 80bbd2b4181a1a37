"""One thing has one name, the field's: words that stood beside it do not come back (docs/design/index.md, Words)."""

from __future__ import annotations

import io
import re
import tokenize
from functools import cache

from tests.support.paths import ROOT

#: Words that no name in code has, and what to call the thing. Text, comments and what English has of them are free.
WORDS = {
    "leader": "template",
    "patience": "timeout",
    "place": "rank_info, index, offset, position, slot or location",
    "wish": "requested conversion",
}
#: The same in the engine, where nothing is a line of text, and nothing stays but what is cached or carried.
WORDS_OF_ENGINE = WORDS | {
    "kept": "cached or carried",
    "line": "block order, plan spec or chain",
    "spared": "what it is",
}
#: Names of a sense that has a term, where the word has other senses that stay.
NAMES = {
    "is_spared|spared_by": "left unconverted",
    r"_Kept|KeptBlocks|\w*kept_(blocks|runs|decodes|arrays|index_bytes)|with_kept|\w*_kept_bytes": "cached",
    "line_of_(ranks|one)|epoch_line|unshuffled_line|reference_line|_line_range|extra_on_line": "order, sequence",
    "list_item_type|(assert|check|test)_lists": "vlen",
}
#: Names that English and PyTorch have of these words, and lines of a cache.
_FREE = re.compile("(move_into|in|take)_place|kLineBytes|__LINE__")
#: The rows of a benchmark, which are written to JSON.
_WRITTEN = {"checkpoint.py": {"place"}}


@cache
def words_in(name: str) -> frozenset[str]:
    """Return the words of a name, in small letters and without endings."""
    words = (word.lower() for word in re.findall("[A-Z]?[a-z]+|[A-Z]+", _FREE.sub("", name)))
    return frozenset(re.sub("(?<=place)(s|d|less)$|(?<=wish)es$|(?<=line|ader)s$", "", word) for word in words)


@cache
def has_banned_sense(name: str) -> bool:
    return any(re.fullmatch(names, name) for names in NAMES)


def is_banned(name: str, words: dict[str, str]) -> bool:
    return bool(words_in(name) & words.keys()) or has_banned_sense(name)


def banned_in_python(source: str) -> set[str]:
    """Return the names of a Python source that are banned; the names of tests are sentences."""
    found = {name for name in set(re.findall(r"[A-Za-z_]\w*", source)) if is_banned(name, WORDS)}
    if not found:  # most files: to take a file apart costs much more
        return found
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {name for name in found & {token.string for token in tokens} if not name.startswith("test_")}


def banned_in_engine(source: str) -> set[str]:
    """Return the names of a source in C++ that are banned; the names of tests are sentences."""
    code = re.sub(r"'(?:\\.|[^'\\])'|\"(?:\\.|[^\"\\])*\"|//.*|TEST\(\w+\)", " ", source)
    return {name for name in set(re.findall(r"[A-Za-z_]\w*", code)) - {"line"} if is_banned(name, WORDS_OF_ENGINE)}


def test_no_name_has_a_banned_word() -> None:
    found = {}
    for folder in ("src", "tests", "benchmarks", "dev", "examples", "cpp"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".py", ".pyi"} and path.name != "test_words.py":
                names = banned_in_python(path.read_text()) - _WRITTEN.get(path.name, set())
            elif path.suffix in {".cc", ".h"}:
                names = banned_in_engine(path.read_text())
            else:
                continue
            names |= {path.stem} if is_banned(path.stem, WORDS) else set()
            if names:
                found[str(path.relative_to(ROOT))] = sorted(names)
    assert found == {}, (WORDS_OF_ENGINE, NAMES)


def test_banned_names_are_found_and_english_is_not() -> None:
    assert banned_in_python("class StackPlace: place_of, _placeless, PLACES = placed, Wish, leaders, with_kept") == {
        *("StackPlace", "place_of", "_placeless", "PLACES", "placed", "Wish", "leaders", "with_kept")
    }
    assert not banned_in_python(
        "replace, misplaced, device_placement, is_in_place, PlacementGroup, inplace, kept, line = header  # its place"
    )
    assert banned_in_engine("int64_t place_of(Seat kept, Where line_of); class BlockLine; // in its place") == {
        *("place_of", "kept", "line_of", "BlockLine")
    }
    assert not banned_in_engine("TEST(a_row_in_the_place_of_it) { copy(std::in_place, \"kept\", 'p', pipeline_); }")
