"""What the README promises a reader who copies from it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.support.paths import ROOT

README = (ROOT / "README.md").read_text()


def examples(document: Path) -> list[str]:
    """Return the Python code blocks of a document."""
    return re.findall(r"```python\n(.*?)```", document.read_text(), flags=re.DOTALL)


INTEGRATIONS = ROOT / "docs" / "integrations.md"
#: Document, number of the code block, what it prints, and whether warnings are errors: ours are, those of others not.
EXAMPLES = [
    (ROOT / "README.md", 0, ["600 samples in 12 batches", "amplification"], True),
    (ROOT / "README.md", 1, [], True),
    (INTEGRATIONS, 0, [], False),
    (INTEGRATIONS, 1, ["train_loss"], False),
    (INTEGRATIONS, 2, [], True),
    (INTEGRATIONS, 3, [], True),
]


def test_all_examples_are_run() -> None:
    for document in (ROOT / "README.md", INTEGRATIONS):
        assert len(examples(document)) == sum(of == document for of, *_ in EXAMPLES)


@pytest.mark.parametrize(
    ("document", "number", "printed", "strict"), EXAMPLES, ids=[f"{of.stem}-{number}" for of, number, *_ in EXAMPLES]
)
def test_the_examples_run_as_they_stand(
    document: Path, number: int, printed: list[str], strict: bool, tmp_path: Path
) -> None:
    group = zarr.create_group(str(tmp_path / "train.zarr"))
    group.create_array(
        "samples", data=np.random.default_rng(0).random((200, 3, 4), dtype=np.float32), chunks=(16, 3, 4)
    )
    group.create_array("targets", data=np.arange(200, dtype=np.float32), chunks=(50,))
    script = tmp_path / "script.py"  # a file, as workers that are spawned import it
    script.write_text(examples(document)[number])
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    result = subprocess.run(
        [sys.executable, *(["-W", "error"] if strict else []), str(script)],
        cwd=tmp_path,
        env=os.environ | offline | {"ACCELERATE_USE_CPU": "1", "HF_HOME": str(tmp_path)},
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
