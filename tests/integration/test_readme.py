"""What the README promises a reader who copies from it."""

from __future__ import annotations

import re
import tomllib

from tests.support.paths import ROOT

README = (ROOT / "README.md").read_text()


def test_both_commands_use_the_constraints_and_extras_that_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    commands = re.findall(r'^pip install -c constraints\.txt "\.\[(\w+)\]" && (\S+)', README, flags=re.MULTILINE)
    assert commands == [("demo", "zarrfeed"), ("test", "pytest")]
    assert all(extra in extras for extra, _ in commands)


def test_what_is_tested_with_is_pinned() -> None:
    pins = {line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + [r for group in project["optional-dependencies"].values() for r in group]
    names = {re.split(r"[\[<>=]", requirement)[0].lower() for requirement in wanted} - {"zarrfeed"}
    assert names <= pins
