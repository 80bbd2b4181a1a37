"""Texts in code can be read alone: none begins with a word that stands for a noun."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator

from tests.support.paths import ROOT

#: A text that begins so is an ellipsis: its reader has to find the noun first. Write "True if the store is far" for
#: "Whether it is far", "Bytes that were read" for "What was read", and "Path of the group" for "Of the group".
RIDDLE = re.compile(r"(What|Which|Where|How|Whether|Of|When|Whose)\b")


def texts_in(source: str) -> Iterator[tuple[str, int, str]]:
    """Yield the kind, the line and the text of docstrings, of parameters and attributes in them, and of comments."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            doc, line = ast.get_docstring(node), getattr(node, "lineno", 1)
            if doc is not None:
                yield "docstring", line, doc
                headings = re.split(r"(?m)^(\w[\w ]*)\n-{3,}$", doc)
                for heading, section in zip(headings[1::2], headings[2::2], strict=True):
                    if heading != "Examples":
                        yield from (("parameter", line, text) for text in re.findall(r"(?m)^\S.*\n +(\S.*)$", section))
    yield from comments_in(source, "#")


def comments_in(source: str, mark: str) -> Iterator[tuple[str, int, str]]:
    """Yield the first line of each comment that has its lines for itself; `mark` is "#", or "//" in C++."""
    above = ""
    for line, text in enumerate(source.splitlines(), 1):
        text = text.strip()
        if text.startswith(mark) and not above.startswith(mark):
            yield "comment", line, text.lstrip(f"{mark[0]}: ")
        above = text


def riddles_in(source: str, *, cpp: bool = False) -> list[tuple[str, int, str]]:
    texts = comments_in(source, "//") if cpp else texts_in(source)
    return [(kind, line, text.split("\n")[0]) for kind, line, text in texts if RIDDLE.match(text)]


def test_no_text_begins_with_a_riddle() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {kind}: {text}"
        for path in sorted(
            [*(ROOT / "src").rglob("*.py*"), *(ROOT / "cpp").rglob("*.h"), *(ROOT / "cpp").rglob("*.cc")]
        )
        if path.suffix != ".pyc" and not {"tests", "fuzz"} & set(path.relative_to(ROOT).parts)
        for kind, line, text in riddles_in(path.read_text(), cpp=path.suffix in {".h", ".cc"})
    ]
    assert found == [], "begin with the noun, with a verb, or with 'True if':\n" + "\n".join(found)


def test_riddles_are_found_and_plain_texts_are_not() -> None:
    riddles = '''
        """How a store is read."""

        class Array:
            """Which array.

            Parameters
            ----------
            a, *b
                Of the group.
            c : int
                The size.
            d
                Whether it is far,
                Of all arrays.

            Raises
            ------
            ValueError
                Where there is none.

            Examples
            --------
            >>> f(1,
                Of=2)
            """

            #: What is read,
            # of the array.
            # Which of them.
            size = 1  # What is not alone in its line

            def read(self):
                # Whose turn it is
                """Return how it is read. Of all arrays."""
                return "What"
    '''
    assert [(kind, text) for kind, _, text in riddles_in(inspect.cleandoc(riddles))] == [
        ("docstring", "How a store is read."),
        ("docstring", "Which array."),
        ("parameter", "Of the group."),
        ("parameter", "Whether it is far,"),
        ("parameter", "Where there is none."),
        ("comment", "What is read,"),
        ("comment", "Whose turn it is"),
    ]
    plain = '"""Reads. What is read is kept."""\n#: Bytes of a chunk.\n# Whatever is left, Officially\nx = "Of"\n'
    assert riddles_in(plain) == []
    engine = "/// Whether it is.\n/// What it is.\nint a;  // Of b\n// Sizes of a.\n\n//   Where b is.\n"
    assert [(line, text) for _, line, text in riddles_in(engine, cpp=True)] == [
        (1, "Whether it is."),
        (6, "Where b is."),
    ]
