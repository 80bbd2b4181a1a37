"""What the README promises a reader who copies from it."""

from __future__ import annotations

import contextlib
import io
import re
import tomllib
from pathlib import Path

import pytest

from tests.repo.test_code_blocks import blocks_of
from tests.support.paths import ROOT

README = (ROOT / "README.md").read_text()
FRONT_PAGE = (ROOT / "docs" / "index.md").read_text()


def test_it_begins_with_two_commands_five_lines_and_all_that_they_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    demo, tests, lines, output, *_ = blocks_of(README)
    assert [one.body.split(" && ")[1] for one in (demo, tests)] == ["zarrfeed demo\n", "pytest\n"]
    assert len([line for line in lines.body.splitlines() if line]) == 5
    for _ in range(2):  # a reader may run them again
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(lines.body, "README.md", "exec"), {})
        assert (output.comment, output.body) == ("output", printed.getvalue())


def test_the_front_page_of_the_documentation_has_the_same_lines() -> None:
    ours, theirs = ([(b.language, b.body) for b in blocks_of(text)] for text in (README, FRONT_PAGE))
    assert ours[2:4] == theirs[1:3]
    for text, folder in ((README, "docs/"), (FRONT_PAGE, "")):
        assert re.search(rf"^!\[[^]]+\]\({folder}pictures/rows\.svg\)$", text, flags=re.MULTILINE)


def test_both_commands_use_the_constraints_and_extras_that_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    commands = re.findall(r'^pip install -c constraints\.txt "\.\[(\w+)\]" && (\S+)', README, flags=re.MULTILINE)
    assert commands == [("demo", "zarrfeed"), ("test", "pytest")]
    assert all(extra in extras for extra, _ in commands)


def test_it_is_one_screen_and_the_site_lists_the_extras_of_users() -> None:
    assert README.count("\n") <= 120
    table = (ROOT / "docs" / "install.md").read_text().partition("## Extras")[2].partition("\n## ")[0]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| (.+) \|$", table, flags=re.MULTILINE))
    others = re.findall(r"`(\w+)`", table.rpartition("|\n\n")[2].partition(" are for work")[0])
    assert sorted([*rows, *others]) == sorted(extras)
    for extra, brings in rows.items():
        wanted = {re.split(r"[\[<>=]", one)[0] for one in extras[extra]} - {"zarrfeed"}
        assert wanted == set(re.findall(r"[\w-]+", brings)) - {"and", "cli"}, extra


def test_what_is_tested_with_is_pinned() -> None:
    pins = {line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + [r for group in project["optional-dependencies"].values() for r in group]
    names = {re.split(r"[\[<>=]", requirement)[0].lower() for requirement in wanted} - {"zarrfeed"}
    assert names <= pins
