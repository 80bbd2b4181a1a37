"""dev/messages.py: it lists the messages of errors, and none of them names a class that users cannot import."""

from __future__ import annotations

import importlib
import importlib.util
import re

import zarrfeed
from tests.support.paths import ROOT

spec = importlib.util.spec_from_file_location("messages", ROOT / "dev" / "messages.py")
assert spec is not None
assert spec.loader is not None
lister = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lister)

#: Modules whose names users import, beside those of the package itself.
PUBLIC = ("checkpoint", "compat.dataflux", "compat.zarrdataset", "device", "objects")

#: Phrases that stand for a noun, and the way to say it: "must be a URL such as", "supported: ", "got a".
RIDDLES = re.compile(r"must be such as|possible are|is of the type \{type|nothing is known")


def private_classes() -> set[str]:
    """Return the classes of src that users cannot import; a word of two humps, so that "Pass" is not one."""
    modules = [zarrfeed, *(importlib.import_module(f"zarrfeed.{name}") for name in PUBLIC)]
    public = {name for module in modules for name in dir(module)}
    defined = {
        name
        for path in (ROOT / "src").rglob("*.py")
        for name in re.findall(r"^ *class (\w+)", path.read_text(), re.MULTILINE)
    }
    return {name for name in defined - public if re.search(r"[a-z][A-Z]|^_", name)}


def test_messages_name_no_private_class_and_are_no_riddles() -> None:
    private, found = private_classes(), lister.messages()
    assert len(found) > 1000
    assert "ArraySpec" in private
    wrong = [
        f"{one.path}:{one.line}: {one.text}"
        for one in found
        if private & set(re.findall(r"\w+", re.sub(r"\{.*?\}", "", one.text)))
        or re.search(r"type\(self\)|__class__", one.text)
        or RIDDLES.search(one.text)
    ]
    assert wrong == []


def test_messages_are_listed_as_they_are_written() -> None:
    source = (
        'raise ConfigError(f"{name} = {value!r}, " "must be " + allowed)\n'
        'error = StoreReadError(errno.EIO, f"{path}: is gone")\n'
        'warnings.warn("late", stacklevel=2)\n'
        "raise error\n"
        'print("no message")\n'
    )
    assert [tuple(one)[1:] for one in lister.python_messages("a.py", source)] == [
        (1, "ConfigError", "{name} = {value!r}, must be {allowed}"),
        (2, "StoreReadError", "{path}: is gone"),
        (3, "warn", "late"),
    ]
    cpp = '// throw Error(kConfig, "no")\nif (a) {\n  throw Error(kConfig, "a (b)" +\n      name);\n}\nreturn f("x");\n'
    assert [tuple(one)[1:] for one in lister.cpp_messages("a.cc", cpp)] == [(3, "Error", 'kConfig, "a (b)" + name')]
