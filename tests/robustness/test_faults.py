"""Every row of the table of faults, a few tries of each; and the harness itself, which must not miss a bad one."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.harness.row import Row, UnspecifiedError
from tests.faults.harness.runner import run_row
from tests.faults.io.shim import Calls, Fault, injected
from tests.faults.process.exits import check_temporary_files
from tests.faults.rows import ROWS, SHORT
from tests.faults.run import main, to_markdown
from tests.support.fault_rows import mixed

#: Tries of each row with --large, at most.
_LARGE = 10


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """With --large each row has a process of its own, and some tries more; `tests.faults.run` makes all tries."""
    if "row" in metafunc.fixturenames:
        many = [replace(row, short_runs=min(row.runs, _LARGE)) for row in ROWS]
        rows = many if metafunc.config.getoption("--large") else SHORT
        metafunc.parametrize("row", rows, ids=lambda row: row.name)


@pytest.mark.timeout(900)  # a try that hangs is found by its row, after up to 300 s, and says where it stands
def test_row_ends_as_specified(row: Row) -> None:
    count = run_row(row, row.short_runs)
    assert count.is_good, (count.wrong, count.stuck)
    assert count.runs == row.short_runs


def test_the_harness_misses_nothing() -> None:
    variables = {"FAULT": "in the environment"}
    row = Row("mixed", "each kind of end", "each is counted", mixed, runs=6, timeout_s=1.5, variables=lambda: variables)
    count = run_row(row, 6)
    assert count.outcomes.total() == 2
    assert count.outcomes["in the environment"] == 1
    assert sorted(count.wrong) == [1, 2, 4]
    assert count.wrong[1] == "a wrong value"
    assert "KeyError: 'a surprise'" in count.wrong[2]
    assert "status -11" in count.wrong[4]
    assert count.hangs == [3]
    assert "in mixed" in count.stuck[3]
    assert not count.is_good
    assert count.runs == 6
    assert run_row(row, 1, first=5).outcomes == {what: 1 for what in count.outcomes if what.startswith("fine")}
    assert to_markdown(row, count).endswith("| 3 | 1 |")


def test_the_names_of_rows_are_distinct() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)


def test_a_fault_is_not_taken_for_injected_without_the_library(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="not preloaded"), injected(Fault(Calls.READ, tmp_path)):
        pass


@pytest.mark.parametrize("dies_in", ["write", "close", "unlink"])
def test_a_probe_of_tempfile_is_no_file_of_ours(tmp_path: Path, dies_in: str) -> None:
    """A process may be killed while `tempfile` looks whether it can write to a folder."""
    (tmp_path / "tmp").mkdir()
    code = f"import os, tempfile; os.{dies_in} = lambda *_: os.kill(os.getpid(), 9); tempfile.gettempdir()"
    variables = os.environ | {"TMPDIR": str(tmp_path / "tmp")}
    ended = subprocess.run([sys.executable, "-c", code], env=variables, check=False)
    assert ended.returncode == -9
    (left,) = (tmp_path / "tmp").iterdir()
    check_temporary_files(tmp_path, "killed")
    left.write_bytes(b"batches")
    with pytest.raises(UnspecifiedError, match=f"killed: temporary files are left: .*{left.name}"):
        check_temporary_files(tmp_path, "killed")


def test_an_unknown_row_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--rows", "nonsense"])
    assert "no such row: nonsense" in capsys.readouterr().err
