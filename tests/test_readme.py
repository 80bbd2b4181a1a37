"""What the README promises a reader who copies from it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import zarr

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


EXAMPLES = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize(
    ("number", "printed"), [(0, ["600 samples in 12 batches", "amplification"]), (1, [])], ids=["first", "resuming"]
)
def test_the_examples_run_as_they_stand(number: int, printed: list[str], tmp_path: Path) -> None:
    assert len(EXAMPLES) == 2
    group = zarr.create_group(str(tmp_path / "train.zarr"))
    group.create_array(
        "samples", data=np.random.default_rng(0).random((200, 3, 4), dtype=np.float32), chunks=(16, 3, 4)
    )
    group.create_array("targets", data=np.arange(200, dtype=np.float32), chunks=(50,))
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", EXAMPLES[number]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert all(text in result.stdout for text in printed)


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


def test_links_between_documents_lead_somewhere() -> None:
    for document in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"
