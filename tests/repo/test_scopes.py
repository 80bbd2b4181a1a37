"""`tests.support.scopes`: the files that share Lightning run in one process, and all others as files."""

from __future__ import annotations

import re

from tests.support.paths import ROOT
from tests.support.scopes import LIGHTNING, scope_of

#: A file uses Lightning in the test process if it imports it there, or a file that does.
_USES = re.compile(r'Later\("(lightning|zarrfeed\.compat\.lightning)"\)|from tests\.integration\.test_lightning import')


def test_files_that_use_lightning_in_their_own_process_share_one() -> None:
    tests = ROOT / "tests"
    using = {path.relative_to(tests).as_posix() for path in tests.rglob("test_*.py") if _USES.search(path.read_text())}
    assert using - {"repo/test_scopes.py"} == LIGHTNING
    assert {scope_of(f"tests/{file}::test[a::b]") for file in LIGHTNING} == {"lightning"}
    assert scope_of("tests/unit/test_a.py::test_b[c::d]") == "tests/unit/test_a.py"
