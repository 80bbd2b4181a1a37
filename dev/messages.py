"""List all messages of errors and warnings, with their file, line and class, to read them in one go.

`python dev/messages.py` prints those of src/ and cpp/; `python dev/messages.py ConfigError` those of one class. An
expression in a message is printed as its source in braces. tests/repo/test_messages.py has rules about what is listed.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]

#: A class of an error or a warning, by its name.
_IS_ERROR = re.compile(r"\w+(?:Error|Warning|Exception|Exit)|warn")

#: What makes an error in C++, up to its arguments.
_CPP_ERROR = re.compile(r"\b(?:throw|return) ([\w:]+)\(|\b(Error::\w+|throw_\w+|std::runtime_error)\(")


class Message(NamedTuple):
    """A message of an error; `name` is the class, or the function of C++ that makes the error."""

    path: str
    line: int
    name: str
    text: str


def text_of(node: ast.expr) -> str:
    """Return the text of an expression; parts that are calculated are in braces, as their source."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(one) for one in node.values)
    if isinstance(node, ast.FormattedValue):
        conversion = "" if node.conversion == -1 else f"!{chr(node.conversion)}"
        return "{" + ast.unparse(node.value) + conversion + "}"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return text_of(node.left) + text_of(node.right)
    return "{" + ast.unparse(node) + "}"


def python_messages(path: str, source: str) -> Iterator[Message]:
    """Yield the messages of calls that make an error or a warning, whether they are raised there or returned."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if _IS_ERROR.fullmatch(name) and node.args:
            # the first arguments of some classes are an errno, or a program's name
            texts = [text for one in node.args if not (text := text_of(one)).startswith("{errno")]
            yield Message(path, node.lineno, name, " | ".join(texts[:1] if name == "warn" else texts))


def cpp_messages(path: str, source: str) -> Iterator[Message]:
    """Yield the messages of errors that C++ throws or returns: their arguments, on one line."""
    for found in _CPP_ERROR.finditer(re.sub(r"//.*", lambda comment: " " * len(comment[0]), source)):
        name = found[1] or found[2]
        depth, end = 1, found.end()
        while depth and end < len(source):
            depth += {"(": 1, ")": -1}.get(source[end], 0)
            end += 1
        text = " ".join(source[found.end() : end - 1].split())
        if '"' in text and (found[2] or "rror" in name):
            yield Message(path, source.count("\n", 0, found.start()) + 1, name, text)


def messages(root: Path = ROOT) -> list[Message]:
    """Return all messages of the package and of the engine, by file and line."""
    found: list[Message] = []
    for folder, suffixes, read in (("src", {".py"}, python_messages), ("cpp", {".cc", ".h"}, cpp_messages)):
        for path in sorted((root / folder).rglob("*")):
            name = path.relative_to(root).as_posix()
            if path.suffix in suffixes and not name.startswith(("cpp/tests/", "cpp/fuzz/")):
                found += sorted(read(name, path.read_text()), key=lambda one: one.line)
    return found


def main() -> None:
    """Print the messages, or those of some classes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="classes to list, such as ConfigError; none: all")
    names = parser.parse_args().names
    for one in messages():
        if not names or one.name in names:
            print(f"{one.path}:{one.line}: {one.name}: {one.text}")


if __name__ == "__main__":
    main()
